package ratelimit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestInOneRequestPoliciesAndRefundsGoByTheLimitOfTheDecision(t *testing.T) {
	answer, calls := ratelimit.PerMinute(5), 0
	var failure error
	l, err := ratelimit.NewFixedWindow(frozenMemory(), ratelimit.PerMinute(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) {
			calls++
			return answer, failure
		}))
	require.NoError(t, err)
	quota := func(ctx context.Context) int {
		policies, err := ratelimit.AppendPolicies(ctx, nil, l, "key")
		require.NoError(t, err)
		return policies[0].Quota
	}
	ctx := ratelimit.KeepLimits(t.Context())
	r, err := l.AllowN(ctx, "key", 2)
	require.NoError(t, err)
	require.Equal(t, 3, r.Remaining)

	answer = ratelimit.PerMinute(7)
	inside := ratelimit.KeepLimits(ctx)
	require.Equal(t, 7, quota(inside), "it does not know what was decided outside of it")
	require.Equal(t, 7, quota(ctx), "and tells what it has asked")
	require.Equal(t, 7, quota(t.Context()))
	require.Equal(t, 3, calls)

	answer = ratelimit.PerMinute(8)
	_, err = l.Allow(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, 8, quota(ctx), "each decision asks")
	_, err = l.Allow(ctx, "other")
	require.NoError(t, err)
	require.Equal(t, 5, calls)

	failure = errors.New("the database is down")
	require.NoError(t, l.Refund(ctx, "key", r, 2))
	require.Equal(t, 8, quota(ctx))
	require.Equal(t, 5, calls)
	_, err = l.Allow(ctx, "key")
	require.Equal(t, failure, err)
	require.Equal(t, failure, l.Refund(t.Context(), "key", r, 2))
}
