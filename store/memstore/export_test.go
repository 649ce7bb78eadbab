package memstore

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/ratelimit-go/ratelimit/store"
)

// Constants that tests use.
const (
	MaxSlots       = maxSlots
	DefaultMaxKeys = defaultMaxKeys
)

// Sizes returns the size of a slot and of a table's header, in bytes.
func Sizes() (slotSize, tableSize uintptr) { return unsafe.Sizeof(slot{}), unsafe.Sizeof(table{}) }

// SecretOf returns a secret by its number. It is the same in each run.
func SecretOf(number int) *Secret {
	word := rand.New(rand.NewPCG(uint64(number), 26)).Uint64
	return &Secret{lane{word(), word(), word()}, lane{word(), word(), word()}}
}

// Secret makes the hashes of a store.
type Secret = secret

// Hash returns the hash of a key in a store with this secret.
func (s *secret) Hash(ns *store.Namespace, key string) Hashed { return s.hash(ns, key) }

// Hash returns the hash of a key in s.
func (s *Store) Hash(ns *store.Namespace, key string) Hashed { return s.secret.hash(ns, key) }

// Use gives an empty store a secret.
func (s *Store) Use(secret *Secret) { s.secret = *secret }

// Hashed is a hash.
type Hashed = hash

// Same reports whether a key with hash h has the same slot as a key with hash other.
func (h hash) Same(other Hashed) bool { return (&slot{lo: h.lo, hi: uint32(h.hi >> 32)}).is(other) }

func (h hash) Hi() uint64        { return h.hi }
func (h hash) Lo() uint64        { return h.lo }
func (h hash) Home(size int) int { return h.home(size) }
func (h hash) Tag() uint64       { return uint64(h.tag()) }

// Shape is the part of a table that a call may change.
type Shape struct {
	Array *slot
	Size  int
	Keys  int
}

// Shapes returns the shapes of all tables in the order of the ring, and the table to sweep next.
func (s *Store) Shapes() (shapes map[any]Shape, hand any) {
	shapes = map[any]Shape{}
	for _, t := range s.tables() {
		shapes[t] = Shape{unsafe.SliceData(t.slots), len(t.slots), int(t.n)}
	}
	return shapes, s.hand.Load()
}

// TableOf returns the table of a key.
func (s *Store) TableOf(ns *store.Namespace, key string) any {
	return s.root.leaf(s.secret.hash(ns, key))
}

// Next returns the table after t in the ring.
func (*Store) Next(t any) any { return t.(*table).next.Load() }

func (s *Store) tables() []*table {
	first := s.root.leaf(hash{})
	tables := []*table{first}
	for t := first.next.Load(); t != first; t = t.next.Load() {
		tables = append(tables, t)
	}
	return tables
}

// Countings returns how many countings all tables have in addition to their common ones.
func (s *Store) Countings() (n int) {
	for _, t := range s.tables() {
		if t.more != nil {
			n += len(t.more.countings)
		}
	}
	return n
}

// SweepAll sweeps every table.
func (s *Store) SweepAll() {
	for range s.tables() {
		s.sweepNext(s.now())
	}
}

// Check returns an error if the tables are inconsistent. Every slot must be in its table and be
// found there, the counts must be right, and the tables must be a partition of all hashes.
func (s *Store) Check() error {
	var keys int
	covered := 0.0
	for _, t := range s.tables() {
		keys += int(t.n)
		covered += 1 / float64(uint64(1)<<t.depth)
		if err := s.checkTable(t); err != nil {
			return fmt.Errorf("table %b/%d: %w", t.prefix, t.depth, err)
		}
	}
	if covered != 1 {
		return fmt.Errorf("the tables cover %v of the hashes", covered)
	}
	if keys != s.Len() {
		return fmt.Errorf("%d keys in the tables, Len %d", keys, s.Len())
	}
	return nil
}

func (s *Store) checkTable(t *table) error {
	n := 0
	for i := range t.slots {
		h := t.slots[i].hash()
		if t.tags[i] == 0 {
			if t.slots[i] != (slot{}) || t.log(i) != nil {
				return fmt.Errorf("empty slot %d is not zero", i)
			}
			continue
		}
		n++
		if !t.covers(h) || s.root.leaf(h) != t || t.find(h) != i {
			return fmt.Errorf("slot %d is not found", i)
		}
	}
	if n != int(t.n) || len(t.slots) > maxSlots || n > 0 && len(t.slots)-n < 1+len(t.slots)/16 {
		return fmt.Errorf("%d keys, counted %d, in %d slots", n, t.n, len(t.slots))
	}
	if m := t.more; m != nil && m.logs != nil && len(m.logs) != len(t.slots) {
		return fmt.Errorf("%d logs beside %d slots", len(m.logs), len(t.slots))
	}
	return nil
}

// CoveringAfter locks the table of another key, as if it had also been the table of key until then.
// It reports whether the table of key is locked instead.
func (s *Store) CoveringAfter(ns *store.Namespace, other, key string) bool {
	h, before := s.secret.hash(ns, key), s.lock(s.secret.hash(ns, other))
	t := s.covering(before, h)
	defer t.mu.Unlock()
	if t == before || !before.mu.TryLock() {
		return false
	}
	before.mu.Unlock()
	return t == s.root.leaf(h) && !t.mu.TryLock()
}

// NumberAnew returns the number of a rule that another call may have added since this call looked
// for it.
func (s *Store) NumberAnew(rule *store.Rule) (uint32, bool) { return s.rules.add(rule) }

// LockTableOf locks the table of a key.
func (s *Store) LockTableOf(ns *store.Namespace, key string) (unlock func()) {
	return s.lock(s.secret.hash(ns, key)).mu.Unlock
}

// Denials returns how many denials can be read without a lock.
func (s *Store) Denials() (n int) {
	for _, t := range s.tables() {
		n += int(t.version.Load() % 2)
	}
	return n
}

// ForgetDenials withdraws all denials, so that they are decided under the lock.
func (s *Store) ForgetDenials() {
	for _, t := range s.tables() {
		t.mu.Lock()
		t.undeny()
		t.mu.Unlock()
	}
}

// VersionOf returns the version of the denial in the table of a key.
func (s *Store) VersionOf(ns *store.Namespace, key string) uint64 {
	return s.root.leaf(s.secret.hash(ns, key)).version.Load()
}

// Denies reports whether one event is denied without the lock, if the version was the given one
// before.
func (s *Store) Denies(version uint64, ns *store.Namespace, key string, l store.Limit) bool {
	h := s.secret.hash(ns, key)
	_, ok := s.root.leaf(h).denies(version, h, ns.Rule, l, s.now(), 1)
	return ok
}

// Tables returns the number of tables.
func (s *Store) Tables() int { return len(s.tables()) }
