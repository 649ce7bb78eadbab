package fallback_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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
		lim := failover(t, down(t, "leaky_bucket", limit), fallback.FailTo(inMemory(t, "token_bucket", limit)), fallback.WithBreaker(1, time.Hour))
		waiter, err := throttle.NewWaiter(lim, 1500*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, 20, admitted(t, lim, 30))

		began := time.Now()
		var all sync.WaitGroup
		for range 5 { // each stands behind others, and none is told that its turn comes when the bucket is full
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				_, err := ratelimit.Wait(ctx, lim, "key", 1)
				assert.NoError(t, err)
			})
			all.Go(func() {
				r, err := waiter.Allow(t.Context(), "key")
				assert.NoError(t, err)
				assert.True(t, r.Allowed)
			})
		}
		all.Wait()
		require.InDelta(t, time.Second, time.Since(began), float64(100*time.Millisecond), "ten events")
	})
}
