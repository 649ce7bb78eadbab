package serve

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
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
//	memory:
//	redis://user:password@host:6379/0            rediss:// with TLS, unix:///path for a socket
//	redis://host1:26379?master_name=m&addr=host2:26379    Sentinels
//	redis+cluster://host1:6379?addr=host2:6379            rediss+cluster:// with TLS
//
// Parameters are those of go-redis. With Sentinels, user and password are those of the Sentinels.
// The parameters username and password are those of the servers. Keys begin with prefix, and calls take at most timeout. Its
// error wraps [ratelimit.ErrInvalidOption], and shows no password.
func Open(address, prefix string, timeout time.Duration) (*Stored, error) {
	if address == "memory:" || address == "memory" {
		mem, err := memstore.New()
		if err != nil {
			return nil, err
		}
		return &Stored{Store: mem, Close: func() error { return nil }}, nil
	}
	client, err := connect(address)
	if err != nil {
		return nil, fmt.Errorf("%w: store: %w", ratelimit.ErrInvalidOption, err)
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

// connect makes the client of a URL.
func connect(address string) (redis.UniversalClient, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("it is no URL") // which may have a password
	}
	if scheme, found := strings.CutSuffix(u.Scheme, "+cluster"); found {
		u.Scheme = scheme
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		o.ContextTimeoutEnabled, o.DialerRetries = true, 1 // the store tries again
		return redis.NewClusterClient(o), nil
	}
	if u.Query().Has("master_name") {
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, err
		}
		o.ContextTimeoutEnabled, o.DialerRetries = true, 1 // the store tries again
		return redis.NewFailoverClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1 // the store tries again
	return redis.NewClient(o), nil
}
