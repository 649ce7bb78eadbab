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
// An admission costs nothing but the hook. A denial costs 50 to 160 ns, or up to 460 ns with
// 65,536 entries, and no allocation. Denials of one TopKeys wait for each other, and for some
// milliseconds while [TopKeys.Top] copies 65,536 entries. An entry takes 220 bytes, or 450 if
// keys are long: up to 115 KB for 256 entries, and up to 30 MB for 65,536.
//
// The keys that it shows may be personal data: addresses, users. They are no labels for
// metrics, since an attacker makes as many as it likes.
//
// It is safe for concurrent use. Make it by [NewTopKeys].
type TopKeys struct {
	seeds keyhash.Seeds
	base  time.Time

	mu        sync.Mutex // protects what follows; held for some 50 ns
	now, last *sketch    // of this minute and of the one before
	minute    int64      // that of now, since base
}

// NewTopKeys returns a TopKeys with k entries, 16 to 65,536; 0 means 256. Otherwise the error
// is [ratelimit.ErrInvalidOption].
func NewTopKeys(k int) (*TopKeys, error) {
	if k == 0 {
		k = defaultEntries
	}
	if k < minEntries || k > maxEntries {
		return nil, fmt.Errorf("%w: NewTopKeys(%d), want %d to %d, or 0", ratelimit.ErrInvalidOption, k, minEntries, maxEntries)
	}
	return &TopKeys{seeds: keyhash.New(), base: time.Now(), now: newSketch(k), last: newSketch(k)}, nil
}

// Decided counts key if it was denied. It is for [Around].
func (t *TopKeys) Decided(_ context.Context, key string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	if r.Allowed || err != nil {
		return
	}
	id := t.seeds.Hash(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	t.now.add(id, key)
}

// turn begins a new minute if it is time. The lock is held.
func (t *TopKeys) turn() {
	minute := int64(time.Since(t.base) / topMinute)
	if minute == t.minute {
		return
	}
	t.now, t.last = t.last, t.now
	t.now.reset()
	if minute > t.minute+1 { // nobody was denied in the minute before
		t.last.reset()
	}
	t.minute = minute
}

// Top is what [TopKeys] has found.
type Top struct {
	Since   time.Time `json:"since"`   // from when on denials are counted: one to two minutes ago
	Denials int64     `json:"denials"` // of all keys
	Keys    []TopKey  `json:"keys"`    // the highest Count first
}

// TopKey is a key that was denied.
type TopKey struct {
	Key   string `json:"key"`   // at most its first 128 bytes; longer keys are still told apart
	Count int64  `json:"count"` // calls that were denied
	Error int64  `json:"error"` // Count is too high by at most so many
}

// Top returns the n keys that are denied most, or fewer if there are fewer.
func (t *TopKeys) Top(n int) Top {
	top := t.all()
	slices.SortFunc(top.Keys, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Key, b.Key))
	})
	top.Keys = slices.Clone(top.Keys[:max(0, min(n, len(top.Keys)))]) // without the memory of the rest
	return top
}

// all is the keys of both sketches, in no order.
func (t *TopKeys) all() Top {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	top := Top{
		Since:   t.base.Add(time.Duration(max(0, t.minute-1)) * topMinute),
		Denials: t.now.total + t.last.total,
		Keys:    make([]TopKey, 0, len(t.now.counters)+len(t.last.counters)),
	}
	for _, c := range t.now.counters {
		top.Keys = append(top.Keys, sum(c, t.last))
	}
	for _, c := range t.last.counters {
		if t.now.index.of(c.id) == nil {
			top.Keys = append(top.Keys, sum(c, t.now))
		}
	}
	return top
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
