package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
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
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// classes returns all of the store's classes of errors, by their names in logs.
func classes() map[string]error {
	return map[string]error{
		"unavailable": store.ErrUnavailable, "timeout": store.ErrTimeout, "overloaded": store.ErrOverloaded,
		"out of memory": store.ErrOutOfMemory, "corrupt": store.ErrCorrupt, "clocks": store.ErrClock,
	}
}

// classOf names the class of err. No error may have two, nor show a context's end.
func classOf(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return "ok"
	}
	if !errors.Is(err, store.ErrStore) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("not the store's error: %v", err)
	}
	found := "no class"
	for name, class := range classes() {
		if errors.Is(err, class) {
			if found != "no class" {
				t.Errorf("both %s and %s: %v", found, name, err)
			}
			found = name
		}
	}
	return found
}

// The server answers with each code three times, as it would before it runs anything.
// Then the call is admitted.
func TestRefusedCallsAreSentAgainWhileThereIsTime(t *testing.T) {
	t.Parallel()
	server := redistest.StartCluster(t, 1, 0).Masters[0]
	plain := server.Client(t)
	refuse := func(answer string, times int) *store.Namespace {
		return rule(fmt.Sprintf(`local n = redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 60000)
			if n <= %d then return redis.error_reply('%s') end return {1, n, 0, 0}`, times, answer))
	}
	for name, client := range kinds(t, server.Addr(), false) {
		s := newStore(t, client)
		for _, answer := range []string{
			"LOADING Redis is loading the dataset in memory", "READONLY You can't write", "TRYAGAIN Multiple keys",
			"CLUSTERDOWN The cluster is down", "MASTERDOWN Link with MASTER is down", "NOREPLICAS Not enough",
			"BUSY Redis is busy", "ERR max number of clients reached",
			"ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write", // Redis 6.2
		} {
			answer = escape(answer)
			r, err := s.Take(t.Context(), refuse(answer, 3), name+answer, limit, 1)
			require.NoError(t, err, "%s %s", name, answer)
			require.EqualValues(t, 4, r.X)
		}
	}

	// With no time left, the refusal is the answer.
	s, err := redisstore.New(plain, redisstore.WithTimeout(300*time.Millisecond))
	require.NoError(t, err)
	requireInTime(t, "loads for long", func() time.Duration {
		start := time.Now()
		_, err = s.Take(t.Context(), refuse("LOADING planted", 1000), "loads for long", limit, 1)
		took := time.Since(start)
		require.ErrorIs(t, err, store.ErrStore)
		if errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), "LOADING") && strings.Contains(err.Error(), "no connection was made") {
			return slack // a busy machine did not read the last refusal in time, or was not connected
		}
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, err, "LOADING planted")
		return took - 300*time.Millisecond
	})
	require.Eventually(t, func() bool { // on a busy machine, a call may not be connected in time
		_, _ = s.Take(t.Context(), refuse("LOADING planted", 1000), t.Name(), limit, 1)
		runs, err := plain.GetDel(t.Context(), s.RedisKey(refuse("", 0), t.Name())).Int()
		return err == nil && runs > 1
	}, time.Minute, time.Millisecond)
	// The fault bites: go-redis' own command fails.
	naive := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer naive.Close()
	err = naive.Eval(t.Context(), refuse("LOADING planted", 3).Rule.Script(nil), []string{"naive"}).Err()
	require.ErrorContains(t, err, "LOADING")
}

// escape is answer for a Lua string.
func escape(answer string) string {
	var b []byte
	for i := range len(answer) {
		if answer[i] == '\'' {
			b = append(b, '\\')
		}
		b = append(b, answer[i])
	}
	return string(b)
}

