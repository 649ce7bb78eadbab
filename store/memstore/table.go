package memstore

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/eventlog"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	// maxSlots is the size of a full table. It is the maximum number of slots that one call sweeps,
	// and that it moves.
	maxSlots = 512

	minSlots = 8

	// sweepEvery is the number of decisions by a table between two sweeps.
	sweepEvery = 128

	// grace is how long a state is kept after its end, in µs. Without it, a bucket that refills
	// after each event would be rebuilt each time.
	grace = 2e6
)

// table is a part of the store: a hash table with linear probing and without tombstones, for the
// keys whose hashes begin with prefix. The allocator gives it 192 aligned bytes, so no two tables
// share a cache line. Most calls write only to the first of its three cache lines.
type table struct {
	mu       sync.Mutex // protects all fields below except next; denial is also read without it
	depth    uint8      // bits of prefix
	ticks    uint8
	denied   int16  // the slot of denial, counted from 1; 0 if no key has just been denied
	n        int32  // slots in use
	prefix   uint64 // the first bits of the hashes kept here
	slots    []slot
	horizon  int64 // Unix µs; all states dropped so far had ended by then
	nextDrop int64 // Unix µs; from grace before it until then, there is nothing to drop

	// tags has a tag per slot, 0 if the slot is empty. The first tags are repeated after the last
	// one, so that group tags can be read at any place. A search reads the tags first, because the
	// slots are rarely in the processor's cache.
	tags []uint8

	common  counting // the counting of most slots
	more    *more    // nil if the table needs nothing of it
	next    atomic.Pointer[table]
	version atomic.Uint64 // of denial; odd while the denial is valid

	denial denial
	node   *node // the parent of the table
}

// more has what few tables need.
type more struct {
	logs      []store.Log // parallel to slots; nil until a rule needs it
	countings []counting  // numbered from 1; number 0 is the table's common one
}

// group is how many tags are compared at the same time: those in one word.
const group = 8

// noTags are the tags of a table without slots. They are never written to.
var noTags = make([]uint8, group)

// set sets the state in slot i, but not its counting.
func (t *table) set(i int, st store.State) {
	t.changes(i)
	t.slots[i].put(st)
}

// put sets the state in slot i, counted under a limit with this Rate.
func (t *table) put(i int, st store.State, rate int64) {
	t.set(i, st)
	if c := t.counting(i); !c.under(rate, st.Period) {
		t.slots[i].setNumber(t.numberOf(counting{st.Period, uint32(rate), c.rule}))
	}
}

// counted returns the slot of h if it has a state that was counted under a limit with l's Rate and
// Period, and otherwise -1. t may have been split.
func (t *table) counted(h hash, l store.Limit) int {
	if !t.covers(h) {
		return -1
	}
	i := t.find(h)
	if i < 0 || !t.counting(i).under(l.Rate, l.Period) || t.log(i) != nil {
		return -1
	}
	return i
}

// find returns the slot of h, or -1.
func (t *table) find(h hash) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	wanted := uint64(h.tag()) * low
	for i := h.home(len(t.slots)); ; i = t.wrap(i + group) {
		tags := binary.LittleEndian.Uint64(t.tags[i:])
		// A byte of x that is 0 has its high bit set in (x - low) &^ x. A byte of 1 above
		// it may have its high bit set too, but then the hashes differ.
		x := tags ^ wanted
		for found := (x - low) &^ x & high; found != 0; found &= found - 1 {
			if j := t.wrap(i + bits.TrailingZeros64(found)/8); t.slots[j].is(h) {
				return j
			}
		}
		if (tags-low)&^tags&high != 0 { // an empty slot ends the search
			return -1
		}
	}
}

// after returns the slot after i.
func (t *table) after(i int) int { return t.wrap(i + 1) }

// wrap returns slot i, where the first slot follows the last.
func (t *table) wrap(i int) int {
	if i < len(t.slots) {
		return i
	}
	return i - len(t.slots)
}

// setTag sets the tag of slot i.
func (t *table) setTag(i int, tag uint8) {
	t.tags[i] = tag
	if i < group {
		t.tags[len(t.slots)+i] = tag
	}
}

