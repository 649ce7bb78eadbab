// Package eventlog keeps the exact times of the events of one key, for the sliding log.
package eventlog

import (
	"math"
	"sort"

	"github.com/ratelimit-go/ratelimit/store"
)

// Log is a [store.Log]: blocks of entries, oldest first. An entry is a time and the running count
// of events up to it. The number of events between two entries is therefore a subtraction, and each
// search is binary. Dead entries are dropped together with their block, at most one block per call.
// The zero Log is empty.
//
// Blocks have numbers. A refunded event is removed from its block, but later running counts do not
// change, because there could be many. Instead, the refund is counted in back. The back of block p
// is the number of events that were refunded from the blocks p to p + lowbit(p) - 1. Each refund is
// counted in at most one block per power of 2, and the number of events missing from a block on is
// the sum of as many numbers. See P. Fenwick, "A New Data Structure for Cumulative Frequency
// Tables", 1994.
//
// An older block that is empty stays, for its back. If two empty blocks are the halves of a larger
// range, the first stands for both, and the other is nil. Such a range has 2, 4, 8 ... numbers, and
// begins at a multiple of its length. The newest block is never empty, and a refund from it leaves
// no trace.
//
// Most logs have a single block, and no chain of their own, so a key with few events costs little.
type Log struct {
	newest int64 // time of the last entry, Unix µs; 0 if there is none
	cutoff int64 // events up to this time, Unix µs, were cut by an Add, whatever the current Period is
	period int64 // of the last Add, µs

	// No event is later than cutoff and earlier than firstAt, Unix µs. gone is the running count at
	// firstAt, in the oldest block. Most calls therefore need not read that block.
	firstAt int64
	gone    uint64

	total  uint64 // the running count of all events
	tail   block  // the newest block
	*chain        // the blocks before it
}

// chain has the blocks before the newest one.
type chain struct {
	older    []*link
	spare    *link // a dropped block, to be used again
	number   int64 // of the oldest block, from 1 on
	refunded int64 // the number of the newest older block with a refund
}

// link is an older block.
type link struct {
	block
	back uint64 // see Log
}

// alone is the chain of all logs with a single block. It is never written to.
var alone = &chain{number: 1}

// New returns a log that begins with the entry in s: s.Whole events at s.At, if any.
func New(s store.State) store.Log {
	g := new(Log)
	if s.Whole > 0 {
		g.Add(store.Limit{Period: s.Period}, s.At, s.Whole)
	}
	return g
}

// Step implements [store.Log].
func (g *Log) Step(l store.Limit, now, n int64) store.Reply {
	r := store.Reply{Outcome: store.AdmittedIf(n <= l.Rate), X: now}
	if g.over() {
		return r
	}
	r.X = max(now, g.newest)
	dead := max(r.X-l.Period, g.cutoff) // the latest time that does not count
	if g.newest <= dead || g.newest+g.period <= r.X {
		return r
	}
	b, gone := g.living(dead)
	r.Y, r.Z = eventsBetween(gone, g.total-g.missing(b)), g.newest+l.Period-r.X
	if r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate); !r.OK() && n <= l.Rate {
		r.X = g.whenGone(b, gone, r.Y+n-l.Rate) + l.Period - r.X
	}
	return r
}

// whenGone returns the time at which need events will have left. gone is the running count of the
// events that have already left, and b is the block of the next one.
//
// whenGone looks for the last block before which fewer than need events leave. It walks up in steps
// of growing powers of 2, and then halves the step each time. absent is the number of missing
// events on the way.
func (g *Log) whenGone(b int64, gone uint64, need int64) int64 {
	last, absent := g.last(), uint64(0)
	fewer := func(n int64, absent uint64) bool {
		return eventsBetween(gone+absent, g.block(n).through(0)) < need
	}
	step := lowbit(b)
	for b+step <= last && fewer(b+step, absent+g.back(b)) {
		b, absent = b+step, absent+g.back(b)
		step = lowbit(b)
	}
	part := g.back(b) // missing from b to b+step-1
	for step /= 2; step > 0; step /= 2 {
		n := b + step // n is a block, because the range of an empty block is skipped
		if before := part - g.back(n); fewer(n, absent+before) {
			b, absent, part = n, absent+before, g.back(n)
		} else {
			part = before
		}
	}
	at := g.block(b)
	end := at.through(at.len())
	spare := eventsBetween(gone+absent, end) - need // number of events in the block that need not leave
	i := sort.Search(at.len(), func(i int) bool { return eventsBetween(at.through(i+1), end) <= spare })
	return at.time(i)
}

