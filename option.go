package ratelimit

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/coalesce"
)

// Option sets what is optional about a limiter.
type Option func(*limiter) error

// WithName gives the limiter a namespace of its own in its store. Limiters of
// the same algorithm and Period that share a name share their keys' spend, and
// the spend stays when Rate or Burst change. Without it the Rate and Burst are
// part of the namespace, so that limiters of different limits never share. Two limiters
// of the same algorithm and limit on one store share their counts unless they are named.
//
// The name must not be empty or contain braces, which Redis reads as hash tags.
func WithName(name string) Option {
	return func(lim *limiter) error {
		if name == "" || strings.ContainsAny(name, "{}") {
			return fmt.Errorf("%w: WithName(%q): a name is not empty and has no braces", ErrInvalidOption, name)
		}
		lim.name = name
		return nil
	}
}

// WithPolicyName sets what the limiter is called where people read it: the Name of its
// [Policy], [Result.DeniedBy], header fields. Without it that is its name, and without
// one its limit as text. It has no part in whose spend is whose. The name must not be
// empty.
func WithPolicyName(name string) Option {
	return func(lim *limiter) error {
		if name == "" {
			return fmt.Errorf("%w: WithPolicyName(%q)", ErrInvalidOption, name)
		}
		lim.policyName = name
		return nil
	}
}

// WithLimitFunc asks f for the limit of each key on each call: tiers, limits per
// user, limits that follow load. The zero Limit means the constructor's; an
// invalid one is [ErrInvalidLimit] for that call, and an error of f is returned
// as it is; nothing is consumed then. f must be safe for concurrent use.
//
// A key keeps its spend when its limit changes: it is read as at most the new
// capacity, so that a change is never a free burst above the new limit and never
// locks a key out for longer than a full refill. It keeps it for the ResetAfter of
// its last admission: from then on the key is as never seen, even if by a slower
// limit of today it would last longer, and so RetryAfter may be too long until then.
// What the window counters have counted in another Period ends with today's window.
func WithLimitFunc(f func(ctx context.Context, key string) (Limit, error)) Option {
	return func(lim *limiter) error {
		if f == nil {
			return fmt.Errorf("%w: WithLimitFunc(nil)", ErrInvalidOption)
		}
		lim.limitFunc = f
		return nil
	}
}

// WithTiers gives each key the limit of its tier: of, which is asked on each call,
// names the tier of a key, and tiers has their limits, [Unlimited] and a Rate of 0
// included, which need no store. A tier that tiers does not have, such as "", has the
// constructor's limit; an error of of is returned as it is, and nothing is consumed. A
// change of tier keeps the spend, as [WithLimitFunc] says, whose place it takes.
//
// Its errors are [ErrInvalidOption] (of is nil) and [ErrInvalidLimit] (a tier's limit is
// none for this algorithm).
func WithTiers(of func(ctx context.Context, key string) (tier string, err error), tiers map[string]Limit) Option {
	return func(lim *limiter) error {
		if of == nil {
			return fmt.Errorf("%w: WithTiers(nil, ...)", ErrInvalidOption)
		}
		limits := maps.Clone(tiers)
		for tier, l := range limits {
			if _, err := lim.algorithm.integers(l); err != nil {
				return fmt.Errorf("tier %q: %w", tier, err)
			}
		}
		lim.tiers = limits
		lim.limitFunc = func(ctx context.Context, key string) (Limit, error) {
			tier, err := of(ctx, key)
			return limits[tier], err
		}
		return nil
	}
}

// WithCoalescing asks the store once for many callers: while a call of Allow on a
// key is under way, others on the same key wait, and are then decided together by
// one call that admits as many of them as fit, in the order in which they came. Each
// gets the Result that it would have got alone, one after the other at that instant.
//
// Use it for hot keys on Redis, where the round trip is what a decision costs: one key
// can then be asked for more often than Redis answers. A call that meets no other on
// its key costs what it did. One that does waits for those under way and for its own,
// each of which is two where some are admitted and others are not, so for up to four
// times the store's timeout. A goroutine asks for those who wait, and ends with the last
// of them. A caller whose ctx ends while it waits leaves, and what was admitted for it
// goes to the next or back.
//
// AllowN of more than one event, AllowUpTo, AllowWithin of the buckets, Peek, Refund and
// Reset are not coalesced.
func WithCoalescing() Option {
	return func(lim *limiter) error {
		lim.coalesced = true
		lim.front = coalesce.New(lim.store, coalesce.Algorithm{After: lim.algorithm.after, Receipt: lim.algorithm.receipt})
		return nil
	}
}
