package observe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// inMemory returns a limiter with its own store in memory.
func inMemory(t testing.TB, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	limiter, err := ratelimit.New(algorithm, mem, l, opts...)
	require.NoError(t, err)
	return limiter
}

func observed(t testing.TB, l ratelimit.Limiter, observers ...ratelimit.Observer) ratelimit.Limiter {
	t.Helper()
	l, err := observe.Around(l, observers...)
	require.NoError(t, err)
	return l
}

// row returns the row with the given outcome and source.
func row(t testing.TB, s observe.Snapshot, outcome, source string) observe.Decisions {
	t.Helper()
	for _, d := range s.Decisions {
		if d.Outcome == outcome && d.Source == source {
			return d
		}
	}
	t.Fatalf("no row %s %s", outcome, source)
	return observe.Decisions{}
}

// rows returns how many series s has.
func rows(s observe.Snapshot) int {
	return len(s.Decisions) + len(s.Errors) + len(s.Headroom) + len(s.DeniedBy) + len(s.Durations.Buckets)
}

func TestCountersCountWhatALimiterDecides(t *testing.T) {
	c := observe.NewCounters("api")
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(10)), c)
	ctx := t.Context()
	for range 3 { // leaves 9, 8 and 7 tenths
		_, err := limiter.Allow(ctx, "key")
		require.NoError(t, err)
	}
	_, err := limiter.AllowN(ctx, "key", 8) // denied
	require.NoError(t, err)
	granted, _, err := ratelimit.AllowUpTo(ctx, limiter, "key", 100)
	require.NoError(t, err)
	require.Equal(t, 7, granted)
	_, err = limiter.Allow(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, err = limiter.Peek(ctx, "key") // decides nothing
	require.NoError(t, err)

	s := c.Snapshot()
	require.Equal(t, "api", s.Limiter)
	require.Equal(t, observe.Decisions{Outcome: "allowed", Source: "store", Calls: 4, Events: 10}, row(t, s, "allowed", "store"))
	require.Equal(t, observe.Decisions{Outcome: "denied", Source: "store", Calls: 1, Events: 8}, row(t, s, "denied", "store"))
	require.Equal(t, [11]int64{0: 1, 7: 1, 8: 1, 9: 1}, s.Headroom)
	require.Equal(t, observe.Errors{Class: "invalid", Calls: 1}, s.Errors[0])
	require.Empty(t, s.DeniedBy)
	require.EqualValues(t, 6, s.Durations.Count, "errors included")
}

// Each limiter of a First counts the calls that it was asked for, and the counters around it those of the whole.
func TestCountersOfAFirst(t *testing.T) {
	s := ratelimittest.NewClock(time.Unix(1_700_000_000, 0)).Memory(t)
	plan, credits, whole := observe.NewCounters("plan"), observe.NewCounters("credits"), observe.NewCounters("whole")
	limit := func(name string, n int, c *observe.Counters) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerDay(n), ratelimit.WithName(name), ratelimit.WithObserver(c)))
	}
	l := ratelimit.Must(observe.Around(ratelimit.Must(ratelimit.NewFirst(limit("plan", 2, plan), limit("credits", 3, credits))), whole))
	for range 7 {
		_, err := l.Allow(t.Context(), "key")
		require.NoError(t, err)
	}
	for c, want := range map[*observe.Counters][2]int64{plan: {2, 5}, credits: {3, 2}, whole: {5, 2}} {
		got := c.Snapshot()
		require.Equal(t, want, [2]int64{row(t, got, "allowed", "store").Calls, row(t, got, "denied", "store").Calls}, got.Limiter)
	}
	require.Equal(t, []observe.DeniedBy{{Name: "credits", Calls: 0}, {Name: "plan", Calls: 2}}, whole.Snapshot().DeniedBy, "of equal times, the first")
}

func TestHeadroomIsInTenthsRoundedUp(t *testing.T) {
	for _, c := range []struct{ limit, remaining, tenth int }{
		{100, 0, 0}, {100, 1, 1}, {100, 10, 1}, {100, 11, 2}, {100, 99, 10}, {100, 100, 10}, {1, 0, 0}, {3, 1, 4},
		{1<<31 - 1, 1<<31 - 2, 10},
		{5, 6, 10}, {5, -1, 0}, {math.MaxInt, math.MaxInt, 10}, // from limiters of other packages
		{0, 0, -1}, // not counted
	} {
		counters := observe.NewCounters("")
		r := ratelimit.Result{Allowed: true, Limit: c.limit, Remaining: c.remaining}
		counters.Decided(t.Context(), "key", 1, r, nil, 0)
		var want [11]int64
		if c.tenth >= 0 {
			want[c.tenth] = 1
		}
		require.Equal(t, want, counters.Snapshot().Headroom, "%d of %d", c.remaining, c.limit)
	}
}

