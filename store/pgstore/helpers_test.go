package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// connect returns a pool of so many connections to url, closed with t.
func connect(t testing.TB, url string, conns int) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = int32(conns)
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

// patient is a timeout that no busy machine reaches.
const patient = pgTimeout(20 * time.Second)

type pgTimeout time.Duration

// open returns a store with a table of its own.
func open(t testing.TB, pool *pgxpool.Pool, opts ...pgstore.Option) *pgstore.Store {
	t.Helper()
	s, err := pgstore.New(pool, append([]pgstore.Option{pgstore.WithTable(table()), pgstore.WithTimeout(time.Duration(patient))}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(context.Background()))
	return s
}
