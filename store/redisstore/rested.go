package redisstore

// Before a call is written, its connection finds out whether it was closed while it was idle: see package rested. For that,
// the store adds a hook to its client.

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/rested"
)

// errRested is the error of a call for which a connection was found closed. Nothing was sent.
var errRested = rested.ErrClosed

// mostRested is the number of closed connections that a call tries before it pauses.
const mostRested = 64

// watcher is a hook that watches the connections that a client makes from now on.
type watcher struct{}

func (watcher) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil || conn == nil {
			return conn, err
		}
		return rested.Watch(conn), nil
	}
}

func (watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// watch makes the connections of client check whether they were closed before they write. It does not reach the
// connections of an AutoPipeliner of a ClusterClient.
func watch(client Client) {
	if !rested.CanLook {
		return
	}
	switch c := client.(type) {
	case *redis.Client:
		if first(c) {
			c.AddHook(watcher{})
			retire(c)
		}
	case *redis.AutoPipeliner:
		if first(c) {
			c.AddHook(watcher{})
		}
	case *redis.ClusterClient:
		watchNodes(c, c)
	case *redis.Ring:
		watchNodes(c, c)
	}
}

// watchNodes is watch for the servers of client, now and later.
func watchNodes[T any](client *T, nodes interface {
	OnNewNode(fn func(*redis.Client))
	ForEachShard(ctx context.Context, fn func(context.Context, *redis.Client) error) error
}) {
	if first(client) {
		nodes.OnNewNode(func(c *redis.Client) { watch(c) })
		_ = nodes.ForEachShard(gone, func(_ context.Context, c *redis.Client) error { watch(c); return nil })
	}
}

// watchedClients has weak pointers to the clients that are watched.
var watchedClients sync.Map

// first reports whether c was not watched, and records that it is now. A second store on a client
// adds no second hook.
func first[T any](c *T) bool {
	key := weak.Make(c)
	_, known := watchedClients.LoadOrStore(key, nil)
	if !known {
		runtime.AddCleanup(c, func(key weak.Pointer[T]) { watchedClients.Delete(key) }, key)
	}
	return !known
}

// retire closes the idle connections over TLS in c's pool, because they are not watched.
func retire(c *redis.Client) {
	if c.Options().TLSConfig == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*rested.Grace)
	defer cancel()
	c = c.WithTimeout(time.Nanosecond) // so that a connection which still needs a handshake fails soon
	for n := c.PoolStats().IdleConns; n > 0 && c.PoolStats().IdleConns > 0; n-- {
		_ = c.Process(ctx, command{redis.NewCmd(ctx, "ping", unwritable{})})
	}
}

// unwritable is an argument that cannot be written. Instead of writing the command, go-redis closes
// the connection, and sends nothing.
type unwritable struct{}

func (unwritable) MarshalBinary() ([]byte, error) { return nil, errRested }
