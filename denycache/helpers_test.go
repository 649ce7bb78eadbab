package denycache_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var algorithms = ratelimit.PerSecond(1).Algorithms()

// stopped is a clock that stands still, for windows that must not end.
var stopped = memstore.WithClock(func() time.Time { return time.Unix(0, 0) })

func memory(t testing.TB, opts ...memstore.Option) store.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}

func onRedis(t testing.TB, client redisstore.Client) store.Store {
	t.Helper()
	s, err := redisstore.New(client, redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	return s
}

// hasBurst is whether an algorithm takes a Burst.
func hasBurst(algorithm string) bool {
	return ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 2}.ValidateFor(algorithm) == nil
}

func newLimiter(t testing.TB, algorithm string, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	lim, err := ratelimit.New(algorithm, s, l, opts...)
	require.NoError(t, err)
	return lim
}

func allow(t testing.TB, lim ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := lim.Allow(t.Context(), key)
	require.NoError(t, err)
	return r
}

func allowN(t testing.TB, lim ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := lim.AllowN(t.Context(), "key", n)
	require.NoError(t, err)
	return r
}

func allowWithin(t testing.TB, lim ratelimit.Limiter, n int, d time.Duration) ratelimit.Result {
	t.Helper()
	r, err := ratelimit.AllowWithin(t.Context(), lim, "key", n, d)
	require.NoError(t, err)
	return r
}

func peek(t testing.TB, lim ratelimit.Limiter) ratelimit.Result {
	t.Helper()
	r, err := lim.Peek(t.Context(), "key")
	require.NoError(t, err)
	return r
}

// stub is a store with an answer of the test's own to Take.
type stub struct {
	store.Store
	answer func(key string, n int64) (store.Reply, error)
}

func (s stub) Take(_ context.Context, _ *store.Namespace, key string, _ store.Limit, n int64) (store.Reply, error) {
	return s.answer(key, n)
}

// denial is a fixed window's reply at its limit of 1, which it will be for left.
func denial(left time.Duration) store.Reply {
	return store.Reply{X: time.Now().UnixMicro(), Y: 1, Z: left.Microseconds()}
}
