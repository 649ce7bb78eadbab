package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/storetest"
)

var algorithms = ratelimit.PerSecond(1).Algorithms()

// spy learns the namespace of a limiter.
type spy struct {
	store.Store
	space *store.Namespace
}

func (*spy) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (s *spy) Take(_ context.Context, ns *store.Namespace, _ string, _ store.Limit, _ int64) (store.Reply, error) {
	s.space = ns
	return store.Reply{}, store.ErrStore
}

func spaceOf(t testing.TB, algorithm string) *store.Namespace {
	t.Helper()
	s := new(spy)
	lim, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(1))
	require.NoError(t, err)
	_, err = lim.Allow(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrStore)
	return s.space
}

// minute is n events a minute, as a store.Limit.
func minute(n int64) store.Limit { return store.Limit{Rate: n, Period: 60_000_000, Burst: n} }

// hour is n events an hour: a state of one does not expire while a busy server pauses.
func hour(n int64) store.Limit { return store.Limit{Rate: n, Period: 3_600_000_000, Burst: n} }

// year is n events a year: none comes back while a test runs.
func year(n int64) store.Limit {
	return store.Limit{Rate: n, Period: 365 * 24 * 3600 * 1_000_000, Burst: n}
}

// servers returns the servers on which scripts must do the same.
func servers(t *testing.T) map[string]*redis.Client {
	return map[string]*redis.Client{"redis": redistest.Shared(t).Client(t), "miniredis": redistest.Mini(t).Client(t)}
}

func TestABatchIsItsCallsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	for name, client := range servers(t) {
		for _, algorithm := range algorithms {
			t.Run(name+" "+algorithm, func(t *testing.T) {
				now := time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)
				clock := redisstore.WithClock(func() time.Time { return now })
				joined := newStore(t, client, clock, redisstore.WithPrefix(redistest.Prefix(t)+"joined"))
				alone := newStore(t, client, clock, redisstore.WithPrefix(redistest.Prefix(t)+"alone"))
				space, rng := spaceOf(t, algorithm), rand.New(rand.NewPCG(1, 2))
				admitted, denied, back := 0, 0, 2*time.Minute
				if name == "redis" {
					back = 0 // there keys expire in real time
				}
				for range effort.Of(2, 8, 60) {
					now = now.Add(time.Duration(rng.Int64N(int64(8*time.Minute+2*back))) - back)
					claims := randomClaims(rng, space)
					replies, errs, _ := joined.TakeEach(claims)
					for i, c := range claims {
						require.NoError(t, errs[i])
						want, err := alone.Take(t.Context(), space, c.Key, c.Limit, c.N)
						require.NoError(t, err)
						require.Equal(t, want, replies[i], "call %d of %d: %+v", i, len(claims), c)
						if want.OK() {
							admitted++
						} else {
							denied++
						}
					}
				}
				require.Positive(t, admitted)
				require.Positive(t, denied)
			})
		}
	}
}

// randomClaims returns 1 to 64 calls on few keys, under two limits.
func randomClaims(rng *rand.Rand, space *store.Namespace) []store.Request {
	claims := make([]store.Request, 1+rng.IntN(64))
	for i := range claims {
		claims[i] = store.Request{
			Namespace: space, Key: fmt.Sprint("key", rng.IntN(8)),
			Limit: hour(20 + 10*rng.Int64N(2)), N: 1 + rng.Int64N(4)*rng.Int64N(2),
		}
	}
	return claims
}

