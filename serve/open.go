package serve

import (
	"context"
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

// Open makes the store for a URL, which is "memory:" or the URL of a Redis (see
// [redisstore.NewClient]). It does not connect yet. Keys begin with prefix, and calls take at most
// timeout. Errors wrap [ratelimit.ErrInvalidOption] and contain no password.
func Open(address, prefix string, timeout time.Duration) (*Stored, error) {
	if address == "memory:" || address == "memory" {
		mem, err := memstore.New()
		if err != nil {
			return nil, err
		}
		return &Stored{Store: mem, Close: func() error { return nil }}, nil
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
