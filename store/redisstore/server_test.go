package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// counts is a hook that counts scripts, and those of several keys.
type counts struct {
	tracer
	scripts, batches, calls atomic.Int64
	held                    atomic.Pointer[chan struct{}]
	waiting                 atomic.Int64 // commands that are held
}

// hold has scripts wait, which are not counted, until it is called back.
func (h *counts) hold() (release func()) {
	held := make(chan struct{})
	h.held.Store(&held)
	return func() {
		h.held.Store(nil)
		close(held)
	}
}

func (h *counts) count(cmds ...redis.Cmder) {
	if held := h.held.Load(); held != nil {
		h.waiting.Add(1)
		defer h.waiting.Add(-1)
		<-*held
		return
	}
	for _, cmd := range cmds {
		if cmd.Name() == "evalsha" {
			n := cmd.Args()[2].(int)
			h.scripts.Add(1)
			h.calls.Add(int64(n))
			if n > 1 {
				h.batches.Add(1)
			}
		}
	}
}

func (h *counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.count(cmd)
		return next(ctx, cmd)
	}
}

func (h *counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.count(cmds...)
		return next(ctx, cmds)
	}
}

// counted returns a client of addr whose scripts are counted.
func counted(t testing.TB, addr string) (*redis.Client, *counts) { return countedOf(t, addr, 0) }

// countedOf is counted with a pool of this size.
func countedOf(t testing.TB, addr string, size int) (*redis.Client, *counts) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: size})
	t.Cleanup(func() { _ = client.Close() })
	h := new(counts)
	client.AddHook(h)
	return client, h
}

func TestBatchesAdmitTheLimitExactly(t *testing.T) {
	t.Parallel()
	const callers, calls, most = 64, 60, 50
	for _, algorithm := range algorithms {
		for _, keys := range []int{1, 3, 500} {
			client, seen := counted(t, redistest.Shared(t).Addr())
			s := newStore(t, client, redisstore.WithPrefix(fmt.Sprint(redistest.Prefix(t), keys)), redisstore.WithTimeout(time.Minute))
			lim, err := ratelimit.New(algorithm, s, ratelimit.Limit{Rate: most, Period: 10 * 365 * 24 * time.Hour})
			require.NoError(t, err)
			allowed, asked := make([]atomic.Int64, keys), make([]atomic.Int64, keys)
			var workers sync.WaitGroup
			for i := range callers {
				workers.Go(func() {
					rng := rand.New(rand.NewPCG(5, uint64(i)))
					for range calls {
						k := rng.IntN(keys)
						r, err := lim.Allow(context.Background(), fmt.Sprint("k", k))
						if err != nil {
							t.Error(err)
						}
						asked[k].Add(1)
						if r.Allowed {
							allowed[k].Add(1)
						}
					}
				})
			}
			workers.Wait()
			for k := range keys {
				require.Equal(t, min(asked[k].Load(), most), allowed[k].Load(), "%s, %d keys", algorithm, keys)
			}
			require.Positive(t, seen.batches.Load())
			require.Less(t, seen.scripts.Load(), int64(callers*calls/2))
		}
	}
}

// What is left of a limit is what was not charged, or given back: of a leaky bucket only
// the tail of the queue is.
func TestMixedBatchesKeepAccount(t *testing.T) {
	t.Parallel()
	const most, begun = 100_000, 100
	for _, algorithm := range algorithms {
		client, seen := counted(t, redistest.Shared(t).Addr())
		s := newStore(t, client, redisstore.WithPrefix(redistest.Prefix(t)+algorithm))
		limit := ratelimit.Limit{Rate: most, Period: 10 * 365 * 24 * time.Hour}
		lim := newLimiter(t, algorithm, s, limit)
		charged := make([]atomic.Int64, 3)
		for k := range charged {
			_, err := lim.AllowN(t.Context(), fmt.Sprint("k", k), begun)
			require.NoError(t, err)
			charged[k].Add(begun)
		}
		var workers sync.WaitGroup
		for i := range 64 {
			workers.Go(func() {
				rng := rand.New(rand.NewPCG(6, uint64(i)))
				for range 40 {
					k := rng.IntN(3)
					c := call{what: operations[rng.IntN(5)], key: fmt.Sprint("k", k), limit: limit, n: 1 + rng.IntN(3)}
					o := c.do(lim, nil)
					if o.err != nil {
						t.Error(o.err)
					}
					charged[k].Add(int64(o.r.Charged()))
					if o.r.Charged() > 0 && rng.IntN(2) == 0 && algorithm != "leaky_bucket" {
						if err := lim.Refund(t.Context(), c.key, o.r, o.r.Charged()); err != nil {
							t.Error(err)
						}
						charged[k].Add(-int64(o.r.Charged()))
					}
				}
			})
		}
		workers.Wait()
		for k := range charged {
			r, err := lim.Peek(t.Context(), fmt.Sprint("k", k))
			require.NoError(t, err)
			require.EqualValues(t, most-charged[k].Load(), r.Remaining, algorithm)
		}
		require.Positive(t, seen.batches.Load())
		require.Less(t, seen.scripts.Load(), seen.calls.Load()/2)
	}
}

