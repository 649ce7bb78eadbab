// Package lease takes events from a limiter on Redis ahead, some at a time, and admits them
// in memory.
//
//	limiter, err := lease.New(bucket, 50*time.Millisecond)
//	...
//	defer limiter.Close(ctx)
//
// # Bound
//
// It is that of the wrapped limiter, exactly, in any number of processes, if all of them lease
// with one life. What that costs depends on the algorithm. r is Rate/Period:
//
//   - [ratelimit.FixedWindow] and [ratelimit.SlidingWindow]: nothing. A lease ends with its
//     window.
//   - [ratelimit.TokenBucket]: life·r of the Burst. The store is asked for a bucket that is so
//     much smaller, and Limit says so. The rate stays.
//   - [ratelimit.SlidingLog]: life/(Period+life) of the rate. The store remembers events for a
//     life longer.
//
// # Exceptions
//
// What a process holds when it is killed is lost until it would have left the limit anyway. So
// is a lease whose grant was lost on the way. [WithMaxLease] bounds both. If the store's clock
// jumps ahead, or the store loses writes, each held lease can be used once. A process that is
// stopped uses no lease that has ended meanwhile, unless its monotonic clock was stopped too.
package lease

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter wraps a [ratelimit.Limiter] and holds leases of it: events that the store has charged
// already, and that this process may admit until the lease ends. A key that is asked for often
// then costs the store a call for many decisions. A decision takes as long as one in memory.
//
// The life of a lease says how old a decision may be. It starts before the store is asked, and
// each use of the lease looks at the clock. What has not been used when it ends is given back,
// within another life or 10 ms, or up to 140 ms if many keys are held. How many events a lease
// has follows the demand. It starts with one, and doubles while leases are used up in less than
// half of their life. In a window that is all: a quota of a day is leased as well.
//
// The package comment has its bound, and the exceptions.
//
// Others may see events taken that nobody has used yet, for two lives at most. So one process
// may be denied what another one holds. Remaining, RetryAfter and ResetAfter are those of the
// store's last answer, and can be a life old. So is a denial, which is remembered for up to a
// life. At the limit a process asks the store again after half of a life, or after a life with a
// [ratelimit.FixedWindow], and RetryAfter says so. Another process uses a lease up to a life
// after a Reset. It is the same after the key's limit was lowered.
//
// Use it for limits that a whole fleet asks for often. It pays from four events of a key for
// each process and life on; below that it costs some 2 % more calls. Some calls ask the
// store as they would without leases: those of more events than are held, of keys of over 256
// bytes, and of a log or a bucket if less than one event flows in a life. [Stats] counts the
// last two. A [ratelimit.SlidingWindow] at its limit gets room event by event: there only
// denials are made in memory, unless several events flow in a life.
//
// It holds up to 65,536 keys ([WithMaxKeys]) of some 450 bytes each, and forgets those that
// are not asked for. While anything is held a timer runs. A call of the store for several
// callers runs in a goroutine, which ends with it.
//
// It is safe for concurrent use. Make it by [New], and Close it.
type Limiter struct {
	place // package see looks for it

	limiter ratelimit.Limiter
	five    *five.Limiter[ratelimit.Result] // limiter
	terms   terms
	maxKeys int64

	by       store.Limit // strict, of the constructor's limit
	leasable bool
	lent     *ratelimit.Mark // on what is admitted by overdraft

	base   time.Time // of all times, which are monotonic
	seeds  keyhash.Seeds
	shards [shards]shard
	keys   atomic.Int64 // in the shards
	stats  counts

	armed   atomic.Bool // a timer will sweep
	running sync.WaitGroup

	closed atomic.Bool // set with mu held

	mu      sync.Mutex  // protects what follows; locked after a shard
	timer   *time.Timer // of the next sweep
	jobs    []job       // to be done by workers
	workers int
}

type place = see.Remembers

const (
	shards         = 64
	defaultMaxKeys = 1 << 16
	maxMaxKeys     = 1 << 24
	maxKey         = 256           // bytes of a key that is held
	maxLease       = 1_000_000_000 // events: twice as many fit into 32 bits
	leastLife      = time.Millisecond
	mostLife       = time.Hour
	leastSweep     = 10 * time.Millisecond
	perKey         = 2 * time.Microsecond // between two sweeps: some 20 times what they take
)

// shard is a part of the keys.
type shard struct {
	mu   sync.Mutex // protects keys and what is in them
	keys map[keyhash.Hash]*entry
	_    [48]byte // so that no two locks share a cache line
}

