package adaptive_test

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const interval = 500 * time.Millisecond // the default

// The range of the limit in most tests.
var (
	floor   = ratelimit.PerSecond(100)
	ceiling = ratelimit.PerSecond(1000)
)

func newLimit(t testing.TB, signal func() float64, opts ...adaptive.Option) *adaptive.Limit {
	t.Helper()
	l, err := adaptive.New(floor, ceiling, signal, opts...)
	require.NoError(t, err)
	return l
}

func constant(load float64) func() float64 { return func() float64 { return load } }

// after returns the Rate after l has been asked once in each of the given number of intervals.
func after(l *adaptive.Limit, readings int) int {
	for range readings {
		time.Sleep(interval)
		l.Current()
	}
	return l.Current().Rate
}

// ---- Construction and input.

func TestInvalidRangesAndSignalsAreRefused(t *testing.T) {
	l := func(text string) ratelimit.Limit {
		l, err := ratelimit.ParseLimit(text)
		require.NoError(t, err)
		return l
	}
	above := math.MaxInt32
	above++ // negative if an int has 32 bits
	tests := []struct {
		name           string
		floor, ceiling ratelimit.Limit
		signal         func() float64
		opts           []adaptive.Option
		err            error
	}{
		{"the zero Limit", ratelimit.Limit{}, ceiling, constant(0), nil, ratelimit.ErrInvalidLimit},
		{"a negative rate", ratelimit.PerSecond(-2), ceiling, constant(0), nil, ratelimit.ErrInvalidLimit},
		{"a ceiling out of range", floor, ratelimit.PerSecond(above), constant(0), nil, ratelimit.ErrInvalidLimit},
		{"unlimited above", floor, ratelimit.Unlimited(), constant(0), nil, ratelimit.ErrInvalidLimit},
		{"unlimited below", ratelimit.Unlimited(), ceiling, constant(0), nil, ratelimit.ErrInvalidLimit},
		{"two periods", ratelimit.PerSecond(1), ratelimit.PerMinute(100), constant(0), nil, ratelimit.ErrInvalidLimit},
		{"a floor above", ceiling, floor, constant(0), nil, ratelimit.ErrInvalidLimit},
		{"no room between", floor, floor, constant(0), nil, ratelimit.ErrInvalidLimit},
		{"a burst that falls", l("10/s burst 50"), l("20/s burst 40"), constant(0), nil, ratelimit.ErrInvalidLimit},
		{"a burst that falls to the rate", l("10/s burst 50"), l("20/s"), constant(0), nil, ratelimit.ErrInvalidLimit},
		{"no signal", floor, ceiling, nil, nil, ratelimit.ErrInvalidOption},
		{"a nil option", floor, ceiling, constant(0), []adaptive.Option{nil}, ratelimit.ErrInvalidOption},
	}
	for name, opt := range map[string]adaptive.Option{
		"a band from 0":               adaptive.WithBand(0, 0.8),
		"a band upside down":          adaptive.WithBand(0.8, 0.6),
		"a band of nothing":           adaptive.WithBand(0.8, 0.8),
		"a band from NaN":             adaptive.WithBand(math.NaN(), 0.8),
		"a band to NaN":               adaptive.WithBand(0.6, math.NaN()),
		"a band without end":          adaptive.WithBand(0.6, math.Inf(1)),
		"a band narrower than a step": adaptive.WithBand(0.7, 0.8),
		"no step down":                adaptive.WithSteps(0, 0.1),
		"no step up":                  adaptive.WithSteps(0.1, 0),
		"a step down of NaN":          adaptive.WithSteps(math.NaN(), 0.1),
		"a step up of NaN":            adaptive.WithSteps(0.1, math.NaN()),
		"a step down over the band":   adaptive.WithSteps(0.26, 0.1),
		"a step up over the band":     adaptive.WithSteps(0.1, 0.34),
		"a step up without end":       adaptive.WithSteps(0.1, math.Inf(1)),
		"too short an interval":       adaptive.WithInterval(time.Millisecond - 1),
		"too long an interval":        adaptive.WithInterval(time.Hour + 1),
		"a start below the floor":     adaptive.WithStart(99),
		"a start above the ceiling":   adaptive.WithStart(1001),
	} {
		tests = append(tests, struct {
			name           string
			floor, ceiling ratelimit.Limit
			signal         func() float64
			opts           []adaptive.Option
			err            error
		}{name, floor, ceiling, constant(0), []adaptive.Option{opt}, ratelimit.ErrInvalidOption})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := adaptive.New(tt.floor, tt.ceiling, tt.signal, tt.opts...)
			require.ErrorIs(t, err, tt.err)
			require.Nil(t, l)
		})
	}
	_, err := adaptive.New(floor, ceiling, nil)
	require.ErrorContains(t, err, "adaptive.New: the signal is nil")
}