func TestACallThatMeetsNoOtherGoesAlone(t *testing.T) {
	client, seen := counted(t, redistest.Shared(t).Addr())
	s, ns := newStore(t, client), spaceOf(t, "token_bucket")
	for range 2 { // they are carried: the first tells the script, and the second what a trip takes
		_, err := s.Take(t.Context(), ns, "k", year(100), 1)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return s.Trips() == 0 }, 10*time.Second, time.Millisecond)
	}
	more := 0
	for range 50 {
		before := runtime.NumGoroutine() // others may have begun, or ended, meanwhile
		_, err := s.Take(t.Context(), ns, "k", year(100), 1)
		require.NoError(t, err)
		require.Zero(t, s.Trips())
		if runtime.NumGoroutine() > before {
			more++ // a timer of the process may run in a goroutine now and then
		}
	}
	require.Less(t, more, 25, "calls after which a goroutine was left")
	require.EqualValues(t, 52, seen.scripts.Load())
	require.EqualValues(t, 52, seen.calls.Load())
}

// held is a store behind a proxy that holds replies. As many calls are under way as can
// be.
type held struct {
	*redisstore.Store
	proxy *redistest.Proxy
	space *store.Namespace
	calls sync.WaitGroup

	server *redis.Client
	before int // scripts that the server had run
}

func holdTrips(t *testing.T, server *redistest.Server, opts ...redisstore.Option) *held {
	t.Helper()
	proxy := redistest.StartProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	h := &held{Store: newStore(t, client, opts...), proxy: proxy, space: spaceOf(t, "token_bucket")}
	require.NoError(t, h.Prepare(h.space.Rule, store.Limit{}, true))
	require.NoError(t, h.Ready(t.Context()))
	_, errs, _ := h.TakeEach([]store.Request{{Namespace: h.space, Key: "warm", Limit: year(100), N: 1}})
	require.NoError(t, errs[0])
	require.Eventually(t, func() bool { return h.Trips() == 0 }, 10*time.Second, time.Millisecond)
	_, err := h.take(context.Background(), "warm")
	require.NoError(t, err)
	h.Warmed(16, time.Microsecond) // near, on a busy machine too
	h.server = server.Client(t)
	h.before, err = evalshas(t.Context(), h.server)
	require.NoError(t, err)
	proxy.Hold()
	t.Cleanup(proxy.Release)
	for i := 1; h.Waiting() == 0; i++ {
		h.calls.Go(func() { _, _ = h.take(context.Background(), fmt.Sprint("under way", i)) })
		require.Eventually(t, func() bool { return h.Trips()+h.Waiting() == i }, 10*time.Second, 100*time.Microsecond)
	}
	t.Cleanup(h.calls.Wait)
	return h
}

// releaseButOne lets the replies pass, but for that to the next script. The scripts under way have passed the
// proxy, so it is not one of those.
func (h *held) releaseButOne(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, err := evalshas(t.Context(), h.server)
		return err == nil && n-h.before >= h.Trips()
	}, 10*time.Second, time.Millisecond)
	h.proxy.DropReplies(1, "evalsha")
	h.proxy.Release()
}

func (h *held) take(ctx context.Context, key string) (store.Reply, error) {
	return h.Take(ctx, h.space, key, year(100), 1)
}

// wait calls take from a goroutine of its own, and returns when that waits for a batch.
func (h *held) wait(t *testing.T, ctx context.Context, key string) <-chan error {
	t.Helper()
	return h.waitFor(t, func() error {
		_, err := h.take(ctx, key)
		return err
	})
}