func TestOtherAnswersAreNotSentAgain(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	server := redistest.StartCluster(t, 1, 0).Masters[0]
	plain := server.Client(t)
	for name, client := range kinds(t, server.Addr(), false) {
		s := newStore(t, client)
		for answer, class := range map[string]string{
			"OOM command not allowed when used memory > maxmemory":                                              "out of memory",
			"ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed": "out of memory",
			"WRONGTYPE Operation against a key holding the wrong kind of value":                                 "corrupt",
			"ERR Error running script (call to f_1): @user_script:3: WRONGTYPE Operation against a key":         "corrupt",
			"ERR user_script:1: ratelimit: the value of the key is not a state":                                 "corrupt",
			"ERR Error running script (call to f_1): @user_script:3: ratelimit: the value of the key is":        "corrupt",
			"ERR user_script:1: ratelimit: the clocks of server and caller differ by more than two windows":     "clocks",
			"ERR Error running script (call to f_1): @user_script:3: ratelimit: the clocks of server and":       "clocks",
			"MISCONF Redis is configured to save RDB snapshots":                                                 "unavailable",
			"NOPERM this user has no permissions":                                                               "no class",
			"ERR something else about OOM":                                                                      "no class",
			"LOADINGX":                                                                                          "no class",
		} {
			key := name + answer
			ns := rule(`redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 60000) return redis.error_reply('` + answer + `')`)
			_, err := s.Take(t.Context(), ns, key, limit, 1)
			require.Equal(t, class, classOf(t, err), answer)
			runs, err := plain.Get(t.Context(), s.RedisKey(ns, key)).Int()
			require.NoError(t, err)
			require.Equal(t, 1, runs, key)
		}
	}
}

func TestGarbageIsCorruptState(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s := newStore(t, client)
	plant := map[string]func(key string) error{
		"a text": func(key string) error { return client.Set(t.Context(), key, "garbage", time.Minute).Err() },
		"a list": func(key string) error { return client.LPush(t.Context(), key, "x").Err() },
	}
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		for what, put := range plant {
			l, err := ratelimit.New(algorithm, s, ratelimit.PerHour(10))
			require.NoError(t, err)
			key := algorithm + what
			_, err = l.Allow(t.Context(), key)
			require.NoError(t, err)
			found, err := client.Keys(t.Context(), redistest.Prefix(t)+"*"+key+"*").Result()
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.NoError(t, client.Del(t.Context(), found[0]).Err())
			require.NoError(t, put(found[0]))

			_, err = l.Allow(t.Context(), key)
			require.ErrorIs(t, err, store.ErrCorrupt, key)
			_, err = l.Peek(t.Context(), key)
			require.ErrorIs(t, err, store.ErrCorrupt, key)
			require.NoError(t, l.Reset(t.Context(), key))
			_, err = l.Allow(t.Context(), key)
			require.NoError(t, err)
		}
	}
}

// A server that is gone is unavailable on the first call, while the client still dials,
// and on all that follow.
func TestNobodyThereIsUnavailable(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1" // whose port no server of another test can take, as that of a dead one
	loads := map[string]*load{}
	for _, contextTimeouts := range []bool{false, true} {
		for name, client := range kinds(t, nobody, contextTimeouts) {
			s, err := redisstore.New(client)
			require.NoError(t, err)
			loads[fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, contextTimeouts)] = start(t, s, "k", 8)
		}
	}
	time.Sleep(700 * time.Millisecond) // go-redis dials for half a second before it gives a reason
	for name, l := range loads {
		l.end()
		l.report("nobody listens, " + name)
		if strings.Contains(name, "AutoPipeliner") || strings.Contains(name, "blocking") {
			require.Zero(t, l.count("ok")) // it does not report what it has sent
			continue
		}
		require.Equal(t, l.calls(), l.count("unavailable"), name)
	}
	t.Run("no such host", func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "nobody.invalid:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nobody.invalid", IsNotFound: true}}
		}})
		defer client.Close()
		_, err := newStore(t, client, redisstore.WithTimeout(2*time.Second)).Take(t.Context(), space, "k", limit, 1)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, err, "no such host")
	})
}

