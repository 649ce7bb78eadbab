package eventlog

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// Tests of the structure of a log. The conformance suite of stores compares its decisions with an
// exact oracle.

// logOf returns a log of events of cost 1, evenly distributed over the last period, and its time.
func logOf(events int, period time.Duration) (*Log, store.Limit, int64) {
	l := store.Limit{Rate: int64(events), Burst: int64(events), Period: period.Microseconds()}
	g, now := new(Log), int64(1_767_225_600_000_000)
	for range events {
		now += l.Period / int64(events)
		g.Add(l, now, 1)
	}
	return g, l, now
}

func TestALogTakesAtMost9BytesAnEventInMemory(t *testing.T) {
	for _, events := range []int{1_000, 100_000} {
		requireMemory(t, 9, events, func() *Log {
			g, _, _ := logOf(events, 10*365*24*time.Hour)
			return g
		})
	}
}

// Blocks double up to exactly their full length. The documentation of SlidingLog promises 14 bytes.
func TestALogTakesAtMost14BytesForSeveralEventsInMemory(t *testing.T) {
	for _, calls := range []int{1_000, 20_000} {
		requireMemory(t, 14.5, calls, func() *Log {
			g := new(Log)
			for i := range calls {
				g.Add(store.Limit{Rate: math.MaxInt32, Period: 10 * 365 * 24 * 3600 * 1_000_000}, int64(i), 2)
			}
			return g
		})
	}
	for n, width := range map[int64]int{1: narrow, 2: wide} { // the first block, which is the only one of most logs
		g := new(Log)
		for i := range int64(blockLen) {
			g.Add(store.Limit{Rate: 1_000, Period: 1_000_000}, i, n)
		}
		require.Equal(t, blockLen*width, cap(g.tail.data))
	}
}

// requireMemory fails if a log with this many entries takes more than the given number of bytes per
// entry.
func requireMemory(t *testing.T, most float64, entries int, build func() *Log) {
	t.Helper()
	held := make([]*Log, 20)
	before := heap()
	for i := range held {
		held[i] = build()
	}
	bytes := float64(heap()-before) / float64(len(held)*entries)
	t.Logf("%d entries: %.1f bytes for each", entries, bytes)
	require.LessOrEqual(t, bytes, most)
	runtime.KeepAlive(held)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // sweeps what the first has found
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestALargeLimitAllocatesNothingAhead(t *testing.T) {
	g := new(Log)
	g.Add(store.Limit{Rate: 1 << 30, Burst: 1 << 30, Period: 1e6}, 1, 1)
	require.LessOrEqual(t, cap(g.tail.data), 8*narrow)
}

func TestALogForgetsAYearInOneStep(t *testing.T) {
	for _, idle := range []time.Duration{time.Second, 365 * 24 * time.Hour} { // a period is enough
		g, l, now := logOf(100_000, time.Second)
		now += idle.Microseconds()
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: now}, g.Step(l, now, l.Rate))
		g.Add(l, now, 1)
		require.Empty(t, g.older)
		require.Equal(t, 1, g.tail.len())
	}
}

// A log with few events in force has no chain, and no more memory than a block, however long it is
// in use, because the keys of a login limit live for years.
func TestALogOfFewEventsStaysOneBlock(t *testing.T) {
	g, l, now := logOf(10, time.Second)
	for range 10 * blockLen {
		now += l.Period / 10
		g.Add(l, now, 1)
		require.Same(t, alone, g.chain)
		require.LessOrEqual(t, cap(g.tail.data), 16*narrow)
	}
}

// While events come as fast as others leave, a dropped block is used as the next one.
func TestALogThatMovesOnAllocatesNothing(t *testing.T) {
	g, l, now := logOf(1_000, time.Second)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range blockLen {
			now += l.Period / 1_000
			g.Add(l, now, 1)
		}
	}))
}

// A log that was large and is small now must not hold what it has dropped.
func TestDroppedBlocksAreFree(t *testing.T) {
	g, l, now := logOf(100*blockLen, time.Second)
	now += l.Period * 9 / 10
	all := g.older
	for range 20 {
		g.Add(l, now, 1)
	}
	dropped := len(all) - len(g.older) // a block may have been added
	require.Greater(t, dropped, 10)
	for _, b := range all[:dropped] {
		require.Nil(t, b)
	}
}