func TestEachSourceIsCounted(t *testing.T) {
	c := observe.NewCounters("")
	owner := new(int)
	for source := ratelimit.SourceStore; source <= ratelimit.SourceBan; source++ {
		for _, allowed := range []bool{true, false} {
			r := ratelimit.Result{Allowed: allowed, Limit: 1}
			r = r.WithMark(ratelimit.NewMark(owner, source, nil))
			for range int(source) + 1 {
				c.Decided(t.Context(), "key", 3, r, nil, 0)
			}
		}
	}
	s := c.Snapshot()
	require.Len(t, s.Decisions, 20)
	for i, d := range s.Decisions {
		source := ratelimit.Source(i % 10)
		require.Equal(t, source.String(), d.Source)
		require.Equal(t, map[bool]string{true: "allowed", false: "denied"}[i < 10], d.Outcome)
		require.Equal(t, int64(source)+1, d.Calls)
		require.Equal(t, 3*d.Calls, d.Events)
	}
	require.EqualValues(t, 1+4+5+7+9, s.Headroom[0], "store, local, deny_cache, zero_rate and lease")
	require.Len(t, observe.NewCounters("").Snapshot().Decisions, 14, "the rows that can be, before anything is counted")
}

// Callers choose n, and the sum of several n must not overflow an int64.
func TestEventsNeverShrink(t *testing.T) {
	c := observe.NewCounters("")
	for _, allowed := range []bool{true, false} {
		for range 3 {
			c.Decided(t.Context(), "key", math.MaxInt, ratelimit.Result{Allowed: allowed, Limit: 1}, nil, 0)
		}
	}
	for _, outcome := range []string{"allowed", "denied"} {
		require.EqualValues(t, int64(3*math.MaxInt32), row(t, c.Snapshot(), outcome, "store").Events)
	}
}

// A limiter of another package may admit and deny calls for no events, or for a negative number.
func TestCountersNeverFall(t *testing.T) {
	c := observe.NewCounters("")
	for _, allowed := range []bool{true, false} {
		outcome := map[bool]string{true: "allowed", false: "denied"}[allowed]
		r := ratelimit.Result{Allowed: allowed, Limit: 10, Remaining: 5}
		c.Decided(t.Context(), "key", 3, r, nil, 0)
		for i, n := range []int{-5, 0, math.MinInt} {
			c.Decided(t.Context(), "key", n, r, nil, 0)
			require.Equal(t, observe.Decisions{Outcome: outcome, Source: "store", Calls: int64(i) + 2, Events: 3}, row(t, c.Snapshot(), outcome, "store"))
		}
	}
	require.Equal(t, [11]int64{5: 1}, c.Snapshot().Headroom)
}

// CountCalls limits calls, so an admission is one event. For a denial, this is not known.
func TestEventsOfCallsThatAreChargedOnce(t *testing.T) {
	c := observe.NewCounters("")
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(1), ratelimit.CountCalls()), c)
	for _, allowed := range []bool{true, false} {
		r, err := limiter.AllowN(t.Context(), "key", 7)
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
	}
	require.EqualValues(t, 1, row(t, c.Snapshot(), "allowed", "store").Events)
	require.EqualValues(t, 7, row(t, c.Snapshot(), "denied", "store").Events)
}

func TestErrorsHaveElevenClasses(t *testing.T) {
	c := observe.NewCounters("")
	want := []observe.Errors{
		{Class: "invalid", Calls: 4}, {Class: "canceled", Calls: 1}, {Class: "deadline", Calls: 1}, {Class: "overloaded", Calls: 1},
		{Class: "unavailable", Calls: 1}, {Class: "timeout", Calls: 1}, {Class: "out_of_memory", Calls: 1}, {Class: "corrupt", Calls: 1},
		{Class: "clock", Calls: 1}, {Class: "store", Calls: 1}, {Class: "other", Calls: 1},
	}
	for _, err := range []error{
		ratelimit.ErrInvalidN, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidLimit, ratelimit.ErrInvalidOption,
		context.Canceled, context.DeadlineExceeded, store.ErrOverloaded, store.ErrUnavailable, store.ErrCorrupt,
		store.ErrStore, store.ErrTimeout, store.ErrOutOfMemory, store.ErrClock, errors.New("of a limit function"),
	} {
		c.Decided(t.Context(), "key", 1, ratelimit.Result{}, fmt.Errorf("wrapped: %w", err), 0)
	}
	require.Equal(t, want, c.Snapshot().Errors)
	require.Empty(t, observe.ErrorClass(nil))
	require.Equal(t, "overloaded", observe.ErrorClass(store.ErrOverloaded))
}