// The general script goes on where the plain case of a batch ends, in the middle of a run of
// equal calls: the next run has its own limit.
func TestABatchGoesOnWhereItsPlainCaseEnds(t *testing.T) {
	for name, client := range servers(t) {
		for _, algorithm := range algorithms {
			joined := newStore(t, client, redisstore.WithPrefix(redistest.Prefix(t)+"joined"+algorithm))
			space := spaceOf(t, algorithm)
			_, err := joined.Take(t.Context(), space, "other limit", minute(7), 1)
			require.NoError(t, err)
			replies, errs, _ := joined.TakeEach([]store.Request{
				{Namespace: space, Key: "plain", Limit: year(2), N: 1},
				{Namespace: space, Key: "other limit", Limit: year(2), N: 1},
				{Namespace: space, Key: "new", Limit: year(2), N: 1},
				{Namespace: space, Key: "next run", Limit: year(5), N: 4},
				{Namespace: space, Key: "last run", Limit: year(3), N: 4},
			})
			for i, admitted := range []bool{true, true, true, true, false} {
				require.NoError(t, errs[i], "%s %s, call %d", name, algorithm, i)
				require.Equal(t, admitted, replies[i].OK(), "%s %s, call %d", name, algorithm, i)
			}
		}
	}
}

// A server's clock that has gone back moves states, even by denials.
func TestABatchMovesStatesThatLieInTheFuture(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	for _, algorithm := range algorithms {
		mini := redistest.Mini(t)
		joined := newStore(t, mini.Client(t), redisstore.WithPrefix("joined"))
		alone := newStore(t, mini.Client(t), redisstore.WithPrefix("alone"))
		space, rng := spaceOf(t, algorithm), rand.New(rand.NewPCG(3, 4))
		for round := range effort.Of(6, 15, 40) {
			mini.SetTime(mini.Now().Add(time.Duration(rng.Int64N(int64(100 * time.Minute))).Truncate(time.Microsecond))) // back as often as not
			claims := randomClaims(rng, space)
			replies, errs, _ := joined.TakeEach(claims)
			for i, c := range claims {
				require.NoError(t, errs[i])
				want, err := alone.Take(t.Context(), space, c.Key, c.Limit, c.N)
				require.NoError(t, err)
				require.Equal(t, want, replies[i], "%s: round %d, call %d", algorithm, round, i)
			}
		}
	}
}

// alwaysBatched is a store whose calls each share a script with another one, which comes first or last.
type alwaysBatched struct {
	*redisstore.Store
	calls *atomic.Int64
}

// other is the key of the other call.
const other = "the key of the other call"

func (s alwaysBatched) one(ctx context.Context, ns *store.Namespace, add func(b *redisstore.Batch, key string), key string) (store.Reply, error) {
	replies := make([]store.Reply, 1)
	err := s.group(ctx, ns, add, key, replies)
	return replies[0], err
}

func (s alwaysBatched) group(ctx context.Context, ns *store.Namespace, add func(b *redisstore.Batch, key string), key string, replies []store.Reply) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, mine := s.Batch(ns), int(s.calls.Add(1)%2)
	for i := range 2 {
		if i == mine {
			add(b, key)
		} else {
			add(b, other)
		}
	}
	all, errs, _ := b.Make()
	if errs[mine] == nil {
		copy(replies, all[mine*len(replies):])
	}
	return errs[mine]
}

func (s alwaysBatched) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.one(ctx, ns, func(b *redisstore.Batch, key string) { b.Take(key, l, n) }, key)
}

func (s alwaysBatched) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	_, err := s.one(ctx, ns, func(b *redisstore.Batch, key string) { b.Refund(key, l, c) }, key)
	return err
}

func (s alwaysBatched) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return s.group(ctx, requests[0].Namespace, func(b *redisstore.Batch, key string) {
		group := slices.Clone(requests)
		for i := range group {
			if key == other {
				group[i].Key = fmt.Sprint(other, i)
			}
		}
		b.All(group)
	}, "", replies)
}

func TestConformanceOfBatches(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	open := func(client *redis.Client) storetest.Open {
		return func(t testing.TB, clock func() time.Time) store.Store {
			return newStore(t, client, redisstore.WithPrefix(fmt.Sprintf("conformance%d", prefixes.Add(1))),
				redisstore.WithTimeout(time.Minute), redisstore.WithClock(clock))
		}
	}
	for name, client := range servers(t) {
		if name == "miniredis" && !effort.Long() {
			continue // which is ten times as slow
		}
		t.Run(name, func(t *testing.T) { // TestConformanceOnRedis has fewer calls at once
			storetest.Run(t, open(client), storetest.Traces(effort.Of(1, 1, 6)), storetest.ExpiresInRealTime())
		})
		t.Run(name+", no call alone in its script", func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, clock func() time.Time) store.Store {
				return alwaysBatched{open(client)(t, clock).(*redisstore.Store), new(atomic.Int64)}
			}, storetest.Traces(effort.Of(1, 1, 6)), storetest.ExpiresInRealTime())
		})
	}
}

