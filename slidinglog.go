package ratelimit

import (
	"context"
	_ "embed"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/ratelimit-go/ratelimit/store"
)

// SlidingLog keeps the exact time of each event that was admitted in the last
// Period. It admits n events if they and those of the last Period are at most
// Rate. An event counts for exactly one Period: it is in the log at its own time
// t, and gone at t + Period.
//
// Bound: at most Rate events in every true Period, exactly.
//
// A key costs some 7 bytes an event in memory and some 7 in Redis while the
// events are within the last Period, and some 14 where AllowN admits several at
// once (n events at once are one entry), so up to Rate times that. In memory one entry
// costs nothing but the key's 60 bytes, and from the second on there are some 200 more.
// Nothing is allocated ahead. Refund of an event, however old, changes a block of 64 events
// for each power of 2 at most: it keeps a Redis server busy for some 0.1 ms, and for up to
// some 0.5 ms in a log of 1,000,000. Of events of the same µs it gives back those of at most
// 64 calls. A block of which all is refunded while newer ones are in use keeps 8 bytes in
// memory and 2 in Redis, until it is a Period old.
//
// Use it where the limit is a contract: logins, payments, calls to a supplier
// that counts exactly. For large Rates, use [SlidingWindow]: it costs two counters.
type SlidingLog struct{ limiter }

// NewSlidingLog returns a limiter that keeps the events of the last l.Period. l
// has no Burst. Its errors are [ErrInvalidLimit] and [ErrInvalidOption].
func NewSlidingLog(s store.Store, l Limit, opts ...Option) (*SlidingLog, error) {
	g := new(SlidingLog)
	if err := g.build(g, &slidingLog, s, l, opts); err != nil {
		return nil, err
	}
	return g, nil
}

// Allow is AllowN of 1.
func (g *SlidingLog) Allow(ctx context.Context, key string) (res Result, err error) {
	err = g.decide(ctx, key, 1, take, nil, &res)
	return res, err
}

// AllowN decides on n events at once: all are admitted and charged, or none.
func (g *SlidingLog) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = g.decide(ctx, key, n, take, nil, &res)
	return res, err
}

//go:embed scripts/slidinglog.lua
var slidingLogLua string

// slidingLog keeps a State while one entry is all that matters: At, its time;
// Whole, its events. Two are an eventLog.
var slidingLog = algorithm{
	rule: store.Rule{
		Name:        "sliding_log",
		Step:        entryStep,
		Available:   windowAvailable,
		Refund:      entryRefund,
		TTL:         func(s store.State, _ store.Limit) int64 { return s.Period },
		Used:        wholeUsed,
		NewLog:      func(s store.State) store.Log { return newEventLog(s) },
		Script:      script(slidingLogLua),
		JointScript: jointScript,
		BatchScript: batchScript,
	},
	report: slidingLogReport,
	after:  afterY,
}

// entryStep replies as eventLog.Step does.
func entryStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	r := store.Reply{OK: n <= l.Rate, X: now}
	if s.Whole > 0 {
		r.X = max(now, s.At)
		if left := s.At + min(s.Period, l.Period) - r.X; left > 0 {
			r.Y, r.Z = s.Whole, s.At+l.Period-r.X
			if r.OK = r.Y+n <= l.Rate; r.OK {
				return store.State{}, r // a second entry
			}
			if n <= l.Rate {
				r.X = r.Z
			}
			return s, r
		}
	}
	return store.State{At: r.X, Period: l.Period, Whole: n}, r
}

func entryRefund(s store.State, l store.Limit, now int64, c store.Receipt) store.State {
	if c.At == s.At && max(now, s.At) < s.At+min(s.Period, l.Period) {
		s.Whole -= min(c.N, s.Whole)
	}
	return s
}

// slidingLogReport reads a reply of now (of RetryAfter where it is a denial), of
// the events in the last Period, and of ResetAfter.
func slidingLogReport(l store.Limit, r store.Reply, _, charged int64) verdict {
	v := verdict{remaining: max(0, windowAvailable(l, r)-charged), retry: r.X, reset: r.Z}
	if charged > 0 {
		v.reset = l.Period
	}
	return v
}

