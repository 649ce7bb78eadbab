package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ratelimit-go/ratelimit/store"
)

// local returns the limiter that decides in place of lim, in one of several instances, while their
// store fails. It counts on s, which should be in memory, and has 1/instances of each limit,
// including the limits of tiers and of a limit function. It has the algorithm, name and options of
// lim, but no observers. Its Limit and the names of its policies are those of lim.
//
// local returns [ErrInvalidLimit] if instances is below 1, or if a limit has no such share. If the
// limit comes from a limit function, the call returns that error instead.
func (lim *limiter) local(self Limiter, s store.Store, instances int) (Limiter, error) {
	of := func(l Limit) (Limit, error) {
		if lim.rule.Burst && l.Burst == 0 { // or else Share would round down
			l.Burst = max(l.Rate, 0)
		}
		if lim.rule.AnyPeriod { // slots cannot be divided
			if instances < 1 {
				return l, fmt.Errorf("%w: %d instances, want 1 or more", ErrInvalidLimit, instances)
			}
			l.Rate = max(min(l.Rate, 1), l.Rate/instances)
			return l, nil
		}
		l, err := l.Share(instances)
		if err == nil {
			_, err = integers(lim.rule, l)
		}
		return l, err
	}
	own, err := of(lim.limit)
	if err != nil {
		return nil, err
	}
	least := maxEvents // that a share admits at one instant
	for _, l := range append(slices.Collect(maps.Values(lim.tiers)), lim.limit) {
		share, err := of(l)
		if err != nil {
			return nil, err
		}
		if share.Rate > 0 {
			least = min(least, cmp.Or(share.Burst, share.Rate))
		}
	}
	asHere := func(local *limiter) error {
		local.name, local.policyName, local.keyFunc, local.calls = lim.name, lim.policyName, lim.keyFunc, lim.calls
		if lim.reserved > 0 { // a share of the reserve, rounded up unless that leaves nothing
			local.takeLeaving, local.reserved = lim.takeLeaving, min((lim.reserved+int64(instances)-1)/int64(instances), int64(least)-1)
		}
		local.limitFunc = func(ctx context.Context, key string) (Limit, error) {
			if lim.limitFunc == nil {
				return own, nil
			}
			l, err := lim.keptLimit(ctx, key) // the limit of the decision that failed
			if err != nil || l == (Limit{}) {
				return own, err
			}
			return of(l)
		}
		return nil
	}
	// The identity comes from the whole limit, because a share of some rates has another Period.
	return built(newOf(self), lim.rule, s, lim.limit, []Option{asHere})
}