// Take is Step, followed by Add of the events that it admits. end is 0 if it admits nothing. In the
// common case, no event has died and the newest one is alive, so all events count without a search.
func (g *Log) Take(l store.Limit, now, n int64) (r store.Reply, end int64) {
	dead := max(now-l.Period, g.cutoff)
	if !g.empty() && dead < g.firstAt && g.newest <= now && g.newest > dead && g.newest+g.period > now && g.refunded < g.number {
		r = store.Reply{Outcome: store.Admitted, X: now, Y: eventsBetween(g.gone, g.total), Z: g.newest + l.Period - now}
		if r.Y+n <= l.Rate {
			g.cutoff = dead
			g.append(now, n)
			g.period = l.Period
			return r, now + l.Period
		}
	}
	if r = g.Step(l, now, n); r.OK() {
		end = g.Add(l, now, n)
	}
	return r, end
}

// Add implements [store.Log].
func (g *Log) Add(l store.Limit, now, n int64) (end int64) {
	if g.over() {
		g.tail.data = g.tail.data[:0] // the log begins again
		g.cutoff = now - l.Period
	} else {
		now = max(now, g.newest)
		g.cutoff = max(now-l.Period, g.cutoff)
		if g.newest+g.period <= now { // the log has ended, whatever the current Period is
			g.cutoff = max(g.newest, g.cutoff)
		}
		g.trim()
	}
	g.append(now, n)
	g.period = l.Period
	return now + l.Period
}

// append makes n events at now the last entry. now must not be before newest.
func (g *Log) append(now, n int64) {
	if g.empty() {
		g.tail.begin(now, 0, n)
		g.chain = alone // frees the memory of another chain
		g.total, g.firstAt, g.gone = 0, now, 0
	} else if !g.tail.fits(now, n) {
		g.nextBlock(now, n)
	}
	g.tail.add(now, n)
	g.newest = now
	g.total += uint64(n)
}

// nextBlock makes an empty block the newest one, ready for n events at now.
func (g *Log) nextBlock(now, n int64) {
	if g.chain == alone {
		g.chain = &chain{number: 1}
	}
	full := g.spare
	if full == nil {
		full = &link{block: block{data: make([]byte, 0, 16*narrow)}} // it will most likely be filled
	}
	g.spare = nil
	*full, g.tail = link{block: g.tail}, block{data: full.data}
	g.older = append(g.older, full)
	g.tail.begin(now, g.total, n)
}

// trim drops entries that are not later than cutoff: at most one block of several, or the entries
// of a single block. If no entry is alive, it drops everything.
func (g *Log) trim() {
	if g.newest <= g.cutoff {
		g.tail.data = g.tail.data[:0] // the log is empty, and begins again with the next Add
		return
	}
	if g.cutoff < g.firstAt { // nothing has died
		return
	}
	b, i := g.firstAfter(g.cutoff)
	if b > g.number {
		g.forget(b)
	} else if len(g.older) == 0 {
		g.tail.cut(i)
		i = 0
	}
	if oldest := g.block(g.number); oldest != nil {
		oldest.first = 0
		if b == g.number && i < oldest.len() {
			oldest.first, g.firstAt, g.gone = int32(i), oldest.time(i), oldest.through(i)
		}
	}
}

// forget drops the oldest block. It also drops the rest of its range up to b, but not more numbers
// than a block has entries.
func (g *Log) forget(b int64) {
	if old := g.older[0]; old != nil {
		g.spare, g.older[0] = old, nil
	}
	n := int64(1)
	for g.number+n < b && n < blockLen && g.older[n] == nil {
		n++
	}
	g.older = g.older[n:]
	g.number += n
}

// End implements [store.Log].
func (g *Log) End() int64 {
	if g.over() {
		return math.MinInt64
	}
	return g.newest + g.period
}

// Used implements [store.Log].
func (g *Log) Used(now int64) int64 {
	dead := max(now-g.period, g.cutoff)
	if g.empty() || g.newest <= dead {
		return 0
	}
	b, gone := g.living(dead)
	return eventsBetween(gone, g.total-g.missing(b))
}

// over reports whether nothing is charged. There may be dead entries from before the refunded ones.
// The key is then like a new one, even if its clock is behind the dead entries.
func (g *Log) over() bool { return g.empty() || g.newest <= g.cutoff }

// empty reports whether there is no entry. Only a newest block without older ones can be empty.
func (g *Log) empty() bool { return len(g.tail.data) == 0 }
