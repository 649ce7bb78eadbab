package fallback_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// A leaky bucket's next turn comes when it is empty, and a local token bucket's next event
// much sooner than when it is full.
func TestWaitersOfALeakyBucketWaitForTheLocalLimiterInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20}
		inner := &faulty{Limiter: inMemory(t, "leaky_bucket", limit)}
		lim := failover(t, inner, fallback.Local(inMemory(t, "token_bucket", limit)), fallback.WithBreaker(1, time.Hour))
		waiter, err := throttle.NewWaiter(lim, 300*time.Millisecond)
		require.NoError(t, err)
		inner.down.Store(true)
		require.Equal(t, 20, admitted(t, lim, 30))

		began := time.Now()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err := ratelimit.Wait(ctx, lim, "key", 1)
			cancel()
			require.NoError(t, err)
			r, err := waiter.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		require.InDelta(t, time.Second, time.Since(began), float64(20*time.Millisecond), "ten events")
	})
}
