package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

// Each store's own package runs the conformance suite of store/storetest, which
// compares every decision with an exact oracle. Here stand the rules of the
// constructors and of their input, and the wrong decisions of other libraries.

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// What the tests of this package share with others.
type (
	clock        = ratelimittest.Clock
	away         = testkit.Away
	tally        = testkit.Tally
	unreliable   = testkit.Unreliable
	withoutJoint = testkit.WithoutJoint
)

var (
	algorithms = ratelimit.PerSecond(1).Algorithms()

	newClock     = testkit.NewClock
	memory       = testkit.Memory
	onRedis      = testkit.OnRedis
	redisServer  = testkit.RedisServer
	newDenyCache = testkit.NewDenyCache
	newCoalesced = testkit.NewCoalesced
	eachStore    = testkit.EachStore
	onEachStore  = testkit.OnEachStore
	onEachServer = testkit.OnEachServer

	newLimiter = ratelimittest.New
	all        = ratelimittest.All
	inMemory   = testkit.InMemory
	inBubble   = testkit.InBubble
	failover   = testkit.Failover
	hasBurst   = testkit.HasBurst

	allow      = testkit.Allow
	allowN     = testkit.AllowN
	admitted   = testkit.Admitted
	peek       = testkit.Peek
	overcharge = testkit.Overcharge
	wait       = testkit.Wait
	calls      = testkit.Calls
	errGone    = testkit.ErrGone
)

// onEach runs a test for each algorithm on memory and on Redis, both with a clock
// that the test moves.
func onEach(t *testing.T, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter, c *clock)) {
	t.Helper()
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		test(t, newLimiter(t, algorithm, s, l), c)
	})
}

func withoutBurst(algorithm string) bool { return !hasBurst(algorithm) }

// ---- Construction and input.

func TestBadLimitsNamesAndStoresAreRefusedByTheConstructors(t *testing.T) {
	year := 365 * 24 * time.Hour
	mem := memory(t, newClock())
	good := ratelimit.PerSecond(1)
	above := math.MaxInt32
	above++ // below 0 where an int has 32 bits
	tests := []struct {
		name string
		err  error
		s    store.Store
		l    ratelimit.Limit
		opts []ratelimit.Option
		only func(algorithm string) bool // those refuse it; all if nil
	}{
		{name: "a negative rate", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.PerSecond(-1)},
		{name: "a rate above 2^31-1", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.PerSecond(above)},
		{name: "no period", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Limit{Rate: 1}},
		{name: "a negative period", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Every(-time.Second)},
		{name: "a period below 1 ms", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Every(time.Millisecond - time.Microsecond)},
		{name: "a period above 10 years", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Every(10*year + time.Microsecond)},
		{name: "a period of half microseconds", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Every(time.Second + 500)},
		{name: "a negative burst", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Limit{Rate: 1, Period: time.Second, Burst: -1}},
		{name: "a burst above 2^31-1", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Limit{Rate: 1, Period: time.Second, Burst: above}},
		{name: "a burst of a window", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 2}, only: withoutBurst},
		{name: "over 100 years to refill", err: ratelimit.ErrInvalidLimit, s: mem, l: ratelimit.Limit{Rate: 1, Period: 10 * year, Burst: 11}},
		{name: "no store", err: ratelimit.ErrInvalidOption, l: good},
		{name: "a store that is a nil pointer", err: ratelimit.ErrInvalidOption, s: (*memstore.Store)(nil), l: good},
		{name: "a nil option", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{nil}},
		{name: "a nil limit function", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithLimitFunc(nil)}},
		{name: "an empty name", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithName("")}},
		{name: "a brace in the name", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithName("a{b")}},
		{name: "the other brace", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithName("a}b")}},
		{name: "a name that is no text", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithName("caf\xe9")}},
		{name: "a policy's name that is no text", err: ratelimit.ErrInvalidOption, s: mem, l: good, opts: []ratelimit.Option{ratelimit.WithPolicyName("caf\xe9")}},
	}
	for _, tt := range tests {
		for _, algorithm := range algorithms {
			lim, err := ratelimit.New(algorithm, tt.s, tt.l, tt.opts...)
			if tt.only != nil && !tt.only(algorithm) {
				require.NoError(t, err, "%s: %s", algorithm, tt.name)
				continue
			}
			require.ErrorIs(t, err, tt.err, "%s: %s", algorithm, tt.name)
			require.Nil(t, lim)
		}
	}
	_, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 1, Period: 10 * year, Burst: 10})
	require.NoError(t, err, "100 years to refill")
	_, err = ratelimit.New("bucket", mem, good)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, `"bucket"`)
}

func TestTheEndsOfTheRangesWork(t *testing.T) {
	year := 365 * 24 * time.Hour
	limits := []ratelimit.Limit{
		{Rate: 1, Period: time.Millisecond},
		{Rate: 1, Period: 10 * year},
		{Rate: math.MaxInt32, Period: time.Millisecond},
		{Rate: math.MaxInt32, Period: 10 * year},
	}
	mini := redistest.Mini(t).Client(t) // a real server would expire windows of 1 ms
	for _, l := range limits {
		for _, algorithm := range algorithms {
			c := newClock()
			for _, s := range []store.Store{memory(t, c), onRedis(t, mini, redisstore.WithClock(c.Now))} {
				lim := newLimiter(t, algorithm, s, l)
				require.Equal(t, l.Rate, allowN(t, lim, l.Rate).Limit)
				r := allowN(t, lim, 1)
				require.False(t, r.Allowed)
				require.Positive(t, r.RetryAfter)
				require.Zero(t, r.Remaining)
			}
		}
	}
}