// Dead events are not refunded, whether they are dead by the limit of the refund or by the newest
// event, and neither is anything from a log that has ended. The end of the log stays, because late
// readings of the clock are compared with it.
func TestARefundOfTheDeadGivesNothingBack(t *testing.T) {
	l, short := store.Limit{Rate: 9, Period: 1_000_000}, store.Limit{Rate: 9, Period: 500_000}
	g := new(Log)
	g.Add(l, 100_000, 3)
	g.Add(l, 600_000, 1)
	for _, reading := range []int64{600_000, 400_000} {
		g.Refund(short, reading, store.Receipt{At: 100_000, N: 1})
		require.Equal(t, int64(4), g.Used(600_000), "at %d", reading)
	}
	g = new(Log)
	g.Add(short, 0, 3)
	for _, reading := range []int64{500_000, 600_000} {
		g.Refund(l, reading, store.Receipt{N: 1})
		g.Refund(l, reading, store.Receipt{N: 3})
		require.Equal(t, short.Period, g.End(), "at %d", reading)
	}
	g.Refund(l, 499_999, store.Receipt{N: 1})
	require.Equal(t, int64(2), g.Used(499_999))
}

// A log whose events were all refunded holds no blocks, in whatever order they were refunded.
func TestALogOfWhichAllWasGivenBackIsFree(t *testing.T) {
	const events = 5*blockLen + 1
	for name, order := range map[string]func(i int64) int64{
		"oldest first":          func(i int64) int64 { return i },
		"newest first":          func(i int64) int64 { return events - 1 - i },
		"middle first":          func(i int64) int64 { return (i + events/2) % events },
		"a few, newest first":   func(i int64) int64 { return (events + 9 - i) % events },
		"a block, newest first": func(i int64) int64 { return (events + blockLen - i) % events },
	} {
		g, l, now := logOf(events, time.Second)
		gap := l.Period / events
		for i := range int64(events) {
			require.Equal(t, events-i, g.Used(now), name)
			g.Refund(l, now, store.Receipt{At: now - (events-1-order(i))*gap, N: 1})
		}
		require.Same(t, alone, g.chain, name)
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: now - 5}, g.Step(l, now-5, events), name)
	}
}

// An event may be older than the maximum that an entry can represent, 8.9 years, because a Period
// can be up to 10 years.
func TestALogOfTenYears(t *testing.T) {
	l := store.Limit{Rate: 5, Period: maxPeriod}
	for _, after := range []int64{maxOffset - 1, maxOffset, maxOffset + 1, maxPeriod - 1} {
		g := new(Log)
		g.Add(l, 1_000, 1)
		g.Add(l, 1_000+after, 1)
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: 1_000 + after, Y: 2, Z: maxPeriod}, g.Step(l, 1_000+after, 1))
		require.Equal(t, 1_000+after+maxPeriod, g.End())
		require.Equal(t, int64(maxPeriod), g.Step(l, 1_000+after, 5).X, "the second must leave")
	}
}

// A Charge has no limit. A log reports when its events leave, even 2^47 of them.
func TestALogTellsWhenAnyNumberOfEventsLeaves(t *testing.T) {
	const charges, most = 70_000, math.MaxInt32
	l := store.Limit{Rate: most, Period: 1_000_000}
	g := new(Log)
	for i := range int64(charges) {
		g.Add(l, i, most)
	}
	for _, n := range []int64{1, most} { // that come when the last charge has left
		r := g.Step(l, charges, n)
		require.Equal(t, int64(charges*most), r.Y)
		require.Equal(t, l.Period-1, r.X)
	}
	g.Add(l, charges, 1)
	require.Equal(t, l.Period-1, g.Step(l, charges, most-1).X)
	require.Equal(t, l.Period, g.Step(l, charges, most).X)
}

// A refund of very many events, in a block that has been in use for a long time.
func TestALogOfALimitAsLargeAsTheyGet(t *testing.T) {
	l := store.Limit{Rate: math.MaxInt32, Period: 1_000}
	g := new(Log)
	for now := int64(0); now < 20*l.Period; now += l.Period / 2 {
		g.Add(l, now, l.Rate/2)
		g.Refund(l, now, store.Receipt{At: now, N: 1})
		want := min(2, now/(l.Period/2)+1) * (l.Rate/2 - 1)
		require.Equal(t, want, g.Used(now))
		require.Equal(t, want, g.Step(l, now, 1).Y)
	}
}

