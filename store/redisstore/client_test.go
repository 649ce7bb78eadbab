package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// pipeliners returns both modes of an AutoPipeliner, each on its own client.
func pipeliners(t *testing.T, o *redis.Options, batches *redis.AutoPipelineOptions) map[string]*redis.AutoPipeliner {
	t.Helper()
	client := func() *redis.Client {
		own := *o
		c := redis.NewClient(&own)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	blocking, err := client().AutoPipelineWithOptions(batches)
	require.NoError(t, err)
	async, err := client().AsyncAutoPipelineWithOptions(batches)
	require.NoError(t, err)
	return map[string]*redis.AutoPipeliner{"blocking": blocking, "async": async}
}

// One connection that has died unnoticed blocks go-redis' batches for its ReadTimeout.
func TestAnAutoPipelinerThatIsHeldUpIsPassed(t *testing.T) {
	effort.NeedFull(t)
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	loads := map[string]*load{}
	for name, ap := range pipeliners(t, &redis.Options{Addr: proxy.Addr(), ReadTimeout: 2 * time.Second}, nil) {
		_, err := newStore(t, ap).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		s, err := redisstore.New(ap)
		require.NoError(t, err)
		naive, err := redisstore.New(hidden{ap})
		require.NoError(t, err)
		loads[name], loads[name+", naive"] = start(t, s, "k", 8), start(t, naive, "k", 1)
	}
	time.Sleep(300 * time.Millisecond)
	require.Positive(t, proxy.Mute())
	muted := time.Now()
	time.Sleep(100 * time.Millisecond) // what was under way is over
	ok := map[string]int{}
	for name, l := range loads {
		ok[name] = l.count("ok")
	}
	for _, name := range []string{"blocking", "async"} {
		for loads[name].count("ok") < ok[name]+100 && time.Since(muted) < 3*time.Second {
			time.Sleep(time.Millisecond)
		}
		t.Logf("%s: served again within %v", name, time.Since(muted))
		require.Less(t, time.Since(muted), time.Second, "it is passed after 100 ms")
	}
	for name, l := range loads {
		l.end()
		l.report("half-open, " + name)
	}
	require.Equal(t, ok["async, naive"], loads["async, naive"].count("ok"), "the fault bites")
	require.Equal(t, ok["blocking, naive"], loads["blocking, naive"].count("ok"), "the fault bites")
}

// batches is a hook that records the longest batch.
type batches struct {
	redis.Hook
	longest atomic.Int64
}

func (b *batches) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (b *batches) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (b *batches) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // handshakes are batches too
			b.longest.Store(max(b.longest.Load(), int64(len(cmds))))
		}
		return next(ctx, cmds)
	}
}

// When go-redis has given the connection up, calls go in batches again.
func TestAnAutoPipelinerIsUsedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	for name, ap := range pipeliners(t, &redis.Options{Addr: proxy.Addr(), ReadTimeout: 400 * time.Millisecond}, nil) {
		t.Run(name, func(t *testing.T) {
			b := new(batches)
			ap.AddHook(b)
			warm := newStore(t, ap)
			require.Eventually(t, func() bool { // go-redis gives up after 400 ms
				_, err := warm.Take(t.Context(), space, "k", limit, 1)
				return err == nil
			}, 10*time.Second, time.Millisecond)
			s, err := redisstore.New(ap)
			require.NoError(t, err)
			l := start(t, s, "k", 16)
			defer l.end()
			longest := func() bool { return b.longest.Load() > 1 }
			require.Eventually(t, longest, 10*time.Second, time.Millisecond)
			proxy.Mute()
			time.Sleep(150 * time.Millisecond)
			b.longest.Store(0)
			before := l.count("ok")
			require.Eventually(t, func() bool { return l.count("ok") > before }, 10*time.Second, time.Millisecond)
			require.Eventually(t, longest, 10*time.Second, time.Millisecond, "those that waited")
			time.Sleep(100 * time.Millisecond)
			b.longest.Store(0)
			require.Eventually(t, longest, 10*time.Second, time.Millisecond, "those that came later")
		})
	}
}

func TestPastAnAutoPipelinerCallsRunOnceToo(t *testing.T) {
	effort.NeedFull(t)
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	for name, ap := range pipeliners(t, &redis.Options{Addr: proxy.Addr(), ReadTimeout: 2 * time.Second}, nil) {
		t.Run(name, func(t *testing.T) {
			s, err := redisstore.New(ap, redisstore.WithPrefix(name))
			require.NoError(t, err)
			take := func() error {
				_, err := s.Take(t.Context(), space, "k", limit, 1)
				return err
			}
			require.Eventually(t, func() bool { return take() == nil }, 10*time.Second, time.Millisecond)
			proxy.Mute()
			require.ErrorIs(t, take(), store.ErrTimeout)
			require.Eventually(t, func() bool { return take() == nil }, 10*time.Second, time.Millisecond)
			count := newStore(t, server.Client(t), redisstore.WithPrefix(name))
			before := used(t, count, "k")
			proxy.DropReplies(1, "evalsha")
			require.ErrorIs(t, take(), store.ErrTimeout)
			require.Equal(t, 1, proxy.Dropped())
			require.NoError(t, take())
			require.Equal(t, before+2, used(t, count, "k"))
		})
	}
}

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
