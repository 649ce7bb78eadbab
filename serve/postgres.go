package serve

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

// redisPrefix is the prefix of keys on Redis if none is given. For Postgres, it means pgstore's default table.
const redisPrefix = "rl"

// isPostgres reports whether a URL is one of Postgres.
func isPostgres(address string) bool {
	return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
}

// openPostgres makes the store of a URL of Postgres.
func openPostgres(address, table string, timeout time.Duration) (*Stored, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil { // err may contain the password
		return nil, fmt.Errorf("%w: Postgres URL: it cannot be parsed", ratelimit.ErrInvalidOption)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("%w: Postgres URL: its parameters cannot be used", ratelimit.ErrInvalidOption)
	}
	opts := []pgstore.Option{pgstore.WithTimeout(timeout)}
	if table != redisPrefix {
		opts = append(opts, pgstore.WithTable(table))
	}
	st, err := pgstore.New(pool, opts...)
	if err != nil {
		pool.Close()
		return nil, err
	}
	var warm atomic.Bool
	return &Stored{Store: st, Check: st.Check,
		Close: func() error { return closeIn(timeout, pool) },
		Ready: func(ctx context.Context) error {
			if warm.Load() {
				return pool.Ping(ctx)
			}
			if err := st.Migrate(ctx); err != nil {
				return err
			}
			err := st.Ready(ctx)
			warm.Store(err == nil)
			return err
		},
	}, nil
}

// closeIn closes a pool. Connections to a server that does not answer take longer than timeout to
// close. They close in the background, so that the end of a process does not wait for them.
func closeIn(timeout time.Duration, pool *pgxpool.Pool) error {
	closed, late := make(chan struct{}), time.NewTimer(timeout)
	defer late.Stop()
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-late.C:
		return fmt.Errorf("%w: the connections of Postgres have not closed for %v", store.ErrUnavailable, timeout)
	}
}