// eventLog is the log of one key: blocks of entries, oldest first. An entry is (time,
// running count of events), so that the number of events between two entries is a
// subtraction and each search is binary. What has died goes with its block, at most one
// block a call.
//
// Blocks have numbers. An event that is refunded is taken out of its block, and no later
// running count is changed: each would have to be. It is counted in back instead: back of
// block p is how many events were refunded from the blocks p to p + lowbit(p) - 1 (P.
// Fenwick, 1994), so that each event is counted in one block for each power of 2 at most,
// and what is missing from a block on is the sum of as many. A block of which nothing is
// left stays, for its back. Two of them that are the halves of a larger range, of 2, 4, 8
// ... numbers that begins at a multiple of its length, become one, the first: then the
// other is nil. The newest block is never empty, and what is refunded from it is as if it
// had never been.
type eventLog struct {
	tail     block    // the newest
	older    []*block // those before it
	spare    *block   // one that was dropped, for the next that is needed
	number   int64    // of the oldest block, from 1 on
	refunded int64    // the number of the newest older block from which was refunded
	first    int      // entries of the oldest block that are not later than cutoff, or fewer
	newest   int64    // time of the last entry, Unix µs; 0 if there is none
	total    uint64   // the running count of all events
	cutoff   int64    // events up to here, Unix µs, were cut by an Add, whatever the Period is now
	period   int64    // µs, of the last Add
}

// newEventLog returns a log that begins with the entry of s.
func newEventLog(s store.State) *eventLog {
	g := new(eventLog)
	if s.Whole > 0 {
		g.Add(store.Limit{Period: s.Period}, s.At, s.Whole)
	}
	return g
}

// Step implements [store.Log].
func (g *eventLog) Step(l store.Limit, now, n int64) store.Reply {
	r := store.Reply{OK: n <= l.Rate, X: now}
	if g.empty() {
		return r
	}
	r.X = max(now, g.newest)
	dead := max(r.X-l.Period, g.cutoff) // the latest time that does not count
	if g.newest <= dead || g.newest+g.period <= r.X {
		return r
	}
	b, i := g.firstAfter(dead)
	gone := g.block(b).through(i)
	r.Y, r.Z = eventsBetween(gone, g.total-g.missing(b)), g.newest+l.Period-r.X
	if r.OK = r.Y+n <= l.Rate; !r.OK && n <= l.Rate {
		r.X = g.whenGone(b, gone, r.Y+n-l.Rate) + l.Period - r.X
	}
	return r
}

// whenGone is the time of the event with which need events will have left, where gone
// have left already; the first of the others is in block b. It walks up in steps of powers
// of 2 to the last block before which fewer than need leave, and down again, by half of a
// step each time. absent is how many are missing on the way.
func (g *eventLog) whenGone(b int64, gone uint64, need int64) int64 {
	last, absent := g.last(), uint64(0)
	fewer := func(n int64, absent uint64) bool {
		return eventsBetween(gone+absent, g.block(n).through(0)) < need
	}
	step := lowbit(b)
	for b+step <= last && fewer(b+step, absent+g.back(b)) {
		b, absent = b+step, absent+g.back(b)
		step = lowbit(b)
	}
	part := g.back(b) // what is missing from b to b+step-1
	for step /= 2; step > 0; step /= 2 {
		n := b + step
		if n > last || g.block(n) == nil {
			continue
		}
		if before := part - g.back(n); fewer(n, absent+before) {
			b, absent, part = n, absent+before, g.back(n)
		} else {
			part = before
		}
	}
	at := g.block(b)
	i := sort.Search(at.len(), func(i int) bool {
		// An entry that has left runs behind gone: nearly maxRun events between.
		events := eventsBetween(gone+absent, at.through(i+1))
		return need <= events && events < maxRun/2
	})
	return at.time(i)
}

