package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// limiter is what each of the five types can do.
type limiter interface {
	ratelimit.Limiter
	ratelimit.Delayer
	AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
	Charge(ctx context.Context, key string, n int) (ratelimit.Result, error)
}

// newLimiter returns a limiter that takes the limit of a call from its context, or l.
func newLimiter(t *testing.T, algorithm string, s store.Store, l ratelimit.Limit) limiter {
	t.Helper()
	lim, err := ratelimit.New(algorithm, s, l, ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (ratelimit.Limit, error) {
		if own, ok := ctx.Value(limitKey{}).(ratelimit.Limit); ok {
			return own, nil
		}
		return l, nil
	}))
	require.NoError(t, err)
	return lim.(limiter)
}

type limitKey struct{}

// call is one call of a limiter. charges has the Results of earlier ones that it may
// refund.
type call struct {
	what   string
	key    string
	limit  ratelimit.Limit
	n      int
	charge int
}

type outcome struct {
	granted int
	r       ratelimit.Result
	err     error
}

func (c call) do(lim limiter, charges []charged1) (o outcome) {
	ctx := context.WithValue(context.Background(), limitKey{}, c.limit)
	switch c.what {
	case "take":
		o.r, o.err = lim.AllowN(ctx, c.key, c.n)
	case "within":
		o.r, o.err = lim.AllowWithin(ctx, c.key, c.n, 2*time.Minute)
	case "upto":
		o.granted, o.r, o.err = lim.AllowUpTo(ctx, c.key, 3*c.n)
	case "charge":
		o.r, o.err = lim.Charge(ctx, c.key, 2*c.n)
	case "peek":
		o.r, o.err = lim.Peek(ctx, c.key)
	case "refund":
		o.err = lim.Refund(ctx, charges[c.charge].key, charges[c.charge].r, c.n)
	}
	return o
}

// charged1 is a Result that has charged events of key.
type charged1 struct {
	key string
	r   ratelimit.Result
}

var operations = []string{"take", "within", "upto", "charge", "peek", "refund"}

// randomCalls returns 1 to 64 calls on few keys, under three limits. They refund some of
// as many charges. The limits are slow: a state that ends within seconds can expire on a busy
// server, by its own clock, while the same calls are made one by one.
func randomCalls(rng *rand.Rand, charges int) []call {
	limits := []ratelimit.Limit{ratelimit.PerHour(60), ratelimit.PerHour(90), {Rate: 20, Period: 10 * time.Minute}}
	calls := make([]call, 1+rng.IntN(64))
	for i := range calls {
		calls[i] = call{operations[rng.IntN(len(operations))], fmt.Sprint("key", rng.IntN(10)), limits[rng.IntN(3)], 1 + rng.IntN(4), 0}
		if calls[i].what == "refund" && charges == 0 {
			calls[i].what = "take"
		} else if calls[i].what == "refund" {
			calls[i].charge = charges - 1 - rng.IntN(min(charges, 40))
		}
	}
	slices.SortStableFunc(calls, func(a, b call) int { return order(a) - order(b) })
	return calls
}

// order is 0 for calls that go ahead of others.
func order(c call) int {
	if c.what == "refund" {
		return 0
	}
	return 1
}

// inOneBatch makes calls from goroutines of their own, in their order, while the only connection of the
// store's client is held. So they go in one script, or one after the other.
func inOneBatch(s *redisstore.Store, seen *counts, calls int, do func(i int)) {
	var ended atomic.Int64
	var all sync.WaitGroup
	release := seen.hold()
	all.Go(func() { _ = s.Reset(context.Background(), space, "held") })
	for seen.waiting.Load() == 0 {
		runtime.Gosched()
	}
	for i := range calls {
		all.Go(func() {
			defer ended.Add(1)
			do(i)
		})
		for s.Waiting()+int(ended.Load()) <= i {
			runtime.Gosched()
		}
	}
	release()
	all.Wait()
}

func TestABatchOfAllOperationsIsItsCallsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	effort.OthersRace(t)
	mini := redistest.Mini(t)
	now := time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)
	callers := redisstore.WithClock(func() time.Time { return now })
	for name, server := range map[string]struct {
		addr string
		opts []redisstore.Option
	}{
		"redis, the caller's clock":     {redistest.Shared(t).Addr(), []redisstore.Option{callers}},
		"miniredis, the caller's clock": {mini.Addr(), []redisstore.Option{callers}},
		"miniredis, its own clock":      {mini.Addr(), nil},
	} {
		for _, algorithm := range algorithms {
			t.Run(name+", "+algorithm, func(t *testing.T) {
				if name == "miniredis, the caller's clock" {
					effort.NeedFull(t) // the others have both
				}
				back := 2 * time.Minute
				if server.addr != mini.Addr() {
					back = 0 // there keys expire in real time
				}
				client, seen := countedOf(t, server.addr, 1)
				open := func(prefix string) *redisstore.Store { // of a minute, so that what waits for its batch is not refused
					return newStore(t, client, append([]redisstore.Option{redisstore.WithPrefix(redistest.Prefix(t) + prefix),
						redisstore.WithTimeout(time.Minute)}, server.opts...)...)
				}
				alone := newLimiter(t, algorithm, open("alone"), ratelimit.PerHour(20))
				rng := rand.New(rand.NewPCG(8, 9))
				var charges []charged1
				did := map[string]int{}
				for round := range effort.Of(12, 12, 80) {
					now = now.Add(time.Duration(rng.Int64N(int64(6*time.Minute+2*back))) - back)
					mini.SetTime(now)
					calls := randomCalls(rng, len(charges))
					got, before, last := make([]outcome, len(calls)), seen.calls.Load(), len(charges)
					joined := open("joined") // whose batches are as large as at the beginning
					batched := newLimiter(t, algorithm, joined, ratelimit.PerHour(20))
					inOneBatch(joined, seen, len(calls), func(i int) { got[i] = calls[i].do(batched, charges[:last]) })
					sent := seen.scripts.Load()
					for i, c := range calls {
						want := c.do(alone, charges[:last])
						require.Equal(t, want, got[i], "round %d, call %d of %d: %+v", round, i, len(calls), c)
						if want.err == nil {
							did[fmt.Sprint(c.what, want.r.Allowed && want.r.Remaining > 0)]++
						}
						if want.r.Charged() > 0 {
							charges = append(charges, charged1{c.key, want.r})
						}
					}
					alones := seen.scripts.Load() - sent
					require.Equal(t, before+2*alones, seen.calls.Load(), "the same calls")
				}
				for _, what := range operations {
					require.Greater(t, did[what+"false"], 5, what)
					require.True(t, what == "refund" || did[what+"true"] > 5, what)
				}
				require.Greater(t, seen.batches.Load(), int64(10))
			})
		}
	}
}

// receipts is a store of one namespace that keeps the receipt of a refund.
type receipts struct {
	store.Store
	ns   *store.Namespace
	last store.Receipt
}

func (s *receipts) Take(ctx context.Context, _ *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.Store.Take(ctx, s.ns, key, l, n)
}

func (s *receipts) Refund(_ context.Context, _ *store.Namespace, _ string, _ store.Limit, c store.Receipt) error {
	s.last = c
	return nil
}

// charge charges n events under year(most), and returns the receipt of one of them.
func charge(t *testing.T, s store.Store, algorithm, key string, n, most int) store.Receipt {
	t.Helper()
	spy := &receipts{Store: s, ns: spaceOf(t, algorithm)}
	lim, err := ratelimit.New(algorithm, spy, ratelimit.Limit{Rate: most, Period: 365 * 24 * time.Hour})
	require.NoError(t, err)
	r, err := lim.AllowN(t.Context(), key, n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, lim.Refund(t.Context(), key, r, 1))
	require.EqualValues(t, 1, spy.last.N)
	return spy.last
}