// state returns the state in slot i. It returns the zero State if i is -1 or the state has ended.
func (t *table) state(i int, rule *store.Rule, now int64) store.State {
	if i < 0 {
		return store.State{}
	}
	return t.slots[i].unlessEnded(rule, t.counting(i), now)
}

// stateUnder is state for a decision under l. It does not check the end of a state that was counted
// under l, because the rule finds that the state has drained.
func (t *table) stateUnder(i int, rule *store.Rule, l store.Limit, now int64) store.State {
	if i >= 0 && t.counting(i).under(l.Rate, l.Period) {
		return t.slots[i].state(l.Period)
	}
	return t.state(i, rule, now)
}

// end returns the end of slot i, or of its log.
func (t *table) end(i int, rules *rules) int64 {
	s := &t.slots[i]
	if t.log(i) != nil {
		return s.at + s.part()
	}
	c := t.counting(i)
	return s.end(rules.get(c.rule), c)
}

// spend returns how many events of slot i are in force, and when the last of them ends.
func (t *table) spend(i int, rules *rules, now int64) (events, end int64) {
	end = t.end(i, rules)
	if end <= now {
		return 0, end
	}
	if log := t.log(i); log != nil {
		return log.Used(now), end
	}
	c := t.counting(i)
	return rules.get(c.rule).Used(t.slots[i].state(c.period), end, now), end
}

// log returns the log of slot i, or nil.
func (t *table) log(i int) store.Log {
	if t.more == nil || t.more.logs == nil || i < 0 {
		return nil
	}
	return t.more.logs[i]
}

func (t *table) setLog(i int, log store.Log) {
	if log == nil {
		return
	}
	if t.more == nil {
		t.more = new(more)
	}
	if t.more.logs == nil {
		t.more.logs = make([]store.Log, len(t.slots))
	}
	t.more.logs[i] = log
}

// takeFromLog decides on n events at now by the log of slot i, and adds them to it if they are
// admitted.
func (t *table) takeFromLog(i int, l store.Limit, now, n int64) store.Reply {
	log := t.more.logs[i]
	if g, ok := log.(*eventlog.Log); ok { // the log of a SlidingLog needs one call instead of two
		r, end := g.Take(l, now, n)
		if r.OK() {
			t.set(i, store.State{At: end - l.Period, Part: l.Period})
		}
		return r
	}
	r := log.Step(l, now, n)
	if r.OK() {
		t.addToLog(i, l, now, n)
	}
	return r
}

// addToLog adds n events at now to the log of slot i.
func (t *table) addToLog(i int, l store.Limit, now, n int64) {
	end := t.more.logs[i].Add(l, now, n)
	t.set(i, store.State{At: end - l.Period, Part: l.Period})
}

// place puts s and its log into a free slot, and returns its index. t must have a free slot.
func (t *table) place(s slot, log store.Log) int {
	h := s.hash()
	i := h.home(len(t.slots))
	for t.tags[i] != 0 {
		i = t.after(i)
	}
	t.slots[i] = s
	t.setTag(i, h.tag())
	t.setLog(i, log)
	t.n++
	return i
}

// remove empties slot i and closes the gap.
func (t *table) remove(i int) {
	t.clear(i)
	for i = t.after(i); t.tags[i] != 0; i = t.after(i) {
		t.moveHome(i)
	}
}

// clear empties slot i. Afterwards, the slots up to the next empty one must move home, in order.
func (t *table) clear(i int) {
	t.changes(i)
	t.slots[i] = slot{}
	t.setTag(i, 0)
	if t.log(i) != nil {
		t.more.logs[i] = nil
	}
	t.n--
}

// moveHome moves slot i to the first empty slot between its home and itself.
func (t *table) moveHome(i int) {
	for j := t.slots[i].hash().home(len(t.slots)); j != i; j = t.after(j) {
		if t.tags[j] == 0 {
			s, log := t.slots[i], t.log(i)
			t.clear(i)
			t.place(s, log)
			return
		}
	}
}

// refund refunds the part of c that is still charged in slot i. It reports whether the key stays;
// it goes if nothing is left. A state that has ended stays for the sweep, which records its end in
// horizon, for late readings of the clock. An empty log, whose end is past, stays too, because the
// slots of a key are soon used again.
func (t *table) refund(i int, rule *store.Rule, l store.Limit, now int64, c store.Receipt) bool {
	s := &t.slots[i]
	if log := t.log(i); log != nil {
		log.Refund(l, now, c)
		s.setPart(max(s.at, log.End()) - s.at)
		return true
	}
	by := t.counting(i)
	if s.end(rule, by) <= now {
		return true
	}
	left := rule.Refund(s.state(by.period), l, now, c)
	t.put(i, left, int64(by.rate))
	return left.Whole != 0 || left.Part != 0
}

