package suite_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/suite/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

// The tests of this package that run on each store run on Postgres too, which is a module of its own.

func eachStore(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Helper()
	testkit.EachStore(t, test)
	t.Run("postgres", func(t *testing.T) { test(t, onPostgres(t)) })
}

func onEachStore(t *testing.T, test func(t *testing.T, algorithm string, s store.Store, c *clock)) {
	t.Helper()
	testkit.OnEachStore(t, test)
	for _, algorithm := range algorithms {
		t.Run(algorithm+" on Postgres", func(t *testing.T) {
			if algorithm != "token_bucket" && algorithm != "sliding_log" { // rows have a state or a log
				effort.NeedLong(t)
			}
			c := newClock()
			test(t, algorithm, onPostgres(t, pgstore.WithClock(c.Now)), c)
		})
	}
}

func onEachServer(t *testing.T, test func(t *testing.T, s store.Store, c *clock)) {
	t.Helper()
	testkit.OnEachServer(t, test)
	t.Run("Postgres", func(t *testing.T) {
		c := newClock()
		test(t, onPostgres(t, pgstore.WithClock(c.Now)), c)
	})
}

var tables atomic.Int64

// onPostgres returns a store with a table of its own, and a timeout that no busy machine reaches.
func onPostgres(t testing.TB, opts ...pgstore.Option) store.Store {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Shared(t).URL()+"&pool_max_conns=8&synchronous_commit=off") // the disk decides nothing
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	opts = append([]pgstore.Option{pgstore.WithTable(fmt.Sprint("limits", tables.Add(1))), pgstore.WithTimeout(30 * time.Second)}, opts...)
	s, err := pgstore.New(pool, opts...)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	return s
}