func TestAValueThatIsNotOursFailsItsOwnCallsOnly(t *testing.T) {
	for name, client := range servers(t) {
		s := newStore(t, client)
		for _, algorithm := range algorithms {
			ns := spaceOf(t, algorithm)
			require.NoError(t, client.HSet(t.Context(), s.RedisKey(ns, "hash"), "field", "x").Err())
			require.NoError(t, client.Set(t.Context(), s.RedisKey(ns, "text"), "garbage", 0).Err())
			require.NoError(t, client.RPush(t.Context(), s.RedisKey(ns, "list"), "garbage").Err())
			b, l, now := s.Batch(ns), minute(2), time.Now().UnixMicro()
			var keys []string
			for _, key := range []string{"hash", "a", "text", "a", "list", "a", "b", "hash"} {
				b.Take(key, l, 1)
				keys = append(keys, key)
				if len(key) > 1 {
					b.TakeUpTo(key, l, 3)
					b.Overdraw(key, l, 1, 100)
					b.Peek(key, l, 1)
					b.Refund(key, l, store.Receipt{At: now, Due: now + 1e6, Rate: 2, Period: 60_000_000, N: 1})
					keys = append(keys, key, key, key, key)
				}
			}
			replies, errs, alone := b.Make()
			room := map[string]int{"a": 2, "b": 2}
			for i, key := range keys {
				require.False(t, alone[i])
				if len(key) == 1 {
					require.NoError(t, errs[i])
					require.Equal(t, room[key] > 0, replies[i].OK(), "%s %s: call %d", name, algorithm, i)
					room[key]--
					continue
				}
				require.ErrorIs(t, errs[i], store.ErrCorrupt, "%s %s: %s", name, algorithm, key)
				var answer redis.Error
				require.ErrorAs(t, errs[i], &answer)
				require.NotContains(t, errs[i].Error(), key)
				_, err := s.Take(t.Context(), ns, key, l, 1)
				require.ErrorIs(t, err, store.ErrStore, "and alone")
			}
			require.Equal(t, "x", client.HGet(t.Context(), s.RedisKey(ns, "hash"), "field").Val())
			require.Equal(t, "garbage", client.Get(t.Context(), s.RedisKey(ns, "text")).Val())
			require.Equal(t, "garbage", client.LIndex(t.Context(), s.RedisKey(ns, "list"), 0).Val())
		}
	}
}

