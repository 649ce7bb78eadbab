package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(clientURL); url != "" {
		client(url)
		return
	}
	code := m.Run()
	pgtest.End()
	os.Exit(code)
}

// connect returns a pool of so many connections to url, closed with t.
func connect(t testing.TB, url string, conns int, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = int32(conns) //nolint:gosec // a few
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// shared returns a pool of the shared server.
func shared(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return connect(t, pgtest.Shared(t).URL(), 16)
}

var tables atomic.Int64

// table is the name of a new table.
func table() string { return fmt.Sprintf("limits%d", tables.Add(1)) }

// long is a timeout that no busy machine reaches.
const long = 30 * time.Second

// open returns a store with a table of its own.
func open(t testing.TB, pool *pgxpool.Pool, opts ...pgstore.Option) *pgstore.Store {
	t.Helper()
	return openAt(t, pool, table(), opts...)
}

func openAt(t testing.TB, pool *pgxpool.Pool, table string, opts ...pgstore.Option) *pgstore.Store {
	t.Helper()
	s, err := pgstore.New(pool, append([]pgstore.Option{pgstore.WithTable(table), pgstore.WithTimeout(long)}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(context.Background()))
	return s
}

// window returns a limiter of n events per hour, by name.
func window(t testing.TB, s store.Store, name string, n int) *ratelimit.FixedWindow {
	t.Helper()
	l, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(n), ratelimit.WithName(name))
	require.NoError(t, err)
	return l
}

// take is Allow, which must not fail.
func take(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Allow(context.Background(), key)
	require.NoError(t, err)
	return r
}

// remaining is Peek, which must not fail.
func remaining(t testing.TB, l ratelimit.Limiter, key string) int {
	t.Helper()
	r, err := l.Peek(context.Background(), key)
	require.NoError(t, err)
	return r.Remaining
}

// crowd has callers call f each so often, and returns how often it returned true.
func crowd(callers, calls int, f func(caller, call int) bool) int64 {
	var yes atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range calls {
				if f(i, n) {
					yes.Add(1)
				}
			}
		})
	}
	all.Wait()
	return yes.Load()
}

// eventually fails t unless ok returns true within a long time.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 3*time.Minute, 10*time.Millisecond)
}
