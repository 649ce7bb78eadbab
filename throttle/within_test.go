package throttle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func allowWithin(t testing.TB, l ratelimit.Limiter, n int, d time.Duration) ratelimit.Result {
	t.Helper()
	r, err := ratelimit.AllowWithin(t.Context(), l, "key", n, d)
	require.NoError(t, err)
	return r
}

func TestAWaiterPassesTurnsOnAndSleepsForNone(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, time.Second)
		began := time.Now()
		require.True(t, allowWithin(t, w, 3, 0).Allowed)
		require.Equal(t, 300*time.Millisecond, allowWithin(t, w, 1, time.Hour).Delay)
		require.Equal(t, 100*time.Millisecond, allowWithin(t, w, 1, 300*time.Millisecond).RetryAfter)
		require.Zero(t, time.Since(began))
		_, err := ratelimit.AllowWithin(t.Context(), new(throttle.Waiter), "key", 1, 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	})
}

// A Slowdown denies only callers that say how long they can wait.
func TestASlowdownGivesBackWhatComesTooLate(t *testing.T) {
	inner := inMemory(t, "token_bucket", ratelimit.PerDay(10))
	lim, err := throttle.NewSlowdown(inner, throttle.Slow{Free: 2, Step: time.Second, Max: time.Minute})
	require.NoError(t, err)
	require.Equal(t, time.Second, allowWithin(t, lim, 3, time.Second).Delay)
	r := allowWithin(t, lim, 4, 3*time.Second)
	require.False(t, r.Allowed)
	require.Equal(t, 2*time.Second, r.RetryAfter)
	require.Equal(t, 7, r.Remaining)
	p, err := inner.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 7, p.Remaining)
	require.False(t, allowWithin(t, lim, 11, time.Second).Allowed, "which l itself denies")
	require.Equal(t, time.Minute, allowWithin(t, lim, 11, time.Minute).Delay)
}
