package ratelimit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestTiers(t *testing.T) {
	unknown := errors.New("no such user")
	tiers := map[string]ratelimit.Limit{
		"pro": ratelimit.PerHour(10), "internal": ratelimit.Unlimited(), "banned": ratelimit.PerHour(0),
	}
	tier := ""
	of := func(_ context.Context, key string) (string, error) {
		if key == "nobody" {
			return "pro", unknown
		}
		return tier, nil
	}
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(3), ratelimit.WithTiers(of, tiers))
		for _, step := range []struct {
			tier                 string
			n, limit, left       int
			allowed, neverBefore bool
		}{
			{"", 2, 3, 1, true, false},
			{"pro", 5, 10, 3, true, false}, // 7 are spent
			{"unknown", 1, 3, 0, false, false},
			{"banned", 1, 0, 0, false, true},
			{"internal", 1000, 1<<31 - 1, 1<<31 - 1, true, false},
			{"pro", 3, 10, 0, true, false},
		} {
			tier = step.tier
			r := allowN(t, lim, step.n)
			require.Equal(t, step.allowed, r.Allowed, "%s %q", algorithm, step.tier)
			require.Equal(t, step.limit, r.Limit)
			require.Equal(t, step.left, r.Remaining)
			require.Equal(t, step.neverBefore, r.RetryAfter == ratelimit.Never)
		}
		_, err := lim.Allow(t.Context(), "nobody")
		require.ErrorIs(t, err, unknown)
	})

	tiers["pro"] = ratelimit.PerHour(0) // is nobody's any more
	tier = "pro"
	lim := newLimiter(t, "token_bucket", memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(of, map[string]ratelimit.Limit{"pro": ratelimit.PerHour(5)}))
	require.Equal(t, 4, allowN(t, lim, 1).Remaining)

	_, err := ratelimit.NewTokenBucket(memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(nil, tiers))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.NewFixedWindow(memory(t, newClock()), ratelimit.PerHour(3), ratelimit.WithTiers(of, map[string]ratelimit.Limit{"burst": {Rate: 1, Period: 1e9, Burst: 2}}))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorContains(t, err, `tier "burst"`)
}

func TestAChangeOfTierKeepsTheSpendAmongSeveralLimitsToo(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		tier := ""
		user := newLimiter(t, algorithm, s, ratelimit.PerHour(10), ratelimit.WithTiers(
			func(context.Context, string) (string, error) { return tier, nil },
			map[string]ratelimit.Limit{
				"pro": ratelimit.PerHour(20), "daily": ratelimit.PerDay(30),
				"internal": ratelimit.Unlimited(), "banned": ratelimit.PerHour(0),
			}))
		global := newLimiter(t, algorithm, s, ratelimit.PerHour(100))
		a := all(t, user, global)
		for _, step := range []struct {
			tier       string
			n          int
			allowed    bool
			user, rest int // what is left by the user's limit, and of all users'
		}{
			{"", 4, true, 6, 96},
			{"pro", 5, true, 11, 91},
			{"banned", 1, false, 0, 91},
			{"internal", 2, true, 1<<31 - 1, 89},
			{"", 2, false, 1, 89},
			{"daily", 3, true, 18, 86},
		} {
			tier = step.tier
			require.Equal(t, step.allowed, allowN(t, a, step.n).Allowed, step.tier)
			require.Equal(t, step.user, peek(t, user, "key").Remaining, step.tier)
			require.Equal(t, step.rest, peek(t, global, "key").Remaining, step.tier)
		}
	})
}

// Options of which one would do nothing are refused, in either order.
func TestOneFunctionHasTheLimits(t *testing.T) {
	perKey := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil })
	tiers := ratelimit.WithTiers(func(context.Context, string) (string, error) { return "", nil }, map[string]ratelimit.Limit{"x": ratelimit.PerHour(1)})
	for _, opts := range [][]ratelimit.Option{{perKey, tiers}, {tiers, perKey}, {tiers, tiers}, {perKey, perKey}} {
		_, err := ratelimit.New("token_bucket", memory(t, newClock()), ratelimit.PerHour(1), opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "two functions say a key's limit: want one WithLimitFunc or WithTiers")
	}
	for _, none := range []map[string]ratelimit.Limit{nil, {}} {
		_, err := ratelimit.New("token_bucket", memory(t, newClock()), ratelimit.PerHour(1),
			ratelimit.WithTiers(func(context.Context, string) (string, error) { return "", nil }, none))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "WithTiers without a tier")
	}
}
