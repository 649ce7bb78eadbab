// Package lease charges events at a store on Redis in advance, several at a time, and admits them
// from memory.
//
//	leases, err := lease.New(redis, 50*time.Millisecond)
//	...
//	limiter, err := ratelimit.NewTokenBucket(leases, ratelimit.PerSecond(10_000))
//	...
//	defer leases.Close(ctx)
//
// Close the store before the process ends. Otherwise, nobody can use the events that the process
// holds until they would have left the limit anyway. For example, with 1,000 events per hour, a
// process that has admitted 300 in one burst holds about 200 more.
//
// # Bound
//
// The bound is exactly that of the limiter, for any number of processes, if all of them use the
// same TTL for their leases. For a bucket or a log, that includes limiters of the same name: one
// that is not on a lease lets a bucket admit TTL·r more, and a log what is held. The cost depends
// on the algorithm. r is Rate/Period:
//
//   - FixedWindow and SlidingWindow: none. A lease ends with its window.
//   - TokenBucket: TTL·r of the Burst, because the store is asked for a bucket that is that much
//     smaller. The rate is unchanged. More events than the smaller burst are never admitted at one
//     instant. When a lease ends unspent, its events are refunded, minus those that have flowed in
//     since it was taken.
//   - SlidingLog: TTL/(Period+TTL) of the rate, because the store remembers events for one TTL
//     longer.
//
// # Exceptions
//
// If a process is killed, or ends without Close, the events that it holds are lost until they would
// have left the limit anyway. The same holds for a lease whose reply was lost, and for a lease that
// ends unspent while the store cannot be reached, because its refund is tried once. [WithMaxLease]
// bounds all three. If the store's clock jumps ahead, or the store loses writes, each lease that is held
// can still be used once. A process that is stopped does not use leases that end in the meantime,
// unless its monotonic clock was stopped too.
package lease

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store wraps another [store.Store] and holds leases: events that the other store has already
// charged, and that this process may admit until the lease ends. Unused events are refunded. See
// the package documentation for the bound.
//
// Other callers may see events as taken that nobody has used yet, for at most two TTLs. Remaining,
// RetryAfter, ResetAfter and denials can be one TTL old, and so can the effect of a Reset or of a
// lower limit in another process. After a Refund, ResetAfter can be one TTL too long.
//
// An All is decided in memory if all events are held. If one limit lacks events, a lease of it is
// fetched. If several do, one call to the store decides on these, all or none, and fetches leases.
// Waiters take events that are held, but do not queue ahead of time.
//
// Use leases for limits that a whole fleet asks for often. They save calls if each process makes at
// least four decisions on a key per TTL; with fewer they cost about 2% more. Keys of over 256
// bytes, and logs and buckets with less than one event per TTL, cannot be leased and always ask
// the store. If decisions must not be old, use package coalesce.
//
// A Store holds up to 65,536 keys ([WithMaxKeys]) of about 450 bytes. While it holds events, a
// timer runs; calls for several callers run in a goroutine. It is safe for concurrent use. Use
// [New] to create one, and Close it. [More].
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#leases
type Store struct {
	wrapper
	inner // Together

	terms    terms
	patience *pending.Patience
	maxKeys  int64

	base   time.Time // the origin of all times
	seeds  keyhash.Seeds
	shards [shards]shard
	keys   atomic.Int64 // in the shards
	stats  counts

	armed   atomic.Bool // whether a timer will sweep
	running sync.WaitGroup

	closed atomic.Bool   // set with mu held
	ended  chan struct{} // closed at the end of Close

	mu      sync.Mutex  // protects what follows; locked after a shard
	timer   *time.Timer // for the next sweep
	jobs    []job       // to be done by workers
	workers int
	done    bool // whether Close has begun its last jobs
}

type (
	wrapper = see.Wrapper
	inner   = store.Store
)

const (
	shards         = 64
	defaultMaxKeys = 1 << 16
	maxMaxKeys     = 1 << 24
	maxKey         = 256           // bytes of a key that can be leased
	maxLease       = 1_000_000_000 // events: twice as many fit into 32 bits
	leastLife      = time.Millisecond
	mostLife       = time.Hour
	leastSweep     = 10 * time.Millisecond
	perKey         = 2 * time.Microsecond // between two sweeps: about 20 times what they take
)

