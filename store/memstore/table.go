package memstore

import (
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
// and no tombstones, for the keys whose hashes begin with prefix.
type table struct {
	mu      sync.Mutex // protects all below but next
	depth   uint8      // bits of prefix
	ticks   uint8
	n       int32  // slots in use
	prefix  uint64 // the first bits of the hashes that are kept here
	slots   []slot
	horizon int64       // Unix µs; all states that were dropped as dead were dead by then
	logs    []store.Log // parallel to slots; nil until a rule needs it
	node    *node       // of which the table is a leaf
	next    atomic.Pointer[table]

	_ [32]byte // to 128 bytes: neighbours in memory do not share a cache line
}

// slot is the state of one key, or empty if life is 0. It has no pointers, so
// the garbage collector does not look at it.
type slot struct {
	hash     hash
	at       int64
	period   uint64
	partRule uint64 // State.Part, and above it the number of the rule
	whole    uint32
	life     uint32 // from at to the end of the state in µs, as m<<5 | e for m<<e
}

const (
	partBits = 49
	partMask = 1<<partBits - 1
	maxRules = 1 << (64 - partBits)

	lifeBits = 26      // of a life that are kept; it is rounded up to them
	maxLife  = 1 << 56 // µs, above 2,000 years; e has 5 bits
)

func (s *slot) state() store.State {
	return store.State{At: s.at, Period: int64(s.period), Whole: int64(s.whole), Part: int64(s.partRule & partMask)}
}

// put sets the state, which matters for life µs from its time on.
func (s *slot) put(st store.State, life int64) {
	life = min(max(life, 1), maxLife)
	e := max(bits.Len64(uint64(life))-lifeBits, 0)
	s.at = st.At
	s.period = uint64(st.Period)
	s.partRule = s.partRule&^partMask | uint64(st.Part)&partMask
	s.whole = uint32(st.Whole)
	s.life = uint32((life-1)>>e+1)<<5 | uint32(e)
}

// end is the instant, in Unix µs, from which on the state is as never seen.
func (s *slot) end() int64 { return s.at + int64(s.life>>5)<<(s.life&31) }

// find returns the slot of h, or -1.
func (t *table) find(h hash) int {
	if t.n == 0 {
		return -1
	}
	for i := h.home(len(t.slots)); t.slots[i].life != 0; i = t.after(i) {
		if t.slots[i].hash == h {
			return i
		}
	}
	return -1
}

// after is the slot after i. The first comes after the last.
func (t *table) after(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

// state is the state in slot i, the zero State if i is -1. A state that has ended
// is as never seen whether it was swept or not: under another limit it might
// still count, and when a sweep comes must decide nothing.
func (t *table) state(i int, now int64) store.State {
	if i < 0 || t.slots[i].end() <= now {
		return store.State{}
	}
	return t.slots[i].state()
}

// log is the log beside slot i, nil if there is none.
func (t *table) log(i int) store.Log {
	if t.logs == nil {
		return nil
	}
	return t.logs[i]
}

// logOrNew is what state is, for a rule that keeps a log. A log knows by itself
// when it has ended.
func (t *table) logOrNew(i int, rule *store.Rule) store.Log {
	if i < 0 || t.log(i) == nil {
		return rule.NewLog()
	}
	return t.log(i)
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

// place puts s and its log into a free slot, of which there must be one, and
// returns its index.
func (t *table) place(s slot, log store.Log) int {
	i := s.hash.home(len(t.slots))
	for t.slots[i].life != 0 {
		i = t.after(i)
	}
	t.slots[i] = s
	t.setLog(i, log)
	t.n++
	return i
}

// remove empties slot i and closes the gap.
func (t *table) remove(i int) {
	t.clear(i)
	for i = t.after(i); t.slots[i].life != 0; i = t.after(i) {
		t.settle(i)
	}
}

// clear empties slot i. The slots up to the next empty one must settle then, in
// their order.
func (t *table) clear(i int) {
	t.slots[i] = slot{}
	if t.logs != nil {
		t.logs[i] = nil
	}
	t.n--
}

// settle moves slot i to the first empty one between its home and itself.
func (t *table) settle(i int) {
	for j := t.slots[i].hash.home(len(t.slots)); j != i; j = t.after(j) {
		if t.slots[j].life == 0 {
			s, log := t.slots[i], t.log(i)
			t.clear(i)
			t.place(s, log)
			return
		}
	}
}

// refund gives back what is still charged of c in slot i, and says whether
// anything is left. It never extends the life of the state.
func (t *table) refund(i int, rule *store.Rule, l store.Limit, now int64, c store.Charge) bool {
	s := &t.slots[i]
	if rule.NewLog != nil {
		log := t.log(i)
		if log == nil {
			return true // another rule of the same name and space made this state
		}
		log.Refund(l, now, c)
		s.put(store.State{At: s.at}, min(log.End(), s.end())-s.at)
		return log.End() != 0
	}
	was := s.state()
	left := rule.Refund(was, l, now, c)
	if left == was {
		return true
	}
	end := min(left.At+rule.Life(left, l), s.end())
	s.put(left, end-left.At)
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
func (t *table) full() bool { return len(t.slots)-int(t.n) <= len(t.slots)/8 }

// sweep drops the dead, says how many they were, and gives back memory of which
// less than a fifth is used.
func (t *table) sweep(now int64) (dropped int) {
	dropped = t.drop(now)
	if size := max(int(t.n)*3/2, minSlots); t.n == 0 {
		t.slots, t.logs = nil, nil
	} else if size < len(t.slots)/3 {
		t.resize(size)
	}
	return dropped
}

// drop removes the states that have been dead for the grace, and says how many.
func (t *table) drop(now int64) (dropped int) {
	first := t.firstDead(now)
	if first < 0 {
		return 0
	}
	// From an empty slot on, each run of slots is met at its beginning, so one
	// pass closes all the gaps.
	for t.slots[first].life != 0 {
		first = t.after(first)
	}
	for i := t.after(first); i != first; i = t.after(i) {
		switch s := &t.slots[i]; {
		case s.life == 0:
		case s.end() <= now-grace:
			t.horizon = max(t.horizon, s.end())
			t.clear(i)
			dropped++
		default:
			t.settle(i)
		}
	}
	return dropped
}

// firstDead is a slot that drop would remove, or -1.
func (t *table) firstDead(now int64) int {
	for i := range t.slots {
		if s := &t.slots[i]; s.life != 0 && s.end() <= now-grace {
			return i
		}
	}
	return -1
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
}

// all yields the slots in use, each with its log or nil.
func all(slots []slot, logs []store.Log) iter.Seq2[slot, store.Log] {
	return func(yield func(slot, store.Log) bool) {
		for i, s := range slots {
			var log store.Log
			if logs != nil {
				log = logs[i]
			}
			if s.life != 0 && !yield(s, log) {
				return
			}
		}
	}
}
