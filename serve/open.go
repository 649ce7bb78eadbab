package serve

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Stored is a store with what belongs to it.
type Stored struct {
	store.Store
	Ready func(context.Context) error             // whether the store answers and has connections; nil for memory
	Check func(context.Context) ([]string, error) // returns what is wrong with the servers; nil for memory
	Close func() error
}

// Open makes the store for a URL, which is "memory:", the URL of a Redis (see [redisstore.NewClient]),
// or the URL of a Postgres (see package pgxpool of pgx). It does not connect yet. Keys on Redis begin
// with prefix. On Postgres, prefix is the name of the table, where "rl" stands for "ratelimit", and
// Ready creates the table. Calls take at most timeout. Errors wrap [ratelimit.ErrInvalidOption] and
// contain no password.
func Open(address, prefix string, timeout time.Duration) (*Stored, error) {
	if address == "memory:" || address == "memory" {
		mem, err := memstore.New()
		if err != nil {
			return nil, err
		}
		return &Stored{Store: mem, Close: func() error { return nil }}, nil
	}
	if isPostgres(address) {
		return openPostgres(address, prefix, timeout)
	}
	client, err := redisstore.NewClient(address)
	if err != nil {
		return nil, fmt.Errorf("%w; other stores are memory: and postgres://user@host/database", err)
	}
	st, err := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithTimeout(timeout))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	check := func(ctx context.Context) ([]string, error) { return redischeck.Run(ctx, st) }
	return &Stored{Store: st, Check: check, Close: client.Close, Ready: ready(client, st)}, nil
}

// ready connects until that has succeeded once. If the server is far away, connecting takes several
// round trips, for which the first callers may not have the time.
func ready(client redis.UniversalClient, st *redisstore.Store) func(context.Context) error {
	var warm atomic.Bool
	return func(ctx context.Context) error {
		if !warm.Load() {
			if err := st.Ready(ctx); err != nil {
				return err
			}
		}
		err := client.Ping(ctx).Err()
		if err == nil {
			warm.Store(true)
		}
		return err
	}
}