// shard is a part of the keys.
type shard struct {
	mu     sync.Mutex // protects keys and what is in them
	keys   map[keyhash.Hash]*entry
	limits *limits  // the limits of the last new entry, because most keys have the same
	_      [40]byte // so that no two locks share a cache line
}

// entry is a key, with what is held of it and the calls that wait for it.
type entry struct {
	holding[*grant]
	ns        *store.Namespace
	key       string
	limits    *limits
	last      *remembered // the store's last answer about one event that it did not charge; nil if there is none
	used      time.Duration
	remaining int   // what the store had left at its last answer
	debtAt    int64 // when an Overdraw happened, whose Result could be taken for one of a lease that is held, Unix µs
	owedSince int64 // when the first of the events that are owed was lent: see lentAt
	lastPaid  payment

	fetching bool   // whether a call to the store is in progress that will return a lease
	queued   bool   // whether a job for the next lease is queued
	queues   *queue // the calls that wait for this key, and perhaps for others
	answered pending.Answered
}

// grant is the charge of one call to the store, which a refund names: at the time at, in Unix µs, with room
// left. The key would then have been fully reset within reset µs.
type grant struct {
	at, reset int64
	room      int
	limits    *limits
}

// receipt returns a receipt for n events of g that are refunded unspent. Events that others had
// charged before may have been refunded since. For a bucket, it then assumes that the events of g
// drained first, so that no more is refunded than would be left of them alone.
func (g *grant) receipt(n int) store.Receipt {
	reset := g.reset
	if by := g.limits.by; g.limits.rule.Name == tokenBucket {
		reset = min(reset, exact.MulDivUp(int64(n), by.Period, 0, by.Rate))
	}
	return store.NewReceipt(g.limits.by, g.at, reset, int64(n))
}

// admit returns the admission of n events of g, of which left are left.
func (g *grant) admit(o store.Outcome, left int, n int64) store.Reply {
	return store.Reply{Outcome: o, X: g.at, Y: min(g.limits.by.Burst, int64(g.room+left)) + n, Z: g.reset}
}

// lentAt is the time of charge of events that were lent, which means admitted before they are charged, plus the time of their
// admission, in µs since the Store's base.
const lentAt = math.MinInt64

// isLent reports whether at is the time of an event that was lent.
func isLent(at int64) bool { return at < lentAt/2 }

// payment is what a grant has paid of what was owed: n events that were lent since that time.
type payment struct {
	grant *grant
	since int64
	n     int
}

// remembered is a plain reply of the store.
type remembered struct {
	reply store.Reply
	at    time.Duration
}

// Option configures a [Store].
type Option func(*Store) error

// WithMaxLease limits the events of one key that are charged in advance to n, 1 to 1,000,000,000.
// By default, only demand limits them. Waiting callers are decided on together, however many there
// are. With 1, nothing is charged in advance: each admission asks the store, and only denials are
// made in memory.
func WithMaxLease(n int) Option {
	return options.Checked(options.Within("WithMaxLease", n, 1, maxLease), func(d *Store) { d.terms.most = n })
}

// WithMaxKeys limits the number of keys with leases to n, 1 to 16,777,216. The default is 65,536.
// Calls for other keys always ask the store.
func WithMaxKeys(n int) Option {
	return options.Checked(options.Within("WithMaxKeys", n, 1, maxMaxKeys), func(d *Store) { d.maxKeys = int64(n) })
}

// WithOverdraft lets each process admit up to n events of each key, 1 to 1,000,000,000, before the
// store has charged them. Calls for one event, of one limit or of each of several, then wait for
// the store only while n events are owed, or after the store has denied.
//
// Bound: that of the limiter, plus n events for each process, including each process that is killed
// in the meantime. A key that is full is kept until it has room. RetryAfter can be too short,
// because what is owed is charged later.
//
// It cannot be used with a sliding window, where events charged beyond the limit count less in the
// next window.
func WithOverdraft(n int) Option {
	return options.Checked(options.Within("WithOverdraft", n, 1, maxLease), func(d *Store) { d.terms.overdraft = n })
}