// waitFor is wait for another call.
func (h *held) waitFor(t *testing.T, call func() error) <-chan error {
	t.Helper()
	done, before := make(chan error, 1), h.Waiting()
	h.calls.Go(func() { done <- call() })
	require.Eventually(t, func() bool { return h.Waiting() > before }, 10*time.Second, 100*time.Microsecond)
	return done
}

func TestACallThatLeavesTheQueueIsNotCharged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := holdTrips(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	soon, cancelSoon := context.WithTimeout(t.Context(), time.Second) // by then it waits, on a busy machine too
	defer cancelSoon()
	cancelled, late, stays := h.wait(t, ctx, "k"), h.wait(t, soon, "k"), h.wait(t, t.Context(), "k")
	cancel()
	require.Equal(t, context.Canceled, <-cancelled)
	require.Equal(t, context.DeadlineExceeded, <-late)
	h.proxy.Release()
	require.NoError(t, <-stays)
	require.EqualValues(t, 1, charged(t, server, h.space, "k"))
	h.calls.Wait()
	require.Eventually(t, func() bool { return h.Trips() == 0 }, 10*time.Second, time.Millisecond)
}

func TestACallWhoseTimeIsUpInTheQueueIsOverloadedAndNotCharged(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 1})
	defer client.Close()
	s := newStore(t, client, redisstore.WithTimeout(50*time.Millisecond))
	ns := spaceOf(t, "token_bucket")
	require.Eventually(t, func() bool {
		_, err := s.Take(t.Context(), ns, "another", year(100), 1)
		return err == nil
	}, 10*time.Second, time.Millisecond, "the server is known to answer")
	other := client.Conn() // the only connection
	require.NoError(t, other.Ping(t.Context()).Err())
	var calls sync.WaitGroup
	for range 1000 { // more than some batches hold
		calls.Go(func() {
			_, err := s.Take(context.Background(), ns, "k", year(100), 1)
			if !errors.Is(err, store.ErrOverloaded) {
				t.Errorf("not overloaded: %v", err)
			}
		})
	}
	calls.Wait()
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool { return s.Trips()+s.Late() == 0 }, 10*time.Second, time.Millisecond)
	require.Zero(t, s.Waiting())
	require.Zero(t, charged(t, server, ns, "k"))
}

func TestWhereTheServerHangsCallsWaitNoLongerThanTheirTimeAndAreNotCharged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := holdTrips(t, server, redisstore.WithTimeout(200*time.Millisecond))
	time.Sleep(20 * time.Millisecond) // so that those under way end first
	var mu sync.Mutex
	classes := map[string]int{}
	requireInTime(t, "1000 calls", func() time.Duration {
		return worst(1000, 1, func() time.Duration {
			start := time.Now()
			_, err := h.take(t.Context(), "k")
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			classes[classOf(t, err)]++
			return took - 200*time.Millisecond
		})
	})
	// The dial for a new connection of the batches that followed may be held too.
	require.Subset(t, []string{"overloaded", "timeout", "unavailable"}, slices.Collect(maps.Keys(classes)))
	require.LessOrEqual(t, charged(t, server, h.space, "k"), int64(classes["timeout"]))
}