func TestValuesAtTheEdgeOfTheirRangeAreAccepted(t *testing.T) {
	_, err := adaptive.New(ratelimit.PerDay(0), ratelimit.PerDay(math.MaxInt32), constant(0),
		adaptive.WithBand(0.6, 0.8), adaptive.WithSteps(0.25, 1./3), adaptive.WithInterval(time.Millisecond), adaptive.WithStart(0))
	require.NoError(t, err)
	_, err = adaptive.New(floor, ceiling, constant(0), adaptive.WithInterval(time.Hour), adaptive.WithStart(1000))
	require.NoError(t, err)
}

func TestALimitThatNewHasNotMadeIsAnError(t *testing.T) {
	for _, l := range []*adaptive.Limit{nil, new(adaptive.Limit)} {
		_, err := l.ForKey(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.Zero(t, l.Current())
	}
}

// ---- The law.

func TestItBeginsAtTheCeilingOrWhereItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, ceiling, newLimit(t, constant(1)).Current())
		require.Equal(t, ratelimit.PerSecond(300), newLimit(t, constant(1), adaptive.WithStart(300)).Current())
	})
}

func TestAboveTheBandItShrinksByAFifthAndBelowGrowsByATwentiethEachTwoReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := 0.81
		l := newLimit(t, func() float64 { return load })
		var rates []int
		for range 4 {
			rates = append(rates, after(l, 1))
		}
		load = 0.59
		for range 4 {
			rates = append(rates, after(l, 1))
		}
		require.Equal(t, []int{1000, 800, 800, 640, 640, 672, 672, 705}, rates)
	})
}

func TestTheEdgesOfTheBandAreInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, load := range []float64{0.6, 0.7, 0.8} {
			require.Equal(t, 500, after(newLimit(t, constant(load), adaptive.WithStart(500)), 10))
		}
	})
}

func TestAReadingInTheBandOrOnTheOtherSideBeginsTheCountAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, between := range map[string]float64{"in the band": 0.7, "below it": 0.1} {
			i, loads := 0, []float64{0.9, between, 0.9, between, 0.9, between}
			l := newLimit(t, func() float64 { i++; return loads[i-1] })
			require.Equal(t, 1000, after(l, len(loads)), name)
		}
	})
}

func TestFromCeilingToFloorAndBackItTakesTheReadingsThatTheDocSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := 1.
		l := newLimit(t, func() float64 { return load })
		require.Greater(t, after(l, 20), 100)
		require.Equal(t, 100, after(l, 2), "after 22 readings")
		load = 0
		require.Less(t, after(l, 94), 1000)
		require.Equal(t, 1000, after(l, 4), "after 98 readings: steps are cut to whole events")
	})
}

func TestOptionsSetTheBandTheStepsAndTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := 0.31
		l := newLimit(t, func() float64 { return load }, adaptive.WithBand(0.1, 0.3),
			adaptive.WithSteps(0.5, 0.25), adaptive.WithInterval(2*interval))
		require.Equal(t, 1000, after(l, 3))
		require.Equal(t, 500, after(l, 1), "the second reading is after the fourth half second")
		load = 0.09
		require.Equal(t, 625, after(l, 4))
		load = 0.2
		require.Equal(t, 625, after(l, 10))
	})
}

func TestAStepIsAtLeastOneEventSoThatItLeavesZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := 0.
		l, err := adaptive.New(ratelimit.PerSecond(0), ratelimit.PerSecond(3), func() float64 { return load }, adaptive.WithStart(0))
		require.NoError(t, err)
		require.Equal(t, 3, after(l, 6))
		load = 1
		require.Equal(t, 0, after(l, 6))
	})
}

func TestTheLargestRatesStayInRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top := ratelimit.Limit{Rate: math.MaxInt32, Period: time.Second, Burst: math.MaxInt32}
		load := 1.
		l, err := adaptive.New(ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}, top, func() float64 { return load })
		require.NoError(t, err)
		after(l, 2)
		require.Equal(t, ratelimit.Limit{Rate: 1717986918, Period: time.Second, Burst: 1717986918}, l.Current())
		load = 0
		after(l, 20)
		require.Equal(t, top, l.Current())
	})
}

