package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
)

// spacesOf returns a namespace of each algorithm.
func spacesOf(t testing.TB, algorithms ...string) (list []*store.Namespace) {
	t.Helper()
	for _, algorithm := range algorithms {
		list = append(list, spaceOf(t, algorithm))
	}
	return list
}

// pairs returns each algorithm alone, and with the next one.
func pairs() (list [][]string) {
	for i, algorithm := range algorithms {
		list = append(list, []string{algorithm}, []string{algorithm, algorithms[(i+1)%len(algorithms)]})
	}
	return list
}

// Alls that wait together share scripts, as calls for one limit do. What concerns one of them is no matter of the others.
func TestAllsOfACrowdShareScripts(t *testing.T) {
	t.Parallel()
	const crowd, corrupt = 256, 100
	for i, algorithm := range algorithms {
		client, seen := countedOf(t, redistest.Shared(t).Addr(), 1)
		s := newStore(t, client, redisstore.WithPrefix(redistest.Prefix(t)+algorithm), redisstore.WithTimeout(time.Minute))
		spaces := spacesOf(t, algorithm, algorithms[(i+1)%len(algorithms)])
		ask := func(caller int, n int64) (replies []store.Reply, err error) {
			replies = make([]store.Reply, 2)
			return replies, s.Decide(t.Context(), []store.Request{
				{Namespace: spaces[0], Key: fmt.Sprint(caller), Limit: year(3), N: 1},
				{Namespace: spaces[1], Key: fmt.Sprint(caller), Limit: year(5), N: n},
			}, replies)
		}
		require.NoError(t, client.Set(t.Context(), s.RedisKey(spaces[1], fmt.Sprint(corrupt)), "garbage", 0).Err())
		_, err := ask(-1, 1) // the way and the script are known
		require.NoError(t, err)
		before, decided := seen.scripts.Load(), seen.calls.Load()
		replies, errs := make([][]store.Reply, crowd), make([]error, crowd)
		inOneBatch(s, seen, crowd, func(i int) { replies[i], errs[i] = ask(i, int64(1+i%8)) })
		scripts := seen.scripts.Load() - before
		require.EqualValues(t, 2*crowd, seen.calls.Load()-decided)
		require.LessOrEqual(t, scripts, int64(2*crowd/8), "scripts for %d decisions", 2*crowd)
		for i := range crowd {
			if i == corrupt {
				require.ErrorIs(t, errs[i], store.ErrCorrupt)
				require.Equal(t, make([]store.Reply, 2), replies[i])
				continue
			}
			require.NoError(t, errs[i])
			require.True(t, replies[i][0].OK())
			require.Equal(t, 1+i%8 <= 5, replies[i][1].OK(), "%s, caller %d", algorithm, i)
		}
		for i := range crowd { // of 3 events one is charged, if all were
			r, err := store.Peek(t.Context(), s, spaces[0], fmt.Sprint(i), year(3), 3)
			require.NoError(t, err)
			require.Equal(t, 1+i%8 > 5 || i == corrupt, r.OK(), "%s, caller %d", algorithm, i)
		}
	}
}

func TestAllsOfACrowdAdmitTheLimitsExactly(t *testing.T) {
	t.Parallel()
	const callers, calls, keys, most, total = 64, 30, 4, 50, 120
	for i, algorithm := range algorithms {
		client, seen := counted(t, redistest.Shared(t).Addr())
		s := newStore(t, client, redisstore.WithPrefix(redistest.Prefix(t)+algorithm), redisstore.WithTimeout(time.Minute))
		limit := func(algorithm string, rate int) ratelimit.Limiter {
			lim, err := ratelimit.New(algorithm, s, ratelimit.Limit{Rate: rate, Period: 10 * 365 * 24 * time.Hour})
			require.NoError(t, err)
			return lim
		}
		own, common := limit(algorithm, most), limit(algorithms[(i+1)%len(algorithms)], total)
		var admitted [keys]atomic.Int64
		var workers sync.WaitGroup
		for i := range callers {
			workers.Go(func() {
				for j := range calls {
					k := (i + j) % keys
					r, err := ratelimit.Decide(context.Background(), ratelimit.Ask{Limiter: own, Key: fmt.Sprint("k", k), N: 1},
						ratelimit.Ask{Limiter: common, Key: "all", N: 1})
					if err != nil {
						t.Error(err)
					} else if r.Allowed {
						admitted[k].Add(1)
					}
				}
			})
		}
		workers.Wait()
		var sum int64
		for k := range admitted {
			sum += admitted[k].Load()
			r, err := own.Peek(t.Context(), fmt.Sprint("k", k))
			require.NoError(t, err)
			require.EqualValues(t, most-admitted[k].Load(), r.Remaining, algorithm)
		}
		require.EqualValues(t, total, sum, algorithm)
		r, err := common.Peek(t.Context(), "all")
		require.NoError(t, err)
		require.Zero(t, r.Remaining, algorithm)
		require.Less(t, seen.scripts.Load(), int64(callers*calls/2))
	}
}