func TestPoolExhaustedIsOverloaded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	proxy.Delay(4 * time.Millisecond) // alive, but two connections carry 500 calls a second
	small := func(change func(o *redis.Options)) *redis.Client {
		o := &redis.Options{Addr: proxy.Addr(), PoolSize: 2}
		change(o)
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	ring := func(o *redis.RingOptions) *redis.Ring {
		o.Addrs = map[string]string{"a": proxy.Addr()}
		o.HeartbeatFrequency = time.Hour
		o.PoolSize = 2
		client := redis.NewRing(o)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	shard := func(ring *redis.Ring) *redis.Client {
		c, err := ring.GetShardClientForKey("k")
		require.NoError(t, err)
		return c
	}
	plain, late := ring(&redis.RingOptions{}), ring(&redis.RingOptions{ContextTimeoutEnabled: true})
	one, other := small(func(*redis.Options) {}), small(func(o *redis.Options) { o.PoolTimeout = 10 * time.Millisecond })
	third := small(func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 64, 2 })
	for name, c := range map[string]struct {
		client redisstore.Client
		server *redis.Client // whose pool it is
	}{
		"wait until the deadline": {one, one},
		"PoolTimeout":             {other, other},
		"MaxActiveConns":          {third, third},
		"Ring":                    {plain, shard(plain)},
		"Ring with deadlines":     {late, shard(late)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := redisstore.New(c.client)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, err := s.Take(t.Context(), space, "k", limit, 1)
				return err == nil
			}, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool {
				l := run(t, s, 64, 300*time.Millisecond)
				l.report("a pool of 2, 64 callers: they go together")
				return l.count("ok") > 0
			}, time.Minute, time.Millisecond)

			for range 2 {
				conn := c.server.Conn()
				defer conn.Close()
				require.Eventually(t, func() bool { return conn.Ping(t.Context()).Err() == nil }, time.Minute, time.Millisecond, "a late trip holds a place")
			}
			l := run(t, s, 64, 300*time.Millisecond)
			l.report("a pool of 2 that somebody else holds")
			require.Zero(t, l.count("no class"))
			require.Zero(t, l.count("ok"))
			require.Greater(t, l.count("overloaded"), l.calls()*3/4)
		})
	}

	// The fault bites: the client's own command waits as long as PoolTimeout.
	naive := small(func(o *redis.Options) { o.ReadTimeout = time.Second })
	longest := worst(64, 1, func() time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_ = naive.Ping(ctx).Err()
		return time.Since(start)
	})
	require.Greater(t, longest, 100*time.Millisecond)
}

// The deadlines of its callers are no failures of a store that has time: whoever is late ends as its context does, of each
// kind of client.
func TestShortDeadlinesEndAsTheirContexts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	proxy.Delay(4 * time.Millisecond)
	client := func(deadlines bool) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 2, ContextTimeoutEnabled: deadlines})
	}
	ring := func(deadlines bool) *redis.Ring {
		return redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"a": proxy.Addr()}, HeartbeatFrequency: time.Hour, PoolSize: 2, ContextTimeoutEnabled: deadlines,
		})
	}
	lines, err := client(true).AsyncAutoPipeline()
	require.NoError(t, err)
	for name, c := range map[string]redisstore.Client{
		"Client": client(false), "Client with deadlines": client(true), "Ring": ring(false), "Ring with deadlines": ring(true), "AutoPipeliner": lines,
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { _ = c.(io.Closer).Close() })
			s := newStore(t, c)
			_, err := s.Take(t.Context(), space, "k", limit, 1)
			require.NoError(t, err)
			var late atomic.Int64
			var callers sync.WaitGroup
			for i := range 64 {
				callers.Go(func() {
					for n := range 40 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i+n)%30)*time.Millisecond)
						if _, err := s.Take(ctx, space, "k", limit, 1); err != nil {
							assert.Equal(t, context.DeadlineExceeded, err)
							late.Add(1)
						}
						cancel()
					}
				})
			}
			callers.Wait()
			require.Positive(t, late.Load())
			_, err = s.Take(t.Context(), space, "k", limit, 1)
			require.NoError(t, err)
		})
	}
}

