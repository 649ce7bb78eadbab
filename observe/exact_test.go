package observe_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func newExact(t testing.TB, l ratelimit.Limit, percent float64, opts ...observe.ExactOption) *observe.Exact {
	t.Helper()
	e, err := observe.NewExact(l, percent, opts...)
	require.NoError(t, err)
	return e
}

// Traffic under a limit of 100 per minute. Each function calls ask, and lets time pass in between.
var limitedTraffic = []struct {
	name string
	run  func(rng *rand.Rand, ask func())
}{
	{"random", func(rng *rand.Rand, ask func()) { // a Poisson process, at the rate of the limit
		for range 200_000 {
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Minute/100)))
			ask()
		}
	}},
	{"two bursts", func(rng *rand.Rand, ask func()) { // of 100, half a minute to a minute apart
		for range 1000 {
			burst(100, 0, ask)
			time.Sleep(30*time.Second + time.Duration(rng.Int64N(int64(30*time.Second))))
			burst(100, 0, ask)
			time.Sleep(3*time.Minute + time.Duration(rng.Int64N(int64(time.Minute))))
		}
	}},
	{"edge", func(_ *rand.Rand, ask func()) { // 100 in the last second of a window, 100 in the first of the next
		for range 1000 {
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(4*time.Minute - time.Second)))
			burst(200, 2*time.Second, ask)
		}
	}},
}

// burst asks n times within d.
func burst(n int, d time.Duration, ask func()) {
	for range n {
		ask()
		time.Sleep(d / time.Duration(n))
	}
}

// TestWhatAnEstimateMeans measures the table in docs/promises.md, and prints its lines.
//
//	go test -v -run WhatAnEstimateMeans ./observe
func TestWhatAnEstimateMeans(t *testing.T) {
	effort.OneGoroutine(t)
	effort.NeedFull(t) // it decides 3 million times
	promises, err := os.ReadFile("../docs/promises.md")
	require.NoError(t, err)
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		if algorithm != "sliding_window" && !effort.Long() {
			continue
		}
		line := fmt.Sprintf("| `%s` |", typeName(algorithm))
		for _, traffic := range limitedTraffic {
			s := measure(t, algorithm, traffic.run)
			line += fmt.Sprintf(" %.0f / %.0f / %.1f |",
				percent(s.Beyond, s.Admitted), percent(s.Needless, s.Denied), percent(s.Denied, s.Decisions))
			if algorithm == "sliding_log" {
				require.Zero(t, s.Beyond+s.Needless)
			}
		}
		t.Log(line)
		assert.Contains(t, string(promises), line+"\n")
	}
}

// typeName returns FixedWindow for fixed_window.
func typeName(algorithm string) (name string) {
	for word := range strings.SplitSeq(algorithm, "_") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// measure returns what the algorithm does with traffic under a limit of 100 per minute.
func measure(t *testing.T, algorithm string, run func(rng *rand.Rand, ask func())) (s observe.Exactness) {
	synctest.Test(t, func(t *testing.T) {
		exact := newExact(t, ratelimit.PerMinute(100), 100)
		limiter := observed(t, inMemory(t, algorithm, ratelimit.PerMinute(100)), exact)
		run(rand.New(rand.NewPCG(3, 4)), func() {
			_, err := limiter.Allow(t.Context(), "key")
			require.NoError(t, err)
		})
		s = exact.Snapshot()
	})
	return s
}

func percent(part, whole int64) float64 { return 100 * float64(part) / float64(max(1, whole)) }

func TestExactCountsCallsOfManyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExact(t, ratelimit.Limit{Rate: 10, Period: time.Minute, Burst: 3}, 100) // a log has no Burst
		told := func(n int, allowed bool) observe.Exactness {
			before := e.Snapshot()
			e.Decided(t.Context(), "key", n, ratelimit.Result{Allowed: allowed, Limit: 10}, nil, 0)
			after := e.Snapshot()
			require.Equal(t, before.Decisions+1, after.Decisions)
			return observe.Exactness{
				Admitted: after.Admitted - before.Admitted, Beyond: after.Beyond - before.Beyond,
				Denied: after.Denied - before.Denied, Needless: after.Needless - before.Needless,
			}
		}
		admitted, beyond := observe.Exactness{Admitted: 1}, observe.Exactness{Admitted: 1, Beyond: 1}
		denied, needless := observe.Exactness{Denied: 1}, observe.Exactness{Denied: 1, Needless: 1}
		require.Equal(t, admitted, told(6, true))
		require.Equal(t, needless, told(4, false))
		require.Equal(t, denied, told(5, false))
		require.Equal(t, beyond, told(5, true)) // and charged: 11
		require.Equal(t, denied, told(1, false))
		time.Sleep(59 * time.Second)
		require.Equal(t, beyond, told(1, true))
		time.Sleep(time.Second)
		require.Equal(t, needless, told(9, false))
		require.Equal(t, admitted, told(9, true))
		require.Equal(t, beyond, told(11, true)) // more than there ever is room for
	})
}

