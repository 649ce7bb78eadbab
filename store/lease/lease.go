// Package lease takes events of a store on Redis ahead, some at a time, and admits them in memory.
//
//	leases, err := lease.New(redis, 50*time.Millisecond)
//	...
//	limiter, err := ratelimit.NewTokenBucket(leases, ratelimit.PerSecond(10_000))
//	...
//	defer leases.Close(ctx)
//
// Close it before the process ends: otherwise nobody can use what the process holds, until that
// would have left the limit anyway. Of 1,000 events per hour, a process that has admitted 300 in
// one burst holds some 200 more.
//
// # Bound
//
// It is that of the limiter, exactly, in any number of processes, if all of them lease with one
// life. What that costs depends on the algorithm. r is Rate/Period:
//
//   - FixedWindow and SlidingWindow: nothing. A lease ends with its
//     window.
//   - TokenBucket: life·r of the Burst. The store is asked for a bucket that is so
//     much smaller. The rate stays. More events than that at once are never admitted. A lease
//     that ends unspent gives back its events less what has flowed in since it was taken.
//   - SlidingLog: life/(Period+life) of the rate. The store remembers events for a
//     life longer.
//
// # Exceptions
//
// What a process holds when it is killed, or ends without Close, is lost until it would have left the limit anyway. So
// is a lease whose grant was lost on the way. [WithMaxLease] bounds both. If the store's clock
// jumps ahead, or the store loses writes, each held lease can be used once. A process that is
// stopped uses no lease that has ended meanwhile, unless its monotonic clock was stopped too.
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
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before another [store.Store] and holds leases: events that the other one has
// charged already, and that this process may admit until the lease ends. What has not been used
// is given back. The package comment has the bound, and the exceptions.
//
// Others may see events taken that nobody has used yet, for two lives at most. Remaining,
// RetryAfter, ResetAfter and denials can be a life old. So can what follows a Reset or a lower
// limit by others. A Refund carries the time of its lease, so ResetAfter can be a life too long.
//
// Limits of one All are decided here if all is held. If one of them lacks events, a lease of it is
// fetched as for that limit alone. If several do, one call of the store decides on these, all or
// none, and fetches leases. Waiters take what is held, and wait for no turn ahead of it.
//
// Use it for limits that a whole fleet asks for often. It saves calls from four decisions on a
// key per life on. With fewer it costs some 2 % more. What cannot be leased goes to the store as
// it is: keys of over 256 bytes, and a log or a bucket of which less than one event flows in a
// life. Use coalesce where a decision must not be old.
//
// It holds up to 65,536 keys ([WithMaxKeys]) of some 450 bytes. While anything is held a timer
// runs, and calls for several callers run in a goroutine. It is safe for concurrent use. Make
// it by [New], and Close it. [More].
//
// [More]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#leases
type Store struct {
	traits
	store.Store // Together

	terms    terms
	patience *pending.Patience
	maxKeys  int64

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
	done    bool // Close has begun its last jobs
}

type traits = see.Traits

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
	ns        *store.Namespace
	key       string
	limits    *limits
	last      *remembered // what the store has said of one event that it did not charge; nil if it has not
	used      time.Duration
	remaining int   // what the store had left when it was last heard
	debtAt    int64 // when an Overdraw was that the lease may be taken for, Unix µs

	fetching bool   // a call of the store is under way that gives a lease
	queued   bool   // among the jobs is one for the next lease
	queues   *queue // who waits for this key, and for others after it
}

// grant is what the store has admitted at once: at at, in Unix µs, with so much room left. The key
// was then to be as never seen in reset µs.
type grant struct {
	at, reset int64
	room      int
	limits    *limits
}

// receipt names n events of g that are given back unspent. Those that others had charged before may
// have been given back since. Then it is these of a bucket that have drained, from the first moment
// on: no more is given back than is left of them if they were alone.
func (g *grant) receipt(n int) store.Receipt {
	reset := g.reset
	if by := g.limits.by; g.limits.rule.Name == tokenBucket {
		reset = min(reset, exact.MulDivUp(int64(n), by.Period, 0, by.Rate))
	}
	return store.NewReceipt(g.limits.by, g.at, reset, int64(n))
}

// admit is the admission of n events of g, of which so many are left.
func (g *grant) admit(o store.Outcome, left int, n int64) store.Reply {
	return store.Reply{Outcome: o, X: g.at, Y: min(g.limits.by.Burst, int64(g.room+left)) + n, Z: g.reset}
}

// lentAt is the time of charge of what is admitted by overdraft, which is none.
const lentAt = math.MinInt64

// remembered is a plain reply of the store.
type remembered struct {
	reply store.Reply
	told  time.Duration
}

// Option configures a [Store].
type Option func(*Store) error

// WithMaxLease bounds what is taken ahead of one key to n events, 1 to 1,000,000,000. By default
// only demand does. Callers who wait are decided on at once, however many they are. With 1
// nothing is taken ahead: each admission asks the store, and only denials are made in memory.
func WithMaxLease(n int) Option {
	return within("WithMaxLease", n, maxLease, func(d *Store) { d.terms.most = n })
}

// WithMaxKeys bounds the keys that are held to n, 1 to 16,777,216. The default is 65,536. Others
// ask the store each time.
func WithMaxKeys(n int) Option {
	return within("WithMaxKeys", n, maxMaxKeys, func(d *Store) { d.maxKeys = int64(n) })
}

// WithOverdraft lets up to n events of each key pass in each process before the store knows
// them, 1 to 1,000,000,000. Callers for one event, of one limit or of each of several, then wait for
// the store only while so many are owed, or after it has denied.
//
// Bound: that of the limiter, and n events more for each process, and for each
// that is killed meanwhile. A key that is full is kept until it has room. RetryAfter can be too
// short, since what is still owed is charged later.
//
// It is not for a sliding window, where what was charged past the limit weighs less
// in the next window.
func WithOverdraft(n int) Option {
	return within("WithOverdraft", n, maxLease, func(d *Store) { d.terms.overdraft = n })
}

// within is the option name(n), which sets n if it is 1 to most.
func within(name string, n, most int, set func(d *Store)) Option {
	return func(d *Store) error {
		if n < 1 || n > most {
			return fmt.Errorf("%w: %s(%d), want 1 to %d", store.ErrInvalidOption, name, n, most)
		}
		set(d)
		return nil
	}
}

// New returns a store that holds leases of what s has charged, each for up to life, 1 ms to 1 h. All
// processes that share a limit must have one life. Its error is [store.ErrInvalidOption].
//
// Close the store before the process ends, or what it holds is lost.
//
// ErrInvalidOption is also the error of the constructor of a limiter on it which cannot be leased. A leaky bucket takes back
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
	d := &Store{traits: traits{Leases: true}, Store: s, maxKeys: defaultMaxKeys, patience: pending.PatienceWith(s), base: time.Now(), seeds: keyhash.New()}
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
