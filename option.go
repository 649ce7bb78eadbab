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
)

// Option sets what is optional about a limiter.
type Option func(*limiter) error

// WithName names the limiter in its store. Limiters of one algorithm, Period and name share their
// keys' counts, and keep them when Rate or Burst change. Without a name, these take its place. It
// is UTF-8, not empty, and without braces.
func WithName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || strings.ContainsAny(name, "{}") || !utf8.ValidString(name) {
			return fmt.Errorf("%w: WithName(%q): a name is not empty, has no braces and is UTF-8", ErrInvalidOption, name)
		}
		lim.name = name
		return nil
	}
}

// WithPolicyName sets the name that people read, in [Policy] and [Result.DeniedBy], in place of
// WithName's. It is UTF-8 and not empty.
func WithPolicyName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || !utf8.ValidString(name) {
			return fmt.Errorf("%w: WithPolicyName(%q): a name is UTF-8 and not empty", ErrInvalidOption, name)
		}
		lim.policyName = name
		return nil
	}
}

// WithLimitFunc asks f for the limit of each key on each call (see [KeepLimits]). The zero Limit
// means the constructor's. After an error of f, or an invalid limit, nothing is charged. f must be
// safe for concurrent use. Before a database put package plancache.
//
// A key keeps its count when its limit changes, read as at most the new capacity.
// [What a change may cost].
//
// [What a change may cost]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/promises.md#a-limit-that-changes
func WithLimitFunc(f func(ctx context.Context, key string) (Limit, error)) Option {
	return func(lim *limiter) error {
		if f == nil {
			return fmt.Errorf("%w: WithLimitFunc(nil)", ErrInvalidOption)
		}
		return lim.askLimitsOf(f)
	}
}

// askLimitsOf makes f the limit function. A second one would leave the first without effect.
func (lim *limiter) askLimitsOf(f func(ctx context.Context, key string) (Limit, error)) error {
	if lim.limitFunc != nil {
		return fmt.Errorf("%w: two functions say a key's limit: want one WithLimitFunc or WithTiers", ErrInvalidOption)
	}
	lim.limitFunc = f
	return nil
}

// WithTiers is a [WithLimitFunc] that gives each key the limit of its tier, which the function of
// says on each call. A tier that is not in tiers, such as "", has the constructor's limit.
func WithTiers(of func(ctx context.Context, key string) (tier string, err error), tiers map[string]Limit) Option {
	return func(lim *limiter) error {
		if of == nil {
			return fmt.Errorf("%w: WithTiers(nil, ...)", ErrInvalidOption)
		}
		if len(tiers) == 0 {
			return fmt.Errorf("%w: WithTiers without a tier", ErrInvalidOption)
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

// WithKeyFunc counts by another key than the one that is asked for, such as the user's tenant.
// Limit functions and observers get that one. Each call asks f, also Refund, Peek and Reset, which
// need the same key. f must be safe for concurrent use, and inside a fallback not depend on ctx.
func WithKeyFunc(f func(ctx context.Context, key string) (string, error)) Option {
	return func(lim *limiter) error {
		switch {
		case f == nil:
			return fmt.Errorf("%w: WithKeyFunc(nil)", ErrInvalidOption)
		case lim.keyFunc != nil:
			return fmt.Errorf("%w: two functions make the key: want one WithKeyFunc", ErrInvalidOption)
		}
		lim.keyFunc = (*keyFunc)(&f)
		return nil
	}
}

// CountCalls charges one event for each call, whatever its n. In an [All] it limits requests
// beside what they cost: AllowN of 1,200 is then one request and 1,200 tokens, or neither.
//
// [AllowUpTo] grants all or none. Only a Refund of all events of a call gives its one event back.
// Charge charges nothing.
func CountCalls() Option {
	return func(lim *limiter) error {
		lim.calls = true
		return nil
	}
}

// Observer is told of decisions. Package observe has some.
type Observer interface {
	// Decided is told of a decision on n events of key before its caller is answered. It must be
	// fast, safe for concurrent use, and not panic. Beside an err r is zero. n is what was asked
	// for. took is 0 if nobody measures it.
	Decided(ctx context.Context, key string, n int, r Result, err error, took time.Duration)
}

// WithObserver tells each of observers what the limit decides, but not of Peek, Refund and
// Reset. An observer costs some 6 ns. Around of package observe sees what callers are told.
func WithObserver(observers ...Observer) Option { return withObservers(observers, false) }

// WithTimedObserver is [WithObserver], and measures how long decisions take. That costs some
// 75 ns: it is for limiters on Redis.
func WithTimedObserver(observers ...Observer) Option { return withObservers(observers, true) }

func withObservers(more []Observer, timed bool) Option {
	return func(lim *limiter) error {
		if len(more) == 0 {
			return fmt.Errorf("%w: WithObserver of none", ErrInvalidOption)
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

// KeepLimits returns a context for one request, in which [AppendPolicies] and Refund go by the
// limit of the key's last decision, of up to 64 keys. They do not ask [WithLimitFunc] again. The
// middlewares use it.
func KeepLimits(ctx context.Context) context.Context {
	return kept.New[Limit](ctx, false)
}

// askLimit asks the limit function for the limit of a decision.
func (lim *limiter) askLimit(ctx context.Context, key string) (Limit, error) {
	return kept.In[Limit](ctx).Ask(ctx, lim, key, lim.limitFunc)
}

// keptLimit is the limit of the last decision, if ctx knows that, and else asks.
func (lim *limiter) keptLimit(ctx context.Context, key string) (Limit, error) {
	if l, ok := kept.In[Limit](ctx).Find(lim, key); ok {
		return l, nil
	}
	return lim.askLimit(ctx, key)
}
