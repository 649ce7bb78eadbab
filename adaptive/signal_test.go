package adaptive

import (
	"errors"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestCPUIsTheTimeTakenOfTheTimeOfAllProcessors(t *testing.T) {
	at, used, procs := time.Unix(1, 0), 40*time.Second, 4
	var err error
	c := &cpu{
		used:  func() (time.Duration, error) { return used, err },
		now:   func() time.Time { return at },
		procs: func() int { return procs },
	}
	pass := func(took, over time.Duration) float64 {
		used, at = used+took, at.Add(over)
		return c.load()
	}
	require.True(t, math.IsNaN(c.load()), "no last reading")
	require.Equal(t, 0.5, pass(2*time.Second, time.Second))
	require.Equal(t, 0., pass(0, time.Second), "of the last second alone")
	require.True(t, math.IsNaN(pass(time.Second, 0)), "at the same instant")
	require.Equal(t, 0.5, pass(time.Second, time.Second), "what that instant took is not lost")
	procs = 1
	require.Equal(t, 1., pass(time.Second, time.Second))
	err = errors.New("not known")
	require.True(t, math.IsNaN(pass(time.Second, time.Second)))
	err = nil
	require.Equal(t, 1., pass(time.Second, time.Second), "nor is what a failure took")
}

func TestCPUSeesABusyLoop(t *testing.T) {
	if _, err := cpuTime(); err != nil {
		t.Skip(err)
	}
	load := CPU()
	for load() <= 0 || math.IsNaN(load()) { // until the system has counted some time
		runtime.Gosched()
	}
}

func TestSignalsAreSafeForConcurrentUse(t *testing.T) {
	latency, err := SchedulerLatency(time.Millisecond)
	require.NoError(t, err)
	for _, signal := range []func() float64{CPU(), latency} {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if load := signal(); load < 0 {
						t.Error(load)
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestSchedulerLatencyCountsTheWaitsSinceTheLastReading(t *testing.T) {
	inf := math.Inf(1)
	h := &metrics.Float64Histogram{Buckets: []float64{math.Inf(-1), 0, 1, 2, 4, inf}, Counts: make([]uint64, 5)}
	tests := []struct {
		name          string
		before, after []uint64
		want          float64
	}{
		{"none", []uint64{1, 2, 3, 4, 5}, []uint64{1, 2, 3, 4, 5}, 0},
		{"one", []uint64{0, 0, 0, 0, 0}, []uint64{0, 0, 1, 0, 0}, 2},
		{"one since", []uint64{0, 9, 9, 9, 9}, []uint64{0, 10, 9, 9, 9}, 1},
		{"99 and one beyond", []uint64{0, 0, 0, 0, 0}, []uint64{0, 99, 0, 1, 0}, 1},
		{"98 and two beyond", []uint64{0, 0, 0, 0, 0}, []uint64{0, 98, 0, 2, 0}, 4},
		{"98, one and one", []uint64{0, 0, 0, 0, 0}, []uint64{0, 98, 1, 1, 0}, 2},
		{"99 of 199 in the last bucket", []uint64{0, 0, 0, 0, 0}, []uint64{0, 100, 0, 0, 99}, 4},
		{"no wait at all", []uint64{0, 0, 0, 0, 0}, []uint64{7, 0, 0, 0, 0}, 0},
	}
	for _, tt := range tests {
		h.Counts = tt.after
		require.Equal(t, tt.want, percentile99(h, tt.before), tt.name)
	}
}

func TestSchedulerLatencyIsAPartOfFull(t *testing.T) {
	for _, full := range []time.Duration{0, -1} {
		_, err := SchedulerLatency(full)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	latency, err := SchedulerLatency(time.Nanosecond)
	require.NoError(t, err)
	for load := 0.; !(load > 1); load = latency() { // until a goroutine has waited for over a nanosecond
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(runtime.Gosched)
		}
		wg.Wait()
	}
}

func TestAReadingOfTheReadySignalsAllocatesNothing(t *testing.T) {
	latency, err := SchedulerLatency(time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(10, func() { latency() }))
	load := CPU()
	require.Zero(t, testing.AllocsPerRun(10, func() { load() }))
}