// randomGroup returns requests of a group, with each of the rules at least once. Some keys are corrupt.
func randomGroup(rng *rand.Rand, spaces []*store.Namespace) []store.Request {
	list := make([]store.Request, len(spaces)+rng.IntN(3))
	for i := range list {
		rule := spaces[i%len(spaces)].Rule
		r := store.Request{
			Namespace: store.NewNamespace(rule, fmt.Sprint("limit", i)), Key: fmt.Sprint("key", rng.IntN(3)),
			Limit: hour(5 + 3*rng.Int64N(2)), N: 1 + rng.Int64N(3),
		}
		switch rng.IntN(8) {
		case 0:
			r.Op = store.OpLook
		case 1, 2:
			r.Op = store.OpGate
		case 3, 4:
			r.Op = store.OpShadow
		}
		if rng.IntN(4) == 0 && (rule.Name == "token_bucket" || rule.Name == "leaky_bucket") {
			r.Limit = r.Limit.TurnBefore(1 + rng.Int64N(r.Limit.Period))
		}
		if rng.IntN(12) == 0 {
			r.Key = "corrupt"
		}
		list[i] = r
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// Takes, shadows, looks and gates do in groups that share a script what they do in a script of their own.
func TestGroupsAreDecidedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	mini := redistest.Mini(t)
	now := time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)
	callers := redisstore.WithClock(func() time.Time { return now })
	for name, client := range servers(t) {
		var opts []redisstore.Option
		back := 2 * time.Minute
		if name == "redis" {
			opts, back = append(opts, callers), 0 // there keys expire in real time
		} else {
			client = mini.Client(t)
		}
		for _, algorithms := range pairs() {
			t.Run(fmt.Sprint(name, " ", algorithms), func(t *testing.T) {
				joined := newStore(t, client, append(opts, redisstore.WithPrefix(redistest.Prefix(t)+"joined"))...)
				alone := newStore(t, client, append(opts, redisstore.WithPrefix(redistest.Prefix(t)+"alone"))...)
				spaces, rng := spacesOf(t, algorithms...), rand.New(rand.NewPCG(12, 13))
				for _, s := range []*redisstore.Store{joined, alone} {
					for i := range len(spaces) + 2 {
						ns := store.NewNamespace(spaces[i%len(spaces)].Rule, fmt.Sprint("limit", i))
						require.NoError(t, client.Set(t.Context(), s.RedisKey(ns, "corrupt"), "garbage", 0).Err())
					}
				}
				did := map[string]int{}
				for round := range effort.Of(8, 20, 100) {
					now = now.Add(time.Duration(rng.Int64N(int64(8*time.Minute+2*back))) - back)
					mini.SetTime(now)
					groups, b := make([][]store.Request, 2+rng.IntN(12)), joined.Batch(spaces[0])
					for i := range groups {
						if groups[i] = randomGroup(rng, spaces); i > 0 && rng.IntN(3) == 0 { // the same, of other keys
							groups[i] = slices.Clone(groups[i-1])
							for j := range groups[i] {
								groups[i][j].Key = fmt.Sprint("key", rng.IntN(3))
							}
						}
						b.All(groups[i])
					}
					got, errs, again := b.Make()
					for i, group := range groups {
						want := make([]store.Reply, len(group))
						err := alone.Decide(t.Context(), group, want)
						require.False(t, again[i])
						if slices.ContainsFunc(group, func(r store.Request) bool { return r.Key == "corrupt" }) {
							require.ErrorIs(t, err, store.ErrStore)
							require.ErrorIs(t, errs[i], store.ErrCorrupt)
							did["fails"]++
						} else {
							require.NoError(t, err)
							require.NoError(t, errs[i])
							require.Equal(t, want, got[:len(group)], "round %d, group %d of %d: %+v", round, i, len(groups), group)
							did["votes"] += count(group, want, func(r *store.Request, ok bool) bool { return r.Votes() && ok })
							did["denies"] += count(group, want, func(r *store.Request, ok bool) bool { return r.Votes() && !ok })
							did["shadow"] += count(group, want, func(r *store.Request, ok bool) bool { return r.Op == store.OpShadow && !ok })
							did["gate"] += count(group, want, func(r *store.Request, ok bool) bool { return r.Op == store.OpGate && !ok })
						}
						got = got[len(group):]
					}
				}
				for _, what := range []string{"votes", "denies", "shadow", "gate", "fails"} {
					require.Positive(t, did[what], what)
				}
			})
		}
	}
}

