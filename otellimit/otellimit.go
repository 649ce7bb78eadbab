// Package otellimit shows the decisions of limiters to OpenTelemetry: their counts as
// metrics, and each of them on the span of its caller. [Register] makes instruments that read
// [observe.Counters] when metrics are collected, so that a decision costs nothing more:
//
//	registration, err := otellimit.Register(otellimit.Config{Counters: []*observe.Counters{api}})
//
// These are its metrics, and their attributes. None of them is ever a key.
//
//	ratelimit.decisions        counter    limiter, outcome, source   calls that were decided
//	ratelimit.events           counter    limiter, outcome           the events that they asked for
//	ratelimit.denied_by        counter    limiter, denied_by         denials by the limit that denied
//	ratelimit.errors           counter    limiter, error.type        calls that ended with an error
//	ratelimit.admissions       counter    limiter, headroom          admissions by what they left: 0 to 10 tenths of the limit
//	ratelimit.breaker.state    up/down    limiter, state             1 for the current state of a fallback, 0 for the others
//	ratelimit.store.keys       up/down    store                      keys that a memory holds
//	ratelimit.store.evictions  counter    store                      keys that a full memory has forgotten
//	ratelimit.waiting          up/down    limiter                    callers that sleep in a throttle.Waiter
//	ratelimit.pauses           counter    limiter                    times that a server made a Transport wait
//	ratelimit.paused           up/down    limiter                    keys of a Transport that wait for their server
//	ratelimit.lease.calls      counter    limiter, lease.by          decisions of a lease by "local", and calls by "store", "unleased" and "lost"
//	ratelimit.lease.events     counter    limiter, lease.fate        events "granted", "lapsed", "given_back" and "overdrawn"
//	ratelimit.lease.held       up/down    limiter                    events that this process holds
//	ratelimit.limit            gauge      limiter, policy            events that a limit admits at one instant
//	ratelimit.slot.held        up/down    limiter                    slots that this process holds
//	ratelimit.slot.endings     counter    limiter, slot.reason       of slots: "released", "too_long", "forgotten"; also "lost", before one of these
//	ratelimit.slot.duration    counter    limiter                    seconds that the slots were held which have ended, their sum
//	ratelimit.plan.answers     counter    plans, plan.age            answers of a plancache from memory, "fresh" or "stale"
//	ratelimit.plan.queries     counter    plans                      queries of a plancache
//	ratelimit.plan.failures    counter    plans                      of them, those that failed
//	ratelimit.plan.keys        up/down    plans                      keys that a plancache remembers
//
// Except for error.type, attributes begin with "ratelimit." too: "ratelimit.limiter". That of
// a state is "ratelimit.breaker.state". An outcome is "allowed" or "denied", a source the text
// of a [ratelimit.Source], and an error.type one of [observe.ErrorClass].
//
// How long decisions took is not among them: no instrument can be given a histogram that was
// counted elsewhere. [Durations] writes one, ratelimit.decision.duration.
//
// OpenTelemetry has no semantic conventions for rate limits yet (issue 3361 of
// open-telemetry/semantic-conventions). So these names may change, also in a minor version.
package otellimit