// From a floor of 0, a small part of the ceiling's Burst is less than an event, and a Burst of 0 means the Rate.
func TestTheBurstNeverExceedsTheCeilings(t *testing.T) {
	before := 0
	for rate := 1; rate <= 10; rate++ {
		l, err := adaptive.New(ratelimit.PerSecond(0), ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 2}, func() float64 { return 0.7 }, adaptive.WithStart(rate))
		require.NoError(t, err)
		burst := l.Current().Burst
		require.GreaterOrEqual(t, burst, max(1, before), "at a Rate of %d", rate)
		require.LessOrEqual(t, burst, 2)
		before = burst
	}
}

func TestTheBurstMovesWithTheRateInProportion(t *testing.T) {
	l := func(rate, burst int) ratelimit.Limit {
		return ratelimit.Limit{Rate: rate, Period: time.Minute, Burst: burst}
	}
	tests := []struct {
		name                    string
		floor, ceiling, between ratelimit.Limit
	}{
		{"none, none", l(100, 0), l(1000, 0), l(550, 0)},
		{"given twice", l(100, 10), l(1000, 20), l(550, 15)},
		{"the same", l(100, 10), l(1000, 10), l(550, 10)},
		{"down to the rate", l(100, 0), l(1000, 2000), l(550, 1050)},
		{"up to the rate", l(100, 50), l(1000, 0), l(550, 525)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := adaptive.New(tt.floor, tt.ceiling, constant(1), adaptive.WithStart(tt.between.Rate))
				require.NoError(t, err)
				require.Equal(t, tt.between, l.Current())
				before := l.Current()
				for after(l, 2) > tt.floor.Rate {
					require.LessOrEqual(t, l.Current().Burst, before.Burst)
					before = l.Current()
				}
				// If only the ceiling has a Burst, the floor's is its Rate.
				end := tt.floor
				if tt.between.Burst > 0 && end.Burst == 0 {
					end.Burst = end.Rate
				}
				require.Equal(t, end, l.Current())
			})
		})
	}
}

func TestReadingsThatAreNoLoadsAreDefined(t *testing.T) {
	tests := []struct {
		load float64
		rate int
	}{
		{math.NaN(), 500},
		{math.Inf(1), 400},
		{math.MaxFloat64, 400},
		{math.Inf(-1), 525},
		{-1, 525},
	}
	for _, tt := range tests {
		t.Run(strconv.FormatFloat(tt.load, 'g', -1, 64), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, tt.rate, after(newLimit(t, constant(tt.load), adaptive.WithStart(500)), 2))
			})
		})
	}
	t.Run("NaN does not interrupt a row", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			i, loads := 0, []float64{0.9, math.NaN(), 0.9}
			require.Equal(t, 800, after(newLimit(t, func() float64 { i++; return loads[i-1] }), 3))
		})
	})
}

// ---- When the signal is read.

func TestTheSignalIsReadOncePerIntervalHoweverManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		l := newLimit(t, func() float64 { reads++; return 0 })
		l.Current()
		time.Sleep(interval - 1)
		l.Current()
		require.Zero(t, reads, "New begins the first interval")
		for range 10 {
			time.Sleep(interval)
			for range 100 {
				l.Current()
			}
		}
		require.Equal(t, 10, reads)
	})
}

func TestAfterALongPauseItIsOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		l := newLimit(t, func() float64 { reads++; return 1 })
		time.Sleep(24 * time.Hour)
		for range 100 {
			l.Current()
		}
		require.Equal(t, 1, reads)
		require.Equal(t, 1000, l.Current().Rate)
		time.Sleep(24 * time.Hour)
		for range 100 {
			l.Current()
		}
		require.Equal(t, 800, l.Current().Rate, "one step")
	})
}

func TestConcurrentCallersReadTheSignalOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads, at atomic.Int64
		l := newLimit(t, func() float64 {
			if at.Add(1) != 1 {
				t.Error("two at once")
			}
			defer at.Add(-1)
			reads.Add(1)
			return 0.5 + rand.Float64()/2
		})
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for range 100 {
					time.Sleep(interval)
					got := l.Current()
					if got.Rate < floor.Rate || got.Rate > ceiling.Rate || got.Period != floor.Period {
						t.Error(got)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 100, reads.Load())
	})
}

func TestWhileOneReadsASlowSignalTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimit(t, func() float64 { time.Sleep(10 * time.Second); return 1 })
		time.Sleep(interval)
		var wg sync.WaitGroup
		wg.Go(func() { l.Current() })
		synctest.Wait()
		begin := time.Now()
		time.Sleep(2 * interval) // due again
		require.Equal(t, ceiling, l.Current())
		require.Equal(t, 2*interval, time.Since(begin))
		wg.Wait()
	})
}

func TestASignalMayAskForTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *adaptive.Limit
		l = newLimit(t, func() float64 { return float64(l.Current().Rate) / 1000 })
		require.Equal(t, 800, after(l, 10))
	})
}

func TestASignalThatPanicsDoesSoOncePerIntervalAndChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		l := newLimit(t, func() float64 {
			if broken {
				panic("broken")
			}
			return 1
		})
		time.Sleep(interval)
		require.PanicsWithValue(t, "broken", func() { l.Current() })
		require.Equal(t, ceiling, l.Current())
		broken = false
		require.Equal(t, 800, after(l, 2))
	})
}

func TestACallAllocatesNothing(t *testing.T) {
	l := newLimit(t, constant(1), adaptive.WithInterval(time.Millisecond))
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = l.ForKey(ctx, "key") }))
	synctest.Test(t, func(t *testing.T) {
		l := newLimit(t, constant(1))
		require.Zero(t, testing.AllocsPerRun(10, func() { time.Sleep(interval); l.Current() }), "with a reading")
	})
}

// ---- Limiters that follow.

func TestALimiterFollowsAndKeysKeepTheirSpend(t *testing.T) {
	stores := map[string]func(t *testing.T, now func() time.Time) store.Store{
		"in memory": func(t *testing.T, now func() time.Time) store.Store {
			s, err := memstore.New(memstore.WithClock(now))
			require.NoError(t, err)
			return s
		},
		"on Redis": func(t *testing.T, now func() time.Time) store.Store {
			s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(redistest.Prefix(t)),
				redisstore.WithTimeout(10*time.Second), redisstore.WithClock(now))
			require.NoError(t, err)
			return s
		},
	}
	for place, onStore := range stores {
		for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
			t.Run(algorithm+" "+place, func(t *testing.T) {
				t.Parallel() // each waits for readings
				begin := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
				st := onStore(t, func() time.Time { return begin })
				follows(t, algorithm, st)
			})
		}
	}
}

// follows spends 60 of 100 events, shrinks the limit to 10, at which the key has no room, and lets
// it grow again. The store's clock stands still, so all of this happens at one instant. The
// interval is real: the test asks until it has passed.
func follows(t *testing.T, algorithm string, st store.Store) {
	var load atomic.Uint64
	read := make(chan struct{}, 1)
	limit, err := adaptive.New(ratelimit.PerHour(10), ratelimit.PerHour(100), func() float64 {
		select {
		case read <- struct{}{}:
		default:
		}
		return math.Float64frombits(load.Load())
	}, adaptive.WithInterval(time.Millisecond))
	require.NoError(t, err)
	lim, err := ratelimit.New(algorithm, st, ratelimit.PerHour(100), ratelimit.WithName("api"), ratelimit.WithLimitFunc(limit.ForKey))
	require.NoError(t, err)
	until := func(to float64, rate int) {
		load.Store(math.Float64bits(to))
		for limit.Current().Rate != rate {
			<-time.After(time.Millisecond)
		}
	}
	ask := func(n int) ratelimit.Result {
		r, err := lim.AllowN(t.Context(), "key", n)
		require.NoError(t, err)
		return r
	}

	require.NoError(t, lim.Reset(t.Context(), "key")) // forget an earlier run, whose clock stood at the same time
	r := ask(60)
	require.True(t, r.Allowed)
	require.Equal(t, [2]int{100, 40}, [2]int{r.Limit, r.Remaining})
	until(1, 10)
	r = ask(1)
	require.False(t, r.Allowed)
	require.Equal(t, [2]int{10, 0}, [2]int{r.Limit, r.Remaining})
	policies, err := ratelimit.AppendPolicies(t.Context(), nil, lim, "key")
	require.NoError(t, err)
	require.Equal(t, ratelimit.PerHour(10), policies[0].Limit)
	until(0.1, 100)
	r = ask(1)
	require.True(t, r.Allowed)
	require.Equal(t, [2]int{100, 39}, [2]int{r.Limit, r.Remaining}, "a denial has written nothing")
}

// ---- Recorded signals.

// course describes how a Limit followed a signal.
type course struct {
	rates   []int
	changes int
	turns   int // changes of direction
	last    int // the reading of the last change, counted from 1; 0 if there was none
}