// Add implements [store.Log].
func (g *eventLog) Add(l store.Limit, now, n int64) (end int64) {
	if g.empty() {
		g.cutoff = now - l.Period
		g.startAgain(now, n)
	} else {
		now = max(now, g.newest)
		g.cutoff = max(now-l.Period, g.cutoff)
		if g.newest+g.period <= now { // ended, whatever today's Period is
			g.cutoff = max(g.newest, g.cutoff)
		}
		g.trim(now, n)
		if !g.tail.fits(now, n) {
			g.nextBlock(now, n)
		}
	}
	g.tail.add(now, n)
	g.newest, g.period = now, l.Period
	g.total += uint64(n)
	return now + l.Period
}

// startAgain makes g empty, and ready for n events at now.
func (g *eventLog) startAgain(now, n int64) {
	g.tail.begin(now, 0, n)
	g.older, g.spare, g.first = nil, nil, 0 // lets go of their memory
	g.number, g.refunded, g.total = 1, 0, 0
}

// nextBlock makes an empty block the newest, ready for n events at now.
func (g *eventLog) nextBlock(now, n int64) {
	full := g.spare
	if full == nil {
		full = new(block)
	}
	g.spare = nil
	*full, g.tail = g.tail, block{data: full.data}
	g.older = append(g.older, full)
	g.tail.begin(now, g.total, n)
}

// trim forgets what is not later than cutoff: at most one block of several, the
// entries of a single one, and all at once where nothing lives, where the log is then
// ready for n events at now.
func (g *eventLog) trim(now, n int64) {
	if g.newest <= g.cutoff {
		g.startAgain(now, n)
		return
	}
	b, i := g.firstAfter(g.cutoff)
	switch {
	case b > g.number:
		g.forget(b)
		if b == g.number {
			g.first = i
		}
	case len(g.older) > 0:
		g.first = i
	case i > 0:
		g.tail.cut(i)
		g.first = 0
	}
}

// forget drops the oldest block, and of what is in its range up to b as much as a block
// has entries.
func (g *eventLog) forget(b int64) {
	if old := g.older[0]; old != nil {
		g.spare = old
	}
	n := 0
	for ; g.number+int64(n) < b && n < blockLen && (n == 0 || g.older[n] == nil); n++ {
		g.older[n] = nil
	}
	g.older, g.first = g.older[n:], 0
	g.number += int64(n)
}

// Refund implements [store.Log]. Of the entries of one instant it takes from the
// last one first, and from no more than a block has.
func (g *eventLog) Refund(l store.Limit, now int64, c store.Receipt) {
	if g.empty() {
		return
	}
	now = max(now, g.newest)
	if c.At <= max(now-l.Period, g.cutoff) || c.At > g.newest || g.End() <= now {
		return
	}
	left, most, more := c.N, blockLen, true
	for b := g.holder(g.later(c.At) - 1); more && left > 0 && most > 0 && b >= g.number; {
		var events int64
		var tried int
		events, tried, more = g.block(b).take(c.At, left, most)
		left, most = left-events, most-tried
		switch {
		case events == 0:
		case b == g.last():
			if !g.shrink() {
				return
			}
		default:
			g.count(b, uint64(events))
			g.refunded = max(g.refunded, b)
			if g.block(b).len() == 0 {
				b = g.merge(b)
			}
		}
		b = g.holder(min(b, g.last()+1) - 1)
	}
	g.first = 0
	g.newest, g.total = g.tail.time(g.tail.len()-1), g.tail.through(g.tail.len())
}

// count adds n to what is missing from block b.
func (g *eventLog) count(b int64, n uint64) {
	for ; b >= g.number; b -= lowbit(b) {
		g.block(b).back += n
	}
}

// shrink makes the newest block that is not empty the last one, which is: false if there is
// none.
func (g *eventLog) shrink() bool {
	for g.tail.len() == 0 {
		b := g.holder(g.last() - 1)
		if b < g.number {
			g.older = nil
			return false
		}
		tail := g.block(b)
		if n := eventsBetween(tail.through(tail.len()), g.tail.through(0)); n > 0 {
			g.count(b, -uint64(n))
		}
		g.tail = *tail
		g.tail.back, g.refunded = 0, min(g.refunded, b-1)
		clear(g.older[b-g.number:])
		g.older = g.older[:b-g.number]
	}
	return true
}

