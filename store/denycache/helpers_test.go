package denycache_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var (
	algorithms = ratelimit.PerSecond(1).Algorithms()

	newLimiter = ratelimittest.New
	onRedis    = testkit.OnRedis
	hasBurst   = testkit.HasBurst
	allow      = testkit.Allow
	allowN     = testkit.AllowN
)

// stopped is a clock that stands still, for windows that must not end.
var stopped = memstore.WithClock(func() time.Time { return time.Unix(0, 0) })

func memory(t testing.TB, opts ...memstore.Option) store.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
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