// A log that begins with an empty state is empty, so the time of a caller whose clock is before
// 1970 is not moved forward.
func TestALogOfNothingIsEmpty(t *testing.T) {
	l := store.Limit{Rate: 5, Period: 1_000_000}
	for _, s := range []store.State{{}, {At: 70, Period: l.Period}} {
		g := New(s)
		require.Equal(t, int64(math.MinInt64), g.End())
		require.Equal(t, int64(-60)+l.Period, g.Add(l, -60, 1))
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: -60, Y: 1, Z: l.Period}, g.Step(l, -60, 1))
	}
	g := New(store.State{At: 70, Period: l.Period, Whole: 2})
	require.Equal(t, store.Reply{Outcome: store.Admitted, X: 70, Y: 2, Z: l.Period}, g.Step(l, -60, 1))
}

// A refund of many events examines no more entries than a block has, so that no call is slow.
func TestARefundLooksAtAsManyEntriesAsABlockHas(t *testing.T) {
	for _, before := range []int64{0, 1, blockLen / 2, blockLen - 1} { // so that the instant ends in either place
		g := new(Log)
		l := store.Limit{Rate: 1_000, Period: 1_000_000}
		for range before {
			g.Add(l, 1, 1)
		}
		for range 4 * blockLen {
			g.Add(l, 2, 1)
		}
		g.Refund(l, 2, store.Receipt{At: 2, N: 3 * blockLen})
		require.Equal(t, before+3*blockLen, g.Used(2))
	}
}

// A log whose oldest thousands of events were refunded has empty ranges of blocks at its front.
// When they die, calls must find their way, and drop them in parts.
func TestALogWhoseBeginningWasGivenBack(t *testing.T) {
	const events = 400 * blockLen
	for _, back := range []int64{255 * blockLen, 300*blockLen - 1, 300 * blockLen} { // 64 blocks of 128 go at once
		for _, died := range []int64{0, 1, 11} { // of the others
			g, l, now := logOf(events, time.Second)
			gap := l.Period / events
			begin := now - (events-1)*gap // event i is at begin + i*gap
			for i := range back {
				g.Refund(l, now, store.Receipt{At: begin + i*gap, N: 1})
			}
			requireBlocks(t, g)
			for i := int64(0); i < back; i += blockLen / 2 { // once more, and what never was
				g.Refund(l, now, store.Receipt{At: begin + i*gap, N: 1})
				g.Refund(l, now, store.Receipt{At: begin + i*gap + 1, N: 1})
			}
			require.Equal(t, events-back, g.Used(now))
			require.Equal(t, l.Period, g.Step(store.Limit{Rate: 1, Period: l.Period}, now, 1).X, "the last must leave")

			now = begin + (back+died)*gap + l.Period - 1 // the next dies in 1 µs
			left, blocks := events-back-died, len(g.older)
			for range 30 {
				full := store.Limit{Rate: left, Period: l.Period}
				require.Equal(t, store.Reply{Outcome: store.Denied, X: 1, Y: left, Z: g.newest + l.Period - now}, g.Step(full, now, 1))
				require.Equal(t, left, g.Used(now))
				g.Refund(l, now, store.Receipt{At: begin, N: 1}) // which is over
				g.Refund(l, now, store.Receipt{At: begin + (back+died-1)*gap, N: 1})
				require.Equal(t, left, g.Used(now))
				g.Add(l, now, 1)
				left++
				require.GreaterOrEqual(t, len(g.older), blocks-blockLen)
				blocks = len(g.older)
			}
			require.LessOrEqual(t, blocks, events/blockLen-int(back)/blockLen+1)
			g.Refund(l, now, store.Receipt{At: begin + (back+died)*gap, N: 1})
			require.Equal(t, left-1, g.Used(now))
			require.Equal(t, 1+gap, g.Step(store.Limit{Rate: left - 1, Period: l.Period}, now, 1).X)
		}
	}
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
	require.Equal(t, store.Reply{Outcome: store.Admitted, X: end}, g.Step(slower, end, 100))
	again, _, _ := logOf(100, time.Second)
	slower.Rate = 200
	r, _ := again.Take(slower, end, 100)
	require.Equal(t, store.Reply{Outcome: store.Admitted, X: end}, r)
	slower.Rate = 100
	g.Refund(slower, end, store.Receipt{At: now, N: 1})
	g.Add(slower, end, 1)
	require.Equal(t, int64(1), g.Step(slower, end, 1).Y)
	require.Equal(t, end+slower.Period, g.End())
}