// replay asks a Limit once for each load.
func replay(t *testing.T, loads []float64, opts ...adaptive.Option) (c course) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		i := 0
		l := newLimit(t, func() float64 { i++; return loads[i-1] }, opts...)
		before, way := l.Current().Rate, 0
		for n := range loads {
			rate := after(l, 1)
			require.GreaterOrEqual(t, rate, floor.Rate)
			require.LessOrEqual(t, rate, ceiling.Rate)
			if rate != before {
				c.changes++
				c.last = n + 1
				if (rate-before)*way < 0 {
					c.turns++
				}
				way = rate - before
			}
			before = rate
			c.rates = append(c.rates, rate)
		}
		require.Equal(t, len(loads), i)
	})
	return c
}

func signal(n int, at func(i int) float64) []float64 {
	loads := make([]float64, n)
	for i := range loads {
		loads[i] = at(i)
	}
	return loads
}

// recorded reads a column of a file in testdata, with one number per reading.
func recorded(t *testing.T, file string, column int) (loads []float64) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		load, err := strconv.ParseFloat(strings.Fields(line)[column], 64)
		require.NoError(t, err)
		loads = append(loads, load)
	}
	return loads
}

func TestOnRecordedSignalsItSettlesAndDoesNotFlap(t *testing.T) {
	noise := func(middle, width float64) func(int) float64 {
		rng := rand.New(rand.NewPCG(1, 2))
		return func(int) float64 { return middle + width*(2*rng.Float64()-1) }
	}
	step := func(from, to float64) func(i int) float64 {
		return func(i int) float64 {
			if i < 50 {
				return from
			}
			return to
		}
	}
	type outcome struct{ rate, changes, turns, last int } // at the end
	tests := []struct {
		name  string
		loads []float64
		start int
		want  outcome
	}{
		{"in the band", signal(100, func(int) float64 { return 0.7 }), 500, outcome{500, 0, 0, 0}},
		{"a step up, to overload", signal(200, step(0.7, 1)), 1000, outcome{100, 11, 0, 72}},
		{"a step down, to idling", signal(200, step(0.7, 0.1)), 100, outcome{1000, 49, 0, 148}},
		{"a ramp through the band", signal(200, func(i int) float64 { return float64(i) / 200 }), 500, outcome{100, 26, 1, 183}},
		{"noise inside the band", signal(1000, noise(0.7, 0.1)), 500, outcome{500, 0, 0, 0}},
		{"noise a fifth wider than the band", signal(1000, noise(0.7, 0.12)), 500, outcome{113, 14, 5, 854}},
		{"a spike of one reading", signal(100, func(i int) float64 {
			if i == 50 {
				return 100
			}
			return 0.79
		}), 500, outcome{500, 0, 0, 0}},
		{"a gap of one reading", signal(100, func(i int) float64 {
			if i == 50 {
				return 0
			}
			return 0.61
		}), 500, outcome{500, 0, 0, 0}},
		{"spikes of each third reading", signal(300, func(i int) float64 { return 0.7 + 0.3*float64(i%3/2) }), 500, outcome{500, 0, 0, 0}},
		{"a sine inside the band", signal(200, func(i int) float64 { return 0.7 + 0.1*math.Sin(float64(i)/10) }), 500, outcome{500, 0, 0, 0}},
		{"a sine of four swings beyond the band", signal(240, func(i int) float64 { return 0.7 + 0.3*math.Sin(2*math.Pi*float64(i)/60) }), 500, outcome{165, 61, 7, 236}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := replay(t, tt.loads, adaptive.WithStart(tt.start))
			require.Equal(t, tt.want, outcome{c.rates[len(c.rates)-1], c.changes, c.turns, c.last})
		})
	}
}

func TestOnTracesOfABusyProcess(t *testing.T) {
	const cpu, latency = 0, 1
	tests := []struct {
		name   string
		file   string
		column int
		opts   []adaptive.Option
		rate   int // at the end, from 500
		turns  int
	}{
		{"its processor time, around the share that was left to it", "busy.txt", cpu, []adaptive.Option{adaptive.WithBand(0.1, 0.2)}, 732, 2},
		{"the same, in a narrower band", "busy.txt", cpu, []adaptive.Option{adaptive.WithBand(0.12, 0.16)}, 262, 4},
		{"its goroutines' waits", "busy.txt", latency, []adaptive.Option{adaptive.WithBand(0.5, 2)}, 138, 8},
		{"starved it seems idle", "starved.txt", cpu, nil, 1000, 0},
		{"but its goroutines wait", "starved.txt", latency, []adaptive.Option{adaptive.WithBand(0.5, 2)}, 100, 14},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := replay(t, recorded(t, tt.file, tt.column), append(tt.opts, adaptive.WithStart(500))...)
			require.Equal(t, [2]int{tt.rate, tt.turns}, [2]int{c.rates[len(c.rates)-1], c.turns})
		})
	}
}
