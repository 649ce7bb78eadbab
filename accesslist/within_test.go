package accesslist_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
)

func TestListsGoBeforeTurns(t *testing.T) {
	deny, err := accesslist.NewList("=denied")
	require.NoError(t, err)
	free, err := accesslist.NewList("=free")
	require.NoError(t, err)
	lim := limiter(t, inMemory(t, ratelimit.PerHour(1)), accesslist.Lists{Deny: deny, Allow: free})
	within := func(key string, d time.Duration) ratelimit.Result {
		r, err := ratelimit.AllowWithin(t.Context(), lim, key, 1, d)
		require.NoError(t, err)
		return r
	}
	for range 3 {
		require.True(t, within("free", 0).Allowed)
		require.Equal(t, ratelimit.Never, within("denied", time.Hour).RetryAfter)
	}
	require.True(t, within("key", 0).Allowed)
	require.False(t, within("key", 59*time.Minute).Allowed)
	require.InDelta(t, time.Hour, within("key", time.Hour).Delay, float64(time.Minute))
	_, err = ratelimit.AllowWithin(t.Context(), new(accesslist.Limiter), "key", 1, time.Hour)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}
