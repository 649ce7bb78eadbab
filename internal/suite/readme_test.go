package suite_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// TestTheStepsOfREADME takes the steps that README shows after its program.
func TestTheStepsOfREADME(t *testing.T) {
	// In a test, move the time.
	clock := ratelimittest.NewClock(time.Now())
	store := clock.Memory(t)
	perSecond := newLimiter(t, "token_bucket", store, ratelimit.PerSecond(10))
	perHour := newLimiter(t, "fixed_window", store, ratelimit.PerHour(1000))
	// Check several limits in one decision: all of them are charged, or none.
	both, err := ratelimit.NewAll(perSecond, perHour)
	require.NoError(t, err)
	// During a Redis outage, each of three processes admits a third.
	safe, err := fallback.New(both, fallback.FailLocal(3))
	require.NoError(t, err)
	require.True(t, allowN(t, safe, 1).Allowed)
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(store, ratelimit.PerSecond(10), ratelimit.WithName("api")))
	// Behind a load balancer, name it. Otherwise, all clients share one limit.
	limit, err := httplimit.New(limiter, httplimit.WithKey(httplimit.ClientIP([]string{"10.0.0.7"})))
	require.NoError(t, err)
	require.NotNil(t, limit)
	require.False(t, allowN(t, both, 10).Allowed)
	require.True(t, allowN(t, both, 9).Allowed)
	require.False(t, allowN(t, both, 1).Allowed)
	clock.Advance(time.Minute)
	require.True(t, allowN(t, safe, 10).Allowed)
}
