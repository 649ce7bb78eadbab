package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

const (
	defaultEntries = 256
	minEntries     = 16
	maxEntries     = 1 << 16

	// topMinute is how long a sketch counts before the other one takes over.
	topMinute = time.Minute
)

// TopKeys finds the keys that are denied most, among any number of keys. It is a
// [ratelimit.Observer]. It counts denied calls, whatever their n, over the last one to two minutes.
//
// Bound: with k entries and N denials, TopKeys contains every key that was denied more than N/k
// times. A Count is never too low, and too high by at most its Error.
//
// With [WithAskers], it also finds the keys that ask most, with the same bound.
//
// An admission costs only the hook. A denial costs 50 to 160 ns, or up to 460 ns with 65,536
// entries, and allocates nothing. Denials of the same TopKeys wait for each other, and for some
// milliseconds while [TopKeys.Top] copies 65,536 entries. An entry takes 220 bytes, or 450 if keys
// are long: up to 115 KB for 256 entries, and up to 30 MB for 65,536.
//
// API keys of httplimit and grpclimit are shown as hashes. To find the owner of a hash, hash the
// keys that you have issued with HashedAPIKey, as the example does.
//
// The keys may be personal data, such as addresses and users. Do not use them as metric labels,
// because an attacker can create any number of them.
//
// A TopKeys is safe for concurrent use. Use [NewTopKeys] to create one.
type TopKeys struct {
	seeds keyhash.Seeds
	base  time.Time

	mu     sync.Mutex // protects the fields below; held for about 50 ns
	denied *minutes
	asked  *minutes // nil without WithAskers
	minute int64    // since base
}

// minutes holds the counts of the current minute, and of the one before.
type minutes struct{ now, last *sketch }

// TopOption configures a [TopKeys].
type TopOption func(*TopKeys, int)

// WithAskers makes a TopKeys also find the keys that ask most, among all calls, admitted or denied,
// whatever their n. It doubles the memory, and an admission costs as much as a denial.
func WithAskers() TopOption {
	return func(t *TopKeys, k int) { t.asked = newMinutes(k) }
}

// NewTopKeys returns a TopKeys with k entries, 16 to 65,536; 0 means 256. It returns
// [ratelimit.ErrInvalidOption] if k is out of range or an option is nil.
func NewTopKeys(k int, opts ...TopOption) (*TopKeys, error) {
	if k = cmp.Or(k, defaultEntries); k < minEntries || k > maxEntries {
		return nil, fmt.Errorf("%w: NewTopKeys(%d), want %d to %d, or 0", ratelimit.ErrInvalidOption, k, minEntries, maxEntries)
	}
	t := &TopKeys{seeds: keyhash.New(), base: time.Now(), denied: newMinutes(k)}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a TopOption is nil", ratelimit.ErrInvalidOption)
		}
		opt(t, k)
	}
	return t, nil
}

func newMinutes(k int) *minutes { return &minutes{newSketch(k), newSketch(k)} }

// Decided counts key if it was denied, and with [WithAskers] in any case. It implements
// [ratelimit.Observer].
func (t *TopKeys) Decided(_ context.Context, key string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	if r.Allowed && t.asked == nil || err != nil {
		return
	}
	id := t.seeds.Hash(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rotate()
	if !r.Allowed {
		t.denied.now.add(id, key)
	}
	if t.asked != nil {
		t.asked.now.add(id, key)
	}
}

// rotate begins a new minute if its time has come. The lock is held.
func (t *TopKeys) rotate() {
	minute := int64(time.Since(t.base) / topMinute)
	if minute == t.minute {
		return
	}
	gap := minute > t.minute+1
	t.minute = minute
	t.denied.rotate(gap)
	if t.asked != nil {
		t.asked.rotate(gap)
	}
}

// rotate begins a new minute. After a gap, nothing was counted in the previous minute.
func (m *minutes) rotate(gap bool) {
	m.now, m.last = m.last, m.now
	m.now.reset()
	if gap {
		m.last.reset()
	}
}

// Top is the result of [TopKeys.Top].
type Top struct {
	Since   time.Time `json:"since"`   // when counting began: one to two minutes ago
	Denials int64     `json:"denials"` // of all keys
	Keys    []TopKey  `json:"keys"`    // the keys that were denied most, highest Count first

	// The fields below need WithAskers.
	Calls  int64    `json:"calls,omitempty"`  // of all keys
	Askers []TopKey `json:"askers,omitempty"` // the keys with the most calls, highest Count first
}

// TopKey is a key that was denied, or that asked.
type TopKey struct {
	Key   string `json:"key"`   // at most its first 128 bytes; longer keys are still counted separately
	Count int64  `json:"count"` // denied calls, or all calls of an asker
	Error int64  `json:"error"` // Count is too high by at most this number
}

// Top returns the n keys that are denied most, and with [WithAskers] the n keys that ask most, or
// fewer if there are fewer.
func (t *TopKeys) Top(n int) Top {
	top := t.all()
	top.Keys = highest(top.Keys, n)
	if t.asked != nil {
		top.Askers = highest(top.Askers, n)
	}
	return top
}

// highest returns the n keys with the highest Count.
func highest(keys []TopKey, n int) []TopKey {
	slices.SortFunc(keys, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Key, b.Key))
	})
	return slices.Clone(keys[:max(0, min(n, len(keys)))]) // so that the rest can be freed
}

// all returns the keys of all sketches, in no order.
func (t *TopKeys) all() Top {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rotate()
	top := Top{Since: t.base.Add(time.Duration(max(0, t.minute-1)) * topMinute)}
	top.Denials, top.Keys = t.denied.all()
	if t.asked != nil {
		top.Calls, top.Askers = t.asked.all()
	}
	return top
}

// all returns the number of counted calls, and their keys, in no order.
func (m *minutes) all() (total int64, keys []TopKey) {
	keys = make([]TopKey, 0, len(m.now.counters)+len(m.last.counters))
	for _, c := range m.now.counters {
		keys = append(keys, sum(c, m.last))
	}
	for _, c := range m.last.counters {
		if m.now.index.of(c.id) == nil {
			keys = append(keys, sum(c, m.now))
		}
	}
	return m.now.total + m.last.total, keys
}

// sum adds to c what the other sketch has counted for its key. The other sketch may have dropped
// the key at its least count.
func sum(c *counter, other *sketch) TopKey {
	count, excess := other.least(), other.least()
	if o := other.index.of(c.id); o != nil {
		count, excess = o.count, o.excess
	}
	return TopKey{Key: string(c.key), Count: c.count + count, Error: c.excess + excess}
}

var _ ratelimit.Observer = (*TopKeys)(nil)
