package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// severals are clients of several servers, as their users make them: without ContextTimeoutEnabled.
func severals(t *testing.T) map[string]redisstore.Client {
	t.Helper()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: redistest.StartCluster(t, 3, 0).Addrs()})
	t.Cleanup(func() { _ = cluster.Close() })
	return map[string]redisstore.Client{"a cluster": cluster, "a ring": ringOfTwo(t)}
}

func ringOfTwo(t *testing.T) *redis.Ring {
	t.Helper()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Start(t).Addr(), "b": redistest.Start(t).Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// A crowd on a cluster or a ring is served exactly, of one limit and of two.
func TestACrowdOnSeveralServersIsServed(t *testing.T) {
	t.Parallel()
	for name, client := range severals(t) {
		crowdOn(t, name, client, 300)
	}
}

// It needs no goroutine for each call.
func TestACrowdOnSeveralServersStartsFewGoroutines(t *testing.T) { // not beside others, whose goroutines would count
	ring := ringOfTwo(t)
	const callers = 600
	before := runtime.NumGoroutine()
	require.Less(t, crowdOn(t, "a ring", ring, callers), before+callers+callers/2)
}

// crowdOn has many callers use one limit and two, and returns how many goroutines there were at most.
func crowdOn(t *testing.T, name string, client redisstore.Client, callers int) int {
	const calls, keys = 4, 20
	most := callers * calls / keys / 2
	var goroutines atomic.Int64
	for limits := range 2 {
		s, err := redisstore.New(client, redisstore.WithTimeout(20*time.Second), redisstore.WithPrefix(fmt.Sprint("crowd", limits)))
		require.NoError(t, err)
		var l ratelimit.Limiter = ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: most, Period: 10 * 365 * 24 * time.Hour}))
		if limits > 0 {
			l = ratelimit.Must(ratelimit.NewAll(l, ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(1_000_000)))))
		}
		var admitted [keys]atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for n := range calls {
					k := (i + n) % keys
					r, err := l.Allow(context.Background(), fmt.Sprint("user:", k))
					if err != nil {
						t.Error(err)
					} else if r.Allowed {
						admitted[k].Add(1)
					}
					if n := int64(runtime.NumGoroutine()); n > goroutines.Load() {
						goroutines.Store(n)
					}
				}
			})
		}
		all.Wait()
		for k := range admitted {
			require.EqualValues(t, most, admitted[k].Load(), "%s, %d limits, key %d", name, 1+limits, k)
		}
	}
	return int(goroutines.Load())
}

// Calls of one tag share scripts, as those of one server do: of one limit, and of two.
func TestCallsOfATagShareScripts(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	client := cluster.Client(t)
	ran := func() (n int) {
		for _, calls := range scripts(t, cluster) {
			n += calls
		}
		return n
	}
	s, err := redisstore.New(client, redisstore.WithTimeout(20*time.Second), redisstore.WithHashTags(3))
	require.NoError(t, err)
	one := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(1000)))
	two := ratelimit.Must(ratelimit.NewAll(one, ratelimit.Must(ratelimit.NewSlidingWindow(s, ratelimit.PerDay(2000)))))
	for name, l := range map[string]ratelimit.Limiter{"one": one, "two": two} {
		const callers, calls = 512, 8
		before := ran()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range calls {
					if r, err := l.Allow(context.Background(), fmt.Sprint(name, i)); err != nil || !r.Allowed {
						t.Error(r, err)
					}
				}
			})
		}
		all.Wait()
		require.Less(t, ran()-before, callers*calls/3, "scripts for %d decisions on %s", callers*calls, name)
	}
}

// What holds past the capacity of one server holds for several: see TestGoodputPastCapacity.
func TestGoodputPastTheCapacityOfSeveralServers(t *testing.T) {
	t.Parallel()
	effort.OthersRace(t)
	for name, client := range severals(t) {
		s, err := redisstore.New(client)
		require.NoError(t, err)
		require.NoError(t, s.Ready(t.Context()))
		requireGoodput(t, name, s)
	}
}

// The slot moves while a crowd asks for a key in it, and for others on both masters. No call is lost, and none is
// counted twice.
func TestASlotMovesUnderACrowd(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	client := cluster.Client(t)
	s, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	l := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: 2_000_000, Period: 10 * 365 * 24 * time.Hour}, ratelimit.WithName("crowd")))
	keys := []string{"moves", "a", "b", "c", "d", "e"}
	var admitted [6]atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	for i := range 128 {
		all.Go(func() {
			for n := i; !stop.Load(); n++ {
				k := n % 2 * (n / 2 % len(keys)) // half of them of the first
				r, err := l.Allow(context.Background(), keys[k])
				if err != nil || !r.Allowed {
					t.Error(r, err)
					return
				}
				admitted[k].Add(1)
			}
		})
	}
	from, to := cluster.Masters[0].Client(t), cluster.Masters[1].Client(t)
	require.Eventually(t, func() bool { return admitted[0].Load() > 0 }, 10*time.Second, time.Millisecond)
	if found, err := from.Keys(t.Context(), "*moves*").Result(); err != nil || len(found) == 0 {
		from, to = to, from
	}
	for range effort.Of(4, 10, 100) {
		moveSlotOf(t, client, "moves", from, to)
		from, to = to, from
		time.Sleep(20 * time.Millisecond)
	}
	stop.Store(true)
	all.Wait()
	for k := range keys {
		r, err := l.Peek(t.Context(), keys[k])
		require.NoError(t, err)
		require.EqualValues(t, admitted[k].Load(), 2_000_000-r.Remaining, keys[k])
	}
}