// merge makes block b, which is empty, and what is empty beside it one, and returns its
// number.
func (g *eventLog) merge(b int64) int64 {
	empty := func(n, span int64) bool { // a block of that range
		if n < g.number || n+span > g.last() {
			return false
		}
		at := g.block(n)
		return at != nil && at.len() == 0 && (span == 1 || g.block(n+span/2) == nil)
	}
	span := int64(1)
	for b%(2*span) == 0 && b+span < g.last() && g.block(b+span) == nil {
		span *= 2
	}
	for start := b - b%(2*span); empty(start, span) && empty(start+span, span); start = b - b%(2*span) {
		g.older[start+span-g.number] = nil
		b = start
		span *= 2
	}
	return b
}

// End implements [store.Log].
func (g *eventLog) End() int64 {
	if g.empty() || g.newest <= g.cutoff {
		return 0
	}
	return g.newest + g.period
}

// Used implements [store.Log].
func (g *eventLog) Used(now int64) int64 {
	dead := max(now-g.period, g.cutoff)
	if g.empty() || g.newest <= dead {
		return 0
	}
	b, i := g.firstAfter(dead)
	return eventsBetween(g.block(b).through(i), g.total-g.missing(b))
}

// empty says that there is no entry. Only the newest block can be so, if it is alone.
func (g *eventLog) empty() bool { return len(g.tail.data) == 0 }

// last is the number of the newest block.
func (g *eventLog) last() int64 { return g.number + int64(len(g.older)) }

// block is the block of this number, nil if that is in the range of one before it.
func (g *eventLog) block(n int64) *block {
	if i := n - g.number; i < int64(len(g.older)) {
		return g.older[i]
	}
	return &g.tail
}

// lowbit is the largest power of 2 that divides n.
func lowbit(n int64) int64 { return n & -n }

// holder is the number of the block in whose range n is; it is below g.number if that was
// forgotten.
func (g *eventLog) holder(n int64) int64 {
	for n >= g.number && g.block(n) == nil {
		n -= lowbit(n)
	}
	return n
}

// following is the number of the next block after n.
func (g *eventLog) following(n int64) int64 {
	for n++; g.block(n) == nil; {
		n += lowbit(n)
	}
	return n
}

// later is the first number, above g.number, of which the block begins later than t;
// g.last()+1 if none does.
func (g *eventLog) later(t int64) int64 {
	return g.number + 1 + int64(sort.Search(len(g.older), func(i int) bool {
		n := g.holder(g.number + 1 + int64(i))
		return n >= g.number && g.block(n).base > t
	}))
}

// firstAfter returns the block and the entry of the first event later than t,
// which is before the newest and not before cutoff. The entry is one past the end of a
// block that has none.
func (g *eventLog) firstAfter(t int64) (b int64, i int) {
	// Nearly always it is one of the next after those that had died before.
	if oldest := g.block(g.number); oldest != nil {
		for i, most := g.first, min(g.first+4, oldest.len()); i < most; i++ {
			if oldest.time(i) > t {
				return g.number, i
			}
		}
	}
	b = g.holder(g.later(t) - 1)
	if b >= g.number {
		if i = g.block(b).after(t); i < g.block(b).len() || b == g.last() {
			return b, i
		}
	}
	return g.following(max(b, g.number)), 0
}

// back is the back of block n, 0 for the newest, which has none.
func (g *eventLog) back(n int64) uint64 {
	if n < g.last() {
		return g.block(n).back
	}
	return 0
}

// missing is how many events were refunded from block b and those after it.
func (g *eventLog) missing(b int64) (sum uint64) {
	if b <= g.refunded {
		for last := g.last(); b < last; b += lowbit(b) {
			sum += g.block(b).back
		}
	}
	return sum
}

