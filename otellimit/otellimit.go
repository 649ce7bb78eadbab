// Package otellimit exports the decisions of limiters to OpenTelemetry: their numbers as metrics,
// and each decision on the span of its caller. [Register] creates instruments that read
// [observe.Counters] when metrics are collected, so a decision costs nothing more:
//
//	registration, err := otellimit.Register(otellimit.Config{Counters: []*observe.Counters{api}})
//
// It exports these metrics, with these attributes. No attribute is ever a key.
//
//	ratelimit.decisions        counter    limiter, outcome, source   calls that were decided
//	ratelimit.events           counter    limiter, outcome           the events that they asked for
//	ratelimit.denied_by        counter    limiter, denied_by         denials by the limit that denied
//	ratelimit.errors           counter    limiter, error.type        calls that returned an error
//	ratelimit.admissions       counter    limiter, headroom          admissions by what they left: 0 to 10 tenths of the limit
//	ratelimit.breaker.state    up/down    limiter, state             1 for the current state of a fallback, 0 for the others
//	ratelimit.store.keys       up/down    store                      keys that a memstore holds
//	ratelimit.store.evictions  counter    store                      keys that a full memstore has forgotten
//	ratelimit.waiting          up/down    limiter                    callers that sleep in a throttle.Waiter
//	ratelimit.pauses           counter    limiter                    times that a server made a Transport wait
//	ratelimit.paused           up/down    limiter                    keys of a Transport that wait for their server
//	ratelimit.lease.calls      counter    limiter, lease.by          decisions of a lease by "local", and calls by "store", "unleased" and "lost"
//	ratelimit.lease.events     counter    limiter, lease.fate        events "granted", "lapsed", "given_back" and "overdrawn"
//	ratelimit.lease.held       up/down    limiter                    events that this process holds
//	ratelimit.limit            gauge      limiter, policy            events that a limit admits at one instant
//	ratelimit.slot.held        up/down    limiter                    slots that this process holds
//	ratelimit.slot.endings     counter    limiter, slot.reason       slots that were "released", "too_long" or "forgotten"; "lost" ones are counted again when they end
//	ratelimit.slot.duration    counter    limiter                    seconds that ended slots were held, in total
//	ratelimit.plan.answers     counter    plans, plan.age            cached answers of a plancache, "fresh" or "stale"
//	ratelimit.plan.queries     counter    plans                      queries of a plancache
//	ratelimit.plan.failures    counter    plans                      queries of a plancache that failed
//	ratelimit.plan.keys        up/down    plans                      keys in a plancache
//
// All attributes except error.type begin with "ratelimit.", for example "ratelimit.limiter". The
// attribute for a state is "ratelimit.breaker.state". An outcome is "allowed" or "denied", a source
// the String of a [ratelimit.Source], and an error.type the result of [observe.ErrorClass].
//
// The durations of decisions are not among these metrics, because no instrument accepts a histogram
// that was counted elsewhere. Use [Durations], which records the histogram
// ratelimit.decision.duration.
//
// OpenTelemetry has no semantic conventions for rate limits yet (issue 3361 of
// open-telemetry/semantic-conventions). These names may therefore change, even in a minor version.
package otellimit
