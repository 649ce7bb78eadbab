// Package denials remembers which keys a store has denied, and until when, for package denycache.
package denials

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	perShard   = 256  // entries per shard, up to twice as many, which limits a search
	minMarks   = 1024 // so that a change rarely collides with a call on another key
	maxDrift   = 1000 // this clock and the store's may drift apart by 1/maxDrift of the time
	sweepEvery = time.Second

	maxDenial = 100 * 365 * 24 * 3600 * 1_000_000 // µs within which every bucket refills
)

// Table remembers denials. Its times are those of this process's monotonic clock.
type Table struct {
	maxKeys int
	maxAge  time.Duration
	base    time.Time
	seeds   keyhash.Seeds
	shards  []shard      // 2^k
	marks   []changeMark // 2^k, at least as many: mark i belongs to shard i mod len(shards)
}

// New returns a table for at most maxKeys keys, each for at most maxAge.
func New(maxKeys int, maxAge time.Duration) *Table {
	shards := 1 << (bits.Len(uint(max(1, maxKeys/perShard))) - 1)
	return &Table{
		maxKeys: maxKeys, maxAge: maxAge, base: time.Now(), seeds: keyhash.New(),
		shards: make([]shard, shards),
		marks:  make([]changeMark, max(shards, minMarks)),
	}
}

// Len returns the number of keys in the table. Some of them may have ended. A nil Table has none.
func (t *Table) Len() (n int) {
	if t == nil {
		return 0
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += len(s.denials)
		s.mu.Unlock()
	}
	return n
}

// Question is a call on N events under Limit that is not known to be denied, with the state of its
// key when it was sent.
type Question struct {
	N     int64
	Limit store.Limit // without a turn
	Turn  bool        // the call may wait for its turn, so remembered denials do not answer it

	key     keyhash.Hash
	sent    time.Duration // time before sending
	changes uint32        // changes of the key's mark before sending
}

// Ask returns the question for a call on n events under l.
func Ask(l store.Limit, n int64) Question {
	return Question{N: n, Limit: l.TurnBefore(0), Turn: l.Before() > 0}
}

// now returns the time of this process's monotonic clock.
func (t *Table) now() time.Duration { return time.Since(t.base) }

func (t *Table) shard(k keyhash.Hash) *shard     { return &t.shards[k.Lo&uint64(len(t.shards)-1)] }
func (t *Table) mark(k keyhash.Hash) *changeMark { return &t.marks[k.Lo&uint64(len(t.marks)-1)] }

// changeMark prevents a denial from being remembered if its key has changed since the call was
// sent. Several keys may share a mark; the denial of another key is then not remembered, which
// costs a round trip. The shard's lock protects it.
type changeMark struct {
	changes uint32 // changes that have ended
	pending int32  // changes in progress
}

// denial is a denial by the store. Its times are as returned by now.
type denial struct {
	until     time.Duration // when it ends
	retryAt   time.Duration // at or after its end
	resetAt   time.Duration // at or after retryAt
	limit     store.Limit   // under which the store denied
	n         int64         // the number of events denied; larger numbers are denied too
	remaining int64         // below n
}

// at returns the reply for the denial at the time now.
func (e *denial) at(now time.Duration) store.Reply {
	return store.Reply{
		Outcome: store.DeniedByCache,
		X:       microseconds(e.retryAt - now), Y: e.remaining, Z: microseconds(e.resetAt - now),
	}
}