// A server that refuses writes refuses each call that writes, from the first on. What it
// refuses is not written.
func TestARefusingServerStillDenies(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	failToSave(t, client)
	for name, refusal := range map[string]struct {
		class      error
		alone      bool
		begin, end func() error
	}{
		"no memory": {
			class: store.ErrOutOfMemory,
			begin: func() error { return client.ConfigSet(t.Context(), "maxmemory", "1").Err() },
			end:   func() error { return client.ConfigSet(t.Context(), "maxmemory", "0").Err() },
		},
		"a replica": {
			class: store.ErrUnavailable, alone: true,
			begin: func() error { return client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err() },
			end:   func() error { return client.ReplicaOf(t.Context(), "NO", "ONE").Err() },
		},
		"too few replicas": {
			class: store.ErrUnavailable, alone: true,
			begin: func() error { return client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err() },
			end:   func() error { return client.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err() },
		},
		"a disk that fails": {
			class: store.ErrUnavailable,
			begin: func() error { return client.ConfigSet(t.Context(), "save", "3600 1").Err() },
			end:   func() error { return client.ConfigSet(t.Context(), "save", "").Err() },
		},
	} {
		for _, algorithm := range algorithms {
			s, ns := newStore(t, client, redisstore.WithPrefix(name)), spaceOf(t, algorithm)
			take := func(keys ...string) ([]store.Reply, []error, []bool) {
				var claims []store.Request
				for _, key := range keys {
					claims = append(claims, store.Request{Namespace: ns, Key: key, Limit: year(2), N: 1})
				}
				return s.TakeEach(claims)
			}
			take("drained", "drained", "half")
			receipt := charge(t, s, algorithm, "refunded", 2, 2)
			b := s.Batch(ns)
			for range 2 { // calls that write nothing, and calls that do
				b.Take("drained", year(2), 1)
				b.Take("half", year(2), 1)
				b.TakeUpTo("drained", year(2), 2)
				b.TakeUpTo("half", year(2), 2)
				b.Peek("half", year(2), 2)
				b.Overdraw("drained", year(2), 1, 100)
				b.Peek("half", year(2), 1)
				b.Refund("refunded", year(2), receipt)
			}
			require.NoError(t, refusal.begin())
			replies, errs, alone := b.Make()
			require.NoError(t, refusal.end())
			for i := range 8 {
				require.NoError(t, errs[2*i], "%s %s", name, algorithm)
				require.Equal(t, i%4 == 3, replies[2*i].OK())
				require.ErrorIs(t, errs[2*i+1], refusal.class, "%s %s: %d", name, algorithm, 2*i+1)
				require.Equal(t, refusal.alone, alone[2*i+1])
			}
			replies, _, _ = take("half", "half", "drained", "refunded")
			require.Equal(t, []bool{true, false, false, false}, []bool{replies[0].OK(), replies[1].OK(), replies[2].OK(), replies[3].OK()})
		}
	}
}

// failToSave makes the server's last save fail. While saving is configured, the server
// then refuses writes (MISCONF).
func failToSave(t *testing.T, client *redis.Client) {
	t.Helper()
	dir := client.ConfigGet(t.Context(), "dir").Val()["dir"]
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700)) // in the place of the file
	require.NoError(t, client.BgSave(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(client.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	}, 5*time.Second, time.Millisecond)
}

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

// charged is how many events key has been charged, as the server sees it.
func charged(t *testing.T, server *redistest.Server, ns *store.Namespace, key string) int64 {
	t.Helper()
	return missing(t, newStore(t, server.Client(t)), ns, key, year(100))
}

// missing is how many tokens are missing, or not whole yet.
func missing(t *testing.T, s *redisstore.Store, ns *store.Namespace, key string, l store.Limit) int64 {
	t.Helper()
	r, err := store.Peek(t.Context(), s, ns, key, l, 1)
	require.NoError(t, err)
	if r.Z > 0 {
		return r.Y + 1
	}
	return r.Y
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

// deaf is a hook that lets batches run. It then answers like a proxy that has lost the
// server's answer.
type deaf struct{ tracer }

type proxyError string

func (e proxyError) Error() string { return string(e) }
func (proxyError) RedisError()     {}

func (h *deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && cmd.Args()[2] != 1 && err == nil {
			err = proxyError("ERR upstream failure")
			cmd.SetErr(err)
		}
		return err
	}
}

