package redisstore_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func init() { logging.Disable() } // the faults are planted

// slack is ten times what law 13 allows: test machines are busy.
const slack = 100 * time.Millisecond

func TestScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	callers, calls := 8, effort.Of(500, 2_000, 6_000)
	if testing.Short() {
		calls = 1_000
	}
	server := redistest.Start(t)
	client := server.Client(t)
	s := newStore(t, client)

	stop := make(chan struct{})
	var flusher, workers sync.WaitGroup
	flushes := 0
	flusher.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if client.ScriptFlush(context.Background()).Err() == nil {
					flushes++
				}
			}
		}
	})
	var failed atomic.Pointer[error]
	for range callers {
		workers.Go(func() {
			for range calls {
				if _, err := s.Take(t.Context(), space, "k", limit, 1); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	flusher.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
	require.EqualValues(t, callers*calls, used(t, s, "k"))
	t.Logf("%d calls, %d flushes", callers*calls, flushes)
}

// kinds returns the client kinds that reach one server at addr. They share no
// connections.
func kinds(t *testing.T, addr string, contextTimeouts bool) map[string]redisstore.Client {
	t.Helper()
	single := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: contextTimeouts})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": addr}, ContextTimeoutEnabled: contextTimeouts, HeartbeatFrequency: time.Hour,
	})
	t.Cleanup(func() { _ = ring.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: contextTimeouts})
	t.Cleanup(func() { _ = cluster.Close() })
	async, err := single().AsyncAutoPipeline()
	require.NoError(t, err)
	blocking, err := single().AutoPipeline()
	require.NoError(t, err)
	return map[string]redisstore.Client{
		"Client":        single(),
		"Ring":          ring,
		"ClusterClient": cluster,
		"AutoPipeliner": async,
		"blocking":      blocking,
		"unknown":       struct{ redisstore.Client }{single()},
	}
}

// clusterOfOne returns a server that is a whole cluster, and a proxy. The server
// announces the proxy as its address, so all clients use it.
func clusterOfOne(t *testing.T) (*redistest.Server, *redistest.Proxy) {
	server := redistest.StartCluster(t, 1, 0).Masters[0]
	proxy := redistest.StartProxy(t, server.Addr())
	_, port, err := net.SplitHostPort(proxy.Addr())
	require.NoError(t, err)
	require.NoError(t, server.Client(t).ConfigSet(t.Context(), "cluster-announce-port", port).Err())
	return server, proxy
}

func TestLostReplyRunsOnce(t *testing.T) {
	t.Parallel()
	server, proxy := clusterOfOne(t)
	for name, client := range kinds(t, proxy.Addr(), false) {
		s := newStore(t, client, redisstore.WithPrefix("lost"))
		for _, lost := range []int{1, 3} {
			t.Run(fmt.Sprint(name, " ", lost), func(t *testing.T) {
				key := fmt.Sprint(name, lost)
				count := newStore(t, server.Client(t), redisstore.WithPrefix("lost"))
				require.EqualValues(t, 0, used(t, s, key)) // connected, script loaded
				proxy.DropReplies(lost, "evalsha", "eval")
				for i := range lost {
					_, err := s.Take(t.Context(), space, key, limit, 1)
					require.ErrorIs(t, err, store.ErrTimeout)
					require.ErrorContains(t, err, "outcome is unknown")
					require.EqualValues(t, i+1, used(t, count, key), "executions after %d calls", i+1)
				}
				require.Equal(t, lost, proxy.Dropped())
				_, err := s.Take(t.Context(), space, key, limit, 1)
				require.NoError(t, err)
				require.EqualValues(t, lost+1, used(t, count, key))
			})
		}
	}

	// The fault bites: go-redis' own commands run again.
	sum := sha1.Sum([]byte(counter.Script(nil)))
	sha := hex.EncodeToString(sum[:])
	for name, client := range kinds(t, proxy.Addr(), false) {
		scripter, ok := client.(redis.Scripter)
		if !ok {
			continue
		}
		for _, lost := range []int{1, 3} {
			key := fmt.Sprint("naive ", name, lost)
			args := []any{"take", 7, 60_000_000, 1 << 30, 1}
			redisKey := "lost:2:counter:test:{=" + key + "}"
			require.NoError(t, scripter.EvalSha(t.Context(), sha, []string{redisKey}, "look", 7, 60_000_000, 1<<30, 1).Err())
			proxy.DropReplies(lost, "evalsha")
			err := scripter.EvalSha(t.Context(), sha, []string{redisKey}, args...).Err()
			proxy.DropReplies(0)
			count := newStore(t, server.Client(t), redisstore.WithPrefix("lost"))
			runs := used(t, count, key)
			t.Logf("naive %s, %d replies lost: %d executions, err %v", name, lost, runs, err)
			require.Greater(t, runs, int64(1))
		}
	}
}

