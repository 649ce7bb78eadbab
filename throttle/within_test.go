package throttle_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
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

// A Slowdown denies only calls that set a maximum wait.
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

// recorder is a store that records the calls to it.
type recorder struct {
	store.Store
	calls *[]string
}

// Decide implements [store.Store].
func (s recorder) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s recorder) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	*s.calls = append(*s.calls, "take")
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s recorder) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	*s.calls = append(*s.calls, "take all")
	return s.Store.Decide(ctx, requests, replies)
}

func (s recorder) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, charged store.Receipt) error {
	*s.calls = append(*s.calls, "refund")
	return s.Store.Refund(ctx, ns, key, l, charged)
}

// An event that would come too late is not asked for twice, because the first denial includes its
// scheduled time. A denial therefore costs as much as a denial by the All.
func TestADenialOfAnAllIsAskedForOnce(t *testing.T) {
	const most = 2 * time.Second
	for name, c := range map[string]struct {
		stores int
		want   []string
	}{"together": {1, []string{"take all"}}, "one after the other": {2, []string{"take", "take", "refund"}}} {
		for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
			t.Run(name+" "+algorithm, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls []string
					var parts []ratelimit.Limiter
					var s store.Store
					for i, algorithm := range []string{"sliding_log", algorithm} {
						if i < c.stores {
							mem, err := memstore.New()
							require.NoError(t, err)
							s = recorder{mem, &calls}
						}
						l, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(10-7*i))
						require.NoError(t, err)
						parts = append(parts, l)
					}
					all, err := ratelimit.NewAll(parts...)
					require.NoError(t, err)
					for allowWithin(t, all, 1, most).Allowed {
						continue // until it denies
					}
					plain := allowWithin(t, all, 1, most)
					calls = nil
					slept, r := allow(t, t.Context(), waiter(t, all, most))
					require.Zero(t, slept)
					require.Equal(t, c.want, calls)
					require.False(t, r.Allowed)
					require.Equal(t, plain.DeniedBy(), r.DeniedBy())
					require.GreaterOrEqual(t, r.RetryAfter, plain.RetryAfter)
					require.Zero(t, r.RetryAfter%time.Microsecond)
				})
			})
		}
	}
}
