package ratelimit

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/kept"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Option configures a limiter. If an option that sets one value is repeated, the last one counts. Observers
// add up. A second limit function or key function is an error.
type Option func(*limiter) error

// WithName names the limiter in its store. Limiters with the same algorithm, Period and name share the
// counts of their keys, and keep them if the Rate or the Burst changes. Without a name, the Rate and the
// Burst identify the limiter. The name must be UTF-8, not empty, and contain no braces.
func WithName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || strings.ContainsAny(name, "{}") || !utf8.ValidString(name) {
			return fmt.Errorf("%w: WithName(%q): the name must be UTF-8, not empty, and contain no braces", ErrInvalidOption, name)
		}
		lim.name = name
		return nil
	}
}

// WithPolicyName sets the name that users see in [Policy] and [Result.DeniedBy]. By default it is the
// name set by WithName. It must be UTF-8 and not empty.
func WithPolicyName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || !utf8.ValidString(name) {
			return fmt.Errorf("%w: WithPolicyName(%q): the name must be UTF-8 and not empty", ErrInvalidOption, name)
		}
		lim.policyName = name
		return nil
	}
}

// WithLimitFunc makes every call ask f for the limit of its key. If f returns the
// zero Limit, the constructor's limit applies. If f returns an error or an invalid limit, the call
// returns the error and charges nothing. f must be safe for concurrent use. If f reads a database, put
// package plancache in front of it.
//
// When the limit of a key changes, the key keeps its count, which is read as at most the new capacity.
// See [what a change may cost].
//
// [what a change may cost]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/promises.md#a-limit-that-changes
func WithLimitFunc(f func(ctx context.Context, key string) (Limit, error)) Option {
	return func(lim *limiter) error {
		if f == nil {
			return fmt.Errorf("%w: WithLimitFunc(nil)", ErrInvalidOption)
		}
		return lim.askLimitsOf(f)
	}
}

// askLimitsOf makes f the limit function. It refuses a second one, which would replace the first.
func (lim *limiter) askLimitsOf(f func(ctx context.Context, key string) (Limit, error)) error {
	if lim.limitFunc != nil {
		return fmt.Errorf("%w: WithLimitFunc and WithTiers can be used only once, and not together", ErrInvalidOption)
	}
	lim.limitFunc = f
	return nil
}

// WithTiers is a [WithLimitFunc] for plans: every call asks of for the tier of its key, and the limit
// of that tier applies. A tier that is not in tiers, such as "", has the constructor's limit.
func WithTiers(of func(ctx context.Context, key string) (tier string, err error), tiers map[string]Limit) Option {
	return func(lim *limiter) error {
		if of == nil {
			return fmt.Errorf("%w: WithTiers(nil, ...)", ErrInvalidOption)
		}
		if len(tiers) == 0 {
			return fmt.Errorf("%w: WithTiers: want at least one tier", ErrInvalidOption)
		}
		limits := maps.Clone(tiers)
		for tier, l := range limits {
			if _, err := integers(lim.rule, l); err != nil {
				return fmt.Errorf("tier %q: %w", tier, err)
			}
		}
		lim.tiers = limits
		return lim.askLimitsOf(func(ctx context.Context, key string) (Limit, error) {
			tier, err := of(ctx, key)
			return limits[tier], err
		})
	}
}

// WithKeyFunc makes the limiter count by the key that f returns, such as the tenant of a user, instead of
// the key of the call. Limit functions and observers receive the returned key. Every call asks f,
// including Refund, Peek and Reset, for which f must return the same key. f must be safe for concurrent
// use. Inside a fallback, f must not depend on ctx.
func WithKeyFunc(f func(ctx context.Context, key string) (string, error)) Option {
	return func(lim *limiter) error {
		switch {
		case f == nil:
			return fmt.Errorf("%w: WithKeyFunc(nil)", ErrInvalidOption)
		case lim.keyFunc != nil:
			return fmt.Errorf("%w: WithKeyFunc can be used only once", ErrInvalidOption)
		}
		lim.keyFunc = (*keyFunc)(&f)
		return nil
	}
}

// CountCalls makes the limiter charge one event per call, whatever n is. In an [All] it limits the
// number of requests together with their cost: AllowN of 1,200 then admits one request and 1,200
// tokens, or neither.
//
// [AllowUpTo] grants all events or none. The one event of a call is refunded only by a Refund of all
// its events. Charge charges nothing.
func CountCalls() Option {
	return options.Set(func(lim *limiter) { lim.calls = true })
}