// A full pool is busy if calls on it are answered. Otherwise the server hangs, and a
// circuit breaker must learn of it.
func TestAServerThatHangsIsNoBusyPool(t *testing.T) {
	for name, client := range map[string]func(addr string) redisstore.Client{
		"Client": func(addr string) redisstore.Client { return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 2}) },
		"PoolTimeout": func(addr string) redisstore.Client {
			return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 2, PoolTimeout: 10 * time.Millisecond})
		},
		"Ring": func(addr string) redisstore.Client {
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, PoolSize: 2, HeartbeatFrequency: time.Hour})
		},
		"Ring with deadlines": func(addr string) redisstore.Client {
			return redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"a": addr}, PoolSize: 2, HeartbeatFrequency: time.Hour, ContextTimeoutEnabled: true,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c := client(server.Addr())
			defer c.(io.Closer).Close()
			s, err := redisstore.New(c)
			require.NoError(t, err)
			server.Freeze()
			l := run(t, s, 16, 300*time.Millisecond)
			l.report("never heard of, 16 callers and a pool of 2")
			require.Zero(t, l.count("overloaded"))

			server.Thaw()
			require.Eventually(t, func() bool {
				_, err := s.Take(t.Context(), space, "k", limit, 1)
				return err == nil
			}, 10*time.Second, time.Millisecond)
			server.Freeze()
			run(t, s, 16, 1200*time.Millisecond)
			l = run(t, s, 16, 300*time.Millisecond)
			l.report("silent for more than a second, 16 callers and a pool of 2")
			require.Zero(t, l.count("overloaded"))
		})
	}
}

// Only the wait for a connection ends before the timeout does.
func TestAnswersInTheLastQuarterCount(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	clients := kinds(t, proxy.Addr(), false)
	delete(clients, "ClusterClient") // not a cluster
	for _, client := range clients {
		_, err := newStore(t, client).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
	}
	proxy.Delay(1700 * time.Millisecond)
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := newStore(t, client, redisstore.WithTimeout(2*time.Second))
			require.EventuallyWithT(t, func(c *assert.CollectT) { // a busy machine may take longer
				_, err := slow.Take(t.Context(), space, "k", limit, 1)
				if err != nil {
					time.Sleep(2 * time.Second) // the next call must not wait behind this one
				}
				require.NoError(c, err)
			}, time.Minute, time.Millisecond)
			_, err := newStore(t, client, redisstore.WithTimeout(time.Second)).Take(t.Context(), space, "k", limit, 1)
			require.ErrorIs(t, err, store.ErrTimeout)
		})
	}
}

// usedMemory is what the server counts against its maxmemory.
func usedMemory(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	n, err := strconv.Atoi(info["Memory"]["used_memory"])
	require.NoError(t, err)
	return n
}

