package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// crowd is callers without a pause, each on keys of its own, who note what they were told.
type crowd struct {
	t       *testing.T
	s       *redisstore.Store
	ns      *store.Namespace
	told    []tally // by key
	classes sync.Map
	slowest atomic.Int64 // ns beyond the deadline
	stop    atomic.Bool
	callers sync.WaitGroup
}

// tally is what the callers of a key were told.
type tally struct{ ok, unknown atomic.Int64 }

// press starts callers. Each fifth has a deadline of its own, of up to 40 ms.
func press(t *testing.T, s *redisstore.Store, callers int, deadlines bool) *crowd {
	c := &crowd{t: t, s: s, ns: spaceOf(t, "token_bucket"), told: make([]tally, callers)}
	for i := range callers {
		c.callers.Go(func() {
			key := fmt.Sprint("k", i)
			for n := i; !c.stop.Load(); n++ {
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if deadlines && i%5 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(n%40)*time.Millisecond)
				}
				c.call(ctx, key, &c.told[i])
				cancel()
			}
		})
	}
	return c
}

func (c *crowd) call(ctx context.Context, key string, told *tally) {
	end := time.Now().Add(redisstore.DefaultTimeout)
	if own, ok := ctx.Deadline(); ok && own.Before(end) {
		end = own
	}
	r, err := c.s.Take(ctx, c.ns, key, year(100_000), 1)
	late := int64(time.Since(end))
	for old := c.slowest.Load(); late > old && !c.slowest.CompareAndSwap(old, late); old = c.slowest.Load() {
	}
	class := "deadline"
	if own, ok := ctx.Deadline(); err == nil || !ok || time.Now().Before(own) {
		class = classOf(c.t, err)
	}
	switch class {
	case "ok":
		assert.True(c.t, r.OK())
		told.ok.Add(1)
	case "timeout", "deadline":
		told.unknown.Add(1)
	}
	n, _ := c.classes.LoadOrStore(class, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

func (c *crowd) count(class string) int64 {
	if n, ok := c.classes.Load(class); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

func (c *crowd) end() map[string]int64 {
	c.stop.Store(true)
	c.callers.Wait()
	all := map[string]int64{}
	c.classes.Range(func(class, n any) bool {
		all[class.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	return all
}

// Past the capacity of a server goodput does not fall: what 4,096 callers get is a part of
// what 256 get. A server that had more calls under way than it can answer would give them
// a hundredth.
func TestGoodputPastCapacity(t *testing.T) {
	s, err := redisstore.New(redistest.Start(t).Client(t))
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	requireGoodput(t, "one server", s)
}

func requireGoodput(t *testing.T, name string, s *redisstore.Store) {
	t.Helper()
	span := time.Duration(effort.Of(80, 400)) * time.Millisecond
	served := func(callers int) int64 {
		c := press(t, s, callers, false)
		time.Sleep(span / 2)
		before := c.count("ok")
		time.Sleep(span)
		ok := c.count("ok") - before
		t.Log(name, callers, "callers:", ok, "of", maps.Clone(c.end()), "late", time.Duration(c.slowest.Load()))
		return ok
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { // a busy machine gives others more in one of the spans
		few := served(256)
		require.Positive(c, few)
		require.Greater(c, served(4096), few/10)
		require.Greater(c, served(64), few/10, "and nothing stays of it")
	}, time.Minute, time.Millisecond)
}

// In overload and in each fault, every key's count on the server is what its callers were
// told, or more by at most the calls whose outcome they were told is unknown. Afterwards
// the store works, and nothing is left of it.
func TestExactlyOnceInOverload(t *testing.T) {
	t.Parallel()
	faults := map[string]func(server *redistest.Server, proxy *redistest.Proxy, client *redis.Client){
		"none":             func(*redistest.Server, *redistest.Proxy, *redis.Client) {},
		"replies are lost": func(_ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) { proxy.DropReplies(5, "evalsha") },
		"cut":              func(_ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) { proxy.Cut() },
		"flushed": func(_ *redistest.Server, _ *redistest.Proxy, client *redis.Client) {
			require.NoError(t, client.ScriptFlush(context.Background()).Err())
		},
		"stopped": func(server *redistest.Server, _ *redistest.Proxy, _ *redis.Client) {
			server.Freeze()
			time.Sleep(120 * time.Millisecond)
			server.Thaw()
		},
		"busy": func(_ *redistest.Server, _ *redistest.Proxy, client *redis.Client) {
			for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
				_ = client.Eval(context.Background(), "local t = redis.call('TIME') repeat local u = redis.call('TIME') until u[2] - t[2] > 30000 or u[1] > t[1]", nil).Err()
			}
		},
	}
	span := time.Duration(effort.Of(60, 150)) * time.Millisecond
	for name, fault := range faults {
		for _, callers := range []int{256, 4096}[:effort.Of(1, 2)] {
			t.Run(fmt.Sprintf("%s, %d callers", name, callers), func(t *testing.T) {
				server := redistest.Start(t)
				proxy := redistest.StartProxy(t, server.Addr())
				client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
				defer client.Close()
				direct := server.Client(t)
				s, err := redisstore.New(client)
				require.NoError(t, err)
				c := press(t, s, callers, true)
				time.Sleep(span)
				for range effort.Of(1, 1, 3) {
					fault(server, proxy, direct)
					time.Sleep(span)
				}
				t.Log(c.end())
				calm, err := redisstore.New(direct, redisstore.WithTimeout(10*time.Second))
				require.NoError(t, err)
				require.Eventually(t, func() bool { // what was charged for those who have left is given back first
					return s.Trips() == 0 && s.Late() == 0 && s.Stats().UnderWay == 0
				}, 20*time.Second, time.Millisecond)
				for i := range c.told {
					ok, unknown := c.told[i].ok.Load(), c.told[i].unknown.Load()
					n := missing(t, calm, c.ns, fmt.Sprint("k", i), year(100_000))
					require.GreaterOrEqual(t, n, ok, "key %d", i)
					require.LessOrEqual(t, n, ok+unknown, "key %d", i)
				}
			})
		}
	}
}

// Where no more calls fit, what was charged can still be given back, and a slot that is held renewed.
func TestAFullStoreTakesBackAndRenews(t *testing.T) {
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	slots, err := inflight.New(s, 5, time.Minute)
	require.NoError(t, err)
	held, err := slots.Allow(t.Context(), "k")
	require.NoError(t, err)
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	s.Fill()
	_, err = slots.Allow(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrOverloaded)
	renewed, err := slots.Renew(t.Context(), "k", held)
	require.NoError(t, err)
	require.True(t, renewed.Allowed)
	require.NoError(t, slots.Refund(t.Context(), "k", held, 1))
}

func TestNoGoroutineIsLeftOfAnOverload(t *testing.T) {
	client := redistest.Start(t).Client(t)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	press(t, s, 2000, true).stopAfter(300 * time.Millisecond)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before }, 20*time.Second, 10*time.Millisecond)
}

func (c *crowd) stopAfter(d time.Duration) {
	time.Sleep(d)
	c.end()
}

// Calls that no carrier sends together are refused in time too.
func TestGoodputPastCapacityBehindAnyClient(t *testing.T) {
	effort.OthersRace(t)
	lines, err := redistest.Start(t).Client(t).AsyncAutoPipeline()
	require.NoError(t, err)
	for name, client := range map[string]redisstore.Client{"an auto-pipeliner": lines, "a client that is not known": hidden{redistest.Start(t).Client(t)}} {
		s, err := redisstore.New(client)
		require.NoError(t, err)
		requireGoodput(t, name, s)
		require.Zero(t, s.Stats().UnderWay)
		require.Positive(t, s.Stats().RoundTrip)
	}
}
