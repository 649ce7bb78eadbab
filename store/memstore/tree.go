package memstore

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	nodeBits = 6 // bits of the hash that one node reads
	fanout   = 1 << nodeBits

	// A full store has on average at least this many keys per table, so that a table can choose a
	// key to evict among its own.
	minKeysPerTable = 32

	// sampled is the number of keys from which the key to evict is chosen.
	sampled = 8
)

// node is an inner node of the tree that leads from a hash to its table. Each level reads nodeBits
// of the hash, from the top.
//
// A table with a single entry splits into two tables under a new node. A table with several entries
// gives the upper half of them to the new table. The tree thus grows leaf by leaf, and no call
// copies a directory. The entries of a table are written only under its lock.
type node struct {
	entries [fanout]struct {
		table atomic.Pointer[table]
		node  atomic.Pointer[node] // if not nil, it replaces the table
	}
}

// plant creates the first tables and links them in a ring. A small maximum of keys gets fewer
// tables. If the maximum is too small for a table ever to split, there is only one.
func (s *Store) plant() {
	depth := uint8(0)
	for depth < nodeBits && minKeysPerTable<<(depth+1) <= s.maxKeys {
		depth++
	}
	first := &table{tags: noTags, depth: depth, node: &s.root, horizon: math.MinInt64}
	first.next.Store(first)
	s.root.enter(first)
	for prefix := uint64(1)<<depth - 1; prefix > 0; prefix-- {
		t := &table{tags: noTags, depth: depth, prefix: prefix, node: &s.root, horizon: math.MinInt64}
		s.root.enter(t)
		t.next.Store(first.next.Load())
		first.next.Store(t)
	}
	s.hand.Store(first)
}

// enter stores t in its entries.
func (n *node) enter(t *table) {
	used := (int(t.depth)-1)%nodeBits + 1 // bits of the prefix that this node reads
	from := t.prefix << (nodeBits - used) % fanout
	for i := range uint64(fanout >> used) {
		n.entries[from+i].table.Store(t)
	}
}

// lock locks the table of h and returns it.
func (s *Store) lock(h hash) *table {
	t := s.root.leaf(h)
	t.mu.Lock()
	return s.covering(t, h)
}

// covering returns the table of h, locked: t, which is locked already, unless it has just been
// split.
func (s *Store) covering(t *table, h hash) *table {
	for !t.covers(h) {
		t.mu.Unlock()
		t = s.root.leaf(h)
		t.mu.Lock()
	}
	return t
}

func (n *node) leaf(h hash) *table {
	for rest := h.hi; ; rest <<= nodeBits {
		e := &n.entries[rest>>(64-nodeBits)]
		below := e.node.Load()
		if below == nil {
			return e.table.Load()
		}
		n = below
	}
}

func (t *table) covers(h hash) bool { return h.hi>>(64-t.depth) == t.prefix }

// split moves half of t to a new table, which becomes t's next. Both are locked: t by the caller,
// the new table by split.
func (t *table) split() {
	if t.depth%nodeBits == 0 { // t has only one entry
		below := new(node)
		for i := range below.entries {
			below.entries[i].table.Store(t)
		}
		t.node.entries[t.prefix%fanout].node.Store(below)
		t.node = below
	}
	t.depth++
	t.prefix <<= 1
	upper := &table{depth: t.depth, prefix: t.prefix + 1, node: t.node, horizon: t.horizon}
	upper.mu.Lock() // before other goroutines can see it
	t.shareWith(upper)
	upper.next.Store(t.next.Load())
	t.next.Store(upper)
	t.node.enter(upper)
}

// shareWith moves the keys that upper covers from t to upper.
func (t *table) shareWith(upper *table) {
	slots, n, moving := t.slots, int(t.n), 0
	for s := range all(slots, nil) {
		if upper.covers(s.hash()) {
			moving++
		}
	}
	logs := t.allocate((n - moving) * 8 / 7)
	upper.allocate(moving * 8 / 7)
	upper.common = t.common
	if t.more != nil {
		upper.more = &more{countings: slices.Clone(t.more.countings)}
	}
	for s, log := range all(slots, logs) {
		if upper.covers(s.hash()) {
			upper.place(s, log)
		} else {
			t.place(s, log)
		}
	}
	t.dropCountings()
	upper.dropCountings()
}