const (
	blockLen = 64 // entries of a block

	// An entry is 6 bytes of time, counted from the block's base, and in a wide
	// block 6 bytes of events: those of the block up to and with it. In a narrow
	// one each entry is one event.
	narrow, wide = 6, 12
	maxOffset    = 1 << 48 // µs, some 8.9 years
	maxRun       = 1 << 48 // running counts start again at 0 here
)

// block is a run of entries.
type block struct {
	base  int64  // origin of the entries' times, Unix µs
	run   uint64 // the running count of events before the block
	gone  uint64 // events of the block that were cut from its front
	back  uint64 // see eventLog
	width int    // narrow or wide
	data  []byte // the entries, big endian
}

// begin makes b an empty block for an entry of n events at base. It keeps its
// memory.
func (b *block) begin(base int64, run uint64, n int64) {
	*b = block{base: base, run: run, width: narrow, data: b.data[:0]}
	if n > 1 {
		b.width = wide
	}
}

// eventsBetween is how many events lie between two running counts.
func eventsBetween(from, to uint64) int64 { return int64((to - from) % maxRun) }

func (b *block) len() int {
	if b.width == wide { // division by a constant is a fast one
		return len(b.data) / wide
	}
	return len(b.data) / narrow
}

func (b *block) full() bool { return len(b.data) == blockLen*b.width }

// time is the time of entry i.
func (b *block) time(i int) int64 { return b.base + int64(uint48(b.data[i*b.width:])) }

// through is the running count after the first i entries.
func (b *block) through(i int) uint64 {
	if i == 0 || b.width == narrow {
		return b.run + b.gone + uint64(i)
	}
	return b.run + uint48(b.data[(i-1)*wide+narrow:])
}

// after returns the first entry later than t, b.len() if there is none.
func (b *block) after(t int64) int {
	return sort.Search(b.len(), func(i int) bool { return b.time(i) > t })
}

// fits says whether n events at t can be an entry of b.
func (b *block) fits(t, n int64) bool {
	return !b.full() && t-b.base < maxOffset && (n == 1 || b.width == wide)
}

func (b *block) add(t, n int64) {
	if len(b.data) == cap(b.data) { // 4 entries, 8, 16, 32, 64
		b.data = slices.Grow(b.data, max(4*b.width, len(b.data)))
	}
	b.data = appendUint48(b.data, uint64(t-b.base))
	if b.width == wide {
		before := b.through(len(b.data)/wide) - b.run
		b.data = appendUint48(b.data, before+uint64(n))
	}
}

// cut drops the first n entries.
func (b *block) cut(n int) {
	b.gone = b.through(n) - b.run
	b.data = b.data[:copy(b.data, b.data[n*b.width:])]
}

// take takes at most n events of the instant at out of b, the last ones first, from no
// more than most entries. It returns how many events and entries they were, and whether
// there may be more in the block before.
func (b *block) take(at, n int64, most int) (events int64, tried int, more bool) {
	to := b.after(at)
	i, kept := to, to // entries up to kept stay, the last of them in part
	for i > 0 && events < n && to-i < most && b.time(i-1) == at {
		has := eventsBetween(b.through(i-1), b.through(i))
		if kept = i - 1; has > n-events {
			has, kept = n-events, i
			putUint48(b.data[(i-1)*wide+narrow:], b.through(i)-b.run-uint64(has))
		}
		events += has
		i--
	}
	if b.width == wide {
		for j := to; j < b.len(); j++ {
			putUint48(b.data[j*wide+narrow:], b.through(j+1)-b.run-uint64(events))
		}
	}
	b.data = slices.Delete(b.data, kept*b.width, to*b.width)
	return events, to - i, i == 0
}

func uint48(p []byte) uint64 {
	return uint64(binary.BigEndian.Uint16(p))<<32 | uint64(binary.BigEndian.Uint32(p[2:]))
}

func putUint48(p []byte, v uint64) {
	binary.BigEndian.PutUint16(p, uint16(v>>32))
	binary.BigEndian.PutUint32(p[2:], uint32(v))
}

func appendUint48(p []byte, v uint64) []byte {
	p = binary.BigEndian.AppendUint16(p, uint16(v>>32))
	return binary.BigEndian.AppendUint32(p, uint32(v))
}