// count is how many requests are such.
func count(group []store.Request, replies []store.Reply, such func(r *store.Request, ok bool) bool) (n int) {
	for i := range group {
		if such(&group[i], replies[i].OK()) {
			n++
		}
	}
	return n
}

// A look charges nothing, whether it is a gate, and whether it is alone or not.
func TestLooksOfAllsChargeNothing(t *testing.T) {
	for name, client := range servers(t) {
		s := newStore(t, client)
		for _, algorithm := range algorithms {
			ns := spaceOf(t, algorithm)
			for _, look := range []store.Request{{Op: store.OpLook}, {Op: store.OpGate}} {
				look.Namespace, look.Key, look.Limit, look.N = ns, "looked", year(1), 1
				take := store.Request{Namespace: ns, Key: "taken", Limit: year(1000), N: 1}
				for range 2 {
					for _, group := range [][]store.Request{{look}, {look, take}} {
						replies := make([]store.Reply, len(group))
						require.NoError(t, s.Decide(t.Context(), group, replies))
						require.True(t, replies[0].OK(), "%s %s %+v", name, algorithm, group)
						b := s.Batch(ns)
						b.All(group)
						b.All(group)
						replies, errs, _ := b.Make()
						require.Equal(t, []error{nil, nil}, errs)
						require.True(t, replies[0].OK(), "%s %s %+v", name, algorithm, group)
						require.True(t, replies[len(group)].OK(), "%s %s %+v", name, algorithm, group)
					}
				}
				require.Zero(t, client.Exists(t.Context(), s.RedisKey(ns, "looked")).Val())
			}
		}
	}
}