// untouched is a store that fails the test when it is called.
type untouched struct{ t *testing.T }

// Decide implements [store.Store].
func (u untouched) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, u, nil, requests, replies)
}

func (u untouched) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	u.t.Error("the store was asked")
	return store.Reply{}, nil
}

func (u untouched) TakeUpTo(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	u.t.Error("the store was asked")
	return store.Reply{}, nil
}

func (u untouched) Peek(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	u.t.Error("the store was asked")
	return store.Reply{}, nil
}

func (u untouched) Refund(context.Context, *store.Namespace, string, store.Limit, store.Receipt) error {
	u.t.Error("the store was asked")
	return nil
}

func (u untouched) Reset(context.Context, *store.Namespace, string) error {
	u.t.Error("the store was asked")
	return nil
}

func (u untouched) Overdraw(context.Context, *store.Namespace, string, store.Limit, int64, int64) (store.Reply, error) {
	u.t.Error("the store was asked")
	return store.Reply{}, nil
}

func (u untouched) TakeAll(context.Context, []store.Request, []store.Reply) error {
	u.t.Error("the store was asked")
	return nil
}

func (u untouched) Together(string, string) bool                 { return true }
func (u untouched) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func TestBadInputIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	long := strings.Repeat("k", 64<<10+1)
	failure := errors.New("no such user")
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, untouched{t}, ratelimit.PerSecond(1))
		charged := allowN(t, newLimiter(t, algorithm, memory(t, newClock()), ratelimit.PerSecond(2)), 1)
		denied := allowN(t, newLimiter(t, algorithm, memory(t, newClock()), ratelimit.PerSecond(2)), 3)
		require.False(t, denied.Allowed)

		refused := func(want error, call func(ctx context.Context, key string, n int) (ratelimit.Result, error), ctx context.Context, key string, n int) {
			t.Helper()
			r, err := call(ctx, key, n)
			require.ErrorIs(t, err, want)
			require.Zero(t, r)
		}
		allow := func(ctx context.Context, key string, _ int) (ratelimit.Result, error) { return lim.Allow(ctx, key) }
		peek := func(ctx context.Context, key string, _ int) (ratelimit.Result, error) { return lim.Peek(ctx, key) }
		refund := func(ctx context.Context, key string, n int) (ratelimit.Result, error) {
			return ratelimit.Result{}, lim.Refund(ctx, key, charged, n)
		}
		reset := func(ctx context.Context, key string, _ int) (ratelimit.Result, error) {
			return ratelimit.Result{}, lim.Reset(ctx, key)
		}
		for _, n := range []int{0, -1, math.MinInt} {
			refused(ratelimit.ErrInvalidN, lim.AllowN, t.Context(), "key", n)
			refused(ratelimit.ErrInvalidN, refund, t.Context(), "key", n)
		}
		for _, call := range []func(context.Context, string, int) (ratelimit.Result, error){allow, lim.AllowN, peek, refund, reset} {
			refused(ratelimit.ErrInvalidKey, call, t.Context(), "", 1)
			refused(ratelimit.ErrInvalidKey, call, t.Context(), long, 1)
			refused(context.Canceled, call, done, "key", 1)
		}
		for _, r := range []ratelimit.Result{{}, denied, {Allowed: true}} {
			require.ErrorIs(t, lim.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN)
		}

		wrong := newLimiter(t, algorithm, untouched{t}, ratelimit.PerSecond(1), ratelimit.WithLimitFunc(
			func(_ context.Context, key string) (ratelimit.Limit, error) {
				if key == "unknown" {
					return ratelimit.Limit{}, failure
				}
				return ratelimit.PerSecond(-1), nil
			}))
		refused(ratelimit.ErrInvalidLimit, wrong.AllowN, t.Context(), "key", 1)
		_, err := wrong.Peek(t.Context(), "unknown")
		require.Equal(t, failure, err, "an error of the limit function is returned as it is")
	}
}

func TestARateOf0DeniesWithoutAskingTheStore(t *testing.T) {
	never := ratelimit.Result{RetryAfter: ratelimit.Never}
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, untouched{t}, ratelimit.PerSecond(0))
		require.Equal(t, never, allowN(t, lim, 1))
		r, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, never, r)
	}
}

func TestTheZeroValuesAnswerWithAnError(t *testing.T) {
	for _, lim := range []ratelimit.Limiter{
		new(ratelimit.FixedWindow), new(ratelimit.SlidingWindow), new(ratelimit.SlidingLog),
		new(ratelimit.TokenBucket), new(ratelimit.LeakyBucket),
	} {
		_, err := lim.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		_, err = lim.Peek(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", ratelimit.Result{}, 1), ratelimit.ErrInvalidLimit)
		require.ErrorIs(t, lim.Reset(t.Context(), "key"), ratelimit.ErrInvalidLimit)
	}
}

func TestALimiterTellsItsLimitAndName(t *testing.T) {
	mem := memory(t, newClock())
	tb, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20}, ratelimit.WithName("search"))
	require.NoError(t, err)
	require.Equal(t, "search", tb.Name())
	require.Equal(t, "10/s burst 20", tb.Limit().String())
	fw, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(5))
	require.NoError(t, err)
	require.Empty(t, fw.Name())
	require.Equal(t, ratelimit.PerHour(5), fw.Limit())
}