func TestACallThatEndsWhileItsBatchIsUnderWayIsGivenBack(t *testing.T) {
	server := redistest.Start(t)
	h := holdTrips(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	leaves, stays := h.wait(t, ctx, "k"), h.wait(t, t.Context(), "k")
	h.proxy.Delay(100 * time.Millisecond) // of the batch's reply
	h.proxy.Release()
	require.Eventually(t, func() bool { return charged(t, server, h.space, "k") == 2 }, 10*time.Second, time.Millisecond)
	cancel()
	require.Equal(t, context.Canceled, <-leaves)
	require.NoError(t, <-stays)
	require.Eventually(t, func() bool { return charged(t, server, h.space, "k") == 1 }, 10*time.Second, time.Millisecond)
}

func TestABatchWhoseReplyIsLostRunsOnce(t *testing.T) {
	server := redistest.Start(t)
	h := holdTrips(t, server, redisstore.WithTimeout(2*time.Second)) // one batch on a busy machine too
	var all []<-chan error
	for i := range 20 {
		all = append(all, h.wait(t, t.Context(), fmt.Sprint("k", i/2)))
	}
	h.releaseButOne(t)
	for _, done := range all {
		err := <-done
		require.ErrorIs(t, err, store.ErrTimeout)
		require.ErrorContains(t, err, "outcome is unknown")
	}
	require.Equal(t, 1, h.proxy.Dropped())
	for i := range 10 {
		require.EqualValues(t, 2, charged(t, server, h.space, fmt.Sprint("k", i)))
	}
}

func TestAMixedBatchWhoseReplyIsLostRunsOnce(t *testing.T) {
	server := redistest.Start(t)
	earlier := charge(t, newStore(t, server.Client(t)), "token_bucket", "refunded", 10, 100)
	h := holdTrips(t, server, redisstore.WithTimeout(2*time.Second)) // one batch on a busy machine too
	all := []<-chan error{
		h.waitFor(t, func() error { _, err := store.TakeUpTo(t.Context(), h, h.space, "upto", year(100), 200); return err }),
		h.waitFor(t, func() error {
			_, err := store.Overdraw(t.Context(), h, h.space, "overdrawn", year(100), 120, 1<<30)
			return err
		}),
		h.waitFor(t, func() error { return h.Refund(t.Context(), h.space, "refunded", year(100), earlier) }),
		h.waitFor(t, func() error { _, err := store.Peek(t.Context(), h, h.space, "refunded", year(100), 1); return err }),
		h.wait(t, t.Context(), "taken"),
	}
	h.releaseButOne(t)
	for _, done := range all {
		err := <-done
		require.ErrorIs(t, err, store.ErrTimeout)
		require.ErrorContains(t, err, "outcome is unknown")
	}
	require.Equal(t, 1, h.proxy.Dropped())
	for key, want := range map[string]int64{"upto": 100, "overdrawn": 120, "refunded": 9, "taken": 1} {
		require.EqualValues(t, want, charged(t, server, h.space, key), key)
	}
}

func TestARefundThatLeavesTheQueueGivesNothingBack(t *testing.T) {
	server := redistest.Start(t)
	earlier := charge(t, newStore(t, server.Client(t)), "token_bucket", "k", 10, 100)
	h := holdTrips(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	leaves := h.waitFor(t, func() error { return h.Refund(ctx, h.space, "k", year(100), earlier) })
	stays := h.waitFor(t, func() error { _, err := store.TakeUpTo(t.Context(), h, h.space, "k", year(100), 2); return err })
	cancel()
	require.Equal(t, context.Canceled, <-leaves)
	h.proxy.Release()
	require.NoError(t, <-stays)
	require.EqualValues(t, 12, charged(t, server, h.space, "k"))
}

func TestBatchesOfAFrozenServerReturnInTimeAndLeaveNothing(t *testing.T) {
	server := redistest.Start(t)
	for _, contextTimeouts := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: contextTimeouts})
		defer client.Close()
		ns := spaceOf(t, "token_bucket")
		s := newStore(t, client, redisstore.WithTimeout(50*time.Millisecond))
		_, err := newStore(t, client).Take(t.Context(), ns, "k", year(100), 1)
		require.NoError(t, err)
		before := runtime.NumGoroutine()
		server.Freeze()
		requireInTime(t, "the store's timeout", func() time.Duration {
			return worst(200, 3, func() time.Duration {
				start := time.Now()
				_, err := s.Take(context.Background(), ns, "k", year(100), 1)
				took := time.Since(start)
				requireStoreTimeout(t, err)
				return took - 50*time.Millisecond
			})
		})
		requireInTime(t, "the caller's deadline", func() time.Duration {
			return worst(50, 3, func() time.Duration {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err := s.Take(ctx, ns, "k", year(100), 1)
				if err != context.DeadlineExceeded { //nolint:errorlint // as it is
					t.Error(err)
				}
				return time.Since(start) - 20*time.Millisecond
			})
		})
		server.Thaw()
		requireGoroutines(t, before)
		require.Zero(t, s.Trips())
		require.Zero(t, s.Waiting())
		require.Eventually(t, func() bool {
			_, err := s.Take(context.Background(), ns, "k", year(100), 1)
			return err == nil
		}, 10*time.Second, time.Millisecond)
	}
}

// mixed charges an event of year(100_000), by operation i.
func mixed(s *redisstore.Store, ns *store.Namespace, key string, i int) (err error) {
	switch i % 5 {
	case 0:
		_, err = s.Take(context.Background(), ns, key, year(100_000), 1)
	case 4:
		err = s.Decide(context.Background(), []store.Request{
			{Namespace: ns, Key: key, Limit: year(100_000), N: 1},
			{Namespace: store.NewNamespace(ns.Rule, "another"), Key: key, Limit: year(100_000), N: 1},
		}, make([]store.Reply, 2))
	case 1:
		_, err = store.TakeUpTo(context.Background(), s, ns, key, year(100_000), 1)
	case 2:
		_, err = store.Overdraw(context.Background(), s, ns, key, year(100_000), 1, 1<<30)
	case 3:
		l := year(100_000)
		l = l.TurnBefore(1)
		_, err = s.Take(context.Background(), ns, key, l, 1)
	}
	return err
}

