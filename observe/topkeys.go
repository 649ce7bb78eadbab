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

// TopKeys finds the keys that are denied most, of any number of keys. It is a
// [ratelimit.Observer]. It counts calls that were denied, whatever their n, in the last one
// to two minutes.
//
// Bound: with k entries and N denials it has each key that was denied more than N/k times. A
// Count is never too low, and too high by at most its Error.
//
// [WithAskers] makes it find the keys that ask most, too, with the same bound.
//
// An admission costs nothing but the hook. A denial costs 50 to 160 ns, or up to 460 ns with
// 65,536 entries, and no allocation. Denials of one TopKeys wait for each other, and for some
// milliseconds while [TopKeys.Top] copies 65,536 entries. An entry takes 220 bytes, or 450 if
// keys are long: up to 115 KB for 256 entries, and up to 30 MB for 65,536.
//
// An API key of httplimit or grpclimit is shown as its hash. To find its owner, hash the keys that
// you have issued with their HashedAPIKey: the example has the lines.
//
// The keys that it shows may be personal data: addresses, users. They are no labels for
// metrics, since an attacker makes as many as it likes.
//
// It is safe for concurrent use. Make it by [NewTopKeys].
type TopKeys struct {
	seeds keyhash.Seeds
	base  time.Time

	mu     sync.Mutex // protects what follows; held for some 50 ns
	denied *minutes
	asked  *minutes // nil without WithAskers
	minute int64    // since base
}

// minutes are what is counted in this minute, and in the one before.
type minutes struct{ now, last *sketch }

// TopOption is an optional setting of [NewTopKeys].
type TopOption func(*TopKeys, int)

// WithAskers makes a TopKeys find the keys that ask most, too: of all calls that were decided on,
// whatever their n. It takes as much memory again, and an admission costs what a denial does.
func WithAskers() TopOption {
	return func(t *TopKeys, k int) { t.asked = newMinutes(k) }
}

// NewTopKeys returns a TopKeys with k entries, 16 to 65,536; 0 means 256. Otherwise the error
// is [ratelimit.ErrInvalidOption].
func NewTopKeys(k int, opts ...TopOption) (*TopKeys, error) {
	if k == 0 {
		k = defaultEntries
	}
	if k < minEntries || k > maxEntries {
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

// Decided counts key if it was denied, and with [WithAskers] in any case. It is for [Around].
func (t *TopKeys) Decided(_ context.Context, key string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	if r.Allowed && t.asked == nil || err != nil {
		return
	}
	id := t.seeds.Hash(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	if !r.Allowed {
		t.denied.now.add(id, key)
	}
	if t.asked != nil {
		t.asked.now.add(id, key)
	}
}

// turn begins a new minute if it is time. The lock is held.
func (t *TopKeys) turn() {
	minute := int64(time.Since(t.base) / topMinute)
	if minute == t.minute {
		return
	}
	gap := minute > t.minute+1
	t.minute = minute
	t.denied.turn(gap)
	if t.asked != nil {
		t.asked.turn(gap)
	}
}

// turn begins a new minute. After a gap nothing was counted in the one before.
func (m *minutes) turn(gap bool) {
	m.now, m.last = m.last, m.now
	m.now.reset()
	if gap {
		m.last.reset()
	}
}

// Top is what [TopKeys] has found.
type Top struct {
	Since   time.Time `json:"since"`   // from when on calls are counted: one to two minutes ago
	Denials int64     `json:"denials"` // of all keys
	Keys    []TopKey  `json:"keys"`    // those that were denied most, the highest Count first

	// These are of WithAskers alone.
	Calls  int64    `json:"calls,omitempty"`  // of all keys
	Askers []TopKey `json:"askers,omitempty"` // the keys of most calls, the highest Count first
}

// TopKey is a key that was denied, or that asks.
type TopKey struct {
	Key   string `json:"key"`   // at most its first 128 bytes; longer keys are still told apart
	Count int64  `json:"count"` // calls that were denied, or all of an asker
	Error int64  `json:"error"` // Count is too high by at most so many
}

// Top returns the n keys that are denied most, and with [WithAskers] the n that ask most, or
// fewer if there are fewer.
func (t *TopKeys) Top(n int) Top {
	top := t.all()
	top.Keys = highest(top.Keys, n)
	if t.asked != nil {
		top.Askers = highest(top.Askers, n)
	}
	return top
}

// highest are the n keys with the highest Count.
func highest(keys []TopKey, n int) []TopKey {
	slices.SortFunc(keys, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Key, b.Key))
	})
	return slices.Clone(keys[:max(0, min(n, len(keys)))]) // without the memory of the rest
}

// all is the keys of all sketches, in no order.
func (t *TopKeys) all() Top {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	top := Top{Since: t.base.Add(time.Duration(max(0, t.minute-1)) * topMinute)}
	top.Denials, top.Keys = t.denied.all()
	if t.asked != nil {
		top.Calls, top.Askers = t.asked.all()
	}
	return top
}

// all is how many calls were counted, and of which keys, in no order.
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

// sum is c with what the other sketch has counted of its key. That may have dropped it at its
// least count.
func sum(c *counter, other *sketch) TopKey {
	count, excess := other.least(), other.least()
	if o := other.index.of(c.id); o != nil {
		count, excess = o.count, o.excess
	}
	return TopKey{Key: string(c.key), Count: c.count + count, Error: c.excess + excess}
}

var _ ratelimit.Observer = (*TopKeys)(nil)
