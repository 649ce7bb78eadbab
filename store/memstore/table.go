package memstore

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	// maxSlots is the size of a full table. It is the most slots that one call sweeps,
	// and the most that it moves.
	maxSlots = 512

	minSlots = 8

	// sweepEvery is how many decisions a table takes between two sweeps of some table.
	sweepEvery = 128

	// grace is how long a state is kept after its end, in µs. Without it, a bucket that
	// refills after each event would be rebuilt each time.
	grace = 2e6
)

// table is a part of the store: a hash table with linear probing and no tombstones, for
// the keys whose hashes begin with prefix. The allocator gives it 128 aligned bytes, so
// no two tables share a cache line.
type table struct {
	mu       sync.Mutex // protects all below except next
	depth    uint8      // bits of prefix
	ticks    uint8
	n        int32  // slots in use
	prefix   uint64 // the first bits of the hashes kept here
	slots    []slot
	horizon  int64 // Unix µs; all states dropped so far had ended by then
	nextDrop int64 // Unix µs; in the grace before, there is nothing to drop

	// tags has a tag for each slot, 0 if the slot is empty. The first ones are repeated
	// after the last, so that group tags can be read at any place. A search reads tags
	// first, because the slots are seldom in the processor's cache.
	tags []uint8

	logs []store.Log // parallel to slots; nil until a rule needs it
	node *node       // the table is a leaf of it
	next atomic.Pointer[table]
}

// group is how many tags are compared at once: those in one word.
const group = 8

// noTags are the tags of a table without slots. They are never written.
var noTags = make([]uint8, group)

// slot is the state of one key, or zero if it is empty. It has no pointers, so the
// garbage collector does not scan it. If the key has a log, the slot only keeps the log's
// end: part µs after at.
type slot struct {
	hash     hash
	at       int64
	period   uint64
	partRule uint64 // State.Part, and above it the number of the rule
	whole    uint32
	rate     uint32 // of the limit that the state was counted under
}

const (
	partBits = 49
	partMask = 1<<partBits - 1
	maxRules = 1 << (64 - partBits)
)

func (s *slot) state() store.State {
	return store.State{At: s.at, Period: int64(s.period), Whole: int64(s.whole), Part: int64(s.partRule & partMask)}
}

// put sets the state, counted under a limit of this rate.
func (s *slot) put(st store.State, rate int64) {
	s.at = st.At
	s.period = uint64(st.Period)
	s.partRule = s.partRule&^partMask | uint64(st.Part)&partMask
	s.whole = uint32(st.Whole)
	s.rate = uint32(rate)
}

// countedUnder reports whether the state was counted under l, perhaps with another Burst.
func (s *slot) countedUnder(l store.Limit) bool {
	return int64(s.rate) == l.Rate && int64(s.period) == l.Period
}

// end is the instant, in Unix µs, from which on the key is treated as new.
func (s *slot) end(rule *store.Rule) int64 {
	return s.at + rule.TTL(s.state(), store.Limit{Rate: int64(s.rate), Period: int64(s.period)})
}

// unlessEnded is the state, or the zero one if it has ended. An ended state may still be
// there until a sweep, and under another limit it might still count. The time of a sweep
// must decide nothing.
func (s *slot) unlessEnded(rule *store.Rule, now int64) store.State {
	if s.end(rule) <= now {
		return store.State{}
	}
	return s.state()
}

// rule is the number of the rule.
func (s *slot) rule() uint64 { return s.partRule >> partBits }

// find returns the slot of h, or -1.
func (t *table) find(h hash) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	wanted := uint64(h.tag()) * low
	for i := h.home(len(t.slots)); ; i = t.wrap(i + group) {
		tags := binary.LittleEndian.Uint64(t.tags[i:])
		// A byte of x that is 0 has its high bit set in (x - low) &^ x. A byte of 1 above
		// it may have it set too; then the hashes differ.
		x := tags ^ wanted
		for found := (x - low) &^ x & high; found != 0; found &= found - 1 {
			if j := t.wrap(i + bits.TrailingZeros64(found)/8); t.slots[j].hash == h {
				return j
			}
		}
		if (tags-low)&^tags&high != 0 { // an empty slot ends the search
			return -1
		}
	}
}

// after is the slot after i.
func (t *table) after(i int) int { return t.wrap(i + 1) }

// wrap is slot i, where the first follows the last.
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

// state is the state in slot i. It is the zero State if i is -1 or the state has ended.
func (t *table) state(i int, rule *store.Rule, now int64) store.State {
	if i < 0 {
		return store.State{}
	}
	return t.slots[i].unlessEnded(rule, now)
}

// end is the end of slot i, or of its log.
func (t *table) end(i int, rules *rules) int64 {
	s := &t.slots[i]
	if t.log(i) != nil {
		return s.at + int64(s.partRule&partMask)
	}
	return s.end(rules.get(s.rule()))
}

// spend is how many events of slot i are in force, and when the last of them ends.
func (t *table) spend(i int, rules *rules, now int64) (events, end int64) {
	end = t.end(i, rules)
	if end <= now {
		return 0, end
	}
	if log := t.log(i); log != nil {
		return log.Used(now), end
	}
	s := &t.slots[i]
	return rules.get(s.rule()).Used(s.state(), end, now), end
}

