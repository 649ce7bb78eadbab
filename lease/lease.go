// Package lease takes events of a store on Redis ahead, some at a time, and admits them in memory.
//
//	leases, err := lease.New(redis, 50*time.Millisecond)
//	...
//	limiter, err := ratelimit.NewTokenBucket(leases, ratelimit.PerSecond(10_000))
//	...
//	defer leases.Close(ctx)
//
// # Bound
//
// It is that of the limiter, exactly, in any number of processes, if all of them lease with one
// life. What that costs depends on the algorithm. r is Rate/Period:
//
//   - FixedWindow and SlidingWindow: nothing. A lease ends with its
//     window.
//   - TokenBucket: life·r of the Burst. The store is asked for a bucket that is so
//     much smaller. The rate stays. More events than that at once are never admitted.
//   - SlidingLog: life/(Period+life) of the rate. The store remembers events for a
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
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before another [store.Store] and holds leases: events that the other one has
// charged already, and that this process may admit until the lease ends. A key that is asked
// for often then costs the store a call for many decisions, each of which takes as long as one
// in memory.
//
// The life of a lease says how old a decision may be. It starts before the store is asked, and
// each use looks at the clock. What has not been used is given back. The package comment has the bound, and the exceptions.
//
// Others may see events taken that nobody has used yet, for two lives at most. Remaining,
// RetryAfter, ResetAfter and denials can be a life old. So can what follows a Reset or a lower
// limit by others.
//
// Use it for limits that a whole fleet asks for often. It saves calls if a process asks for a
// key at least four times per life. Below that it costs some 2 % more calls. What cannot be leased goes to the store as it is: keys of over 256 bytes, and a log or a bucket of which less than one event flows in a life.
//
// It holds up to 65,536 keys ([WithMaxKeys]) of some 450 bytes. While anything is held a timer
// runs, and calls for several callers run in a goroutine. It is safe for concurrent use. Make
// it by [New], and Close it. [More].
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#leases
type Store struct {
	store.Store // Together

	terms   terms
	maxKeys int64

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
	mu     sync.Mutex // protects keys and what is in them
	keys   map[keyhash.Hash]*entry
	limits *limits  // of the last new entry: most keys have the same
	_      [40]byte // so that no two locks share a cache line
}

// entry is a key, what is held of it, and who waits for it.
type entry struct {
	holding[*grant]
	ns     *store.Namespace
	key    string
	limits *limits
	denial *denial   // nil if there was none
	flying bool      // a call of the store is under way
	queue  []*caller // who waits for the next one
	used   time.Duration
}

// grant is what the store has admitted at once: at at, in Unix µs, with so much room left. The key
// was then to be as never seen in reset µs.
type grant struct {
	at, reset int64
	room      int
	limits    *limits
}

// admit is the admission of n events of g, of which so many are left.
func (g *grant) admit(o store.Outcome, left int, n int64) store.Reply {
	return store.Reply{Outcome: o, X: g.at, Y: min(g.limits.by.Burst, int64(g.room+left)) + n, Z: g.reset}
}

// lentAt is the time of charge of what is admitted by overdraft, which is none.
const lentAt = math.MinInt64

// denial is one of the store, a plain one.
type denial struct {
	reply store.Reply
	told  time.Duration
}

// Option configures a [Store].
type Option func(*Store) error

// WithMaxLease bounds what is taken ahead of one key to n events, 1 to 1,000,000,000. By default
// only demand does. Callers who wait are decided on at once, however many they are. With 1
// nothing is taken ahead: each admission asks the store, and only denials are made in memory.
func WithMaxLease(n int) Option {
	return func(l *Store) error {
		if n < 1 || n > maxLease {
			return fmt.Errorf("%w: WithMaxLease(%d), want 1 to %d", store.ErrInvalidOption, n, maxLease)
		}
		l.terms.most = n
		return nil
	}
}

// WithMaxKeys bounds the keys that are held to n, 1 to 16,777,216. The default is 65,536. Others
// ask the store each time.
func WithMaxKeys(n int) Option {
	return func(l *Store) error {
		if n < 1 || n > maxMaxKeys {
			return fmt.Errorf("%w: WithMaxKeys(%d), want 1 to %d", store.ErrInvalidOption, n, maxMaxKeys)
		}
		l.maxKeys = int64(n)
		return nil
	}
}

