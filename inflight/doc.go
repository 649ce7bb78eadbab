// Package inflight limits how many calls run at the same time, such as 5 exports per user, or 32
// requests on a model. It is a semaphore, or bulkhead, that all processes on a store share.
//
//	exports, err := inflight.New(redis, 5, time.Minute, ratelimit.WithName("exports"))
//	...
//	slot, r, err := inflight.Hold(ctx, exports, user, 1)
//	switch {
//	case err != nil: // no decision is known
//	case !r.Allowed: // all five are taken
//	}
//	defer slot.Release()
//
// A [Slot] is held until its Release, even if ctx ends. It is renewed three times per lifetime. If
// its process dies, the slot is free again when its lifetime is over.
//
// In a [ratelimit.All], slots and rates are decided together: requests per minute, tokens per
// minute and concurrent requests, all or none. Release releases only the slot.
//
// Bound: while slots are renewed in time, at most n slots of a key are held at any instant of the
// store's clock. A process that is stopped, or that cannot reach its store for longer than a slot's
// lifetime, works beyond its slot until it notices: see [Slot.Context], [Slot.Lost] and
// [Slot.Token].
//
// Cost: Hold and Release are one call to the store each. A slot takes about 130 bytes in Redis, and
// three calls per lifetime, which many slots share. In memory it takes 16 bytes.
//
// In an outage, package fallback can decide. Slots that are held continue, and calls admitted in
// the meantime take a slot when there is one.
//
// Use [Wait] to wait until a slot is released. RetryAfter is when one would expire. The middlewares
// of httplimit and grpclimit hold a slot for each request. A caller that holds a slot and waits for
// another slot of the same key can deadlock.
package inflight

// Algorithm is the name of the rule, as in [ratelimit.Policy] and observers.
const Algorithm = "in_flight"
