package ratelimit

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// The structure of a log. Its decisions are compared with an exact oracle by the
// conformance suite.

// logOf returns a log of events of cost 1, evenly spread over the last period, and
// its time.
func logOf(events int, period time.Duration) (*eventLog, store.Limit, int64) {
	l := store.Limit{Rate: int64(events), Burst: int64(events), Period: period.Microseconds()}
	g, now := new(eventLog), int64(1_767_225_600_000_000)
	for range events {
		now += l.Period / int64(events)
		g.Add(l, now, 1)
	}
	return g, l, now
}

func TestALogTakesAtMost9BytesAnEventInMemory(t *testing.T) {
	for _, events := range []int{1_000, 100_000} {
		const logs = 20
		held := make([]*eventLog, logs)
		before := heap()
		for i := range held {
			held[i], _, _ = logOf(events, 10*365*24*time.Hour)
		}
		bytes := float64(heap()-before) / float64(logs*events)
		t.Logf("%d events: %.1f bytes an event", events, bytes)
		require.LessOrEqual(t, bytes, 9.0)
		runtime.KeepAlive(held)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // sweeps what the first has found
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestALargeLimitAllocatesNothingAhead(t *testing.T) {
	g := new(eventLog)
	g.Add(store.Limit{Rate: 1 << 30, Burst: 1 << 30, Period: 1e6}, 1, 1)
	require.LessOrEqual(t, cap(g.tail.data), 8*narrow)
}

func TestALogForgetsAYearInOneStep(t *testing.T) {
	g, l, now := logOf(100_000, time.Second)
	now += (365 * 24 * time.Hour).Microseconds()
	require.Equal(t, store.Reply{OK: true, X: now}, g.Step(l, now, l.Rate))
	g.Add(l, now, 1)
	require.Empty(t, g.older)
	require.Equal(t, 1, g.tail.len())
}

func TestACallTrimsAtMostOneBlock(t *testing.T) {
	g, l, now := logOf(10_000, time.Second)
	blocks := len(g.older)
	now += l.Period * 9 / 10 // most of it has died
	for range 5 {
		g.Add(l, now, 1)
		require.GreaterOrEqual(t, len(g.older), blocks-1)
		blocks = len(g.older)
	}
	require.Equal(t, int64(1_000+5), g.Step(l, now, 1).Y, "what is dead does not count, trimmed or not")
}

func TestALogEndsByThePeriodOfItsLastAdd(t *testing.T) {
	g, l, now := logOf(100, time.Second)
	slower := store.Limit{Rate: 100, Burst: 100, Period: time.Hour.Microseconds()}
	end := now + l.Period
	require.Equal(t, end, g.End())
	require.Equal(t, int64(100), g.Step(slower, end-1, 1).Y)
	require.Equal(t, store.Reply{OK: true, X: end}, g.Step(slower, end, 100))
	g.Refund(slower, end, store.Charge{At: now, N: 1})
	g.Add(slower, end, 1)
	require.Equal(t, int64(1), g.Step(slower, end, 1).Y)
	require.Equal(t, end+slower.Period, g.End())
}

func TestALogThatEndsAllocatesNothingWhenItStartsAgain(t *testing.T) {
	g, l, now := logOf(10, time.Millisecond)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now += l.Period * 3
		require.True(t, g.Step(l, now, 1).OK)
		g.Add(l, now, 1)
	}))
}

func TestALogOfWhichOnlyTheDeadAreLeftIsOver(t *testing.T) {
	l := store.Limit{Rate: 200, Burst: 200, Period: 1_000_000}
	g, now := new(eventLog), int64(5_000_000)
	for i := range int64(71) { // two blocks: 40 at 0 s, 30 at 0.5 s, 1 at 1.2 s
		at := now + max(min(i-39, 1), 0)*500_000 + max(i-69, 0)*700_000
		g.Add(l, at, 1)
	}
	end := now + 1_200_000
	g.Refund(l, end, store.Charge{At: end, N: 1})
	g.Refund(l, end, store.Charge{At: now + 500_000, N: 30})
	require.Zero(t, g.End())
	require.Zero(t, g.Spend(now+900_000))
	require.Equal(t, store.Reply{OK: true, X: end}, g.Step(l, end, 200))
}

func TestADenialDoesNotTouchTheLog(t *testing.T) {
	g, l, now := logOf(1_000, time.Second)
	now += l.Period / 2
	var before []block
	for b := range len(g.older) + 1 {
		before = append(before, *g.block(b))
	}
	for n := range l.Rate + 2 {
		g.Step(l, now, n+1)
	}
	require.Len(t, g.older, len(before)-1)
	for i := range before {
		require.Equal(t, before[i], *g.block(i))
	}
}

// A log beside a plain list of (time, count), over entries of mixed costs that
// spread over many blocks.
func TestALogCountsAsAPlainListDoes(t *testing.T) {
	type event struct{ at, n int64 }
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := store.Limit{Rate: 2_000, Burst: 2_000, Period: 1_000_000}
		g, now := new(eventLog), int64(5_000_000)
		var list []event
		count := func() (sum int64) {
			for _, e := range list {
				if e.at > now-l.Period {
					sum += e.n
				}
			}
			return sum
		}
		for range 3_000 {
			now += rng.Int64N(4 * l.Period / l.Rate)
			n := int64(1)
			if rng.IntN(200) < int(seed) {
				n = 1 + rng.Int64N(50)
			}
			r := g.Step(l, now, n)
			require.Equal(t, count(), r.Y)
			require.Equal(t, r.Y+n <= l.Rate, r.OK)
			switch {
			case r.OK:
				g.Add(l, now, n)
				list = append(list, event{now, n})
			default: // need events must leave
				need, i := r.Y+n-l.Rate, 0
				for ; list[i].at <= now-l.Period; i++ {
				}
				for need -= list[i].n; need > 0; need -= list[i].n {
					i++
				}
				require.Equal(t, list[i].at+l.Period-now, r.X)
			}
			if rng.IntN(4) == 0 { // gives back an event of any age
				i := rng.IntN(len(list))
				e := &list[i]
				back := 1 + rng.Int64N(max(e.n, 1))
				if e.n > 0 && e.at > now-l.Period && (i+1 == len(list) || list[i+1].at > e.at) && (i == 0 || list[i-1].at < e.at) {
					g.Refund(l, now, store.Charge{At: e.at, N: back})
					e.n -= min(back, e.n)
				}
			}
			require.Equal(t, count(), g.Spend(now))
			for b := range len(g.older) + 1 {
				require.True(t, g.block(b).len() > 0 || len(g.older) == 0)
				require.LessOrEqual(t, g.block(b).len(), blockLen)
			}
		}
	}
}