// WithOverdraft lets up to n events of each key pass in each process before the store knows
// them, 1 to 1,000,000,000. Callers for one event then wait for the store only while so many are
// owed, or after it has denied.
//
// Bound: that of the limiter, and n events more for each process, and for each
// that is killed meanwhile. A key that is full is kept until it has room. RetryAfter can be too
// short, since what is still owed is charged later.
//
// It is not for a sliding window, where what was charged past the limit weighs less
// in the next window.
func WithOverdraft(n int) Option {
	return func(l *Store) error {
		if n < 1 || n > maxLease {
			return fmt.Errorf("%w: WithOverdraft(%d), want 1 to %d", store.ErrInvalidOption, n, maxLease)
		}
		l.terms.overdraft = n
		return nil
	}
}

// New returns a store that holds leases of what s has charged, each for up to life, 1 ms to 1 h. All
// processes that share a limit must have one life. Its error is [store.ErrInvalidOption].
//
// So is that of the constructor of a limiter on it which cannot be leased. A leaky bucket takes back
// only its last events. life must not exceed the Period. In a life of a log or a bucket an event
// must flow, or else each call would ask the store. What flows into a bucket in a life must be less
// than its Burst.
//
// A key whose own limit has no room for a lease asks the store each time, and [Stats] has how often.
func New(s store.Store, life time.Duration, opts ...Option) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	if life < leastLife || life > mostLife {
		return nil, fmt.Errorf("%w: a life of %v, want %v to %v", store.ErrInvalidOption, life, leastLife, mostLife)
	}
	d := &Store{Store: s, maxKeys: defaultMaxKeys, base: time.Now(), seeds: keyhash.New()}
	d.terms = terms{life: life, most: maxLease}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(d); err != nil {
			return nil, err
		}
	}
	for i := range d.shards {
		d.shards[i].keys = make(map[keyhash.Hash]*entry)
	}
	return d, nil
}

// Prepare refuses what cannot be leased.
func (d *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if d.Store == nil {
		return unmade.Err
	}
	life := d.terms.life
	ls := newLimits(rule, l, life)
	switch {
	case rule.Name != fixedWindow && rule.Name != slidingWindow && rule.Name != slidingLog && rule.Name != tokenBucket:
		return fmt.Errorf("%w: a %s cannot be leased: it takes back only its last events", store.ErrInvalidOption, rule.Name)
	case d.terms.overdraft > 0 && rule.Name == slidingWindow:
		return fmt.Errorf("%w: a sliding_window has no overdraft", store.ErrInvalidOption)
	case l.Rate > 0 && life > micros(l.Period):
		return fmt.Errorf("%w: a life of %v, and a period of %v", store.ErrInvalidOption, life, micros(l.Period))
	case l.Rate > 0 && rule.Name == tokenBucket && ahead(l, lifeMicros(life)) >= l.Burst:
		return fmt.Errorf("%w: %d events flow in a life of %v, and the burst is %d", store.ErrInvalidOption, ahead(l, lifeMicros(life)), life, l.Burst)
	case l.Rate > 0 && fixed && !ls.leasable:
		return d.neverLeased(rule, l)
	}
	return d.Store.Prepare(rule, ls.by, fixed)
}

// neverLeased is why no key can have a lease.
func (d *Store) neverLeased(rule *store.Rule, l store.Limit) error {
	life, least := d.terms.life, eventLife(l)
	if life >= least { // and so it is a log
		return fmt.Errorf("%w: a %s remembers events for a life longer, and a period of %v is the longest", store.ErrInvalidOption, rule.Name, maxPeriod*time.Microsecond)
	}
	advice := fmt.Sprintf("the least life is %v", least)
	if _, ok := strict(rule.Name, l, least); !ok || least > mostLife {
		advice = "no life will do"
	}
	rate := limittext.Limit{Rate: int(l.Rate), Period: micros(l.Period)}
	return fmt.Errorf("%w: no event flows in a life of %v at %v: %s", store.ErrInvalidOption, life, rate, advice)
}

// termsOf are the terms of a namespace.
func (d *Store) termsOf(ns *store.Namespace) *terms {
	t := d.terms
	t.halve = ns.Rule.Name == fixedWindow
	return &t
}

// now is the time since base.
func (d *Store) now() time.Duration { return time.Since(d.base) }

// Unwrap returns the store that is asked.
func (d *Store) Unwrap() store.Store { return d.Store }

// Take admits n events of what is held, or asks the store.
func (d *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if l.Before() > 0 {
		return d.takeWithin(ctx, ns, key, l, n)
	}
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	e := d.entry(s, id, ns, key, l)
	if e == nil {
		s.mu.Unlock()
		return d.askUnleased(ctx, ns, key, l, n)
	}
	now := d.now()
	e.used = now
	d.tidy(e, now)
	if held := e.spend(now, int(n)); held != nil {
		r := d.admit(held, n)
		if e.low() && now >= e.denied {
			d.launch(s, e)
		}
		s.mu.Unlock()
		return r, nil
	}
	return d.without(ctx, s, e, n, now)
}

