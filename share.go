package ratelimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Share returns a limiter on s that admits 1/n of what l does, for an instance of n that
// limit on their own: see [Limit.Share]. It has l's algorithm, name and options, and shares
// of all its limits, those of tiers and of a limit function included. What stands before l's store
// is left out, since s is expected to be in memory. So are observers. Its Limit and its policies'
// names are those of l.
//
// l is one of the five algorithms, or a [Rekeyed], a [PerCall] or an [All] around them.
// Otherwise the error is [ErrInvalidOption]. It is [ErrInvalidLimit] if n is below 1, or a
// limit of l or of its tiers has no such share. Of limits that a function gives, that is
// an error of the call.
func Share(l Limiter, s store.Store, n int) (Limiter, error) {
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	switch l := l.(type) {
	case *All:
		parts := make([]Limiter, len(l.parts))
		for i := range l.parts {
			var err error
			if parts[i], err = Share(l.parts[i].limiter, s, n); err != nil {
				return nil, err
			}
		}
		return NewAll(parts...)
	case *perCall:
		inner, err := Share(l.limiter, s, n)
		if err != nil {
			return nil, err
		}
		return PerCall(inner)
	case *observed:
		return Share(l.limiter, s, n)
	case *Rekeyed:
		inner, err := Share(l.limiter, s, n)
		if err != nil {
			return nil, err
		}
		return &Rekeyed{inner, l.key}, nil
	}
	if lim := coreOf(l); lim != nil {
		return lim.share(s, n)
	}
	return nil, fmt.Errorf("%w: a %T has no share: make its local limiter yourself", ErrInvalidOption, l)
}

// share is Share of one limiter. Its identity is by the whole limit: that of a share has
// another Period for some rates.
func (lim *limiter) share(s store.Store, n int) (Limiter, error) {
	of := func(l Limit) (Limit, error) {
		if lim.rule.Burst && l.Burst == 0 && l.Rate > 0 { // or else a share is rounded down
			l.Burst = l.Rate
		}
		l, err := l.Share(n)
		if err == nil {
			_, err = integers(lim.rule, l)
		}
		return l, err
	}
	own, err := of(lim.limit)
	if err != nil {
		return nil, err
	}
	for _, l := range lim.tiers {
		if _, err := of(l); err != nil {
			return nil, err
		}
	}
	opts := []Option{WithPolicyName(lim.policyName), WithLimitFunc(func(ctx context.Context, key string) (Limit, error) {
		if lim.limitFunc == nil {
			return own, nil
		}
		l, err := lim.limitFunc(ctx, key)
		if err != nil || l == (Limit{}) {
			return own, err
		}
		return of(l)
	})}
	if lim.name != "" {
		opts = append(opts, WithName(lim.name))
	}
	return New(lim.rule.Name, s, lim.limit, opts...)
}