func TestFrozenServer(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	server := redistest.StartCluster(t, 1, 0).Masters[0]
	for _, contextTimeouts := range []bool{false, true} {
		for _, warm := range []bool{true, false} {
			t.Run(fmt.Sprintf("contextTimeouts=%t warm=%t", contextTimeouts, warm), func(t *testing.T) {
				if contextTimeouts == warm {
					effort.NeedFull(t)
				}
				stores := map[string]*redisstore.Store{}
				for name, client := range kinds(t, server.Addr(), contextTimeouts) {
					s, err := redisstore.New(client, redisstore.WithTimeout(timeout))
					require.NoError(t, err)
					if warm {
						_, err := newStore(t, client).Take(t.Context(), space, "k", limit, 1)
						require.NoError(t, err)
					}
					stores[name] = s
				}
				server.Freeze()
				defer server.Thaw()
				for name, s := range stores {
					requireInTime(t, name+", the store's timeout", func() time.Duration {
						return worst(32, 2, func() time.Duration {
							start := time.Now()
							_, err := s.Take(context.Background(), space, "k", limit, 1)
							took := time.Since(start)
							requireStoreTimeout(t, err)
							return took - timeout
						})
					})
					requireInTime(t, name+", the caller's deadline", func() time.Duration {
						ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
						defer cancel()
						start := time.Now()
						_, err := s.Take(ctx, space, "k", limit, 1)
						took := time.Since(start)
						if errors.Is(err, store.ErrStore) {
							return slack // a busy machine fires the store's timer with the caller's
						}
						require.Equal(t, context.DeadlineExceeded, err, name)
						return took - 20*time.Millisecond
					})
					requireInTime(t, name+", the caller's cancel", func() time.Duration {
						ctx, cancel := context.WithCancel(context.Background())
						time.AfterFunc(20*time.Millisecond, cancel)
						start := time.Now()
						_, err := s.Take(ctx, space, "k", limit, 1)
						took := time.Since(start)
						if errors.Is(err, store.ErrStore) {
							return slack // a busy machine fires the store's timer with the caller's
						}
						require.Equal(t, context.Canceled, err, name)
						return took - timeout // go-redis would have read on for as long
					})
				}
			})
		}
	}

	// The fault bites: a client without the store waits for its own timeout.
	naive := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Second, MaxRetries: -1})
	defer naive.Close()
	require.NoError(t, naive.Ping(t.Context()).Err())
	server.Freeze()
	defer server.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.Error(t, naive.Eval(ctx, "return 1", nil).Err())
	require.Greater(t, time.Since(start), 900*time.Millisecond)
}

// requireInTime requires calls that are late by less than slack, and what timers of this process
// are late by meanwhile. It tries several times: a busy machine breaks a bound of time now and
// then, and a defect each time. In short mode it only reports, because CI then has the race
// detector on.
func requireInTime(t *testing.T, what string, late func() time.Duration) {
	t.Helper()
	for range 5 {
		timers := timersAreLate()
		d := late()
		all := timers()
		t.Logf("%s: late by at most %v, timers by %v", what, d.Round(time.Microsecond), all.Round(time.Microsecond))
		if d < slack+all || testing.Short() {
			return
		}
	}
	t.Fatalf("%s: late by more than %v each time", what, slack)
}

// timersAreLate measures until stop is called by how much timers are late at most.
func timersAreLate() (stop func() time.Duration) {
	done, worst := make(chan struct{}), make(chan time.Duration)
	go func() {
		late := time.Duration(0)
		for {
			began := time.Now()
			select {
			case <-done:
				worst <- late
				return
			case <-time.After(time.Millisecond):
				late = max(late, time.Since(began)-time.Millisecond)
			}
		}
	}()
	return func() time.Duration {
		close(done)
		return <-worst
	}
}

// worst runs f from this many callers, rounds times each, and returns the longest.
func worst(callers, rounds int, f func() time.Duration) time.Duration {
	var mu sync.Mutex
	var longest time.Duration
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				d := f()
				mu.Lock()
				longest = max(longest, d)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return longest
}

func requireStoreTimeout(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrStore) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("not the store's timeout: %v", err)
	}
}

func TestFrozenServerLeavesNoGoroutine(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	server.Freeze()
	worst(64, 2, func() time.Duration {
		_, err := s.Take(context.Background(), space, "k", limit, 1)
		requireStoreTimeout(t, err)
		return 0
	})
	server.Thaw()
	requireGoroutines(t, before)
	require.Eventually(t, func() bool {
		_, err := s.Take(context.Background(), space, "k", limit, 1)
		return err == nil
	}, 10*time.Second, time.Millisecond)
}

// requireGoroutines waits until no more goroutines are left than there were.
func requireGoroutines(t *testing.T, before int) {
	t.Helper()
	for range 500 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<20)
	t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}

func TestDetachedGoroutinesEndWithTheClientsTimeout(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": server.Addr()}, ReadTimeout: 300 * time.Millisecond, HeartbeatFrequency: time.Hour,
	})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)
	_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	server.Freeze()
	worst(64, 1, func() time.Duration {
		_, err := s.Take(context.Background(), space, "k", limit, 1)
		requireStoreTimeout(t, err)
		return 0
	})
	t.Logf("%d goroutines abandoned", runtime.NumGoroutine()-before)
	server.Thaw()
	requireGoroutines(t, before)
}

