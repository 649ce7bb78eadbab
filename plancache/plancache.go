// Package plancache caches what a database knows about keys: their limits, their tiers, or the keys
// to count by.
//
//	plans, err := plancache.New(planOf, time.Minute) // planOf asks the database
//	...
//	limiter, err := ratelimit.NewTokenBucket(s, ratelimit.PerMinute(10),
//		ratelimit.WithTiers(plans.Get, tiers))
package plancache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Cache caches the answers of a function of a key, for [ratelimit.WithLimitFunc],
// [ratelimit.WithTiers] and [ratelimit.WithKeyFunc]. V is the type that the function returns: a
// Limit, or a string. For a plan of several limits, V is a struct of them, and a function for each
// limit asks the Cache.
//
// Bound: while the function answers within 50 ms, an answer is at most ttl old. If the function
// fails or hangs, the Cache serves the last answer for another hour ([WithStale]), and calls the
// function at most once per second. A limiter therefore continues with the plans that it knows
// while their database is down. For a key without an answer, calls wait for the function; its error
// is returned to all calls for a second.
//
// All concurrent calls for the answer of a key share one query, which the first call after the ttl
// starts. Callers for whom there is an older answer wait 50 ms for the new one. If a caller's
// context ends, it returns, and the query continues for the others, in a goroutine of its own, for
// at most 5 s ([WithTimeout]).
//
// A Cache holds 65,536 keys ([WithMaxKeys]) of about 200 bytes each, whatever their length, and
// forgets the keys that were not used recently. A cached answer takes about 100 ns and allocates
// nothing. A Cache is safe for concurrent use and need not be closed. Use [New] to create one.
//
// [ratelimit.WithLimitFunc]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithLimitFunc
// [ratelimit.WithTiers]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithTiers
// [ratelimit.WithKeyFunc]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithKeyFunc
type Cache[V any] struct {
	ask func(ctx context.Context, key string) (V, error)
	ttl time.Duration
	settings
	seeds keyhash.Seeds // keys are kept as hashes, because clients may choose long ones

	mu     sync.Mutex
	young  map[keyhash.Hash]*entry[V] // at most maxKeys/2, like old: see entryOf
	old    map[keyhash.Hash]*entry[V]
	asking map[keyhash.Hash]*entry[V] // those with a query in progress, which other keys may displace from the generations
	stats  Stats
}

// entry is what is known about a key. An entry with neither an answer nor a query in progress is
// never kept.
type entry[V any] struct {
	answer V
	known  bool  // there is an answer
	err    error // of the last query; nil if it succeeded

	asked time.Time // when the query of the answer began
	next  time.Time // when to ask again
	query *query[V] // in progress, or nil
}

// query is one call of the function, for all callers that wait for it.
type query[V any] struct {
	began time.Time
	older V         // served if the query takes long or fails
	until time.Time // when older may no longer be served; zero if there is none

	done   chan struct{} // closed when the fields below are set
	answer V
	err    error
}

// Stats counts what a [Cache] has done so far.
type Stats struct {
	Hits     int64 // cached answers, at most ttl old
	Stale    int64 // older cached answers, because the function failed or took long
	Queries  int64 // calls of the function
	Failures int64 // queries that returned an error or panicked
	Keys     int   // keys in the cache now
}

type settings struct {
	maxKeys int
	stale   time.Duration
	timeout time.Duration
}

const (
	defaultMaxKeys = 1 << 16
	defaultStale   = time.Hour
	defaultTimeout = 5 * time.Second
	pause          = time.Second // after a failure; or ttl if that is shorter
	patience       = 50 * time.Millisecond
)

// Option configures a [Cache].
type Option func(*settings) error

// WithMaxKeys limits the number of keys in the cache to n, 2 to 2^31-1. The default is 65,536.
func WithMaxKeys(n int) Option {
	return options.Checked(options.Within("WithMaxKeys", n, 2, math.MaxInt32), func(s *settings) { s.maxKeys = n })
}

// WithStale serves an answer for d longer than the ttl while the function fails or takes long. d
// must not be negative. The default is an hour. If d is 0, all callers wait for the function as
// soon as the ttl is over, and get its error.
func WithStale(d time.Duration) Option {
	return options.Checked(options.AtLeast("WithStale", d, 0), func(s *settings) { s.stale = d })
}

// WithTimeout ends the context of a query after d, which must be positive. The default is 5 s. The
// function must return when its context ends.
func WithTimeout(d time.Duration) Option {
	return options.Checked(options.Positive("WithTimeout", d), func(s *settings) { s.timeout = d })
}