func TestExactChargesWhatWasGranted(t *testing.T) {
	e := newExact(t, ratelimit.PerDay(10), 100)
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(10)), e)
	for range 2 { // 10 of them, and none
		_, _, err := ratelimit.AllowUpTo(t.Context(), limiter, "key", 100)
		require.NoError(t, err)
	}
	require.Equal(t, observe.Exactness{Decisions: 2, Admitted: 1, Denied: 1}, e.Snapshot())
}

func TestExactLeavesOutWhatNoLimitHasDecided(t *testing.T) {
	e := newExact(t, ratelimit.PerDay(1), 100)
	owner := new(int)
	for source := ratelimit.SourceStore; source <= ratelimit.SourceBan; source++ {
		r := ratelimit.Result{Limit: 1, RetryAfter: time.Second}
		e.Decided(t.Context(), "key", 1, r.WithMark(ratelimit.NewMark(owner, source, nil)), nil, 0)
	}
	e.Decided(t.Context(), "key", 1, ratelimit.Result{Allowed: true}, nil, 0)
	e.Decided(t.Context(), "key", 1, ratelimit.Result{}, store.ErrStore, 0)
	require.Equal(t, observe.Exactness{Decisions: 4, Denied: 4, Needless: 4}, e.Snapshot(), "store, local, deny_cache and lease")
}

// Events from a lease were admitted by a limit. An overdraft has not been charged yet, but counts.
func TestExactCountsWhatALeaseAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExact(t, ratelimit.PerMinute(60), 100)
		mem, err := memstore.New()
		require.NoError(t, err)
		leased, err := lease.New(mem, time.Second, lease.WithOverdraft(3))
		require.NoError(t, err)
		window, err := ratelimit.NewFixedWindow(leased, ratelimit.PerMinute(60))
		require.NoError(t, err)
		limiter := observed(t, window, e)
		for range 70 {
			_, err := limiter.Allow(t.Context(), "key")
			require.NoError(t, err)
			synctest.Wait()
		}
		s := e.Snapshot()
		require.EqualValues(t, 70, s.Decisions)
		require.LessOrEqual(t, s.Beyond, int64(3), "the overdraft")
		require.Equal(t, max(0, s.Admitted-60), s.Beyond)
		require.NoError(t, leased.Close(t.Context()))
	})
}

func TestExactDecidesWhenTheCallerHasGone(t *testing.T) {
	e := newExact(t, ratelimit.PerDay(1), 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		e.Decided(ctx, "key", 1, ratelimit.Result{Allowed: true, Limit: 1}, nil, 0)
	}
	require.Equal(t, observe.Exactness{Decisions: 2, Admitted: 2, Beyond: 1}, e.Snapshot())
}

func TestExactTakesAShareOfTheKeys(t *testing.T) {
	e := newExact(t, ratelimit.PerDay(1), 10)
	for range 2 {
		for i := range 10_000 {
			e.Decided(t.Context(), fmt.Sprint("key ", i), 1, ratelimit.Result{Allowed: true, Limit: 1}, nil, 0)
		}
	}
	s := e.Snapshot()
	require.InDelta(t, 2000, s.Decisions, 300)
	require.Equal(t, s.Decisions, 2*s.Beyond, "the same keys each time")
}

func TestExactIsBounded(t *testing.T) {
	effort.OneGoroutine(t)
	e := newExact(t, ratelimit.PerDay(10), 100, observe.WithMaxKeys(1000))
	key := strings.Repeat("x", 1000)
	flood := func(n int) {
		for i := range n {
			for range 3 {
				e.Decided(t.Context(), fmt.Sprint(key, i), 1, ratelimit.Result{Allowed: true, Limit: 10}, nil, 0)
			}
		}
	}
	flood(10_000)
	heap := heapBytes()
	flood(50_000)
	require.Less(t, heapBytes(), heap+1<<18)
}

func TestNewExactRefusesWhatItCannotDo(t *testing.T) {
	for _, p := range []float64{0, -1, 100.1, math.NaN(), math.Inf(1)} {
		_, err := observe.NewExact(ratelimit.PerDay(1), p)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, opt := range []observe.ExactOption{nil, observe.WithMaxKeys(0)} {
		_, err := observe.NewExact(ratelimit.PerDay(1), 1, opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, l := range []ratelimit.Limit{{}, ratelimit.PerDay(0), ratelimit.Unlimited(), {Rate: 1, Period: 1}} {
		_, err := observe.NewExact(l, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	}
}
