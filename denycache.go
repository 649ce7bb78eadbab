package ratelimit

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// DenyCache is a [Limiter] that remembers denials: once the store has denied n
// events until a time t, the same and larger calls of that key are denied in this
// process until t, without a round trip. All else goes to the store. A flood
// against one key costs the store a call or two per RetryAfter, whatever its rate.
//
// Bound: it denies nothing that the store would admit. The store denied at or after
// the moment at which the request was sent, so that RetryAfter counted from there is
// over before t, less 1 µs, to which stores truncate their time, and less a thousandth
// of RetryAfter, for the clocks of two machines, each of which may gain or lose 500 µs
// a second, as much as NTP corrects. Before t a key gets room for that many events
// only by a Refund, a Reset or another limit. Those of this DenyCache drop what it
// knows of the key and what calls under way will tell of it; to see the limits of a
// limit function, l must be one of the five algorithms itself. It can deny too much,
// until t at most or by [WithMaxDenialAge], after
//
//   - a Refund, a Reset or another limit by anyone else, or one that failed here and
//     reached the store later all the same;
//   - a change of the limit while calls of the key are under way, until they are back;
//   - a step of the store's clock, or its loss or eviction of the key;
//   - a slower limit than that of the key's last admission, of which RetryAfter may
//     be too long: see [WithLimitFunc].
//
// A local denial has the [Source] SourceDenyCache, and Limit, Remaining and
// ResetAfter as the store told them, ResetAfter less the time since. Remaining may
// have changed, and is below n all the same. RetryAfter runs from the store's
// answer, so that it is too long by the time that the answer took: the call that the
// store denied would be admitted then (nobody else calling), and a larger one may have
// to wait longer. It is Never for n above Limit.
//
// Denials of RetryAfter Never are not remembered, having no t, and nor are those
// that the store did not make (see [Result.Source]), or several limits together ([All]):
// their keys may be those of others, whose refunds it would not see. For the same reason
// it goes inside a [Rekeyed] and not around it, and with [WithCoalescing], which it sees if l
// is one of the five algorithms itself, remembers denials of one event only: to others the
// line may give back what a caller left in it. It goes inside what sleeps, too (throttle's
// Waiter), which denies one caller and would sleep for another.
// Peek always asks the store.
// Errors are the limiter's own.
//
// A denied key costs 130 to 220 bytes, whatever its length (the first few hundred up
// to 900), and there are at most 65,536 of them or [WithMaxDenials]. They leave as other
// keys are decided on, some time after they have ended: there is no goroutine and
// nothing to close. A local denial takes some 100 ns and allocates nothing; a call that
// goes on to the store takes as much longer.
//
// Use it around a limiter on Redis. On memory it saves nothing. Time is this
// process's monotonic clock, so that the store's must be a clock that runs as fast,
// not one of a simulation.
type DenyCache struct {
	inner   Limiter
	asking  *limiter // inner if it has a limit function, else nil: it is asked here, once a call
	inLine  bool     // calls of one event wait in a line of inner's
	maxKeys int
	maxAge  time.Duration
	base    time.Time
	seeds   keySeeds
	shards  []denyShard  // 2^k
	marks   []changeMark // 2^k, at least as many: mark i belongs to shard i mod len(shards)
}

const (
	defaultMaxDenials = 1 << 16
	maxMaxDenials     = 1 << 24
	denialsPerShard   = 256  // so many are looked through at once, and up to twice that
	minMarks          = 1024 // so that a change rarely meets a call on another key
	maxDenial         = maxRefill * time.Microsecond
	maxDrift          = 1000 // one part in so many between this clock and the store's
	sweepEvery        = time.Second
)

// DenyCacheOption configures a [DenyCache].
type DenyCacheOption func(*DenyCache) error

// WithMaxDenials bounds the keys that are remembered to n, 1 to 16,777,216,
// instead of 65,536 (which are 9 to 14 MB). Beyond that one that has ended goes, or
// the one that ends first of some: its next call asks the store again.
func WithMaxDenials(n int) DenyCacheOption {
	return func(d *DenyCache) error {
		if n < 1 || n > maxMaxDenials {
			return fmt.Errorf("%w: WithMaxDenials(%d), want 1 to %d", ErrInvalidOption, n, maxMaxDenials)
		}
		d.maxKeys = n
		return nil
	}
}

// WithMaxDenialAge asks the store again age after it has denied, 1 µs or more,
// even if RetryAfter is longer. That bounds how long a Refund or a Reset by another
// process goes unnoticed, at the price of a call per age and denied key.
func WithMaxDenialAge(age time.Duration) DenyCacheOption {
	return func(d *DenyCache) error {
		if age < time.Microsecond {
			return fmt.Errorf("%w: WithMaxDenialAge(%v), want 1µs or more", ErrInvalidOption, age)
		}
		d.maxAge = age
		return nil
	}
}