// New returns a store that holds leases of events that s has charged, each for up to life, 1 ms to
// 1 h, which is the TTL of leases. All processes that share a limit must use the same TTL. It returns [store.ErrInvalidOption]
// if an argument is invalid.
//
// Close the store before the process ends, because otherwise what it holds is lost.
//
// The constructor of a limiter on the store returns ErrInvalidOption if the limit cannot be leased.
// A leaky bucket cannot, because it refunds only its last events, and neither can an algorithm of your own
// (ratelimit.NewCustom). The TTL must not exceed the Period.
// For a log or a bucket, at least one event must flow in per TTL, because otherwise each call
// would ask the store. The events that flow into a bucket per TTL must be fewer than its Burst.
//
// A key whose own limit has no room for a lease asks the store for each call. [Stats] counts these
// calls.
func New(s store.Store, life time.Duration, opts ...Option) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	if life < leastLife || life > mostLife {
		return nil, fmt.Errorf("%w: a lease TTL of %v, want %v to %v", store.ErrInvalidOption, life, leastLife, mostLife)
	}
	d := &Store{wrapper: see.Has(see.Traits{Leases: true}), inner: s, maxKeys: defaultMaxKeys, patience: pending.PatienceWith(s), base: time.Now(), seeds: keyhash.New(), ended: make(chan struct{})}
	d.terms = terms{life: life, most: maxLease}
	if err := options.Apply(d, opts); err != nil {
		return nil, err
	}
	for i := range d.shards {
		d.shards[i].keys = make(map[keyhash.Hash]*entry)
	}
	return d, nil
}

// Prepare rejects what cannot be leased.
func (d *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if d.inner == nil {
		return unmade.Err
	}
	life := d.terms.life
	ls := newLimits(rule, l, life)
	switch {
	case rule.LastOnly:
		return fmt.Errorf("%w: algorithm %s cannot be leased, because it refunds only its last events", store.ErrInvalidOption, rule.Name)
	case rule.Name != fixedWindow && rule.Name != slidingWindow && rule.Name != slidingLog && rule.Name != tokenBucket:
		return fmt.Errorf("%w: algorithm %s cannot be leased, want a fixed_window, a sliding_window, a sliding_log or a token_bucket", store.ErrInvalidOption, rule.Name)
	case d.terms.overdraft > 0 && rule.Name == slidingWindow:
		return fmt.Errorf("%w: WithOverdraft cannot be used with a sliding_window", store.ErrInvalidOption)
	case l.Rate > 0 && life > micros(l.Period):
		return fmt.Errorf("%w: a lease TTL of %v exceeds the period: use at most %v", store.ErrInvalidOption, life, micros(l.Period))
	case l.Rate > 0 && rule.Name == tokenBucket && ahead(l, lifeMicros(life)) >= l.Burst:
		return fmt.Errorf("%w: %d events are refilled per lease TTL of %v, want fewer than the burst of %d", store.ErrInvalidOption, ahead(l, lifeMicros(life)), life, l.Burst)
	case l.Rate > 0 && fixed && !ls.leasable:
		return d.neverLeased(rule, l)
	}
	return d.inner.Prepare(rule, ls.by, fixed)
}

// neverLeased returns the reason why no key can have a lease.
func (d *Store) neverLeased(rule *store.Rule, l store.Limit) error {
	life, least := d.terms.life, refill(1, l)
	if life >= least { // only a log can fail then
		return fmt.Errorf("%w: a leased %s remembers events for its period plus one lease TTL, which must not exceed %v", store.ErrInvalidOption, rule.Name, maxPeriod*time.Microsecond)
	}
	advice := fmt.Sprintf("use at least %v", least)
	if _, ok := strict(rule.Name, l, least); !ok || least > mostLife {
		advice = "this limit cannot be leased"
	}
	rate := limittext.Limit{Rate: int(l.Rate), Period: micros(l.Period)}
	return fmt.Errorf("%w: a lease TTL of %v is too short for an event at %v: %s", store.ErrInvalidOption, life, rate, advice)
}

// termsOf returns the terms for a namespace.
func (d *Store) termsOf(ns *store.Namespace) *terms {
	t := d.terms
	t.halve = ns.Rule.Name == fixedWindow
	return &t
}

// now returns the time since base.
func (d *Store) now() time.Duration { return time.Since(d.base) }

// Unwrap returns the wrapped store.
func (d *Store) Unwrap() store.Store { return d.inner }