func TestFullServerIsOutOfMemory(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, "--maxmemory-policy", "noeviction").Client(t)
	now := time.Now()
	s := newStore(t, client, redisstore.WithClock(func() time.Time { return now }))
	limiters := map[string]ratelimit.Limiter{}
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		l, err := ratelimit.New(algorithm, s, ratelimit.PerHour(200))
		require.NoError(t, err)
		limiters[algorithm] = l
		for key, n := range map[string]int{"spent": 200, "known": 50, "full block": 64, "other": 1} {
			for range n { // single events, which fill the blocks of a log
				_, err = l.Allow(t.Context(), key)
				require.NoError(t, err)
			}
		}
		_, err = l.AllowN(t.Context(), "other", 2) // and another kind of block
		require.NoError(t, err)
		for i := range 90 { // two blocks; the first is about to die
			if i == 70 {
				now = now.Add(30 * time.Minute)
			}
			_, err = l.Allow(t.Context(), "half dead")
			require.NoError(t, err)
		}
		_, err = l.Allow(t.Context(), "dead")
		require.NoError(t, err)
		now = now.Add(-30 * time.Minute)
	}
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.True(t, redis.IsOOMError(client.Set(t.Context(), "filler", "x", 0).Err()))
	for algorithm, l := range limiters {
		before := usedMemory(t, client)
		refuse := func(what, key string, n int) {
			for i := range 100 {
				if what == "new" {
					key = fmt.Sprint(what, i)
				}
				_, err := l.AllowN(t.Context(), key, n)
				require.ErrorIs(t, err, store.ErrOutOfMemory, "%s: %s", algorithm, what)
			}
		}
		refuse("new", "", 1)
		refuse("a state to rewrite", "known", 1)
		refuse("a block to begin", "full block", 1)
		refuse("a wide block to begin", "full block", 2)
		refuse("a wide block to rewrite", "other", 2)
		for key, later := range map[string]time.Duration{"half dead": 61 * time.Minute, "dead": 3 * time.Hour} {
			now = now.Add(later)
			refuse(key, key, 1)
			now = now.Add(-later)
		}
		r, err := l.Allow(t.Context(), "spent")
		require.NoError(t, err, "%s: a denial writes nothing", algorithm)
		require.False(t, r.Allowed)
		r, err = l.Peek(t.Context(), "known")
		require.NoError(t, err)
		require.Equal(t, 150, r.Remaining, "%s: nothing was charged", algorithm)
		require.Less(t, usedMemory(t, client), before+40_000, "%s: 700 calls", algorithm) // room for clients' buffers
		require.NoError(t, l.Reset(t.Context(), "spent"), "%s: frees memory", algorithm)
	}
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	for _, l := range limiters {
		_, err := l.Allow(t.Context(), "new")
		require.NoError(t, err)
	}
}

// A call that was not sent before its caller left charges nothing later on.
func TestAbandonedCallsThatWaitedChargeNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	loads, stores := map[string]*load{}, map[string]*redisstore.Store{}
	for name, client := range kinds(t, server.Addr(), false) {
		if name == "ClusterClient" {
			continue // not a cluster
		}
		stores[name] = newStore(t, client, redisstore.WithPrefix(name))
		_, err := stores[name].Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		s, err := redisstore.New(client, redisstore.WithPrefix(name))
		require.NoError(t, err)
		loads[name] = start(t, s, "k", 32)
	}
	for name, l := range loads { // a busy machine takes its time to make connections
		require.Eventually(t, func() bool { return l.count("ok") > 64 }, 20*time.Second, time.Millisecond, name)
	}
	before := map[string]int{} // on a busy machine some time out without a fault
	for name, l := range loads {
		before[name] = l.count("timeout")
	}
	server.Freeze()
	time.Sleep(time.Second)
	for _, l := range loads {
		l.end()
	}
	server.Thaw()
	time.Sleep(100 * time.Millisecond)
	for name, l := range loads {
		late := int(used(t, stores[name], "k")) - 1 - l.count("ok")
		l.report(fmt.Sprintf("frozen for a second, %s: %d charged late,", name, late))
		require.Positive(t, l.count("timeout"))
		require.LessOrEqual(t, late, l.count("timeout"), name)
		// The 32 that were under way. An auto-pipeliner has as many again, and on a busy machine
		// more time out on either side of the freeze. All that were abandoned would be 640.
		require.LessOrEqual(t, late, 10*32+before[name], "%s: what was under way", name)
	}
}

// A server that is gone is no busy one, however many callers wait for a connection. The error says
// why none is made, before go-redis does.
func TestAServerThatIsGoneIsUnavailable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var gone atomic.Bool
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if gone.Load() {
			addr = "127.0.0.1:1" // another test's server may take the port
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)
	run(t, s, 32, 100*time.Millisecond)
	gone.Store(true)
	server.Kill()
	run(t, s, 32, 250*time.Millisecond).report("killed, and found out")
	l := run(t, s, 32, 250*time.Millisecond)
	l.report("killed")
	require.Equal(t, l.calls(), l.count("unavailable"))
	_, err = s.Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "connection refused")
}