// A ring whose only shard is away for a moment, and a cluster of which one seed accepts connections and says nothing: a call
// looks for its server as long as it has time.
func TestACallLooksForItsServerWhileItHasTime(t *testing.T) {
	t.Parallel()
	server, _ := clusterOfOne(t)
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hangs.Close() // it accepts none, and the kernel does

	var up atomic.Bool
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": redistest.Shared(t).Addr()}, HeartbeatFrequency: time.Millisecond,
		HeartbeatFn: func(context.Context, *redis.Client) bool { return up.Load() },
	})
	defer ring.Close()
	require.Eventually(t, func() bool { return ring.Len() == 0 }, 20*time.Second, time.Millisecond)
	s := newStore(t, ring, redisstore.WithTimeout(20*time.Second))
	time.AfterFunc(50*time.Millisecond, func() { up.Store(true) })
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)

	var all sync.WaitGroup
	for range 4 { // of two seeds a client takes any
		cluster := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{server.Addr(), hangs.Addr().String()}, DialTimeout: time.Minute, ReadTimeout: time.Minute,
		})
		defer cluster.Close()
		s := newStore(t, cluster, redisstore.WithTimeout(8*time.Second)) // less than the client waits for a seed
		all.Go(func() {
			_, err := s.Take(t.Context(), space, "k", limit, 1)
			assert.NoError(t, err)
		})
	}
	all.Wait()
}

// What Ready has made and measured is for the servers that calls use, whatever the client's options.
func TestReadyKnowsTheServersThatCallsUse(t *testing.T) {
	t.Parallel()
	for name, client := range severals(t) {
		s, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second))
		require.NoError(t, err)
		require.NoError(t, s.Ready(t.Context()))
		require.Positive(t, s.Stats().RoundTrip)
		known := s.Servers()
		for i := range 100 {
			_, err := s.Take(t.Context(), space, fmt.Sprint(i), limit, 1)
			require.NoError(t, err)
		}
		require.Equal(t, known, s.Servers(), name)
	}
}

// While a slot moves, its nodes refuse a script of several keys unless they have all of them or none of them. Limits of
// new users, and of those whose keys are on both nodes, are then decided one after the other.
func TestSeveralLimitsAreDecidedWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	client := cluster.Client(t)
	s := newStore(t, client, redisstore.WithTimeout(10*time.Second))
	limit := ratelimit.PerDay(3)
	one := ratelimit.Must(ratelimit.NewFixedWindow(s, limit, ratelimit.WithName("one")))
	two := ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(2), ratelimit.WithName("two")))
	ctx := t.Context()
	for name, lim := range map[string]ratelimit.Limiter{
		"all":     ratelimit.Must(ratelimit.NewAll(one, two)),
		"charged": ratelimit.Must(ratelimit.NewAll(one, ratelimit.Must(ratelimit.NewSlidingLog(s, ratelimit.PerDay(2), ratelimit.WithReserved(1))))),
		"first":   ratelimit.Must(ratelimit.NewFirst(ratelimit.Must(ratelimit.NewAll(one, two)), two)),
		"ban":     ratelimit.Must(ratelimit.NewBan(ratelimit.Must(ratelimit.NewAll(one, two)), s, ratelimit.Penalty{Denials: 9, Within: time.Hour, For: time.Hour})),
	} {
		for _, moved := range []bool{false, true} { // one of the keys, or none, because there are none
			key := fmt.Sprint(name, moved)
			slot := client.ClusterKeySlot(ctx, "{="+key+"}").Val()
			from, to := cluster.Masters[0].Client(t), cluster.Masters[1].Client(t)
			if slot >= 8192 {
				from, to = to, from
			}
			if moved {
				_, err := one.Allow(ctx, key)
				require.NoError(t, err)
			}
			fromID, toID := from.Do(ctx, "CLUSTER", "MYID").Val(), to.Do(ctx, "CLUSTER", "MYID").Val()
			require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
			require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
			if moved {
				host, port, err := net.SplitHostPort(to.Options().Addr)
				require.NoError(t, err)
				found := from.Keys(ctx, "*"+key+"*").Val()
				require.Len(t, found, 1)
				require.NoError(t, from.Do(ctx, "MIGRATE", host, port, found[0], 0, 5000).Err())
			}
			r, err := lim.Allow(ctx, key)
			require.NoError(t, err, key)
			require.True(t, r.Allowed, key)
			require.NoError(t, lim.Refund(ctx, key, r, 1), key)
			admitted := 0
			for range 5 {
				r, err := lim.Allow(ctx, key)
				require.NoError(t, err, key)
				if r.Allowed {
					admitted++
				}
			}
			require.Equal(t, map[string]int{"all": 2, "charged": 1, "first": 2, "ban": 2}[name], admitted, key)
			_, err = lim.Peek(ctx, key)
			require.NoError(t, err, key)
		}
	}
}