func TestAnAnswerThatProvesNothingEndsABatch(t *testing.T) {
	server := redistest.Shared(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s, ns := newStore(t, client), spaceOf(t, "token_bucket")
	b := s.Batch(ns)
	b.Take("k", year(100), 1)
	b.TakeUpTo("k", year(100), 1)
	b.Overdraw("k", year(100), 1, 100)
	b.Make() // the script is loaded
	client.AddHook(new(deaf))
	require.NoError(t, s.Reset(t.Context(), ns, "k"))
	_, errs, alone := b.Make()
	for i, err := range errs {
		require.ErrorIs(t, err, store.ErrStore)
		require.ErrorContains(t, err, "upstream failure")
		require.False(t, alone[i], "it may have been charged")
	}
	require.EqualValues(t, 3, charged(t, server, ns, "k"))
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

func TestARuleWithoutAScriptIsAnError(t *testing.T) {
	m := redistest.Mini(t)
	s, without := newStore(t, m.Client(t)), store.NewNamespace(&store.Rule{Name: "without"}, "test")
	require.NoError(t, s.Prepare(without.Rule, limit, true))
	wrong := func(err error) {
		require.EqualError(t, err, `ratelimit: store failed: the rule "without" has no script`)
		require.ErrorIs(t, err, store.ErrStore)
	}
	_, err := s.Take(t.Context(), without, "k", limit, 1)
	wrong(err)
	wrong(s.Decide(t.Context(), []store.Request{
		{Namespace: space, Key: "k", Limit: limit, N: 1}, {Namespace: without, Key: "k", Limit: limit, N: 1},
	}, make([]store.Reply, 2)))
	require.Zero(t, m.CommandCount())
	require.Zero(t, s.Stats().UnderWay)
}

func TestADoneContextIsNotBatched(t *testing.T) {
	m := redistest.Mini(t)
	s, ns := newStore(t, m.Client(t)), spaceOf(t, "token_bucket")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Take(ctx, ns, "k", year(1), 1)
	require.Equal(t, context.Canceled, err)
	require.Equal(t, context.Canceled, s.Refund(ctx, ns, "k", year(1), store.Receipt{N: 1}))
	require.Zero(t, m.CommandCount())
	require.Zero(t, s.Trips())
}

// Calls that differ in nothing else are sent as a run.
func TestABatchGivesEachCallItsOwnArguments(t *testing.T) {
	s, ns := newStore(t, redistest.Shared(t).Client(t)), spaceOf(t, "token_bucket")
	first := charge(t, s, "token_bucket", "refunded", 10, 50)
	second := first
	second.At++ // it has not been charged yet
	b, near, far := s.Batch(ns), year(50), year(50)
	near, far = near.TurnBefore(1), far.TurnBefore(far.Period/10) // in which 5 tokens come
	b.Overdraw("a", year(50), 200, 100)
	b.Overdraw("b", year(50), 200, 150)
	b.Refund("refunded", year(50), second)
	b.Refund("refunded", year(50), first)
	b.Take("near", near, 50)
	b.Take("near", near, 4)
	b.Take("near", far, 4)
	replies, errs, _ := b.Make()
	require.Equal(t, make([]error, 7), errs)
	require.True(t, replies[6].OK())
	for key, want := range map[string]int64{"a": 100, "b": 150, "refunded": 9, "near": 54} {
		require.Equal(t, want, missing(t, s, ns, key, year(50)), key)
	}
}

func TestABatchWithAClockThatLuaCannotCountIsAnError(t *testing.T) {
	s := newStore(t, redistest.Mini(t).Client(t), redisstore.WithClock(func() time.Time { return time.Time{} }))
	_, errs, alone := s.TakeEach([]store.Request{{Namespace: spaceOf(t, "token_bucket"), Key: "k", Limit: year(1), N: 1}})
	require.ErrorIs(t, errs[0], store.ErrStore)
	require.False(t, alone[0])
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

// A client sends what was abandoned as none: see sending.
func TestWhatWasGivenUpChargesNothing(t *testing.T) {
	t.Parallel()
	for name, client := range servers(t) {
		for _, algorithm := range algorithms {
			rule := spaceOf(t, algorithm).Rule
			none := func(rules []*store.Rule, keys []string, args ...any) {
				reply, err := client.Eval(t.Context(), rule.Script(rules), keys, append([]any{"none"}, args...)...).Slice()
				require.NoError(t, err)
				require.Empty(t, reply, name)
				require.Zero(t, client.Exists(t.Context(), keys...).Val())
			}
			none([]*store.Rule{rule}, []string{t.Name()}, 7, 60_000_000, 7, 1)
			none([]*store.Rule{rule}, []string{t.Name(), t.Name()}, "", 1, 1, "1 charge 100", 7, 60_000_000, 7, 1, 1, 1, "1", 7, 60_000_000, 7, 1)
			other := spaceOf(t, algorithms[0]).Rule
			none([]*store.Rule{rule, other}, []string{t.Name(), t.Name() + "2"}, "", 1, 2, "1", 7, 60_000_000, 7, 1, "2", 7, 60_000_000, 7, 1)
		}
	}
}
