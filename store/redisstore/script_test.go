package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/storetest"
)

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
					requests := randomRequests(rng, space)
					replies, errs, _ := joined.TakeEach(requests)
					for i, c := range requests {
						require.NoError(t, errs[i])
						want, err := alone.Take(t.Context(), space, c.Key, c.Limit, c.N)
						require.NoError(t, err)
						require.Equal(t, want, replies[i], "call %d of %d: %+v", i, len(requests), c)
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

// randomRequests returns 1 to 64 calls on few keys, under two limits.
func randomRequests(rng *rand.Rand, space *store.Namespace) []store.Request {
	requests := make([]store.Request, 1+rng.IntN(64))
	for i := range requests {
		requests[i] = store.Request{
			Namespace: space, Key: fmt.Sprint("key", rng.IntN(8)),
			Limit: hour(20 + 10*rng.Int64N(2)), N: 1 + rng.Int64N(4)*rng.Int64N(2),
		}
	}
	return requests
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
			requests := randomRequests(rng, space)
			replies, errs, _ := joined.TakeEach(requests)
			for i, c := range requests {
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
				var requests []store.Request
				for _, key := range keys {
					requests = append(requests, store.Request{Namespace: ns, Key: key, Limit: year(2), N: 1})
				}
				return s.TakeEach(requests)
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

// deaf is a hook that lets batches run. It then answers like a proxy that has lost the
// server's answer.
type deaf struct{ tracer }

type proxyError string

func (e proxyError) Error() string { return string(e) }

func (proxyError) RedisError() {}

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

// A client sends what was abandoned as none.
func TestAbandonedCallsChargeNothing(t *testing.T) {
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