// Anything that proves that a batch did not run lets its calls go on, and each is charged
// once.
func TestCallsOfARefusedBatchGoOnAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	node := redistest.StartCluster(t, 1, 0).Masters[0]
	for name, trouble := range map[string]struct {
		server *redistest.Server
		begin  func() error
		end    func() error
	}{
		"a flush of scripts": {
			server, func() error { return client.ScriptFlush(t.Context()).Err() }, nil,
		},
		"too few replicas": {
			server,
			func() error { return client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err() },
			func() error { return client.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err() },
		},
		"a node of a cluster, where keys are in many slots": {
			node, nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, ns := newStore(t, trouble.server.Client(t)), spaceOf(t, "token_bucket")
			var workers sync.WaitGroup
			for i := range 64 {
				workers.Go(func() {
					for j := range 40 {
						if err := mixed(s, ns, fmt.Sprint("k", i%8), i+j); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 5 {
				if trouble.begin != nil {
					require.NoError(t, trouble.begin())
				}
				time.Sleep(2 * time.Millisecond)
				if trouble.end != nil {
					require.NoError(t, trouble.end())
				}
			}
			workers.Wait()
			for i := range 8 {
				require.EqualValues(t, 64/8*40, missing(t, s, ns, fmt.Sprint("k", i), year(100_000)))
			}
		})
	}
}

// fragile is a hook that panics with some scripts.
type fragile struct {
	tracer
	commands atomic.Int64
}

func (h *fragile) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.break10th(cmd)
		return next(ctx, cmd)
	}
}

func (h *fragile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.break10th(cmds[0])
		return next(ctx, cmds)
	}
}

func (h *fragile) break10th(cmd redis.Cmder) {
	// Not in the handshake of a connection, which go-redis would lose.
	if cmd.Name() == "evalsha" && h.commands.Add(1)%10 == 0 {
		panic("planted")
	}
}

func TestAPanicOfAHookIsThatOfEachCallAndEndsNothingElse(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	client.AddHook(new(fragile))
	s, ns := newStore(t, client), spaceOf(t, "token_bucket")
	var panicked, admitted atomic.Int64
	take := func(key string, i int) {
		defer func() {
			if p := recover(); p == "planted" {
				panicked.Add(1)
			} else if p != nil {
				panic(p)
			}
		}()
		if err := mixed(s, ns, key, i); err != nil {
			t.Error(err)
			return
		}
		admitted.Add(1)
	}
	var callers sync.WaitGroup
	for i := range 64 {
		callers.Go(func() {
			for j := range 40 {
				take(fmt.Sprint("k", i%4), i+j)
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, 64*40, panicked.Load()+admitted.Load())
	require.Greater(t, panicked.Load(), int64(40), "no batch has panicked")
	require.Eventually(t, func() bool { return s.Trips() == 0 }, time.Second, time.Millisecond)
	require.Zero(t, s.Waiting())
	var charged int64
	for i := range 4 {
		charged += missing(t, newStore(t, redistest.Shared(t).Client(t)), ns, fmt.Sprint("k", i), year(100_000))
	}
	require.Equal(t, admitted.Load(), charged)
}

func TestACallEndsByItsOwnTimeWhileItsBatchHasMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	requireInTime(t, "the first", func() time.Duration {
		h := holdTrips(t, server, redisstore.WithTimeout(1200*time.Millisecond))
		key := h.proxy.Addr() // a different one each time
		start := time.Now()
		first := h.wait(t, t.Context(), key)
		time.Sleep(400 * time.Millisecond)
		second := h.wait(t, t.Context(), key)
		h.proxy.Delay(3 * time.Second)
		h.proxy.Release()
		err := <-first
		took := time.Since(start)
		require.ErrorIs(t, err, store.ErrTimeout)
		require.ErrorContains(t, err, "outcome is unknown")
		require.ErrorIs(t, <-second, store.ErrTimeout)
		require.EqualValues(t, 2, charged(t, server, h.space, key))
		return took - 1200*time.Millisecond
	})
}