// NewDenyCache returns a Limiter that asks l only what it does not know to be
// denied. Its errors are [ErrInvalidOption].
func NewDenyCache(l Limiter, opts ...DenyCacheOption) (*DenyCache, error) {
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	if _, keyed := l.(*Rekeyed); keyed {
		return nil, fmt.Errorf("%w: a DenyCache around a Rekeyed, which it must be in", ErrInvalidOption)
	}
	d := &DenyCache{
		inner:   l,
		asking:  asksLimits(l),
		inLine:  hasLines(l),
		maxKeys: defaultMaxDenials,
		maxAge:  maxDenial,
		base:    time.Now(),
		seeds:   newKeySeeds(),
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a DenyCacheOption is nil", ErrInvalidOption)
		}
		if err := opt(d); err != nil {
			return nil, err
		}
	}
	shards := 1 << (bits.Len(uint(max(1, d.maxKeys/denialsPerShard))) - 1)
	d.shards = make([]denyShard, shards)
	d.marks = make([]changeMark, max(shards, minMarks))
	return d, nil
}

// asksLimits is what the five types have in common, if l is one of them and has a
// limit function.
func asksLimits(l Limiter) *limiter {
	if lim := coreOf(l); lim != nil && lim.limitFunc != nil {
		return lim
	}
	return nil
}

// hasLines reports whether l is one of the five types, with [WithCoalescing].
func hasLines(l Limiter) bool {
	lim := coreOf(l)
	return lim != nil && lim.lines != nil
}

var errNoDenyCache = fmt.Errorf("%w: a DenyCache is made by its constructor", ErrInvalidLimit)

// Allow is AllowN of 1.
func (d *DenyCache) Allow(ctx context.Context, key string) (Result, error) {
	return d.AllowN(ctx, key, 1)
}

// AllowN denies n events that are known to be denied, and asks the limiter
// otherwise.
func (d *DenyCache) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	switch {
	case d.inner == nil:
		return Result{}, errNoDenyCache
	case n <= 0 || key == "" || len(key) > maxKey || ctx.Err() != nil:
		return d.inner.AllowN(ctx, key, n) // which says what is wrong
	}
	q := question{key: d.seeds.hash(key), n: n, sent: d.now()}
	if d.asking != nil {
		if q.limit, err = d.asking.limitOf(ctx, key); err != nil {
			return Result{}, err
		}
	}
	if d.recall(&q, &res) {
		return res, nil
	}
	err = d.ask(ctx, key, &q, &res)
	d.learn(&q, &res, err)
	return res, err
}

// ask is AllowN of the limiter, under the limit that its function has given.
func (d *DenyCache) ask(ctx context.Context, key string, q *question, res *Result) (err error) {
	if d.asking == nil {
		*res, err = d.inner.AllowN(ctx, key, q.n)
		return err
	}
	return d.asking.decide(ctx, key, q.n, take, &q.limit, res)
}

// Peek is the limiter's own.
func (d *DenyCache) Peek(ctx context.Context, key string) (Result, error) {
	if d.inner == nil {
		return Result{}, errNoDenyCache
	}
	return d.inner.Peek(ctx, key)
}

// Charge is the limiter's own. It forgets the denial of key if that may have been under
// another limit.
func (d *DenyCache) Charge(ctx context.Context, key string, n int) (Result, error) {
	if d.inner == nil {
		return Result{}, errNoDenyCache
	}
	if d.asking != nil {
		h := d.seeds.hash(key)
		d.beginChange(h)
		defer d.endChange(h)
	}
	return Charge(ctx, d.inner, key, n)
}

// Refund is the limiter's own, and forgets the denial of key. A local denial has
// charged nothing: [ErrInvalidN].
func (d *DenyCache) Refund(ctx context.Context, key string, charged Result, n int) error {
	if d.inner == nil {
		return errNoDenyCache
	}
	h := d.seeds.hash(key)
	d.beginChange(h)
	defer d.endChange(h)
	return d.inner.Refund(ctx, key, charged, n)
}

// Reset is the limiter's own, and forgets the denial of key.
func (d *DenyCache) Reset(ctx context.Context, key string) error {
	if d.inner == nil {
		return errNoDenyCache
	}
	h := d.seeds.hash(key)
	d.beginChange(h)
	defer d.endChange(h)
	return d.inner.Reset(ctx, key)
}

// Len is the number of keys remembered now, of which some may have ended.
func (d *DenyCache) Len() (n int) {
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		n += len(s.denials)
		s.mu.Unlock()
	}
	return n
}

// question is an AllowN that is not known to be denied, as it stood when it was
// sent.
type question struct {
	key     keyHash
	n       int
	limit   store.Limit   // zero if it is always the same
	sent    time.Duration // the clock before sending
	changes uint32        // of the key's mark before sending
}

// now is this process's monotonic clock.
func (d *DenyCache) now() time.Duration { return time.Since(d.base) }

func (d *DenyCache) shard(k keyHash) *denyShard { return &d.shards[k.lo&uint64(len(d.shards)-1)] }
func (d *DenyCache) mark(k keyHash) *changeMark { return &d.marks[k.lo&uint64(len(d.marks)-1)] }

// changeMark keeps a denial that was under way during a change of its key from
// being remembered. Keys may share one: the denial of another is lost then, which
// costs a round trip. It is protected by its shard's lock.
type changeMark struct {
	changes uint32 // that have ended
	pending int32  // that are under way
}