// tick counts a decision, and returns sweepDue if a sweep is due.
func (t *table) tick() outcome {
	if t.ticks++; t.ticks >= sweepEvery {
		t.ticks = 0
		return sweepDue
	}
	return decided
}

// full reports whether t must change before it takes another key. At least one slot stays empty,
// because an empty slot ends every search.
func (t *table) full() bool { return len(t.slots)-int(t.n) <= 1+len(t.slots)/16 }

// sweep drops the ended states and returns their number. It also frees memory if less than a fifth
// of it is used.
func (t *table) sweep(rules *rules, now int64) (dropped int) {
	dropped = t.drop(rules, now)
	t.dropCountings()
	if size := max(int(t.n)*3/2, minSlots); t.n == 0 {
		t.slots, t.tags, t.more = nil, noTags, nil
	} else if size < len(t.slots)/3 {
		t.resize(size)
	}
	return dropped
}

// drop removes the states that ended longer than grace ago, and returns their number.
func (t *table) drop(rules *rules, now int64) (dropped int) {
	first := t.firstDead(rules, now)
	if first < 0 {
		return 0
	}
	// The pass starts at an empty slot, so it meets each run of slots at its beginning, and
	// one pass closes all the gaps.
	for t.tags[first] != 0 {
		first = t.after(first)
	}
	for i := t.after(first); i != first; i = t.after(i) {
		switch {
		case t.tags[i] == 0:
		case t.living(i, rules, now-grace) <= now-grace:
			t.recordEnd(t.end(i, rules))
			t.clear(i)
			dropped++
		default:
			t.moveHome(i)
		}
	}
	return dropped
}

// recordEnd records that a state with this end is dropped.
func (t *table) recordEnd(end int64) {
	if end > t.horizon {
		t.undeny() // denies does not look at horizon
		t.horizon = end
	}
}

// firstDead returns the first slot that drop would remove, or -1. It searches only if there may be
// one. A refund can make an end earlier; that state may be kept for up to grace longer.
func (t *table) firstDead(rules *rules, now int64) int {
	if wait := t.nextDrop - now; wait > 0 && wait <= grace { // wait is longer if the clock was set back
		return -1
	}
	earliest := now // events charged from now on end later
	for i := range t.slots {
		if t.tags[i] == 0 {
			continue
		}
		until := t.living(i, rules, now-grace)
		if until <= now-grace {
			return i
		}
		earliest = min(earliest, until)
	}
	t.nextDrop = earliest + grace
	return -1
}

// living returns the end of slot i, or, because that is cheaper, a time before the end and after
// past.
func (t *table) living(i int, rules *rules, past int64) int64 {
	if at := t.slots[i].at; at > past {
		return at
	}
	return t.end(i, rules)
}

// resize moves everything to size slots or slightly more.
func (t *table) resize(size int) {
	slots := t.slots
	logs := t.allocate(size)
	for s, log := range all(slots, logs) {
		t.place(s, log)
	}
}

// allocate makes t empty, with size slots or slightly more. It returns the logs that t had.
func (t *table) allocate(size int) (logs []store.Log) {
	t.undeny()
	// Grow rounds up to what the allocator would use anyway.
	slots := slices.Grow([]slot(nil), min(max(size, minSlots), maxSlots))
	t.slots, t.n = slots[:min(cap(slots), maxSlots)], 0
	t.tags = make([]uint8, len(t.slots)+group)
	if t.more != nil {
		logs, t.more.logs = t.more.logs, nil
	}
	return logs
}

// all yields the slots in use, each with its log or nil.
func all(slots []slot, logs []store.Log) iter.Seq2[slot, store.Log] {
	return func(yield func(slot, store.Log) bool) {
		for i, s := range slots {
			var log store.Log
			if logs != nil {
				log = logs[i]
			}
			if s != (slot{}) && !yield(s, log) {
				return
			}
		}
	}
}
