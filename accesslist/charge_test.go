package accesslist_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestADebtIsChargedToTheLimiterWithinOnRedisToo(t *testing.T) {
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	inner, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: 10})
	require.NoError(t, err)
	lim, err := accesslist.New(inner)
	require.NoError(t, err)
	ctx := context.Background()
	reservation, r, err := ratelimit.Reserve(ctx, lim, "key", 4)
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

func TestAdmissionsOfUnlimitedLimitsInsideCanBeRefunded(t *testing.T) {
	inner, err := ratelimit.NewAll(inMemory(t, ratelimit.Unlimited()), inMemory(t, ratelimit.Unlimited()))
	require.NoError(t, err)
	lim, err := accesslist.New(inner)
	require.NoError(t, err)
	reservation, r, err := ratelimit.Reserve(t.Context(), lim, "key", 4)
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceUnlimited, r.Source())
	_, err = reservation.Settle(t.Context(), 1)
	require.NoError(t, err)
}
