package fallback_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var algorithms = ratelimit.PerSecond(1).Algorithms()

func newLimiter(t testing.TB, algorithm string, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	lim, err := ratelimit.New(algorithm, s, l, opts...)
	require.NoError(t, err)
	return lim
}

func allowN(t testing.TB, lim ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := lim.AllowN(t.Context(), "key", n)
	require.NoError(t, err)
	return r
}

// admitted is how many of some tries lim admits at one instant.
func admitted(t testing.TB, lim ratelimit.Limiter, tries int) (n int) {
	t.Helper()
	for range tries {
		if allowN(t, lim, 1).Allowed {
			n++
		}
	}
	return n
}

func allow(t testing.TB, lim ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := lim.Allow(t.Context(), key)
	require.NoError(t, err)
	return r
}

// wait is how long Wait takes.
func wait(t *testing.T, ctx context.Context, lim ratelimit.Limiter, n int) (time.Duration, ratelimit.Result, error) {
	t.Helper()
	began := time.Now()
	r, err := ratelimit.Wait(ctx, lim, "key", n)
	return time.Since(began), r, err
}

func all(t testing.TB, limiters ...ratelimit.Limiter) *ratelimit.All {
	t.Helper()
	a, err := ratelimit.NewAll(limiters...)
	require.NoError(t, err)
	return a
}

func overcharge(t *testing.T, l ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := l.(ratelimit.Charger).Charge(t.Context(), "key", n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return r
}

func peek(t testing.TB, lim ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := lim.Peek(t.Context(), key)
	require.NoError(t, err)
	return r
}

// broken is a store that is down.
type broken struct{ store.Store }

func (broken) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (broken) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
}

func (broken) TakeUpTo(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: on purpose", ratelimit.ErrStore)
}