func TestALogThatEndsAllocatesNothingWhenItStartsAgain(t *testing.T) {
	g, l, now := logOf(10, time.Millisecond)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now += l.Period * 3
		require.True(t, g.Step(l, now, 1).OK())
		g.Add(l, now, 1)
	}))
}

func TestALogOfWhichOnlyTheDeadAreLeftIsOver(t *testing.T) {
	l := store.Limit{Rate: 200, Burst: 200, Period: 1_000_000}
	for _, later := range []int64{1_000_000, 1_200_000} { // the first have died just now, or before
		g, now := new(Log), int64(5_000_000)
		for i := range int64(71) { // two blocks: 40 at 0 s, 30 at 0.5 s, 1 later
			at := now + max(min(i-39, 1), 0)*500_000 + max(i-69, 0)*(later-500_000)
			g.Add(l, at, 1)
		}
		end := now + later
		g.Refund(l, end, store.Receipt{At: end, N: 1})
		g.Refund(l, end, store.Receipt{At: now + 500_000, N: 30})
		require.Equal(t, int64(math.MinInt64), g.End())
		require.Zero(t, g.Used(now+900_000))
		over := store.Reply{Outcome: store.Admitted, X: end}
		require.Equal(t, over, g.Step(l, end, 200))
		require.Equal(t, over, g.Step(store.Limit{Rate: 200, Period: 2 * l.Period}, end, 200))
	}
	g := new(Log)
	short := store.Limit{Rate: 200, Period: 600_000}
	for i := range int64(70) {
		g.Add(l, max(min(i-39, 1), 0)*500_000, 1)
	}
	g.Add(short, 600_000, 1) // the first have died
	g.Add(l, 700_000, 1)     // and stay dead
	for at, n := range map[int64]int64{700_000: 1, 600_000: 1, 500_000: 30} {
		g.Refund(l, 700_000, store.Receipt{At: at, N: n})
	}
	over := store.Reply{Outcome: store.Admitted, X: 800_000}
	require.Equal(t, over, g.Step(l, 800_000, 1))
	r, _ := g.Take(l, 800_000, 1)
	require.Equal(t, over, r)
}

// A caller whose clock is behind the dead events, when all others were refunded, has a new key: its
// charge counts.
func TestALogThatIsOverBeginsAgain(t *testing.T) {
	l := store.Limit{Rate: 200, Period: 1_000_000}
	for _, at := range []int64{4_000_000, 5_100_000} {
		g := new(Log)
		for i := range int64(70) { // two blocks
			g.Add(l, 5_000_000+max(min(i-39, 1), 0)*500_000, 1)
		}
		g.Add(l, 6_200_000, 1) // 40 have died
		g.Refund(l, 6_200_000, store.Receipt{At: 6_200_000, N: 1})
		g.Refund(l, 6_200_000, store.Receipt{At: 5_500_000, N: 30})
		require.Equal(t, int64(math.MinInt64), g.End())
		for i := range int64(3) {
			require.Equal(t, i, g.Step(l, at, 1).Y)
			require.Equal(t, at+l.Period, g.Add(l, at, 1))
		}
	}
}

func TestALogKnowsItsFirstLivingEntry(t *testing.T) {
	g, l, now := logOf(1_000, time.Second)
	for range 3 * blockLen {
		now += l.Period / 1_000
		g.Add(l, now, 1)
		require.Equal(t, now-l.Period+l.Period/1_000, g.firstAt)
		require.Equal(t, uint64(1_000), g.total-g.gone)
	}
}

