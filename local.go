package ratelimit

import (
	"context"
	"reflect"

	"github.com/ratelimit-go/ratelimit/store"
)

// local makes what stands in for lim in one of so many instances while their store fails. It
// counts on s, which is expected to be in memory, and has 1/instances of each limit, those of
// tiers and of a limit function included. It has the algorithm, name and options of lim, but no
// observers. Its Limit and the names of its policies are those of lim.
//
// The error is [ErrInvalidLimit] if instances is below 1, or a limit has no such share. Of
// limits that a function gives, that is an error of the call.
func (lim *limiter) local(self Limiter, s store.Store, instances int) (Limiter, error) {
	of := func(l Limit) (Limit, error) {
		if lim.rule.Burst && l.Burst == 0 && l.Rate > 0 { // or else a share is rounded down
			l.Burst = l.Rate
		}
		l, err := l.share(instances)
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
	// The identity is by the whole limit: that of a share has another Period for some rates.
	opts := []Option{WithPolicyName(lim.policyName), lim.asHere, WithLimitFunc(func(ctx context.Context, key string) (Limit, error) {
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
	type one interface {
		Limiter
		core() *limiter
	}
	l := reflect.New(reflect.TypeOf(self).Elem()).Interface().(one) // by New, makers would refer to itself
	if err := l.core().build(l, lim.rule, s, lim.limit, opts); err != nil {
		return nil, err
	}
	return l, nil
}

// asHere is an Option: to count by the same keys, and what this limiter counts.
func (lim *limiter) asHere(other *limiter) error {
	other.keyFunc, other.calls = lim.keyFunc, lim.calls
	return nil
}
