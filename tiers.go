package ratelimit

import (
	"context"
	"fmt"
	"maps"
)

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
		lim.limitFunc = func(ctx context.Context, key string) (Limit, error) {
			tier, err := of(ctx, key)
			return limits[tier], err
		}
		return nil
	}
}