func TestADenialDoesNotTouchTheLog(t *testing.T) {
	g, l, now := logOf(1_000, time.Second)
	now += l.Period / 2
	var before []block
	for b := range len(g.older) + 1 {
		before = append(before, *g.block(g.number + int64(b)))
	}
	for n := range l.Rate + 2 {
		g.Step(l, now, n+1)
	}
	require.Len(t, g.older, len(before)-1)
	for i := range before {
		require.Equal(t, before[i], *g.block(g.number + int64(i)))
	}
}

// A log and a plain list of (time, count) agree, with entries of mixed costs in many blocks.
func TestALogCountsAsAPlainListDoes(t *testing.T) {
	type event struct{ at, n int64 }
	for seed := range uint64(effort.Of(6, 20)) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := store.Limit{Rate: 2_000, Burst: 2_000, Period: 1_000_000}
		g, now := new(Log), int64(5_000_000)
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
			require.Equal(t, r.Y+n <= l.Rate, r.OK())
			switch {
			case r.OK():
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
			times, age := 0, len(list)
			if rng.IntN(4) == 0 { // gives back an event of any age
				times = 1
			}
			if rng.IntN(50) == 0 { // or many new ones, so that blocks are emptied
				times, age = rng.IntN(300), min(age, 200)
			}
			for range times {
				i := len(list) - 1 - rng.IntN(age)
				e := &list[i]
				back := 1 + rng.Int64N(max(e.n, 1))
				if e.n > 0 && e.at > now-l.Period && (i+1 == len(list) || list[i+1].at > e.at) && (i == 0 || list[i-1].at < e.at) {
					g.Refund(l, now, store.Receipt{At: e.at, N: back})
					e.n -= min(back, e.n)
				}
			}
			require.Equal(t, count(), g.Used(now))
			for b := g.number; b <= g.last(); b++ {
				require.True(t, b < g.last() || g.block(b).len() > 0 || len(g.older) == 0)
				require.True(t, g.block(b) == nil || g.block(b).len() <= blockLen)
			}
		}
	}
}