// ---- Wrong decisions of other libraries.

func TestTheLastPermitsAreNotGivenTwice(t *testing.T) {
	onEach(t, ratelimit.PerHour(500), func(t *testing.T, lim ratelimit.Limiter, _ *clock) {
		var n, failures atomic.Int64
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 12 {
					switch r, err := lim.Allow(t.Context(), "key"); {
					case err != nil:
						failures.Add(1)
					case r.Allowed:
						n.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 500, n.Load())
		require.Zero(t, failures.Load())
	})
}

func TestNoRateIsTooHighForTheArithmetic(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	// A real server would expire a state of microseconds while the clock stands.
	client := redistest.Mini(t).Client(t)
	for _, rate := range []int{1_000, 100_000, 1_000_000, 100_000_000} {
		burst10 := ratelimit.Limit{Rate: rate, Period: time.Second, Burst: 10}
		for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
			c := newClock()
			require.Equal(t, 10, admitted(t, newLimiter(t, algorithm, memory(t, c), burst10), effort.Of(50, 500)), "%s in memory at %v", algorithm, burst10)
			require.Equal(t, 10, admitted(t, newLimiter(t, algorithm, onRedis(t, client, redisstore.WithClock(c.Now)), burst10), effort.Of(50, 500)), "%s on Redis at %v", algorithm, burst10)
		}
	}
}

func TestAHighRateIsNotRoundedToAnInterval(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	limit := ratelimit.PerSecond(700_000_000) // 1.43 ns an event; 1 ns would be 1,000,000,000 a second
	for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
		c := newClock()
		for _, s := range []store.Store{memory(t, c), onRedis(t, client, redisstore.WithClock(c.Now))} {
			lim := newLimiter(t, algorithm, s, limit)
			require.True(t, allowN(t, lim, limit.Rate).Allowed)
			c.Advance(time.Millisecond)
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 700_000, peek.Remaining)
		}
	}
}

func TestShortPeriodsLimitOnARealServer(t *testing.T) {
	// By the server's own clock and expiry; an expiry of whole seconds would be 0.
	// At worst the tries span three windows of 300 ms, or more on a slow machine.
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, redisServer(t), ratelimit.Limit{Rate: 5, Period: 300 * time.Millisecond})
		began := time.Now()
		n := admitted(t, lim, 200)
		windows := 2 + int(time.Since(began)/(300*time.Millisecond))
		require.GreaterOrEqual(t, n, 5)
		require.LessOrEqual(t, n, 5*(1+windows), algorithm)
	}
}

// A client that asks for more than its limit, and comes back at each RetryAfter, gets the whole of it in the long run, but of
// a SlidingWindow: what it was admitted in the last window still weighs. The shares are those in the docs.
func TestAGreedyClientGetsItsDocumentedShare(t *testing.T) {
	const periods = 100
	ofSlidingWindow := []struct{ rate, percent int }{{1, 50}, {2, 50}, {3, 67}, {5, 80}, {10, 90}, {20, 95}, {60, 98}, {100, 99}}
	for _, algorithm := range algorithms {
		for _, c := range ofSlidingWindow {
			percent := 100
			if algorithm == "sliding_window" {
				percent = c.percent
			}
			clock := ratelimittest.NewClock(time.Date(2026, 1, 1, 0, 13, 7, 0, time.UTC))
			l := newLimiter(t, algorithm, clock.Memory(t), ratelimit.PerHour(c.rate))
			admitted := 0
			for began := clock.Now(); clock.Now().Sub(began) < periods*time.Hour; {
				if r := allow(t, l, "greedy"); r.Allowed {
					admitted++
				} else {
					clock.Advance(r.RetryAfter)
				}
			}
			due := float64(periods*c.rate*percent) / 100
			require.InDelta(t, due, admitted, float64(2*c.rate)+due/100, "%s of %d an hour", algorithm, c.rate) // a burst more, and what percent rounds
		}
	}
}

func TestADeniedCostSpendsNothing(t *testing.T) {
	onEach(t, ratelimit.PerHour(3), func(t *testing.T, lim ratelimit.Limiter, _ *clock) {
		for _, n := range []int{5, min(1<<31, math.MaxInt), math.MaxInt} {
			r := allowN(t, lim, n)
			require.Equal(t, ratelimit.Result{Limit: 3, Remaining: 3, RetryAfter: ratelimit.Never}, r)
		}
		require.True(t, allowN(t, lim, 2).Allowed)
		require.False(t, allowN(t, lim, 2).Allowed)
		require.True(t, allowN(t, lim, 1).Allowed)
	})
}

func TestIdlingSavesUpNoMoreThanTheCapacity(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	onEach(t, ratelimit.PerMinute(100), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		require.Equal(t, 100, admitted(t, lim, 300))
		c.Advance(365 * 24 * time.Hour)
		require.Equal(t, 100, admitted(t, lim, 300))
	})
}