// insert returns a new slot for h in t, which is locked, for a state under l. If it returns -1, the
// outcome is what the caller must handle first. After tableSplit, t's next is locked too.
func (s *Store) insert(t *table, h hash, rule *store.Rule, l store.Limit, now int64) (int, outcome) {
	if _, ok := s.rules.number(rule); !ok {
		return -1, tooManyRules
	}
	if s.reserve() {
		if t.full() && !s.makeRoom(t, now) {
			s.keys.Add(-1)
			return -1, tableSplit
		}
	} else {
		if t.n == 0 {
			return -1, storeFull
		}
		s.evict(t, h, now)
	}
	return s.placeNew(t, h, rule, l), decided
}

// placeNew puts h into a free slot of t, for a state of rule under l. The rule must already have
// its number.
func (s *Store) placeNew(t *table, h hash, rule *store.Rule, l store.Limit) int {
	number, _ := s.rules.number(rule)
	counted := t.numberOf(counting{l.Period, uint32(l.Rate), number})
	return t.place(slot{lo: h.lo, hi: uint32(h.hi >> 32), partNumber: uint64(counted) << partBits}, nil)
}

// makeRoom drops the ended states of t, or enlarges t if they are few. A table of the maximum size
// is split instead. In that case, makeRoom returns false, because t may no longer be the table of
// the key, and t's next is locked too.
func (s *Store) makeRoom(t *table, now int64) bool {
	size := len(t.slots)
	dropped := t.drop(&s.rules, now)
	s.keys.Add(-int64(dropped))
	if dropped > size/8 {
		return true
	}
	if size < maxSlots {
		t.resize(size + size/6)
		return true
	}
	t.split()
	return false
}

// reserve counts one more key, if the maximum allows it.
func (s *Store) reserve() bool {
	for {
		n := s.keys.Load()
		if n >= s.maxKeys {
			return false
		}
		if s.keys.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// forget removes a key from t, which is locked.
func (s *Store) forget(t *table, i int) {
	t.remove(i)
	s.keys.Add(-1)
}

// evict removes a key from t, which is locked and not empty. Starting at the home of h, which is
// random, it samples keys and removes the one with the least spend in force. The count of keys does
// not change.
func (s *Store) evict(t *table, h hash, now int64) {
	victim, least, soonest := -1, int64(math.MaxInt64), int64(math.MaxInt64)
	i := h.home(len(t.slots))
	for range min(sampled, t.n) {
		for t.tags[i] == 0 {
			i = t.after(i)
		}
		spend, end := t.spend(i, &s.rules, now)
		if spend < least || spend == least && end < soonest {
			victim, least, soonest = i, spend, end
		}
		i = t.after(i)
	}
	if soonest <= now {
		t.recordEnd(soonest)
	} else {
		s.evicted.Add(1)
	}
	t.remove(victim)
}

// evictBeyond evicts a key from the first table that has one, and tries the table of h last. Such a
// table is near: in a full store, tables that come from splits hold hundreds of keys each, and
// without splits there are no more than fanout tables.
func (s *Store) evictBeyond(h hash, now int64) {
	own := s.root.leaf(h)
	for t := own.next.Load(); !s.evictFrom(t, h, now) && t != own; {
		t = t.next.Load()
	}
}

// evictFrom makes sure that the store has room, and reports whether it does.
func (s *Store) evictFrom(t *table, h hash, now int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.keys.Load() < s.maxKeys {
		return true
	}
	if t.n == 0 {
		return false
	}
	s.evict(t, h, max(now, t.horizon))
	s.keys.Add(-1)
	return true
}

// sweepNext sweeps one table and advances the hand. A table that is locked is left to the next
// round.
func (s *Store) sweepNext(now int64) {
	t := s.hand.Load()
	if !s.hand.CompareAndSwap(t, t.next.Load()) || !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	if t.slots != nil {
		s.keys.Add(-int64(t.sweep(&s.rules, max(now, t.horizon))))
	}
}

// rules numbers the rules of a store, so that a slot needs no pointer.
type rules struct {
	mu   sync.Mutex // held to replace list
	list atomic.Pointer[[]*store.Rule]
}

func (r *rules) get(number uint32) *store.Rule { return (*r.list.Load())[number] }

// number returns the number of rule, and gives it one if it has none yet.
func (r *rules) number(rule *store.Rule) (uint32, bool) {
	if list := r.list.Load(); list != nil {
		if i := slices.Index(*list, rule); i >= 0 {
			return uint32(i), true
		}
	}
	return r.add(rule)
}

func (r *rules) add(rule *store.Rule) (uint32, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*store.Rule
	if p := r.list.Load(); p != nil {
		list = *p
	}
	i := slices.Index(list, rule)
	if i < 0 && len(list) < maxRules {
		i = len(list)
		list = append(list, rule) // beyond the end of the lists that others may be reading
		r.list.Store(&list)
	}
	return uint32(i), i >= 0
}
