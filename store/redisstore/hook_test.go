package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// tracer is a hook like those of tracing libraries: it prints commands.
type tracer struct {
	seen  atomic.Int64
	print atomic.Pointer[string]
}

func (tr *tracer) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (tr *tracer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			tr.seen.Add(1)
			text := fmt.Sprint(cmd.Args()...)
			tr.print.Store(&text)
		}
		return next(ctx, cmd)
	}
}

func (tr *tracer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return next(ctx, cmds) }
}

func TestHooksSeeTheCommands(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	for _, contextTimeouts := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: contextTimeouts})
		defer client.Close()
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, ContextTimeoutEnabled: contextTimeouts})
		defer ring.Close()
		shard, err := ring.GetShardClientForKey("any")
		require.NoError(t, err)
		for _, c := range []redis.UniversalClient{client, ring} {
			before, after, server := new(tracer), new(tracer), redis.UniversalClient(client)
			if c == redis.UniversalClient(ring) {
				server = shard
				past := new(tracer)
				c.AddHook(past)
				defer func() { require.Zero(t, past.seen.Load(), "calls go past the ring") }()
			}
			server.AddHook(before)
			s := newStore(t, c)
			server.AddHook(after)
			_, err := s.Take(t.Context(), space, "k", limit, 1)
			require.NoError(t, err)
			name := fmt.Sprintf("%T, ContextTimeoutEnabled %t", c, contextTimeouts)
			if !contextTimeouts {
				// The documentation of the package says so: correct it there if this
				// fails.
				require.Zero(t, before.seen.Load()+after.seen.Load(), name)
				continue
			}
			require.Positive(t, before.seen.Load(), name)
			require.Positive(t, after.seen.Load(), name)
			require.Contains(t, *before.print.Load(), "take")
		}
	}
}

// broken is a hook that ends its goroutine with each script.
type broken struct {
	tracer
	by func()
}

func (b *broken) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			b.by()
		}
		return next(ctx, cmd)
	}
}

func TestAPanicOfAHookIsThatOfTheCall(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, ContextTimeoutEnabled: true})
	defer ring.Close()
	hook := &broken{by: func() { panic("planted") }}
	ring.OnNewNode(func(c *redis.Client) { c.AddHook(hook) })
	shard, err := ring.GetShardClientForKey("any")
	require.NoError(t, err)
	shard.AddHook(hook)
	s := newStore(t, ring)
	require.PanicsWithValue(t, "planted", func() { _, _ = s.Take(t.Context(), space, "k", limit, 1) })
	hook.by = runtime.Goexit // on a goroutine of the store
	require.PanicsWithError(t, carrier.ErrExit.Error(), func() { _, _ = s.Take(t.Context(), space, "k", limit, 1) })
}
