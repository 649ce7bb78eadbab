package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestACreditGivesBackWhatIsChargedAndNoMore(t *testing.T) {
	onBothStores(t, func(t *testing.T, s store.Store, c *clock) {
		for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
			l := newLimiter(t, algorithm, s, ratelimit.PerHour(20))
			credit := func(n int) int {
				given, err := ratelimit.Credit(t.Context(), l, "key", n)
				require.NoError(t, err)
				return given
			}
			require.Zero(t, credit(5), "nothing is charged")
			allowN(t, l, 9)
			allowN(t, l, 5)
			require.Equal(t, 4, credit(4))
			require.Equal(t, 10, peek(t, l, "key").Remaining, algorithm)
			all := 10
			if algorithm == "token_bucket" { // whose last event stays
				all = 9
			}
			require.Equal(t, all, credit(100), algorithm)
			require.Equal(t, 10+all, peek(t, l, "key").Remaining, algorithm)
			c.Advance(2 * time.Hour)
			require.Zero(t, credit(5), "it has gone")
			require.Equal(t, 20, peek(t, l, "key").Remaining)
			c.Advance(-2 * time.Hour)
		}
	})
}

func TestACreditIsForLimitsThatNeedNoReceipt(t *testing.T) {
	mem := memory(t, newClock())
	for _, l := range []ratelimit.Limiter{
		nil, (*ratelimit.TokenBucket)(nil), new(ratelimit.TokenBucket), ratelimittest.Static(ratelimit.Result{Allowed: true}, nil),
		newLimiter(t, "sliding_log", mem, ratelimit.PerHour(5)), newLimiter(t, "leaky_bucket", mem, ratelimit.PerHour(5)),
		all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))),
	} {
		_, err := ratelimit.Credit(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", l)
	}
	l := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))
	_, err := ratelimit.Credit(t.Context(), l, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	_, err = ratelimit.Credit(t.Context(), l, "", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	free := newLimiter(t, "token_bucket", mem, ratelimit.Unlimited(), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "k", nil }))
	given, err := ratelimit.Credit(t.Context(), free, "key", 1)
	require.NoError(t, err)
	require.Zero(t, given)
}