// New returns a cache of the answers of f, each valid for ttl, which must be positive. The context
// of f has the values of the context of one of its callers, but not its end. New returns
// [store.ErrInvalidOption] if f or an option is nil, or if ttl or an option is out of range.
func New[V any](f func(ctx context.Context, key string) (V, error), ttl time.Duration, opts ...Option) (*Cache[V], error) {
	switch {
	case f == nil:
		return nil, fmt.Errorf("%w: plancache.New: the function is nil", store.ErrInvalidOption)
	case ttl <= 0:
		return nil, fmt.Errorf("%w: plancache.New with a ttl of %v, want above 0", store.ErrInvalidOption, ttl)
	}
	c := &Cache[V]{ask: f, ttl: ttl, settings: settings{defaultMaxKeys, defaultStale, defaultTimeout}, seeds: keyhash.New()}
	if err := options.Apply(&c.settings, opts); err != nil {
		return nil, err
	}
	c.stale = min(c.stale, math.MaxInt64-ttl)
	c.young, c.asking = map[keyhash.Hash]*entry[V]{}, map[keyhash.Hash]*entry[V]{}
	return c, nil
}

// Get returns the function's answer for key, which may be up to ttl old. It returns the error of
// the function, or ctx's error if ctx ends first.
func (c *Cache[V]) Get(ctx context.Context, key string) (answer V, err error) {
	if c.ask == nil {
		return answer, unmade.Err
	}
	answer, q, err := c.recall(ctx, key)
	if q == nil {
		return answer, err
	}
	var late <-chan time.Time
	if at := q.began.Add(patience); at.Before(q.until) && time.Now().Before(q.until) {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-q.done:
		if q.err == nil || !time.Now().Before(q.until) {
			return q.answer, q.err
		}
	case <-late:
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Stale++
	return q.older, nil
}

// recall returns the cached answer for key, or the query to wait for.
func (c *Cache[V]) recall(ctx context.Context, key string) (answer V, wait *query[V], err error) {
	now, id := time.Now(), c.seeds.Hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryOf(id)
	if e.query == nil && !now.Before(e.next) {
		ctx = context.WithoutCancel(ctx) // panics if ctx is nil, so it comes before a query is recorded that nobody makes
		e.query = &query[V]{began: now, done: make(chan struct{})}
		if e.known {
			e.query.older, e.query.until = e.answer, e.asked.Add(c.ttl+c.stale)
		}
		c.stats.Queries++
		c.asking[id] = e
		go c.run(ctx, key, id, e, e.query)
	}
	switch served, ok := c.serve(e, now); {
	case ok:
		return served, nil, nil
	case e.query != nil:
		return answer, e.query, nil
	}
	return answer, nil, e.err
}

// serve returns the answer of e if it may be served without waiting for a new one.
func (c *Cache[V]) serve(e *entry[V], now time.Time) (answer V, ok bool) {
	switch age := now.Sub(e.asked); {
	case !e.known:
		return answer, false
	case age < c.ttl:
		c.stats.Hits++
	case age < c.ttl+c.stale && (e.err != nil || e.query != nil && now.Sub(e.query.began) >= patience):
		c.stats.Stale++
	default:
		return answer, false
	}
	return e.answer, true
}

// errPanic is the error for callers if the function did not return.
var errPanic = errors.New("plancache: the function panicked")

// run makes the query q for key, whose hash is id.
func (c *Cache[V]) run(ctx context.Context, key string, id keyhash.Hash, e *entry[V], q *query[V]) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	q.err = errPanic
	defer func() {
		if p := recover(); p != nil {
			q.err = fmt.Errorf("%w: %v", errPanic, p)
		}
		c.learn(id, e, q)
		close(q.done)
	}()
	q.answer, q.err = c.ask(ctx, key)
}

// learn records the outcome of a query.
func (c *Cache[V]) learn(id keyhash.Hash, e *entry[V], q *query[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[id] == e { // after a Forget, it may be another one
		delete(c.asking, id)
	}
	if e.query, e.err = nil, q.err; q.err == nil {
		e.answer, e.known, e.asked, e.next = q.answer, true, q.began, q.began.Add(c.ttl)
		return
	}
	c.stats.Failures++
	e.next = time.Now().Add(min(pause, c.ttl))
}

// entryOf returns the entry of the key with this hash, and creates it if there is none. Entries are in
// two generations: the young ones were used since the last change of generations. When there are too
// many young entries, they become the old ones, and the previous old ones are dropped.
func (c *Cache[V]) entryOf(id keyhash.Hash) *entry[V] {
	e := c.young[id]
	if e != nil {
		return e
	}
	if e = c.old[id]; e == nil {
		if e = c.asking[id]; e == nil {
			e = new(entry[V])
		}
	}
	if len(c.young) >= c.maxKeys/2 {
		c.old, c.young = c.young, map[keyhash.Hash]*entry[V]{}
	}
	delete(c.old, id)
	c.young[id] = e
	return e
}

// Forget forgets the answer for key, so that the next call asks the function. Use it in a program
// that has just changed the database. Other processes still have their cached answers.
func (c *Cache[V]) Forget(key string) {
	if c.ask == nil {
		return
	}
	id := c.seeds.Hash(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, id)
	delete(c.old, id)
	delete(c.asking, id)
}

// Stats returns what the cache has done so far.
func (c *Cache[V]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Keys = len(c.young) + len(c.old)
	return s
}