// A server that refuses writes refuses each group that would write, as a whole, and no other.
func TestARefusingServerStillDeniesGroups(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	for name, refusal := range map[string]struct {
		class       error
		set, normal func() error
	}{
		"no memory": {
			store.ErrOutOfMemory,
			func() error { return client.ConfigSet(t.Context(), "maxmemory", "1").Err() },
			func() error { return client.ConfigSet(t.Context(), "maxmemory", "0").Err() },
		},
		"a replica": {
			store.ErrUnavailable,
			func() error { return client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err() },
			func() error { return client.ReplicaOf(t.Context(), "NO", "ONE").Err() },
		},
	} {
		for _, algorithms := range pairs() {
			for _, plain := range []bool{true, false} {
				s := newStore(t, client, redisstore.WithPrefix(fmt.Sprint(name, algorithms, plain)))
				spaces := spacesOf(t, algorithms[0], algorithms[len(algorithms)-1])
				spaces[1] = store.NewNamespace(spaces[1].Rule, "second")
				group := func(first, second string) []store.Request {
					return []store.Request{
						{Namespace: spaces[0], Key: first, Limit: year(3), N: 1}, {Namespace: spaces[1], Key: second, Limit: year(3), N: 1},
					}
				}
				for _, ns := range spaces {
					for range 3 {
						require.NoError(t, s.Decide(t.Context(), []store.Request{{Namespace: ns, Key: "drained", Limit: year(3), N: 1}}, make([]store.Reply, 1)))
					}
				}
				require.NoError(t, s.Decide(t.Context(), group("known", "known2"), make([]store.Reply, 2)))
				looks := group("known", "known2")
				looks[0].Op, looks[1].Op = store.OpLook, store.OpLook
				shadows := group("drained", "new")
				shadows[0].Op = store.OpShadow
				groups := [][]store.Request{
					group("new", "drained"), group("known", "known2"), group("drained", "known2"), group("new", "new2"), group("known", "new"),
				}
				writes := []bool{false, true, false, true, true}
				if !plain {
					groups, writes = append([][]store.Request{looks, shadows}, groups...), append([]bool{false, true}, writes...)
				}
				b := s.Batch(spaces[0])
				for _, g := range groups {
					b.All(g)
				}
				require.NoError(t, refusal.set())
				replies, errs, _ := b.Make()
				require.NoError(t, refusal.normal())
				for i := range groups {
					what := fmt.Sprintf("%s %v, plain %t, group %d", name, algorithms, plain, i)
					if writes[i] {
						require.ErrorIs(t, errs[i], refusal.class, what)
						continue
					}
					require.NoError(t, errs[i], what)
					looks := groups[i][0].Op == store.OpLook
					require.Equal(t, looks, replies[2*i].OK() && replies[2*i+1].OK(), what)
				}
				for _, key := range []string{"new", "new2", "known", "known2"} {
					for i, ns := range spaces {
						r, err := store.Peek(t.Context(), s, ns, key, year(3), 3)
						require.NoError(t, err)
						charged := key == []string{"known", "known2"}[i]
						require.Equal(t, !charged, r.OK(), "%s %v, plain %t: %s", name, algorithms, plain, key)
						r, err = store.Peek(t.Context(), s, ns, key, year(3), 2)
						require.NoError(t, err)
						require.True(t, r.OK(), "%s %v, plain %t: %s", name, algorithms, plain, key)
					}
				}
			}
		}
	}
}

// A group that leaves its callers before it is written charges none of its limits.
func TestAnAllThatLeavesTheQueueIsNotCharged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := holdTrips(t, server)
	all := func(ctx context.Context, key string) func() error {
		return func() error {
			return h.Decide(ctx, []store.Request{
				{Namespace: h.space, Key: key, Limit: year(100), N: 1}, {Namespace: h.space, Key: key + "2", Limit: year(100), N: 1},
			}, make([]store.Reply, 2))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	leaves, stays, single := h.waitFor(t, all(ctx, "k")), h.waitFor(t, all(t.Context(), "k")), h.wait(t, t.Context(), "k2")
	cancel()
	if err := <-leaves; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	h.proxy.Release()
	require.NoError(t, <-stays)
	require.NoError(t, <-single)
	require.EqualValues(t, 1, charged(t, server, h.space, "k"))
	require.EqualValues(t, 2, charged(t, server, h.space, "k2"))
}

// Ready tells a server that has lost its scripts those of Alls too.
func TestReadyTellsTheScriptsOfAlls(t *testing.T) {
	// With RESP3 the first handshakes of a client's Conns at once are a data race of go-redis (9.23), if other clones of it
	// have made the connections before.
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), Protocol: 2})
	defer client.Close()
	s, spaces := newStore(t, client), spacesOf(t, algorithms...)
	all := func(spaces ...*store.Namespace) {
		group := make([]store.Request, len(spaces))
		for i, ns := range spaces {
			group[i] = store.Request{Namespace: ns, Key: fmt.Sprint("k", i), Limit: year(100), N: 1}
		}
		require.NoError(t, s.Decide(t.Context(), group, make([]store.Reply, len(group))))
	}
	asked := func() {
		all(spaces[0])
		all(spaces[1:3]...)
		all(spaces[2], spaces[1], spaces[2])
		all(spaces...)
	}
	for _, ns := range spaces {
		require.NoError(t, s.Prepare(ns.Rule, year(100), true))
	}
	asked()
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	require.NoError(t, s.Ready(t.Context()))
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	asked()
	stats := client.Info(t.Context(), "commandstats").Val()
	require.Contains(t, stats, "cmdstat_evalsha:calls=4,")
	require.NotContains(t, stats, "cmdstat_eval:")
}
