package shadow_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestADebtIsChargedToTheLimiterWithinOnRedisToo(t *testing.T) {
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	inner, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: 10})
	require.NoError(t, err)
	lim, err := shadow.New(inner, func(context.Context, string, int, ratelimit.Result, error) {})
	require.NoError(t, err)
	ctx := context.Background()
	reservation, _, err := ratelimit.Reserve(ctx, lim, "key", 4)
	require.NoError(t, err)
	r, err := inner.Peek(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, 6, r.Remaining)
	_, err = reservation.Settle(ctx, 25)
	require.NoError(t, err)
	r, err = inner.Allow(ctx, "key")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Greater(t, r.RetryAfter, 15*24*time.Hour)
	require.NoError(t, lim.Reset(ctx, "key"))
}