func TestALateReadingOfTheClockMintsNothing(t *testing.T) {
	onEach(t, ratelimit.PerMinute(10), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		c.Advance(90 * time.Second)
		require.Equal(t, 10, admitted(t, lim, 20))
		for range 5 { // from the window before, and back
			c.Advance(-45 * time.Second)
			require.Zero(t, admitted(t, lim, 20))
			c.Advance(45 * time.Second)
			require.Zero(t, admitted(t, lim, 20))
		}
	})
}

// What has ended counts again for a reading that comes late, and so must not be
// forgotten by a Refund that comes after the end.
func TestARefundAfterTheEndMintsNothingForALateReading(t *testing.T) {
	onEach(t, ratelimit.PerMinute(10), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		charged := allowN(t, lim, 10)
		c.Advance(charged.ResetAfter)
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 10))
		c.Advance(-charged.ResetAfter / 2)
		require.False(t, allowN(t, lim, 10).Allowed)
	})
}

func TestALimitThatFlapsAdmitsNoMoreThanTheHigherOne(t *testing.T) {
	for _, algorithm := range algorithms {
		c := newClock()
		var limit atomic.Value
		limit.Store(ratelimit.PerSecond(1000))
		lim := newLimiter(t, algorithm, memory(t, c), ratelimit.PerSecond(1000), ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return limit.Load().(ratelimit.Limit), nil }))
		n := 0
		for i := range 10_000 { // one second, each 100 µs
			limit.Store(ratelimit.PerSecond([]int{1000, 10, 500}[i%3]))
			n += admitted(t, lim, 3)
			c.Advance(100 * time.Microsecond)
		}
		require.LessOrEqual(t, n, 2001, algorithm)
		require.GreaterOrEqual(t, n, 990, algorithm)
	}
}

// A key is used up under one limit, and then has another: a tier has changed.
func TestAChangeOfPeriodLocksNobodyOutAndKeepsRetryAfterExact(t *testing.T) {
	limits := []ratelimit.Limit{
		ratelimit.PerSecond(10), ratelimit.PerMinute(10), ratelimit.PerDay(1000), {Rate: 7, Period: 1500 * time.Millisecond},
	}
	for _, algorithm := range algorithms {
		for _, before := range limits {
			for _, after := range limits {
				for _, age := range []time.Duration{0, 300 * time.Millisecond, 1200 * time.Millisecond, 90 * time.Second} {
					name := fmt.Sprintf("%s from %v to %v after %v", algorithm, before, after, age)
					// Under a slower limit a state may be forgotten when it would have ended
					// under the faster one.
					exact := strings.HasSuffix(algorithm, "window") || after.Period <= before.Period &&
						time.Duration(after.Rate)*before.Period >= time.Duration(before.Rate)*after.Period
					c, l := newClock(), before
					lim := newLimiter(t, algorithm, memory(t, c), ratelimit.PerHour(1), ratelimit.WithLimitFunc(
						func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
					c.Advance(700 * time.Millisecond)
					require.Equal(t, before.Rate, admitted(t, lim, before.Rate+1))
					c.Advance(age)
					l = after
					for n := 1; n <= after.Rate; n += 3 {
						r := allowN(t, lim, n)
						if r.Allowed {
							break
						}
						require.LessOrEqual(t, r.RetryAfter, 2*after.Period, name)
						c.Advance(r.RetryAfter - time.Microsecond)
						if exact {
							require.False(t, allowN(t, lim, n).Allowed, "%s: %d just before RetryAfter", name, n)
						}
						c.Advance(time.Microsecond)
						peek, err := lim.Peek(t.Context(), "key")
						require.NoError(t, err)
						require.GreaterOrEqual(t, peek.Remaining, n, "%s: %d at RetryAfter", name, n)
					}
				}
			}
		}
	}
}

func TestAWindowBeforeThatAloneStillWeighsEndsWithTheCurrentOne(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	c := newClock()
	for _, s := range []store.Store{memory(t, c), onRedis(t, client, redisstore.WithClock(c.Now))} {
		l := ratelimit.PerSecond(10)
		lim := newLimiter(t, "sliding_window", s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		allowN(t, lim, 5)
		c.Advance(1250 * time.Millisecond)
		require.NoError(t, lim.Refund(t.Context(), "key", allowN(t, lim, 2), 2))
		for _, l = range []ratelimit.Limit{ratelimit.PerSecond(10), ratelimit.PerMinute(10)} {
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 6, peek.Remaining, "three quarters of 5, rounded up, weigh")
			require.Equal(t, 750*time.Millisecond, peek.ResetAfter)
		}
		c.Advance(750 * time.Millisecond)
	}
}

func TestARefundDoesNotLengthenTheLifeOfAKey(t *testing.T) {
	server := redistest.Shared(t)
	client := server.Client(t)
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, redisServer(t), ratelimit.PerHour(10))
		first := allowN(t, lim, 4)
		keys, err := client.Keys(t.Context(), redistest.Prefix(t)+":2:"+algorithm+":*").Result()
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.NoError(t, client.PExpire(t.Context(), keys[0], time.Minute).Err())
		require.NoError(t, lim.Refund(t.Context(), "key", first, 1))
		require.LessOrEqual(t, client.PTTL(t.Context(), keys[0]).Val(), time.Minute)
		require.NoError(t, lim.Refund(t.Context(), "key", first, 3))
		require.Zero(t, client.Exists(t.Context(), keys[0]).Val(), "%s: a key that is fully refunded was never seen", algorithm)
	}
}