// denial is an answer of the store. Its times are those of now.
type denial struct {
	until     time.Duration // when it ends
	retryAt   time.Duration // at or after its end
	resetAt   time.Duration // at or after retryAt
	limit     store.Limit   // under which it was made, zero if that is always the same
	n         int           // the events denied; more of them are denied too
	capacity  int           // the Result's Limit
	remaining int           // below n
}

// result fills res with the denial of n events at now.
func (e *denial) result(n int, now time.Duration, res *Result) {
	res.Limit, res.Remaining = e.capacity, e.remaining
	res.RetryAfter, res.ResetAfter = wholeMicroseconds(e.retryAt-now), wholeMicroseconds(e.resetAt-now)
	if n > e.capacity {
		res.RetryAfter = Never
	}
	res.details = &fromDenyCache
}

var fromDenyCache = details{source: SourceDenyCache}

// wholeMicroseconds is d rounded up.
func wholeMicroseconds(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// recall answers q if it is known to be denied, and otherwise makes it ready to be
// sent.
func (d *DenyCache) recall(q *question, res *Result) bool {
	s := d.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.sent >= s.sweepAt {
		s.sweep(q.sent)
	}
	if e, ok := s.denials[q.key]; ok {
		switch {
		case e.limit != q.limit:
			delete(s.denials, q.key)
		case e.n <= q.n && q.sent < e.until:
			e.result(q.n, q.sent, res)
			return true
		}
	}
	q.changes = d.mark(q.key).changes
	return false
}

// learn remembers a denial, and what it makes of an admission under a limit that
// may have changed.
func (d *DenyCache) learn(q *question, r *Result, err error) {
	switch {
	case err != nil || r.Allowed:
		if d.asking != nil {
			d.forgetOtherLimits(q)
		}
	case r.details != nil: // made by a wrapper, or in part
	case d.inLine && q.n > 1: // a line gives back unseen what its callers left, but denies none of them before
	case r.RetryAfter > maxDenial || r.ResetAfter > maxDenial || q.n > r.Limit: // Never, or nonsense
	default:
		d.remember(q, r, d.now())
	}
}

// remember keeps the denial r, answered now, unless its key has changed since q was
// sent, or it has ended.
func (d *DenyCache) remember(q *question, r *Result, now time.Duration) {
	e := denial{
		until:    q.sent + min(r.RetryAfter-r.RetryAfter/maxDrift-time.Microsecond, d.maxAge),
		retryAt:  now + r.RetryAfter,
		resetAt:  now + max(r.ResetAfter, r.RetryAfter),
		limit:    q.limit,
		n:        q.n,
		capacity: r.Limit, remaining: r.Remaining,
	}
	s := d.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := d.mark(q.key)
	if e.until <= now || m.pending > 0 || m.changes != q.changes {
		return
	}
	s.put(q.key, e, now, d.maxKeys/len(d.shards))
}

// forgetOtherLimits drops a denial under another limit than that by which q has
// been admitted, and such denials under way: the admission may have made room
// under the other limit, by refilling at its own rate what it found.
func (d *DenyCache) forgetOtherLimits(q *question) {
	s := d.shard(q.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.mark(q.key).changes++
	if e, ok := s.denials[q.key]; ok && e.limit != q.limit {
		delete(s.denials, q.key)
	}
}

// beginChange drops the denial of a key, and keeps out others until endChange.
func (d *DenyCache) beginChange(k keyHash) {
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.mark(k).pending++
	delete(s.denials, k)
}

func (d *DenyCache) endChange(k keyHash) {
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := d.mark(k)
	m.pending--
	m.changes++
}

// denyShard is some of the keys.
type denyShard struct {
	mu      sync.Mutex // held for all below and the shard's marks, never over a call
	denials map[keyHash]denial
	most    int           // that denials has held: its memory
	sweepAt time.Duration // when denials that have ended are looked for

	_ [32]byte // shards do not share a cache line
}

// put makes e the denial of k, unless one of fewer events is in force, which says
// more. Where there are limit keys it takes the place of another.
func (s *denyShard) put(k keyHash, e denial, now time.Duration, limit int) {
	old, ok := s.denials[k]
	switch {
	case ok && now < old.until && (old.n < e.n || old.n == e.n && old.until >= e.until):
		return
	case !ok && len(s.denials) >= limit:
		s.evict(now)
	case s.denials == nil:
		s.denials, s.sweepAt = make(map[keyHash]denial), now+sweepEvery
	}
	s.denials[k] = e
	s.most = max(s.most, len(s.denials))
}

// evict drops one that has ended, or that ends first, of the first eight that a
// map's iteration comes upon.
func (s *denyShard) evict(now time.Duration) {
	var victim keyHash
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

// sweep drops what has ended, and gives memory back that a former flood has left.
func (s *denyShard) sweep(now time.Duration) {
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
		rest := make(map[keyHash]denial, live)
		for k, e := range s.denials {
			rest[k] = e
		}
		s.denials, s.most = rest, live
	}
}