// WithReserved leaves n events of each key to other limiters: a call is admitted only if n events remain
// afterwards. It is decided as a call for n more events, and charges only its own. Limiters with the same
// name share their counts whatever they reserve, so that the one that reserves least is the most important.
//
// Limit and Remaining are what this limiter can admit, without the reserved events, and RetryAfter is exact
// for it. [Charge] charges what it must. [AllowWithin] of a [TokenBucket] charges nothing ahead of its time,
// because the event would be taken from those reserved.
//
// WithReserved returns [ErrInvalidOption] if the limit, or that of a tier, does not exceed n, or if the limit is
// [Unlimited]. If a tier has events to reserve, other limits may be Unlimited or have a Rate of 0. On a
// lease, the Burst of a TokenBucket must exceed n by more than what flows in during the TTL. With
// [WithLimitFunc], no limit is refused: if the limit of a key does not exceed n, its calls are denied, with a
// RetryAfter of [Never].
func WithReserved(n int) Option {
	return func(lim *limiter) error {
		switch {
		case n < 0 || n > maxEvents:
			return fmt.Errorf("%w: WithReserved(%d), want 0 to %d", ErrInvalidOption, n, maxEvents)
		case n > 0 && (lim.rule.Held || lim.rule == &ban):
			return fmt.Errorf("%w: WithReserved(%d) cannot be used with %s, which limits no rate", ErrInvalidOption, n, lim.rule.Name)
		}
		if lim.reserved, lim.takeLeaving = int64(n), nil; n > 0 {
			lim.takeLeaving = takeLeaving
		}
		return nil
	}
}

// checkReserved refuses a WithReserved that leaves nothing of a known limit, or has no effect.
func (lim *limiter) checkReserved() error {
	if lim.reserved == 0 {
		return nil
	}
	if see.Divided(lim.store) {
		return fmt.Errorf("%w: WithReserved(%d) cannot be used with package regions, because no region knows what remains in the others", ErrInvalidOption, lim.reserved)
	}
	check := func(l Limit) error {
		switch i, _ := integers(lim.rule, l); { // the constructor and WithTiers have checked it
		case i.Rate < 0:
			return fmt.Errorf("%w: WithReserved(%d) has no effect, because the limit is unlimited", ErrInvalidOption, lim.reserved)
		case i.Burst <= lim.reserved:
			return fmt.Errorf("%w: WithReserved(%d) leaves nothing of %v: want less than %d", ErrInvalidOption, lim.reserved, l, i.Burst)
		}
		return nil
	}
	if lim.limitFunc != nil && lim.tiers == nil { // its limits are not known
		return nil
	}
	limited := func(l Limit) bool { return l != Unlimited() && l.Rate != 0 }
	some := false // whether reserving has an effect on a tier
	for tier, l := range lim.tiers {
		if !limited(l) {
			continue
		}
		if err := check(l); err != nil {
			return fmt.Errorf("tier %q: %w", tier, err)
		}
		some = true
	}
	if limited(lim.limit) || !some {
		return check(lim.limit)
	}
	return nil
}

// Observer is notified of decisions. Package observe has implementations.
type Observer interface {
	// Decided is called after a decision on key, before the caller gets its Result. It must be fast,
	// safe for concurrent use, and not panic. n is the number of events that the call asked for. If
	// err is not nil, r is zero. took is 0 unless it is measured (see [WithTimedObserver]), and at
	// least 1 ns if it is.
	Decided(ctx context.Context, key string, n int, r Result, err error, took time.Duration)
}

// WithObserver notifies observers of the decisions of this limit, except those of Peek, Refund and
// Reset. An observer costs about 6 ns per decision. To observe the results that callers receive, use
// Around of package observe.
func WithObserver(observers ...Observer) Option { return withObservers(observers, false) }

// WithTimedObserver is [WithObserver] that also measures how long each decision takes. The measurement
// costs about 75 ns per decision, so use it for limiters on Redis.
func WithTimedObserver(observers ...Observer) Option { return withObservers(observers, true) }

func withObservers(more []Observer, timed bool) Option {
	return func(lim *limiter) error {
		if len(more) == 0 {
			return fmt.Errorf("%w: WithObserver: want at least one observer", ErrInvalidOption)
		}
		for _, o := range more {
			if isnil.Is(o) {
				return fmt.Errorf("%w: WithObserver(nil)", ErrInvalidOption)
			}
		}
		lim.observers = append(lim.observers, more...)
		lim.timed = lim.timed || timed
		return nil
	}
}

// askLimit asks the limit function for the limit of a decision.
func (lim *limiter) askLimit(ctx context.Context, key string) (Limit, error) {
	return kept.In[Limit](ctx).Ask(ctx, lim, key, lim.limitFunc)
}

// keptLimit returns the limit of the last decision if ctx has it, and otherwise asks.
func (lim *limiter) keptLimit(ctx context.Context, key string) (Limit, error) {
	if l, ok := kept.In[Limit](ctx).Find(lim, key); ok {
		return l, nil
	}
	return lim.askLimit(ctx, key)
}