func TestAFullStoreForgetsNobodyWhoHasSpentMore(t *testing.T) {
	for _, algorithm := range algorithms {
		c := newClock()
		s, err := memstore.New(memstore.WithClock(c.Now), memstore.WithMaxKeys(8))
		require.NoError(t, err)
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(100))
		require.True(t, allowN(t, lim, 100).Allowed)
		for i := range 500 {
			require.True(t, allow(t, lim, fmt.Sprint("rotating", i)).Allowed)
			c.Advance(time.Millisecond)
		}
		require.Equal(t, 8, s.Len())
		peek, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Zero(t, peek.Remaining, algorithm)
	}
}

func TestARefundWhileTheRateIs0IsNotLost(t *testing.T) {
	for _, algorithm := range algorithms {
		l := ratelimit.PerHour(5)
		lim := newLimiter(t, algorithm, memory(t, newClock()), l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		r := allowN(t, lim, 5)
		l = ratelimit.PerHour(0)
		require.NoError(t, lim.Refund(t.Context(), "key", r, 3))
		l = ratelimit.PerHour(5)
		require.True(t, allowN(t, lim, 3).Allowed, algorithm)
		require.False(t, allowN(t, lim, 1).Allowed, algorithm)
	}
}

func TestARefundWhileTheRateIs0GivesBackWhatIsStillCharged(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		left := map[ratelimit.Limit]int{}
		for _, meanwhile := range []ratelimit.Limit{ratelimit.PerHour(5), ratelimit.PerHour(0)} {
			l := ratelimit.PerHour(5)
			lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
				func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
			r := allowN(t, lim, 3)
			c.Advance(30 * time.Minute)
			allowN(t, lim, 2)
			l = meanwhile
			require.NoError(t, lim.Refund(t.Context(), "key", r, 3))
			l = ratelimit.PerHour(5)
			left[meanwhile] = peek(t, lim, "key").Remaining
			require.NoError(t, lim.Reset(t.Context(), "key"))
			c.Advance(90 * time.Minute)
		}
		require.Equal(t, left[ratelimit.PerHour(5)], left[ratelimit.PerHour(0)])

		// Of a debt, of which a charge before it was given back, so that it was less than it seems.
		for _, of := range []struct {
			rate, before, debt int
			idle               time.Duration
			after              int
		}{{5, 3, 8, 72 * time.Minute, 2}, {5, 3, 8, 72 * time.Minute, 3}, {1, 1, 3, 3 * time.Hour, 1}} {
			usual := ratelimit.PerHour(of.rate)
			for _, meanwhile := range []ratelimit.Limit{usual, ratelimit.PerHour(0)} {
				l := usual
				lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
					func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
				before, r := allowN(t, lim, of.before), overcharge(t, lim, of.debt)
				require.NoError(t, lim.Refund(t.Context(), "key", before, of.before))
				c.Advance(of.idle)
				allowN(t, lim, of.after)
				l = meanwhile
				require.NoError(t, lim.Refund(t.Context(), "key", r, of.debt))
				l = usual
				left[meanwhile] = peek(t, lim, "key").Remaining
				require.NoError(t, lim.Reset(t.Context(), "key"))
				c.Advance(6*time.Hour - of.idle)
			}
			require.Equal(t, left[usual], left[ratelimit.PerHour(0)], "of a debt of %d", of.debt)
		}
	})
}

// Others may have been charged since under a higher limit: theirs is not given back.
func TestARefundWhileTheRateIs0GivesBackNothingOfOthers(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		l := ratelimit.PerHour(1)
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		r := allowN(t, lim, 1)
		l = ratelimit.PerHour(5)
		require.True(t, allowN(t, lim, 4).Allowed)
		l = ratelimit.PerHour(0)
		require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
		l = ratelimit.PerHour(5)
		want := 1
		if algorithm == "leaky_bucket" { // which gives back its tail alone
			want = 0
		}
		require.Equal(t, want, peek(t, lim, "key").Remaining)
	})
}

func TestTimeBefore1970PassesToo(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	for _, algorithm := range algorithms {
		c := newClock()
		c.Advance(-66 * 365 * 24 * time.Hour)
		for _, s := range []store.Store{memory(t, c), onRedis(t, client, redisstore.WithClock(c.Now))} {
			lim := newLimiter(t, algorithm, s, ratelimit.PerSecond(1))
			for range 3 {
				require.Equal(t, 1, admitted(t, lim, 2), algorithm)
				c.Advance(time.Hour)
			}
			month := newLimiter(t, "fixed_window", s, ratelimit.PerMonth(2), ratelimit.WithName(algorithm))
			for range 3 {
				require.Equal(t, 2, admitted(t, month, 3))
				c.Advance(31 * 24 * time.Hour)
			}
		}
	}
}

// ---- What a decision allocates.

func TestADecisionInMemoryAllocatesNothing(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, algorithm := range algorithms {
		for name, l := range map[string]ratelimit.Limit{"allowed": ratelimit.PerSecond(1_000_000), "denied": ratelimit.PerDay(1)} {
			lim := newLimiter(t, algorithm, mem, l)
			ctx := t.Context()
			allocs := testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(ctx, "key") })
			require.Zero(t, allocs, "%s, %s", algorithm, name)
			require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = lim.Peek(ctx, "key") }), "%s, peek", algorithm)
		}
	}
}