// microseconds returns d in µs, rounded up.
func microseconds(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// Recall answers q for key if it is known to be denied. Otherwise it prepares q to be sent.
func (t *Table) Recall(ns *store.Namespace, key string, q *Question) (store.Reply, bool) {
	q.key, q.sent = t.seeds.In(ns, key), t.now()
	s := t.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	q.changes = t.mark(q.key).changes
	if q.sent >= s.sweepAt {
		s.sweep(q.sent)
	}
	if e, ok := s.denials[q.key]; ok {
		switch {
		case e.limit != q.Limit:
			delete(s.denials, q.key)
		case e.n <= q.N && q.sent < e.until && !q.Turn:
			return e.at(q.sent), true
		}
	}
	return store.Reply{}, false
}

// Remember keeps the denial r of q, which has just arrived. It drops r if the key has changed since
// q was sent, or if r has ended or never ends.
func (t *Table) Remember(q *Question, r store.Report) {
	if r.Retry > maxDenial || r.Reset > maxDenial {
		return
	}
	now, retry, reset := t.now(), time.Duration(r.Retry)*time.Microsecond, time.Duration(r.Reset)*time.Microsecond
	e := denial{
		until:     q.sent + min(retry-retry/maxDrift-time.Microsecond, t.maxAge),
		retryAt:   now + retry,
		resetAt:   now + max(retry, reset),
		limit:     q.Limit,
		n:         q.N,
		remaining: r.Remaining,
	}
	s := t.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := t.mark(q.key)
	if e.until <= now || m.pending > 0 || m.changes != q.changes {
		return
	}
	s.put(q.key, e, now, t.maxKeys/len(t.shards))
}

// ForgetOtherLimits drops a denial under another limit than the one that admitted q. Denials in
// flight are dropped too, because they may be under another limit. The admission refilled the key
// at its own rate, which may have made room under the other limit.
func (t *Table) ForgetOtherLimits(q *Question) {
	s := t.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mark(q.key).changes++
	if e, ok := s.denials[q.key]; ok && e.limit != q.Limit {
		delete(s.denials, q.key)
	}
}

// Change is a change of a key's state in progress, which may end a denial.
type Change struct {
	table *Table
	key   keyhash.Hash
}

// BeginChange drops the denial of key, and no other is remembered until [Change.End].
func (t *Table) BeginChange(ns *store.Namespace, key string) Change {
	k := t.seeds.In(ns, key)
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mark(k).pending++
	delete(s.denials, k)
	return Change{t, k}
}

// End must be called when the change has been made or has failed.
func (c Change) End() {
	s := c.table.shard(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := c.table.mark(c.key)
	m.pending--
	m.changes++
}

// shard holds some of the keys.
type shard struct {
	mu      sync.Mutex // protects all below and the shard's marks; never held over a call
	denials map[keyhash.Hash]denial
	most    int           // the most denials it has held, for which it has memory
	sweepAt time.Duration // when to drop denials that have ended

	_ [32]byte // so that shards do not share a cache line
}

// put makes e the denial of k, unless k has a current denial of fewer events, which covers more. If
// there are limit keys already, e replaces the denial of another key.
func (s *shard) put(k keyhash.Hash, e denial, now time.Duration, limit int) {
	old, ok := s.denials[k]
	switch {
	case ok && now < old.until && (old.n < e.n || old.n == e.n && old.until >= e.until):
		return
	case !ok && len(s.denials) >= limit:
		s.evict(now)
	case s.denials == nil:
		s.denials, s.sweepAt = make(map[keyhash.Hash]denial), now+sweepEvery
	}
	s.denials[k] = e
	s.most = max(s.most, len(s.denials))
}

// evict drops one of the first eight denials of a map iteration: one that has ended, or the one
// that ends first.
func (s *shard) evict(now time.Duration) {
	var victim keyhash.Hash
	seen, end := 0, time.Duration(math.MaxInt64)
	for k, e := range s.denials {
		if e.until < end {
			victim, end = k, e.until
		}
		if seen++; seen == 8 || end <= now {
			break
		}
	}
	delete(s.denials, victim)
}

// sweep drops the denials that have ended, and frees memory left over from a flood of keys.
func (s *shard) sweep(now time.Duration) {
	for k, e := range s.denials {
		if e.until <= now {
			delete(s.denials, k)
		}
	}
	s.sweepAt = now + sweepEvery
	switch live := len(s.denials); {
	case live == 0:
		s.denials, s.most, s.sweepAt = nil, 0, math.MaxInt64
	case live <= s.most/4: // maps do not shrink
		rest := make(map[keyhash.Hash]denial, live)
		for k, e := range s.denials {
			rest[k] = e
		}
		s.denials, s.most = rest, live
	}
}