// The same with refunds of most of the admitted events: starting at the oldest, starting at the
// newest, all of a part, and at random. Blocks thus become empty and are joined.
func TestALogCountsWhateverIsRefunded(t *testing.T) {
	type event struct{ at, n int64 }
	for seed := range uint64(24) {
		if seed%4 > 0 && !effort.Full() {
			continue // the last of them charge several events at once
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		l := store.Limit{Rate: 3_000 + rng.Int64N(20_000), Period: 1_000_000}
		g, now := new(Log), int64(5_000_000)
		var list []event // that are charged; one of each time
		for range 40 {
			for range rng.Int64N(l.Rate) { // admits
				now += 1 + rng.Int64N(2*l.Period/l.Rate)
				n := int64(1)
				if rng.IntN(100) < int(seed)-12 {
					n = 1 + rng.Int64N(5)
				}
				if g.Step(l, now, n).OK() {
					g.Add(l, now, n)
					list = append(list, event{now, n})
				}
			}
			dead, sum := 0, int64(0)
			for ; dead < len(list) && list[dead].at <= now-l.Period; dead++ {
			}
			list = list[dead:]
			from, to := rng.IntN(len(list)+1), rng.IntN(len(list)+1)
			from, to = min(from, to), max(from, to)
			if to == len(list) && rng.IntN(2) == 0 || rng.IntN(5) == 0 {
				from = 0
			}
			order := rng.IntN(3)
			part := list[from:to]
			perm := rng.Perm(len(part))
			for i := range part { // refunds
				j := []int{i, len(part) - 1 - i, perm[i]}[order]
				back := part[j].n
				if rng.IntN(10) == 0 {
					back = rng.Int64N(part[j].n + 1)
				}
				g.Refund(l, now, store.Receipt{At: part[j].at, N: back})
				part[j].n -= back
			}
			living := list[:0]
			for _, e := range list {
				if e.n > 0 {
					living = append(living, e)
					sum += e.n
				}
			}
			list = living
			require.Equal(t, sum, g.Used(now))
			requireDepartures := func() {
				for range 20 { // what leaves when
					n := 1 + rng.Int64N(l.Rate)
					r := g.Step(l, now, n)
					require.Equal(t, sum+n <= l.Rate, r.OK())
					if sum > 0 {
						require.Equal(t, sum, r.Y)
					}
					need, i := sum+n-l.Rate, 0
					if r.OK() {
						continue
					}
					for need -= list[0].n; need > 0; need -= list[i].n {
						i++
					}
					require.Equal(t, list[i].at+l.Period-now, r.X)
				}
			}
			requireDepartures()
			if len(list) > 0 {
				require.Equal(t, list[len(list)-1].at+l.Period, g.End())
			}
			requireBlocks(t, g)
			now += []int64{0, 1, l.Period / 7, l.Period * 3 / 4, l.Period * 2}[rng.IntN(5)]
		}
	}
}

// requireBlocks checks what the documentation of Log says about its blocks.
func requireBlocks(t *testing.T, g *Log) {
	t.Helper()
	if g.empty() {
		require.True(t, g.chain == nil || len(g.older) == 0)
		return
	}
	blocks, held := 0, 0
	for n := g.last() - 1; n >= g.number; n-- {
		b := g.block(n)
		if b == nil {
			continue
		}
		blocks++
		held += b.len()
		require.LessOrEqual(t, b.len(), blockLen)
		if b.len() == 0 && g.covering(n) == n { // no two halves are empty
			span := g.following(n) - n
			other := n ^ span
			if other >= g.number && other+span <= g.last() && g.block(other) != nil && g.following(other)-other == span {
				require.NotZero(t, g.block(other).len(), "blocks %d and %d, of %d", n, other, span)
			}
		}
		// back is the number of events missing from the blocks of its range
		missing := uint64(0)
		for p := n; p < n+lowbit(n) && p < g.last(); p = g.following(p) {
			missing += g.block(g.following(p)).through(0) - g.block(p).through(g.block(p).len())
		}
		require.Equal(t, missing%maxRun, g.back(n)%maxRun, "block %d", n)
	}
	require.NotZero(t, g.tail.len())
	require.LessOrEqual(t, blocks, 2*(held+1)+2*64)
}

// Take is Step and Add, even if the clock goes back, limits change, events are refunded, or
// everything has ended.
func TestATakeIsAStepAndAnAdd(t *testing.T) {
	for seed := range uint64(effort.Of(40, 150, 400)) {
		random := rand.New(rand.NewPCG(seed, 8))
		one, two := new(Log), new(Log)
		now, admitted, denied := int64(1_767_225_600_000_000), 0, 0
		var times []int64
		for range 400 {
			l := store.Limit{Rate: 20 + random.Int64N(2)*50, Period: 1_000 + random.Int64N(2)*3_000*random.Int64N(2)}
			n := 1 + random.Int64N(3)*random.Int64N(2)
			now += random.Int64N(40)
			switch random.IntN(40) {
			case 0:
				now -= random.Int64N(3_000)
			case 1:
				now += 2_000
			}
			r, end := one.Take(l, now, n)
			want, wantEnd := two.Step(l, now, n), int64(0)
			if want.OK() {
				wantEnd = two.Add(l, now, n)
				times = append(times, wantEnd-l.Period)
				admitted++
			} else {
				denied++
			}
			require.Equal(t, want, r)
			require.Equal(t, wantEnd, end)
			if random.IntN(10) == 0 && len(times) > 0 {
				c := store.Receipt{At: times[max(0, len(times)-1-random.IntN(100))], N: 1}
				one.Refund(l, now, c)
				two.Refund(l, now, c)
			}
			require.Equal(t, two, one, "the same log, seed %d", seed)
		}
		require.Positive(t, admitted)
		require.Positive(t, denied)
	}
}

// The work is bounded: a refund of any event changes at most one block per power of 2.
func TestARefundChangesFewBlocks(t *testing.T) {
	g, l, now := logOf(100_000, time.Second)
	first := now - l.Period + l.Period/100_000
	for _, at := range []int64{first + 10, first + 20, first + 333_330, first + 500_000, now - 10, now} {
		before := make([]link, len(g.older))
		for i, b := range g.older {
			before[i] = *b
		}
		spent := g.Used(now)
		g.Refund(l, now, store.Receipt{At: at, N: 1})
		require.Equal(t, spent-1, g.Used(now))
		changed := 0
		for i, b := range g.older {
			if b.back != before[i].back || b.run != before[i].run || len(b.data) != len(before[i].data) {
				changed++
			}
		}
		require.LessOrEqual(t, changed, 12, "of %d blocks", len(before))
	}
}