// The two limits that most users have need no memory of their own either, whatever they decide, and observed or not.
func TestADecisionOfTwoLimitsInMemoryAllocatesNothing(t *testing.T) {
	mem := memory(t, newClock())
	plenty, used := ratelimit.PerHour(1<<31-1), ratelimit.PerHour(1)
	for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithObserver(saying(func() {}))}} {
		for name, limits := range map[string][2]ratelimit.Limit{
			"allowed": {plenty, plenty}, "the first denies": {used, plenty}, "the second denies": {plenty, used},
		} {
			a := all(t, newLimiter(t, "token_bucket", mem, limits[0], opts...), newLimiter(t, "sliding_window", mem, limits[1], opts...))
			ctx := t.Context()
			require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = a.Allow(ctx, name) }), "%s, %d observers", name, len(opts))
		}
	}
}

// Neither does a call of one event of a limit that counts calls, alone and of two.
func TestACallOfALimitOfCallsAllocatesNothing(t *testing.T) {
	mem := memory(t, newClock())
	calls := func(algorithm string) ratelimit.Limiter {
		return newLimiter(t, algorithm, mem, ratelimit.PerHour(1<<31-1), ratelimit.CountCalls())
	}
	alone, two := calls("token_bucket"), all(t, calls("token_bucket"), calls("fixed_window"))
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = alone.Allow(ctx, "key") }))
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = two.AllowN(ctx, "key", math.MaxInt32) }), "of as many events as there may be")
}

func TestMustPanicsWithTheError(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	require.Equal(t, "a", ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(1), ratelimit.WithName("a"))).Name())
	defer func() {
		err, _ := recover().(error)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	}()
	ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(-1)))
	t.Fatal("it did not panic")
}

func TestAlgorithmsOfALimit(t *testing.T) {
	five := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	require.Equal(t, five, ratelimit.PerSecond(1).Algorithms()[:5])
	require.Equal(t, five[3:], ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 2}.Algorithms()[:2])
	require.Equal(t, five[:1], ratelimit.PerMonth(1).Algorithms())
	require.Empty(t, ratelimit.PerSecond(-1).Algorithms())
}

// failing is a store that must not be asked.
type failing struct{ store.Store }

func (failing) Prepare(*store.Rule, store.Limit, bool) error { return nil }

// saysPlainly is a store in front of another one that answers for it.
type saysPlainly struct {
	store.Store
	reply store.Reply
}

// Decide implements [store.Store].
func (s saysPlainly) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s saysPlainly) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return s.reply, nil
}

func (s saysPlainly) Overdraw(context.Context, *store.Namespace, string, store.Limit, int64, int64) (store.Reply, error) {
	return s.reply, nil
}

func TestAResultSaysWhatAStoreInFrontHasSaid(t *testing.T) {
	for _, algorithm := range algorithms {
		ask := func(r store.Reply, charge bool) ratelimit.Result {
			l := newLimiter(t, algorithm, saysPlainly{memory(t, newClock()), r}, ratelimit.PerHour(9))
			if charge {
				return overcharge(t, l, 2)
			}
			return allowN(t, l, 2)
		}
		r := ask(store.Reply{Outcome: store.DeniedByLease, X: 5, Y: 1, Z: 7}, false)
		require.Equal(t, "denied (lease), 1 of 9 left, retry after 5µs", r.String())
		require.Equal(t, 7*time.Microsecond, r.ResetAfter)
		r = ask(store.Reply{Outcome: store.DeniedByCache, X: store.Never, Y: 1}, false)
		require.Equal(t, "denied (deny_cache), 1 of 9 left, never admitted", r.String())
		for _, charge := range []bool{false, true} {
			r = ask(store.Reply{Outcome: store.AdmittedByLease, X: store.Never, Y: 4, Z: 7}, charge)
			require.Equal(t, "allowed (lease), 2 of 9 left, reset in 7µs", r.String())
			require.Equal(t, 2, r.Charged())
			require.Zero(t, r.RetryAfter)
		}
	}
}

func (s saysPlainly) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	err := s.Store.Decide(ctx, requests, replies)
	replies[0] = s.reply
	return err
}

func TestAnAllSaysWhatAStoreInFrontHasSaid(t *testing.T) {
	s := saysPlainly{memory(t, newClock()), store.Reply{Outcome: store.DeniedByCache, X: 5, Y: 1}}
	for _, others := range []int{1, 2} {
		parts := []ratelimit.Limiter{newLimiter(t, "token_bucket", s, ratelimit.PerHour(9))}
		for i := range others {
			parts = append(parts, newLimiter(t, "fixed_window", s, ratelimit.PerHour(7+i)))
		}
		r := allowN(t, all(t, parts...), 2)
		require.Equal(t, `denied by "9/h" (deny_cache), 1 of 9 left, retry after 5µs`, r.String())
		require.Equal(t, ratelimit.SourceDenyCache, r.Parts()[0].Source())
	}
}