// without decides on n events that are not held. It unlocks s.
func (d *Store) without(ctx context.Context, s *shard, e *entry, n int64, now time.Duration) (store.Reply, error) {
	ls := e.limits
	switch {
	case n > 1: // by the store alone: exact, and what is held stays held
		s.mu.Unlock()
		return d.ask(ctx, e.ns, e.key, ls, n)
	case now < e.denied:
		r := d.deny(e, now)
		s.mu.Unlock()
		return r, nil
	case e.borrow(now, &d.terms):
		d.stats.overdrawn.Add(1)
		if e.settle(&d.terms) {
			d.launch(s, e)
		}
		r := store.Reply{Outcome: store.AdmittedByLease, X: lentAt, Y: int64(max(0, e.room-e.owed)) + 1, Z: 1}
		s.mu.Unlock()
		return r, nil
	}
	c := pending.New[answer]()
	e.queue = append(e.queue, c)
	var f *flight
	if !e.flying {
		if f = d.depart(e); f == nil { // it is closed
			e.queue = nil
			s.mu.Unlock()
			return d.ask(ctx, e.ns, e.key, ls, n)
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
	a, err := c.Wait(ctx)
	if err == nil && a.again {
		return d.ask(ctx, e.ns, e.key, ls, n)
	}
	return a.reply, err
}

// shardOf is where key is, and its hash.
func (d *Store) shardOf(ns *store.Namespace, key string) (*shard, keyhash.Hash) {
	id := d.seeds.In(ns, key)
	return &d.shards[id.Lo%shards], id
}

// ask asks the store, and counts that.
func (d *Store) ask(ctx context.Context, ns *store.Namespace, key string, ls *limits, n int64) (store.Reply, error) {
	d.stats.asked.Add(1)
	r, err := d.Store.Take(ctx, ns, key, ls.by, n)
	return ls.told(r, n, n), err
}

// askUnleased asks the store about a key that cannot have a lease, and counts that.
func (d *Store) askUnleased(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	ls := newLimits(ns.Rule, l, d.terms.life)
	if d.closed.Load() { // then no key can
		return d.ask(ctx, ns, key, ls, n)
	}
	d.stats.unleased.Add(1)
	r, err := d.Store.Take(ctx, ns, key, ls.by, n)
	return ls.told(r, n, n), err
}

// entry is that of key, a new one if need be, under the limit l. It is nil if the key cannot be
// leased, there are too many, or the lease is closed.
func (d *Store) entry(s *shard, id keyhash.Hash, ns *store.Namespace, key string, l store.Limit) *entry {
	e := s.keys[id]
	switch {
	case d.closed.Load() || len(key) > maxKey:
		return nil
	case e != nil && e.limits.own == l:
		return e
	}
	ls := s.limits
	if ls == nil || ls.own != l || ls.rule != ns.Rule {
		ls = newLimits(ns.Rule, l, d.terms.life)
	}
	if !ls.leasable {
		return nil
	}
	if e != nil {
		d.change(e, ls)
		return e
	}
	if d.keys.Add(1) > d.maxKeys {
		d.keys.Add(-1)
		return nil
	}
	s.limits = ls
	e = &entry{ns: ns, key: strings.Clone(key), limits: ls}
	e.next = 1
	s.keys[id] = e
	d.arm()
	return e
}

// change gives back all that is held under another limit than ls.
func (d *Store) change(e *entry, ls *limits) {
	d.giveUp(e)
	e.limits, e.denied, e.denial = ls, 0, nil // full stays: limits that take turns would lend each time
	for _, c := range e.queue {               // who waits for a decision by the other limit
		c.Answer(answer{again: true}, nil)
	}
	e.queue = nil
}

// tidy gives back what has lapsed.
func (d *Store) tidy(e *entry, now time.Duration) {
	for g, unspent := e.lapse(now); unspent > 0; g, unspent = e.lapse(now) {
		d.giveBack(e, g, unspent)
	}
}

// admit is the admission of n events that were spent of a grant.
func (d *Store) admit(held *slot[*grant], n int64) store.Reply {
	d.stats.local.Add(1)
	return held.grant.admit(store.AdmittedByLease, held.left, n)
}

// deny is the denial that is known.
func (d *Store) deny(e *entry, now time.Duration) store.Reply {
	d.stats.local.Add(1)
	r := e.denial.reply
	r.Outcome = store.DeniedByLease
	r.X = inMicros(max(e.denial.told+micros(r.X), e.denied) - now)
	r.Z = max(r.X, inMicros(e.denial.told+micros(r.Z)-now))
	return r
}