// entry is a key, what is held of it, and who waits for it.
type entry struct {
	holding[*grant]
	key    string
	by     *store.Limit // strict
	denial *denial      // nil if there was none
	flying bool         // a call of the store is under way
	queue  []*caller    // who waits for the next one
	used   time.Duration
}

// grant is what the store has admitted at once.
type grant struct {
	mark   ratelimit.Mark   // on what is admitted of it
	result ratelimit.Result // marked
	by     *store.Limit
}

// denial is one of the store.
type denial struct {
	result ratelimit.Result
	told   time.Duration
}

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithMaxLease bounds what is taken ahead of one key to n events, 1 to 1,000,000,000. By default
// only demand does. Callers who wait are decided on at once, however many they are. With 1
// nothing is taken ahead: each admission asks the store, and only denials are made in memory.
func WithMaxLease(n int) Option {
	return func(l *Limiter) error {
		if n < 1 || n > maxLease {
			return fmt.Errorf("%w: WithMaxLease(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, maxLease)
		}
		l.terms.most = n
		return nil
	}
}

// WithMaxKeys bounds the keys that are held to n, 1 to 16,777,216. The default is 65,536. Others
// ask the store each time.
func WithMaxKeys(n int) Option {
	return func(l *Limiter) error {
		if n < 1 || n > maxMaxKeys {
			return fmt.Errorf("%w: WithMaxKeys(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, maxMaxKeys)
		}
		l.maxKeys = int64(n)
		return nil
	}
}

// WithOverdraft lets up to n events of each key pass in each process before the store knows
// them, 1 to 1,000,000,000. Callers for one event then wait for the store only while so many are
// owed, or after it has denied.
//
// Bound: that of the wrapped limiter, and n events more for each process, and for each
// that is killed meanwhile. A key that is full is kept until it has room. RetryAfter can be too
// short, since what is still owed is charged later.
//
// It is not for a [ratelimit.SlidingWindow], where what was charged past the limit weighs less
// in the next window.
func WithOverdraft(n int) Option {
	return func(l *Limiter) error {
		if n < 1 || n > maxLease {
			return fmt.Errorf("%w: WithOverdraft(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, maxLease)
		}
		l.terms.overdraft = n
		return nil
	}
}

// New returns a limiter that holds leases of l, each for up to life, 1 ms to 1 h. All processes
// that share the limit must have one life.
//
// l must be one of the five types, and no [ratelimit.LeakyBucket], which takes back only its last
// events. Put all other limiters around a lease. life must not exceed the Period. In a life of a
// log or a bucket an event must flow, or else each call would ask the store. What flows into a
// bucket in a life must be less than its Burst. Otherwise the error is [ratelimit.ErrInvalidOption].
//
// A key whose own limit ([ratelimit.WithLimitFunc]) has no room for a lease asks the store each
// time, and [Stats] has how often. A limit of Rate 0 or [ratelimit.Unlimited] asks no store.
func New(l ratelimit.Limiter, life time.Duration, opts ...Option) (*Limiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	one, ok := five.Of(l).(*five.Limiter[ratelimit.Result])
	if !ok {
		return nil, fmt.Errorf("%w: a lease of a %T: lease one of the five algorithms, and put the %[2]T around that",
			ratelimit.ErrInvalidOption, l)
	}
	d := &Limiter{limiter: l, five: one, maxKeys: defaultMaxKeys, base: time.Now(), seeds: keyhash.New()}
	d.place = see.NewRemembers(d)
	d.lent = ratelimit.NewMark(d, ratelimit.SourceLease, lent{})
	d.terms = terms{life: life, most: maxLease, halve: one.Algorithm == fixedWindow}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(d); err != nil {
			return nil, err
		}
	}
	if err := d.checkTerms(); err != nil {
		return nil, err
	}
	if d.by, d.leasable = strict(one.Algorithm, one.Limit, life); !d.leasable && !one.Tiered && one.Limit.Rate > 0 {
		return nil, d.neverLeased()
	}
	for i := range d.shards {
		d.shards[i].keys = make(map[keyhash.Hash]*entry)
	}
	return d, nil
}

// checkTerms refuses what cannot be leased.
func (d *Limiter) checkTerms() error {
	life, l := d.terms.life, d.five.Limit
	period := time.Duration(l.Period) * time.Microsecond
	switch {
	case d.five.Algorithm != fixedWindow && d.five.Algorithm != slidingWindow && d.five.Algorithm != slidingLog && d.five.Algorithm != tokenBucket:
		return fmt.Errorf("%w: a %s cannot be leased: it takes back only its last events", ratelimit.ErrInvalidOption, d.five.Algorithm)
	case d.terms.overdraft > 0 && d.five.Algorithm == slidingWindow:
		return fmt.Errorf("%w: a sliding_window has no overdraft", ratelimit.ErrInvalidOption)
	case life < leastLife || life > mostLife:
		return fmt.Errorf("%w: a life of %v, want %v to %v", ratelimit.ErrInvalidOption, life, leastLife, mostLife)
	case l.Rate > 0 && life > period:
		return fmt.Errorf("%w: a life of %v, and a period of %v", ratelimit.ErrInvalidOption, life, period)
	case l.Rate > 0 && d.five.Algorithm == tokenBucket && ahead(l, lifeMicros(life)) >= l.Burst:
		return fmt.Errorf("%w: %d events flow in a life of %v, and the burst is %d", ratelimit.ErrInvalidOption, ahead(l, lifeMicros(life)), life, l.Burst)
	}
	return nil
}

// neverLeased is why no key can have a lease.
func (d *Limiter) neverLeased() error {
	life, l := d.terms.life, d.five.Limit
	period := time.Duration(l.Period) * time.Microsecond
	least := eventLife(l)
	if life >= least { // and so it is a log
		return fmt.Errorf("%w: a %s remembers events for a life longer, and a period of %v is the longest", ratelimit.ErrInvalidOption, d.five.Algorithm, maxPeriod*time.Microsecond)
	}
	advice := fmt.Sprintf("the least life is %v", least)
	if _, ok := strict(d.five.Algorithm, l, least); !ok || least > mostLife {
		advice = "no life will do"
	}
	rate := ratelimit.Limit{Rate: int(l.Rate), Period: period}
	return fmt.Errorf("%w: no event flows in a life of %v at %v: %s", ratelimit.ErrInvalidOption, life, rate, advice)
}

var errNoConstructor = fmt.Errorf("%w: a lease.Limiter is made by New", ratelimit.ErrInvalidLimit)

func (d *Limiter) check(ctx context.Context, key string, n int) error {
	if d.limiter == nil {
		return errNoConstructor
	}
	return ratelimit.CheckCall(ctx, key, n)
}

// now is the time since base.
func (d *Limiter) now() time.Duration { return time.Since(d.base) }

// Allow is AllowN of 1.
func (d *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return d.AllowN(ctx, key, 1)
}

// AllowN admits n events of what is held, or asks the store. Source is [ratelimit.SourceLease]
// where this process has decided.
func (d *Limiter) AllowN(ctx context.Context, key string, n int) (res ratelimit.Result, err error) {
	if err := d.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	by, leasable, err := d.limitOf(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	if !leasable {
		return d.askUnleased(ctx, key, n, by)
	}
	s, id := d.shardOf(key)
	s.mu.Lock()
	e := d.entry(s, id, key, by)
	if e == nil {
		s.mu.Unlock()
		return d.askUnleased(ctx, key, n, by)
	}
	now := d.now()
	e.used = now
	d.tidy(e, by, now)
	if held := e.spend(now, n); held != nil {
		d.admit(&res, held, n, now)
		if e.low() && now >= e.denied {
			d.launch(s, e)
		}
		s.mu.Unlock()
		return res, nil
	}
	return d.without(ctx, s, e, n, now)
}

// without decides on n events that are not held. It unlocks s.
func (d *Limiter) without(ctx context.Context, s *shard, e *entry, n int, now time.Duration) (res ratelimit.Result, err error) {
	by := *e.by
	switch {
	case n > 1: // by the store alone: exact, and what is held stays held
		s.mu.Unlock()
		return d.ask(ctx, five.Take, e.key, n, by)
	case now < e.denied:
		d.deny(&res, e, now)
		s.mu.Unlock()
		return res, nil
	case e.borrow(now, &d.terms):
		d.stats.overdrawn.Add(1)
		if e.settle(&d.terms) {
			d.launch(s, e)
		}
		res = ratelimit.Result{Allowed: true, Limit: int(by.Burst), Remaining: max(0, e.room-e.owed)}.WithMark(d.lent)
		s.mu.Unlock()
		return res, nil
	}
	c := newCaller()
	e.queue = append(e.queue, c)
	var f *flight
	if !e.flying {
		if f = d.depart(e); f == nil { // it is closed
			e.queue = nil
			s.mu.Unlock()
			return d.ask(ctx, five.Take, e.key, n, by)
		}
	}
	s.mu.Unlock()
	switch {
	case f == nil: // another one's is under way
	case f.want == 1: // for this caller alone
		d.fly(ctx, s, e, f)
	default:
		go d.fly(context.Background(), s, e, f) // no caller's: the store has a timeout
	}
	a, err := c.wait(ctx)
	if err == nil && a.again {
		return d.ask(ctx, five.Take, e.key, n, by)
	}
	return a.result, err
}

// shardOf is where key is, and its hash.
func (d *Limiter) shardOf(key string) (*shard, keyhash.Hash) {
	id := d.seeds.Hash(key)
	return &d.shards[id.Lo%shards], id
}

// limitOf is the strict limit of key.
func (d *Limiter) limitOf(ctx context.Context, key string) (by store.Limit, leasable bool, err error) {
	by, leasable = d.by, d.leasable
	if d.five.Tiered {
		if by, err = d.five.LimitOf(ctx, key); err != nil {
			return by, false, err
		}
		by, leasable = strict(d.five.Algorithm, by, d.terms.life)
	}
	return by, leasable && len(key) <= maxKey, nil
}

// shared is by, without a copy if that is the constructor's.
func (d *Limiter) shared(by store.Limit) *store.Limit {
	if by == d.by {
		return &d.by
	}
	own := by
	return &own
}

// ask asks the store, and counts that.
func (d *Limiter) ask(ctx context.Context, op five.Operation, key string, n int, by store.Limit) (ratelimit.Result, error) {
	d.stats.asked.Add(1)
	return d.plain(ctx, op, key, n, by)
}

// askUnleased asks the store about a key that cannot have a lease, and counts that.
func (d *Limiter) askUnleased(ctx context.Context, key string, n int, by store.Limit) (ratelimit.Result, error) {
	if d.closed.Load() { // then no key can
		return d.ask(ctx, five.Take, key, n, by)
	}
	d.stats.unleased.Add(1)
	return d.plain(ctx, five.Take, key, n, by)
}

// plain asks the store. A Result under a strict limit is given back under it.
func (d *Limiter) plain(ctx context.Context, op five.Operation, key string, n int, by store.Limit) (ratelimit.Result, error) {
	r, err := d.five.By(ctx, op, key, n, by)
	if err == nil && r.Charged() > 0 && d.strict() {
		r = r.WithMark(ratelimit.NewMark(d, ratelimit.SourceStore, by))
	}
	return r, err
}

// strict is whether the store is asked under another limit than that of the key.
func (d *Limiter) strict() bool {
	return d.five.Algorithm == tokenBucket || d.five.Algorithm == slidingLog
}

// lent is the note on what is admitted by overdraft.
type lent struct{}

// denied is on what this process has denied.
var denied = ratelimit.NewMark(new(Limiter), ratelimit.SourceLease, nil)

// entry is that of key, a new one if need be. It is nil if there are too many keys, or the limiter
// is closed.
func (d *Limiter) entry(s *shard, id keyhash.Hash, key string, by store.Limit) *entry {
	if d.closed.Load() {
		return nil
	}
	if e := s.keys[id]; e != nil {
		return e
	}
	if d.keys.Add(1) > d.maxKeys {
		d.keys.Add(-1)
		return nil
	}
	e := &entry{key: strings.Clone(key), by: d.shared(by)}
	e.next = 1
	s.keys[id] = e
	d.arm()
	return e
}

// tidy gives back what has lapsed, and all that is held under another limit than by.
func (d *Limiter) tidy(e *entry, by store.Limit, now time.Duration) {
	if *e.by != by {
		d.giveUp(e)
		e.by, e.denied, e.denial = d.shared(by), 0, nil // full stays: limits that take turns would lend each time
		for _, c := range e.queue {                     // who waits for a decision by the other limit
			c.tell(answer{again: true})
		}
		e.queue = nil
	}
	for g, unspent := e.lapse(now); unspent > 0; g, unspent = e.lapse(now) {
		d.giveBack(e.key, g, unspent)
	}
}

// admit fills res with n events of a grant.
func (d *Limiter) admit(res *ratelimit.Result, held *slot[*grant], n int, now time.Duration) {
	g := held.grant
	*res = d.five.PartOf(g.result, n)
	res.Remaining = min(res.Limit, g.result.Remaining+held.left)
	res.ResetAfter = wholeMicros(max(0, g.result.ResetAfter-(now-held.from)))
	d.stats.local.Add(1)
}

// deny fills res with the denial that is known.
func (d *Limiter) deny(res *ratelimit.Result, e *entry, now time.Duration) {
	*res = e.denial.result
	res.RetryAfter = wholeMicros(max(e.denial.told+res.RetryAfter, e.denied) - now)
	res.ResetAfter = max(res.RetryAfter, wholeMicros(e.denial.told+res.ResetAfter-now))
	*res = res.WithMark(denied)
	d.stats.local.Add(1)
}

// wholeMicros is d rounded up.
func wholeMicros(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