// What was counted under a Period of hours counts until its hour ends, and not at that instant.
func TestACountEndsWithItsWindowUnderACalendarToo(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if algorithm != "fixed_window" {
			return
		}
		l := ratelimit.PerHour(2)
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		r := allowN(t, lim, 2)
		l = ratelimit.PerMonth(2)
		require.Equal(t, r.ResetAfter, allowN(t, lim, 1).RetryAfter)
		c.Advance(r.ResetAfter - time.Microsecond)
		require.False(t, allowN(t, lim, 1).Allowed)
		c.Advance(time.Microsecond)
		require.True(t, allowN(t, lim, 2).Allowed)
	})
}

// A log whose Period is shorter for a while forgets nothing in it that it counts again later, and
// a Refund then gives back nothing of what is not counted.
func TestARefundUnderAShorterPeriodTakesNothingFromTheLongerOne(t *testing.T) {
	long, short := ratelimit.Limit{Rate: 5, Period: time.Minute}, ratelimit.Limit{Rate: 5, Period: 10 * time.Second}
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if algorithm != "sliding_log" {
			return
		}
		for _, later := range []time.Duration{10*time.Second - time.Microsecond, 10 * time.Second, 20 * time.Second} {
			l := long
			lim := newLimiter(t, algorithm, s, long, ratelimit.WithLimitFunc(
				func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
			r := allowN(t, lim, 3)
			c.Advance(later)
			l = short
			require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
			l = long
			want := 2
			if later < short.Period {
				want = 3
			}
			require.Equal(t, want, peek(t, lim, "key").Remaining, later)
			require.NoError(t, lim.Reset(t.Context(), "key"))
		}
	})
}

// Under a lower Burst a bucket is as full as that, also where only a part of an event is above it:
// what is given back opens room at once.
func TestARefundUnderALowerBurstBeginsFromThat(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !hasBurst(algorithm) {
			return
		}
		l := ratelimit.Limit{Rate: 6, Period: time.Hour, Burst: 6}
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		allowN(t, lim, 6)
		c.Advance(15 * time.Minute)
		r := allowN(t, lim, 1)
		require.True(t, r.Allowed, "half an event is left")
		l.Burst = 5
		require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
		require.Equal(t, 1, peek(t, lim, "key").Remaining)
	})
}

// A rule of one's own gets what it is asked: of a Renew when its event was charged. What is charged
// keeps its place while the Rate is 0.
func TestACustomLimiterAsksItsRule(t *testing.T) {
	var asked []store.Limit
	rule := ratelimit.NewRule(store.Rule{
		Name: "count", Unit: "seats",
		Step: func(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
			asked = append(asked, l)
			return store.State{At: now, Period: l.Period, Whole: s.Whole + n}, store.Reply{Outcome: store.AdmittedIf(s.Whole+n <= l.Rate), X: now, Y: s.Whole}
		},
		Available: func(l store.Limit, r store.Reply) int64 { return max(0, l.Rate-r.Y) },
		Report: func(l store.Limit, r store.Reply, _, charged int64) store.Report {
			return store.Report{Remaining: max(0, l.Rate-r.Y-charged), Retry: l.Period, Reset: l.Period}
		},
		After:     func(r store.Reply, n int64) store.Reply { r.Y += n; return r },
		Overdrawn: func(next store.State, _ store.Limit, _ int64) store.State { return next },
		Refund:    func(s store.State, _ store.Limit, _ int64, c store.Receipt) store.State { s.Whole -= c.N; return s },
		TTL:       func(s store.State, _ store.Limit) int64 { return s.Period },
		Used:      func(s store.State, _, _ int64) int64 { return s.Whole },
		Spent:     func(r store.Reply) int64 { return r.Y },
	}, "-- never run")
	ctx, mem, c := t.Context(), memory(t, newClock()), ratelimit.PerHour(3)
	keys := []string{}
	l, err := ratelimit.NewCustom(rule, mem, ratelimit.PerHour(3),
		ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) {
			keys = append(keys, key)
			if key == "wrong" {
				return "", errGone
			}
			return "tenant", nil
		}),
		ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if c.Rate < 0 {
				return c, errGone
			}
			return c, nil
		}))
	require.NoError(t, err)
	require.Equal(t, "seats", policiesOf(t, l, "key")[1].Unit)
	require.Equal(t, queue.Plain, see.QueuesOf[ratelimit.Delayer, ratelimit.Limiter](l).Kind)
	turns := *rule
	turns.Name, turns.Burst = "turns", true
	early, err := ratelimit.NewCustom(&turns, mem, ratelimit.PerHour(3))
	require.NoError(t, err)
	require.Equal(t, queue.Unknown, see.QueuesOf[ratelimit.Delayer, ratelimit.Limiter](early).Kind, "it may admit ahead of a turn")
	r := allowN(t, l, 2)
	require.Equal(t, 1, r.Remaining)
	at := l.ChargedAt(r)
	require.Positive(t, at)

	asked, keys = nil, nil
	for _, rate := range []int{3, 1, 0} {
		c.Rate = rate
		_, err = l.Renew(ctx, "key", r)
		require.NoError(t, err)
	}
	third := store.Limit{Rate: 3, Period: time.Hour.Microseconds(), Burst: 3}
	first := store.Limit{Rate: 1, Period: time.Hour.Microseconds(), Burst: 1}
	require.Equal(t, []store.Limit{third.TurnBefore(at), first.TurnBefore(at), third.TurnBefore(at)}, asked)
	require.Equal(t, []string{"key", "key", "key"}, keys)
	_, err = l.Renew(ctx, "wrong", r)
	require.ErrorIs(t, err, errGone)
	c.Rate = -2
	_, err = l.Renew(ctx, "key", r)
	require.ErrorIs(t, err, errGone)

	two := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)), newLimiter(t, "fixed_window", mem, ratelimit.PerHour(5)))
	for _, other := range []ratelimit.Result{{}, allowN(t, two, 1)} {
		require.Zero(t, l.ChargedAt(other))
		_, err = l.Renew(ctx, "key", other)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	}

	for name, change := range map[string]func(r *store.Rule){
		"no name": func(r *store.Rule) { r.Name = "" }, "one of the five": func(r *store.Rule) { r.Name = "sliding_log" },
		"that of a Ban": func(r *store.Rule) { r.Name = "ban" }, "not UTF-8": func(r *store.Rule) { r.Name = "\xff" },
		// Keys of a cluster that belong together would be in different slots.
		"braces":  func(r *store.Rule) { r.Name = "my{rule}" },
		"no step": func(r *store.Rule) { r.Step = nil }, "no script": func(r *store.Rule) { r.Script = nil },
		// In memory, a call of one of these would panic with a lock held, and later calls would hang.
		"no available": func(r *store.Rule) { r.Available = nil }, "no report": func(r *store.Rule) { r.Report = nil },
		"no after": func(r *store.Rule) { r.After = nil }, "no refund": func(r *store.Rule) { r.Refund = nil },
		"no ttl": func(r *store.Rule) { r.TTL = nil }, "no used": func(r *store.Rule) { r.Used = nil },
		"no overdrawn": func(r *store.Rule) { r.Overdrawn = nil }, "no spent": func(r *store.Rule) { r.Spent = nil },
		"a log that cannot be read": func(r *store.Rule) { r.NewLog = func(store.State) store.Log { return nil } },
	} {
		wrong := *rule
		change(&wrong)
		_, err = ratelimit.NewCustom(&wrong, mem, ratelimit.PerHour(3))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
	}
	_, err = ratelimit.NewCustom(nil, mem, ratelimit.PerHour(3))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// What knows the numbers of the five algorithms refuses others, and says which it wants.
