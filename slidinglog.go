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
// Nothing is allocated ahead. Refund of an old event rewrites a count in each block of 64
// events that came after it: with 300,000 of them that has kept a Redis server busy
// for 40 ms. Of events of the same µs it gives back those of at most 64 calls.
//
// Use it where the limit is a contract: logins, payments, calls to a supplier
// that counts exactly. For large Rates, use [SlidingWindow]: it costs two counters.
type SlidingLog struct{ limiter }

// NewSlidingLog returns a limiter that keeps the events of the last l.Period. l
// has no Burst. Its errors are [ErrInvalidLimit] and [ErrInvalidOption].
func NewSlidingLog(s store.Store, l Limit, opts ...Option) (*SlidingLog, error) {
	lim, err := newLimiter(&slidingLog, s, l, opts)
	if err != nil {
		return nil, err
	}
	return &SlidingLog{lim}, nil
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
		Name:   "sliding_log",
		Step:   entryStep,
		Room:   windowRoom,
		Refund: entryRefund,
		Life:   func(s store.State, _ store.Limit) int64 { return s.Period },
		Spend:  wholeSpend,
		NewLog: func(s store.State) store.Log { return newEventLog(s) },
		Script: script(slidingLogLua),
		Joint:  jointScript,
		Each:   eachScript,
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

func entryRefund(s store.State, l store.Limit, now int64, c store.Charge) store.State {
	if c.At == s.At && max(now, s.At) < s.At+min(s.Period, l.Period) {
		s.Whole -= min(c.N, s.Whole)
	}
	return s
}

// slidingLogReport reads a reply of now (of RetryAfter where it is a denial), of
// the events in the last Period, and of ResetAfter.
func slidingLogReport(l store.Limit, r store.Reply, _, charged int64) verdict {
	v := verdict{remaining: max(0, windowRoom(l, r)-charged), retry: r.X, reset: r.Z}
	if charged > 0 {
		v.reset = l.Period
	}
	return v
}

// eventLog is the log of one key: blocks of entries, oldest first, none of them
// empty. An entry is (time, running count of events), so that the number of
// events between two entries is a subtraction and each search is binary. What has
// died goes with its block, at most one block a call.
type eventLog struct {
	tail   block    // the newest
	older  []*block // those before it
	spare  *block   // one that was dropped, for the next that is needed
	first  int      // entries of the oldest block that are not later than cutoff, or fewer
	newest int64    // time of the last entry, Unix µs; 0 if there is none
	total  uint64   // the running count of all events
	cutoff int64    // events up to here, Unix µs, were cut by an Add, whatever the Period is now
	period int64    // µs, of the last Add
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
	r.Y, r.Z = eventsBetween(gone, g.total), g.newest+l.Period-r.X
	if r.OK = r.Y+n <= l.Rate; !r.OK && n <= l.Rate {
		r.X = g.whenGone(b, gone, r.Y+n-l.Rate) + l.Period - r.X
	}
	return r
}

// whenGone is the time of the event with which need events will have left, where
// gone have left already; the first of the others is in block b.
func (g *eventLog) whenGone(b int, gone uint64, need int64) int64 {
	b += sort.Search(len(g.older)-b, func(j int) bool {
		return eventsBetween(gone, g.block(b+1+j).through(0)) >= need
	})
	at := g.block(b)
	i := sort.Search(at.len(), func(i int) bool {
		// An entry that has left runs behind gone: nearly maxRun events between.
		events := eventsBetween(gone, at.through(i+1))
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
	g.total = 0
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
	case b > 0:
		g.spare, g.older[0], g.first = g.older[0], nil, 0
		g.older = g.older[1:]
		if b == 1 {
			g.first = i
		}
	case len(g.older) > 0:
		g.first = i
	case i > 0:
		g.tail.cut(i)
		g.first = 0
	}
}

// Refund implements [store.Log]. Of the entries of one instant it takes from the
// last one first, and from no more than a block has.
func (g *eventLog) Refund(l store.Limit, now int64, c store.Charge) {
	left := c.N
	for range blockLen {
		if left == 0 || g.empty() {
			return
		}
		now = max(now, g.newest)
		if c.At <= max(now-l.Period, g.cutoff) || c.At > g.newest || g.End() <= now {
			return
		}
		b, i := g.lastUntil(c.At)
		if b < 0 || g.block(b).time(i) != c.At {
			return
		}
		left -= g.remove(b, i, left)
	}
}

// remove takes at most n events from entry i of block b, and returns how many.
func (g *eventLog) remove(b, i int, n int64) int64 {
	n = g.block(b).remove(i, n)
	for later := b + 1; later <= len(g.older); later++ {
		g.block(later).run -= uint64(n)
	}
	g.first = 0
	if g.block(b).len() == 0 {
		g.removeBlock(b)
	}
	if !g.empty() {
		g.newest, g.total = g.tail.time(g.tail.len()-1), g.tail.through(g.tail.len())
	}
	return n
}

// removeBlock takes away block b, which is empty.
func (g *eventLog) removeBlock(b int) {
	if b == len(g.older) && b > 0 {
		b--
		g.tail = *g.older[b]
	}
	if b < len(g.older) {
		g.older = slices.Delete(g.older, b, b+1)
	}
}

// End implements [store.Log].
func (g *eventLog) End() int64 {
	if g.empty() || g.newest <= g.cutoff {
		return 0
	}
	return g.newest + g.period
}

// Spend implements [store.Log].
func (g *eventLog) Spend(now int64) int64 {
	dead := max(now-g.period, g.cutoff)
	if g.empty() || g.newest <= dead {
		return 0
	}
	b, i := g.firstAfter(dead)
	return eventsBetween(g.block(b).through(i), g.total)
}

// empty says that there is no entry. Only the newest block can be so, if it is alone.
func (g *eventLog) empty() bool { return len(g.tail.data) == 0 }

// block is block b, 0 to len(g.older).
func (g *eventLog) block(b int) *block {
	if b < len(g.older) {
		return g.older[b]
	}
	return &g.tail
}

// firstAfter returns the block and the entry of the first event later than t,
// which is before the newest and not before cutoff.
func (g *eventLog) firstAfter(t int64) (b, i int) {
	// Nearly always it is one of the next after those that had died before.
	oldest := g.block(0)
	for i, most := g.first, min(g.first+4, oldest.len()); i < most; i++ {
		if oldest.time(i) > t {
			return 0, i
		}
	}
	b = sort.Search(len(g.older), func(j int) bool { return g.block(j+1).time(0) > t })
	if i = g.block(b).after(t); i == g.block(b).len() {
		return b + 1, 0
	}
	return b, i
}

// lastUntil returns the block and the entry of the last event up to t, a block
// of -1 if there is none.
func (g *eventLog) lastUntil(t int64) (b, i int) {
	b = sort.Search(len(g.older)+1, func(j int) bool { return g.block(j).time(0) > t }) - 1
	if b >= 0 {
		i = g.block(b).after(t) - 1
	}
	return b, i
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
	if b.time(0) > t {
		return 0
	}
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

// remove takes at most n events from entry i, and the entry too if none is left.
func (b *block) remove(i int, n int64) int64 {
	count := eventsBetween(b.through(i), b.through(i+1))
	n = min(n, count)
	if b.width == wide {
		for j := i; j < b.len(); j++ {
			putUint48(b.data[j*wide+narrow:], b.through(j+1)-b.run-uint64(n))
		}
	}
	if n == count {
		b.data = slices.Delete(b.data, i*b.width, (i+1)*b.width)
	}
	return n
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
