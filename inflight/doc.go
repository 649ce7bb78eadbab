// Package inflight limits how many calls run at once: 5 exports of a user, 32 requests on a
// model, over all processes that share a store.
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
// A [Slot] is held until its Release, also if ctx ends. It is renewed at a third of its life. If
// its process dies it is free again when its life is over.
//
// In a [ratelimit.All], slots and rates are decided together: requests a minute, tokens a minute
// and requests at once, all or none. Release gives back the slot alone.
//
// Bound: while slots are renewed in time, at no instant of the store's clock are more than n of a
// key held. A process that is stopped, or whose store is away for longer than a life, works on
// beyond its slot until it looks: see [Slot.Context], [Slot.Lost] and [Slot.Token].
//
// Cost: a Hold and a Release are a call of the store each. A slot takes some 130 bytes in Redis,
// and one call in a third of its life, which many slots share. In memory it takes 16 bytes.
//
// In an outage package fallback answers. Slots that are held go on, and what was let through
// meanwhile takes a slot when there is one.
//
// RetryAfter of a denial is the end of a slot that nobody gives back. [Wait] waits for one that is.
// The middlewares of httplimit and grpclimit hold a slot for each request. Who holds a slot of a key
// and waits for another may wait for itself.
package inflight

// Algorithm is the name of the rule, as in [ratelimit.Policy] and observers.
const Algorithm = "in_flight"