func TestAnAlgorithmOfYourOwnIsRefusedWhereItCannotWork(t *testing.T) {
	limit := ratelimit.PerHour(100)
	leases := ratelimit.Must(lease.New(memory(t, newClock()), time.Second))
	_, err := ratelimit.NewCustom(session, leases, limit)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "algorithm session_window cannot be leased, want a fixed_window,")
	shared := ratelimit.Must(regions.New("a", map[string]store.Store{"a": memory(t, newClock()), "b": memory(t, newClock())}))
	_, err = ratelimit.NewCustom(session, shared, limit)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "algorithm session_window cannot be shared by regions, want a fixed_window,")
	own := ratelimit.Must(ratelimit.NewCustom(session, memory(t, newClock()), limit))
	allowN(t, own, 3)
	_, err = ratelimit.Credit(t.Context(), own, "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.Equal(t, 97, peek(t, own, "key").Remaining)
}

// The Go and the Lua of the example decide alike, also when the limit changes.
func TestTheRuleOfTheExampleDecidesAlikeOnRedis(t *testing.T) {
	t.Parallel()
	c, limit, random := newClock(), ratelimit.PerMinute(5), rand.New(rand.NewPCG(1, 2))
	server := redistest.Mini(t)
	var twins [2]*ratelimit.Custom
	for i, s := range []store.Store{memory(t, c), onRedis(t, server.Client(t), redisstore.WithClock(c.Now))} {
		l, err := ratelimit.NewCustom(session, s, limit,
			ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))
		require.NoError(t, err)
		twins[i] = l
	}
	var charged [][2]ratelimit.Result
	for range effort.Of(1000, 5_000) {
		c.Advance(time.Duration(random.IntN(20_000)) * time.Millisecond)
		if random.IntN(4) == 0 {
			limit = ratelimit.Limit{Rate: 1 + random.IntN(7), Period: time.Duration(10+25*random.IntN(3)) * time.Second}
		}
		op, n, last := random.IntN(5), 1+random.IntN(6), len(charged)-1-random.IntN(3)
		var r [2]ratelimit.Result
		var granted [2]int
		for i, l := range twins {
			var err error
			switch {
			case op == 0:
				r[i], err = l.Peek(t.Context(), "key")
			case op == 1:
				r[i], err = l.Charge(t.Context(), "key", n)
			case op == 2:
				granted[i], r[i], err = l.AllowUpTo(t.Context(), "key", n)
			case op == 3 && last >= 0:
				err = l.Refund(t.Context(), "key", charged[last][i], 1)
			default:
				r[i], err = l.AllowN(t.Context(), "key", n)
			}
			require.NoError(t, err)
		}
		require.Equal(t, fmt.Sprintf("%+v", r[0]), fmt.Sprintf("%+v", r[1]))
		require.Equal(t, granted[0], granted[1])
		if r[0].Charged() > 0 {
			charged = append(charged, r)
		}
	}
	require.NotEmpty(t, charged)
}