func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 2})
	defer client.Close()
	s, err := redisstore.New(client)
	require.NoError(t, err)

	t.Run("by a slow proxy, 64 callers", func(t *testing.T) {
		proxy := redistest.StartProxy(t, server.Addr())
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 2})
		defer client.Close()
		s, err := redisstore.New(client)
		require.NoError(t, err)
		_, err = newStore(t, client).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		proxy.Hold()
		defer proxy.Release()
		requireInTime(t, "64 callers", func() time.Duration {
			return worst(64, 2, func() time.Duration { return overtime(t, s) })
		})
	})
	t.Run("by a frozen server, 64 callers", func(t *testing.T) {
		server.Freeze()
		defer server.Thaw()
		requireInTime(t, "64 callers", func() time.Duration {
			return worst(64, 2, func() time.Duration { return overtime(t, s) })
		})
	})
	t.Run("but all alive", func(t *testing.T) {
		s := newStore(t, client)
		worst(64, 20, func() time.Duration {
			if _, err := s.Take(context.Background(), space, "k", limit, 1); err != nil {
				t.Error(err)
			}
			return 0
		})
	})
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	gone := redistest.Start(t)
	gone.Kill()
	hang := make(chan struct{})
	defer close(hang)
	for name, opt := range map[string]*redis.Options{
		"connection refused": {Addr: gone.Addr(), PoolSize: 2},
		"dial blackholed": {PoolSize: 2, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		"dial deaf to its context": {PoolSize: 2, Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-hang
			return nil, net.ErrClosed
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(opt)
			defer client.Close()
			s, err := redisstore.New(client)
			require.NoError(t, err)
			requireInTime(t, name, func() time.Duration {
				return worst(64, 2, func() time.Duration { return overtime(t, s) })
			})
			_, err = s.Take(context.Background(), space, "k", limit, 1)
			t.Log(err)
		})
	}
	t.Run("killed and back", func(t *testing.T) {
		server := redistest.Start(t)
		s := newStore(t, server.Client(t), redisstore.WithTimeout(redisstore.DefaultTimeout))
		_, err := newStore(t, server.Client(t)).Take(t.Context(), space, "k", limit, 1)
		require.NoError(t, err)
		server.Kill()
		requireInTime(t, "killed", func() time.Duration {
			return worst(1, 5, func() time.Duration { return overtime(t, s) })
		})
		server.Restart(t)
		back := time.Now()
		require.Eventually(t, func() bool {
			_, err := s.Take(context.Background(), space, "k", limit, 1)
			return err == nil
		}, 10*time.Second, 5*time.Millisecond)
		t.Log("recovered in", time.Since(back))
	})
}

// overtime makes a call of s, which must fail. It returns by how much the call exceeded
// the store's default timeout.
func overtime(t *testing.T, s *redisstore.Store) time.Duration {
	start := time.Now()
	_, err := s.Take(context.Background(), space, "k", limit, 1)
	late := time.Since(start) - redisstore.DefaultTimeout
	requireStoreTimeout(t, err)
	return late
}

func TestClusterSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	moveSlots(t, effort.Of(4, 10))
}

func TestLongClusterSlotsMoveUnderLoad(t *testing.T) {
	effort.NeedLong(t)
	moveSlots(t, 200)
}

func moveSlots(t *testing.T, moves int) {
	t.Helper()
	cluster := redistest.StartCluster(t, 2, 0)
	from, to := cluster.Masters[0].Client(t), cluster.Masters[1].Client(t)
	client := cluster.Client(t)
	s := newStore(t, client)
	ctx := t.Context()

	const key = "moving"
	slot := client.ClusterKeySlot(ctx, s.RedisKey(space, key)).Val()
	if slot >= 8192 {
		from, to = to, from
	}
	fromID, toID := from.Do(ctx, "CLUSTER", "MYID").Val(), to.Do(ctx, "CLUSTER", "MYID").Val()

	var stop atomic.Bool
	var calls, failures atomic.Int64
	var firstErr atomic.Pointer[error]
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for !stop.Load() {
				calls.Add(1)
				if _, err := s.Take(ctx, space, key, limit, 1); err != nil {
					failures.Add(1)
					firstErr.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	for range moves {
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
		require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
		time.Sleep(10 * time.Millisecond)
		host, port, _ := net.SplitHostPort(to.Options().Addr)
		require.NoError(t, from.Do(ctx, "MIGRATE", host, port, s.RedisKey(space, key), 0, 5000).Err())
		time.Sleep(30 * time.Millisecond) // ASK
		require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
		require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
		from, to, fromID, toID = to, from, toID, fromID // MOVED
	}
	stop.Store(true)
	workers.Wait()
	if err := firstErr.Load(); err != nil {
		t.Fatal(failures.Load(), "failures, first: ", *err)
	}
	require.Equal(t, calls.Load(), used(t, s, key))
	require.NoError(t, s.Reset(ctx, space, key))
	t.Logf("%d calls over %d moves", calls.Load(), moves)
}