func TestDurationsAreAHistogram(t *testing.T) {
	c := observe.NewCounters("")
	for _, took := range []time.Duration{0, 1, 50 * time.Microsecond, 51 * time.Microsecond, time.Second, 2 * time.Second} {
		c.Decided(t.Context(), "key", 1, ratelimit.Result{Allowed: true}, nil, took)
	}
	c.Decided(t.Context(), "key", 1, ratelimit.Result{}, store.ErrTimeout, time.Second)
	d := c.Snapshot().Durations
	require.EqualValues(t, 6, d.Count, "0 means that it is not known")
	require.Equal(t, 4*time.Second+101*time.Microsecond+1, d.Sum)
	require.Equal(t, observe.Bucket{Bound: 50 * time.Microsecond, Count: 2}, d.Buckets[0])
	require.Equal(t, observe.Bucket{Bound: 100 * time.Microsecond, Count: 1}, d.Buckets[1])
	require.Equal(t, observe.Bucket{Bound: time.Second, Count: 2}, d.Buckets[len(d.Buckets)-1])
}

// In a bubble the clock stands still during a call, as a coarse clock does.
func TestACallWithinATickOfTheClockIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		within, around := observe.NewCounters("within"), observe.NewCounters("around")
		l := observed(t, inMemory(t, "token_bucket", ratelimit.PerDay(10), ratelimit.WithTimedObserver(within)), around)
		for range 2 {
			_, err := l.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		for _, c := range []*observe.Counters{within, around} {
			d := c.Snapshot().Durations
			require.EqualValues(t, 2, d.Count)
			require.EqualValues(t, 2, d.Buckets[0].Count)
		}
	})
}

// deniedBy returns a denial by the limit with the given name.
func deniedBy(t testing.TB, name string) ratelimit.Result {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	never, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(0), ratelimit.WithName("a"), ratelimit.WithPolicyName(name))
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1), ratelimit.WithName("b"))
	require.NoError(t, err)
	all, err := ratelimit.NewAll(never, daily)
	require.NoError(t, err)
	r, err := all.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, name, r.DeniedBy())
	return r
}

func TestCountersAreBounded(t *testing.T) {
	effort.OneGoroutine(t)
	c := observe.NewCounters("api")
	const names = 10_000
	keys := effort.Of(50_000, 200_000, 1_000_000)
	c.Decided(t.Context(), "key", 1, deniedBy(t, "other"), nil, 0) // a limit may have this name
	for i := range names {
		c.Decided(t.Context(), "key", 1, deniedBy(t, fmt.Sprint("limit ", i)), nil, 0)
	}
	before, heap := rows(c.Snapshot()), heapBytes()
	allowed := ratelimit.Result{Allowed: true, Limit: 10, Remaining: 5}
	for i := range keys {
		c.Decided(t.Context(), fmt.Sprint("key ", i), 1, allowed, nil, 0)
	}
	require.Less(t, heapBytes(), heap+1<<16)
	s := c.Snapshot()
	require.Equal(t, before, rows(s))
	require.Less(t, before, 85)
	require.Len(t, s.DeniedBy, 33)
	require.Equal(t, observe.DeniedBy{Name: "limit 0", Calls: 1}, s.DeniedBy[0])
	require.NotEqual(t, "other", s.DeniedBy[31].Name)
	require.Equal(t, observe.DeniedBy{Name: "other", Calls: 1 + names - 32}, s.DeniedBy[32])
	require.EqualValues(t, keys, row(t, s, "allowed", "store").Calls)
	require.EqualValues(t, keys, s.Headroom[5])
}

// heapBytes returns the size of the heap in use.
func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestCountsAreExactUnderConcurrency(t *testing.T) {
	const callers, calls = 8, 20_000
	c := observe.NewCounters("")
	denials := []ratelimit.Result{deniedBy(t, "a"), deniedBy(t, "b"), deniedBy(t, "other")}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range calls {
				c.Decided(context.Background(), "key", 2, ratelimit.Result{Allowed: true, Limit: 10, Remaining: i % 11}, nil, 1)
				c.Decided(context.Background(), "key", 3, denials[i%2], nil, 1)
				c.Decided(context.Background(), "key", 1, ratelimit.Result{}, store.ErrStore, 1)
				if i%1000 == 0 {
					c.Snapshot()
				}
			}
		})
	}
	wg.Wait()
	c.Decided(t.Context(), "key", 1, denials[2], nil, 0)
	const n = callers * calls
	s := c.Snapshot()
	require.Equal(t, observe.Decisions{Outcome: "allowed", Source: "store", Calls: n, Events: 2 * n}, row(t, s, "allowed", "store"))
	require.Equal(t, observe.Decisions{Outcome: "denied", Source: "zero_rate", Calls: 1 + n, Events: 1 + 3*n}, row(t, s, "denied", "zero_rate"))
	require.Equal(t, []observe.DeniedBy{{Name: "a", Calls: n / 2}, {Name: "b", Calls: n / 2}, {Name: "other", Calls: 1}}, s.DeniedBy)
	require.EqualValues(t, n, s.Errors[9].Calls)
	require.EqualValues(t, 3*n, s.Durations.Count)
	require.EqualValues(t, 3*n, s.Durations.Sum)
}

