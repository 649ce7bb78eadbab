package serve

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Stored is a store, and what belongs to it.
type Stored struct {
	store.Store
	Ready func(context.Context) error             // whether it answers, and has connections; nil for memory
	Check func(context.Context) ([]string, error) // what is wrong with the servers; nil for memory
	Close func() error
}

// Open makes the store of a URL. It asks no server yet.
//
// The URL is "memory:", one of Redis (see [redisstore.NewClient]), or one of Postgres (see the package pgxpool of pgx). Keys on Redis
// begin with prefix. On Postgres, prefix is the name of the table, and "rl" stands for "ratelimit"; Ready creates the table.
// Calls take at most timeout. Its error wraps [ratelimit.ErrInvalidOption], and shows no password.
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
		return nil, err
	}
	st, err := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithTimeout(timeout))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return &Stored{Store: st, Check: st.Check, Close: client.Close, Ready: ready(client, st)}, nil
}

// ready makes connections until that succeeds once. Far away they take some round trips, for which the
// first callers may have no time.
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
