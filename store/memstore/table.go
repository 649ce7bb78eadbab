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
	// maxSlots is the size of a full table, and so the most slots that one call
	// sweeps, and the most that it moves.
	maxSlots = 512

	minSlots = 8

	// A table has a turn of the sweep made every so many decisions.
	sweepEvery = 128

	// grace is for how long a state is kept that no longer matters, in µs: a
	// bucket that is full again after each event is not rebuilt each time.
	grace = 2e6
)

// table is a piece of the store: a hash table of its own, with linear probing
// and no tombstones, for the keys whose hashes begin with prefix. The allocator gives
// it 128 bytes, aligned, so that two tables share no cache line.
type table struct {
	mu      sync.Mutex // protects all below but next
	depth   uint8      // bits of prefix
	ticks   uint8
	n       int32  // slots in use
	prefix  uint64 // the first bits of the hashes that are kept here
	slots   []slot
	horizon int64 // Unix µs; all states that were dropped as dead were dead by then

	// A tag for each slot, 0 if the slot is empty, and behind the last one the
	// first again, so that group at a time can be read from any place. What is looked
	// for in the tags is found without a look at the slots, which are seldom in
	// the processor's cache.
	tags []uint8

	logs []store.Log // parallel to slots; nil until a rule needs it
	node *node       // of which the table is a leaf
	next atomic.Pointer[table]
}

// group is how many tags are looked at together: those of a word.
const group = 8

// noTags are those of a table without slots, never written.
var noTags = make([]uint8, group)

// slot is the state of one key, or zero if it is empty. It has no pointers, so
// the garbage collector does not look at it. Where there is a log beside it, it keeps
// only when that is to end: part µs after at.
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

// put sets the state, which was counted under a limit of this rate.
func (s *slot) put(st store.State, rate int64) {
	s.at = st.At
	s.period = uint64(st.Period)
	s.partRule = s.partRule&^partMask | uint64(st.Part)&partMask
	s.whole = uint32(st.Whole)
	s.rate = uint32(rate)
}

// countedUnder says whether the state was counted under l, or another Burst of it.
func (s *slot) countedUnder(l store.Limit) bool {
	return int64(s.rate) == l.Rate && int64(s.period) == l.Period
}

// end is the instant, in Unix µs, from which on the state is as never seen.
func (s *slot) end(rule *store.Rule) int64 {
	return s.at + rule.TTL(s.state(), store.Limit{Rate: int64(s.rate), Period: int64(s.period)})
}

// unlessEnded is the state, but the zero one if it has ended, whether it was dropped
// or not: where its limit is no longer the same it might still count, and when a
// sweep comes must decide nothing.
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
		// A byte of x that is 0 has its high bit set in (x - low) &^ x. So may one
		// above it that is 1, and then the hashes differ.
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

// wrap is slot i, where the first comes after the last.
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

// state is the state in slot i, the zero State if i is -1 or it has ended.
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

// spend is how many events of slot i are in force, and until when any is.
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

// log is the log beside slot i, nil if there is none.
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

// place puts s and its log into a free slot, of which there must be one, and
// returns its index.
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

// clear empties slot i. The slots up to the next empty one must move home then, in
// their order.
func (t *table) clear(i int) {
	t.slots[i] = slot{}
	t.setTag(i, 0)
	if t.logs != nil {
		t.logs[i] = nil
	}
	t.n--
}

// moveHome moves slot i to the first empty one between its home and itself.
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

// refund gives back what is still charged of c in slot i, and says whether
// anything is left. A state that has ended stays for the sweep, which remembers until
// when it counted, for a reading of the clock that comes late.
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

// tick counts a decision.
func (t *table) tick() outcome {
	if t.ticks++; t.ticks%sweepEvery == 0 {
		return sweepDue
	}
	return decided
}

// full says that t must not take another key as it is. One slot at least stays
// empty, at which every probe ends.
func (t *table) full() bool { return len(t.slots)-int(t.n) <= 1+len(t.slots)/16 }

// sweep drops the dead, says how many they were, and gives back memory of which
// less than a fifth is used.
func (t *table) sweep(rules *rules, now int64) (dropped int) {
	dropped = t.drop(rules, now)
	if size := max(int(t.n)*3/2, minSlots); t.n == 0 {
		t.slots, t.tags, t.logs = nil, noTags, nil
	} else if size < len(t.slots)/3 {
		t.resize(size)
	}
	return dropped
}

// drop removes the states that have been dead for the grace, and says how many.
func (t *table) drop(rules *rules, now int64) (dropped int) {
	first := t.firstDead(rules, now)
	if first < 0 {
		return 0
	}
	// From an empty slot on, each run of slots is met at its beginning, so one
	// pass closes all the gaps.
	for t.tags[first] != 0 {
		first = t.after(first)
	}
	for i := t.after(first); i != first; i = t.after(i) {
		switch {
		case t.tags[i] == 0:
		case t.dead(i, rules, now):
			t.horizon = max(t.horizon, t.end(i, rules))
			t.clear(i)
			dropped++
		default:
			t.moveHome(i)
		}
	}
	return dropped
}

// firstDead is a slot that drop would remove, or -1.
func (t *table) firstDead(rules *rules, now int64) int {
	for i := range t.slots {
		if t.tags[i] != 0 && t.dead(i, rules, now) {
			return i
		}
	}
	return -1
}

// dead says whether slot i has been as never seen for the grace. (Its time comes
// first: it is cheap to look at.)
func (t *table) dead(i int, rules *rules, now int64) bool {
	return t.slots[i].at <= now-grace && t.end(i, rules) <= now-grace
}

// resize moves everything to size slots or a few more.
func (t *table) resize(size int) {
	slots, logs := t.slots, t.logs
	t.allocate(size)
	for s, log := range all(slots, logs) {
		t.place(s, log)
	}
}

// allocate makes t empty with size slots or a few more.
func (t *table) allocate(size int) {
	// Grow rounds up to what the allocator would set aside anyway.
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