// log is the log of slot i, or nil.
func (t *table) log(i int) store.Log {
	if t.logs == nil || i < 0 {
		return nil
	}
	return t.logs[i]
}

func (t *table) setLog(i int, log store.Log) {
	if log == nil {
		return
	}
	if t.logs == nil {
		t.logs = make([]store.Log, len(t.slots))
	}
	t.logs[i] = log
}

// addToLog adds n events at now to the log of slot i.
func (t *table) addToLog(i int, l store.Limit, now, n int64) {
	end := t.logs[i].Add(l, now, n)
	t.slots[i].put(store.State{At: end - l.Period, Part: l.Period}, l.Rate)
}

// place puts s and its log into a free slot, and returns its index. t must have a free
// slot.
func (t *table) place(s slot, log store.Log) int {
	i := s.hash.home(len(t.slots))
	for t.tags[i] != 0 {
		i = t.after(i)
	}
	t.slots[i] = s
	t.setTag(i, s.hash.tag())
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

// clear empties slot i. Afterwards the slots up to the next empty one must move home, in
// their order.
func (t *table) clear(i int) {
	t.slots[i] = slot{}
	t.setTag(i, 0)
	if t.logs != nil {
		t.logs[i] = nil
	}
	t.n--
}

// moveHome moves slot i to the first empty slot between its home and itself.
func (t *table) moveHome(i int) {
	for j := t.slots[i].hash.home(len(t.slots)); j != i; j = t.after(j) {
		if t.tags[j] == 0 {
			s, log := t.slots[i], t.log(i)
			t.clear(i)
			t.place(s, log)
			return
		}
	}
}

// refund gives back what is still charged of c in slot i, and reports whether anything is
// left. A state that has ended stays for the sweep. The sweep records its end in horizon,
// for late readings of the clock.
func (t *table) refund(i int, rule *store.Rule, l store.Limit, now int64, c store.Receipt) bool {
	s := &t.slots[i]
	if log := t.log(i); log != nil {
		log.Refund(l, now, c)
		s.put(store.State{At: s.at, Part: max(0, log.End()-s.at)}, int64(s.rate))
		return log.End() != 0
	}
	if s.end(rule) <= now {
		return true
	}
	left := rule.Refund(s.state(), l, now, c)
	s.put(left, int64(s.rate))
	return left.Whole != 0 || left.Part != 0
}

// tick counts a decision, and returns whether a sweep is due.
func (t *table) tick() outcome {
	if t.ticks++; t.ticks%sweepEvery == 0 {
		return sweepDue
	}
	return decided
}

// full reports whether t must change before it takes another key. At least one slot stays
// empty, because an empty slot ends every search.
func (t *table) full() bool { return len(t.slots)-int(t.n) <= 1+len(t.slots)/16 }

// sweep drops the dead and returns how many they were. It also frees memory if less than
// a fifth of it is used.
func (t *table) sweep(rules *rules, now int64) (dropped int) {
	dropped = t.drop(rules, now)
	if size := max(int(t.n)*3/2, minSlots); t.n == 0 {
		t.slots, t.tags, t.logs = nil, noTags, nil
	} else if size < len(t.slots)/3 {
		t.resize(size)
	}
	return dropped
}

// drop removes the states that ended longer ago than grace, and returns how many.
func (t *table) drop(rules *rules, now int64) (dropped int) {
	first := t.firstDead(rules, now)
	if first < 0 {
		return 0
	}
	// Starting at an empty slot, the pass meets each run of slots at its beginning, so
	// one pass closes all the gaps.
	for t.tags[first] != 0 {
		first = t.after(first)
	}
	for i := t.after(first); i != first; i = t.after(i) {
		switch {
		case t.tags[i] == 0:
		case t.living(i, rules, now-grace) <= now-grace:
			t.horizon = max(t.horizon, t.end(i, rules))
			t.clear(i)
			dropped++
		default:
			t.moveHome(i)
		}
	}
	return dropped
}

// firstDead is the first slot that drop would remove, or -1. It looks only if there may be
// one. A refund can make an end earlier; that state may be kept for up to grace longer.
func (t *table) firstDead(rules *rules, now int64) int {
	if wait := t.nextDrop - now; wait > 0 && wait <= grace { // it is more if the clock was set back
		return -1
	}
	earliest := now // what is charged from now on ends later
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

// living returns the end of slot i, or a time before the end and after past. The latter is
// cheaper.
func (t *table) living(i int, rules *rules, past int64) int64 {
	if at := t.slots[i].at; at > past {
		return at
	}
	return t.end(i, rules)
}

// resize moves everything to size slots or slightly more.
func (t *table) resize(size int) {
	slots, logs := t.slots, t.logs
	t.allocate(size)
	for s, log := range all(slots, logs) {
		t.place(s, log)
	}
}

// allocate makes t empty, with size slots or slightly more.
func (t *table) allocate(size int) {
	// Grow rounds up to what the allocator would use anyway.
	slots := slices.Grow([]slot(nil), min(max(size, minSlots), maxSlots))
	t.slots, t.logs, t.n = slots[:min(cap(slots), maxSlots)], nil, 0
	t.tags = make([]uint8, len(t.slots)+group)
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