func TestCountersAreAnExpvar(t *testing.T) {
	c := observe.NewCounters("api")
	c.Decided(t.Context(), "key", 1, ratelimit.Result{Allowed: true, Limit: 2}, nil, time.Microsecond)
	var s observe.Snapshot
	require.NoError(t, json.Unmarshal([]byte(c.String()), &s))
	require.Equal(t, c.Snapshot(), s)
}

func TestCountingAllocatesNothing(t *testing.T) {
	c := observe.NewCounters("")
	ctx, denied := t.Context(), deniedBy(t, "a")
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		c.Decided(ctx, "key", 1, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 5}, nil, time.Millisecond)
		c.Decided(ctx, "key", 5, denied, nil, 0)
		c.Decided(ctx, "key", 1, ratelimit.Result{}, store.ErrTimeout, 0)
	}))
}

// TestEachLimitHasARowBeforeItDenies holds wherever the All is, and whatever notifies the Counters.
func TestEachLimitHasARowBeforeItDenies(t *testing.T) {
	login := inMemory(t, "sliding_log", ratelimit.PerHour(5), ratelimit.WithName("login"))
	address := inMemory(t, "sliding_log", ratelimit.PerHour(20), ratelimit.WithName("login-address"),
		ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "address", nil }))
	all, err := ratelimit.NewAll(login, address)
	require.NoError(t, err)
	safe, err := fallback.New(all, fallback.FailOpen())
	require.NoError(t, err)
	top, err := observe.NewTopKeys(0)
	require.NoError(t, err)

	c := observe.NewCounters("login")
	limiter := observed(t, safe, top, c)
	require.Equal(t, []observe.DeniedBy{{Name: "login"}, {Name: "login-address"}}, c.Snapshot().DeniedBy)
	for range 9 {
		_, err := limiter.Allow(t.Context(), "key")
		require.NoError(t, err)
	}
	require.Equal(t, []observe.DeniedBy{{Name: "login", Calls: 4}, {Name: "login-address"}}, c.Snapshot().DeniedBy)

	c = new(observe.Counters) // without NewCounters, and thus without a name
	require.Empty(t, c.Snapshot().DeniedBy)
	_, err = observed(t, safe, c).Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, []observe.DeniedBy{{Name: "login", Calls: 1}, {Name: "login-address"}}, c.Snapshot().DeniedBy)

	waiter, err := throttle.NewWaiter(safe, time.Second)
	require.NoError(t, err)
	c = observe.NewCounters("waits")
	observed(t, waiter, c)
	require.Equal(t, []observe.DeniedBy{{Name: "login"}, {Name: "login-address"}}, c.Snapshot().DeniedBy)

	mem, err := memstore.New()
	require.NoError(t, err)
	ban, err := ratelimit.NewBan(login, mem, ratelimit.Penalty{Denials: 1, Within: time.Hour, For: time.Hour})
	require.NoError(t, err)
	beside, err := ratelimit.NewAll(address, ban)
	require.NoError(t, err)
	c = observe.NewCounters("bans")
	limiter = observed(t, beside, c)
	require.Equal(t, []observe.DeniedBy{{Name: "ban"}, {Name: "login"}, {Name: "login-address"}}, c.Snapshot().DeniedBy)
	_, err = limiter.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, observe.DeniedBy{Name: "ban", Calls: 1}, c.Snapshot().DeniedBy[0])

	c = observe.NewCounters("one")
	observed(t, ban, c)
	observed(t, login, c)
	require.Empty(t, c.Snapshot().DeniedBy, "one limit is not named")
}

// "other" may be the name of a limit, or stand for those that have no row.
func TestOtherHasARowBeforeItDenies(t *testing.T) {
	named, many := observe.NewCounters("a"), observe.NewCounters("b")
	require.Empty(t, named.Snapshot().DeniedBy)
	named.Expect("other")
	require.Equal(t, []observe.DeniedBy{{Name: "other"}}, named.Snapshot().DeniedBy)
	for i := range 33 {
		many.Expect(strconv.Itoa(i))
	}
	require.Contains(t, many.Snapshot().DeniedBy, observe.DeniedBy{Name: "other"})
}
