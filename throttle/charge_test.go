package throttle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func TestADebtIsChargedToTheLimiterWithin(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	inner, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: 10})
	require.NoError(t, err)
	waiter, err := throttle.NewWaiter(inner, time.Second)
	require.NoError(t, err)
	slowdown, err := throttle.NewSlowdown(inner, throttle.Slow{Free: 5, Step: time.Millisecond, Max: time.Second})
	require.NoError(t, err)
	for key, lim := range map[string]ratelimit.Limiter{"waiter": waiter, "slowdown": slowdown} {
		reservation, _, err := ratelimit.Reserve(context.Background(), lim, key, 4)
		require.NoError(t, err)
		_, err = reservation.Settle(context.Background(), 25)
		require.NoError(t, err)
		r, err := inner.Allow(context.Background(), key)
		require.NoError(t, err)
		require.Greater(t, r.RetryAfter, 15*24*time.Hour, key)
	}
	for _, zero := range []ratelimit.Charger{new(throttle.Waiter), new(throttle.Slowdown)} {
		_, err := zero.Charge(context.Background(), "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	}
}
