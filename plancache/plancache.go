// Package plancache remembers what a database says of keys: their limits, their tiers, or the
// keys to count by.
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
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Cache remembers the answers of a function of a key, for [ratelimit.WithLimitFunc],
// [ratelimit.WithTiers] and [ratelimit.WithKeyFunc]. V is what these functions return: a Limit, or
// a string. For a plan of several limits it is a struct of them, and a function for each limit
// asks the Cache.
//
// Bound: an answer is at most the ttl old while the function answers within 50 ms. If it fails or
// hangs, the last answer is served for an hour longer ([WithStale]), and the function is asked again
// at most once a second. So a limiter goes on with the plans that it knows while their database is
// down. A key without an answer waits for the function, and has its error for a second.
//
// All calls that want the answer of one key at one time are one query. The first call after the
// ttl makes it. Those who have an older answer wait 50 ms for it. A caller whose context ends
// leaves, and the query goes on for the others, in a goroutine of its own, for at most 5 s
// ([WithTimeout]).
//
// It remembers 65,536 keys ([WithMaxKeys]), of some 200 bytes each, and forgets those that were
// not asked for lately. An answer from memory takes some 100 ns and no allocation. There is nothing
// to close. It is safe for concurrent use. Make it by [New].
//
// [ratelimit.WithLimitFunc]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithLimitFunc
// [ratelimit.WithTiers]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithTiers
// [ratelimit.WithKeyFunc]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithKeyFunc
type Cache[V any] struct {
	ask func(ctx context.Context, key string) (V, error)
	ttl time.Duration
	settings

	mu    sync.Mutex
	young map[string]*entry[V] // at most maxKeys/2, as old: see entryOf
	old   map[string]*entry[V]
	stats Stats
}

// entry is what is known of a key. Without an answer or a query under way it is never kept.
type entry[V any] struct {
	answer V
	known  bool  // whether there is an answer
	err    error // of the last query, nil if that has answered

	asked time.Time // when the last answer was asked for
	next  time.Time // when to ask again
	query *query[V] // under way
}

// query is one call of the function, for all that wait for it.
type query[V any] struct {
	began time.Time
	older V         // what is served if the query takes long or fails,
	until time.Time // until then, or never

	done   chan struct{} // closed when the rest is there
	answer V
	err    error
}

// Stats is what a [Cache] has done so far.
type Stats struct {
	Hits     int64 // answers from memory, at most the ttl old
	Stale    int64 // older answers, since the function failed or took long
	Queries  int64 // calls of the function
	Failures int64 // of them, that returned an error or panicked
	Keys     int   // that are remembered now
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
	pause          = time.Second // after a failure, or the ttl if that is shorter
	patience       = 50 * time.Millisecond
)

// Option configures a [Cache].
type Option func(*settings) error

// WithMaxKeys bounds the keys that are remembered to n, 2 to 2^31-1. The default is 65,536.
func WithMaxKeys(n int) Option {
	return func(s *settings) error {
		if n < 2 || n > math.MaxInt32 {
			return fmt.Errorf("%w: WithMaxKeys(%d), want 2 to %d", store.ErrInvalidOption, n, math.MaxInt32)
		}
		s.maxKeys = n
		return nil
	}
}

// WithStale serves an answer for d longer than the ttl while the function fails or takes long, 0 or
// more. The default is an hour. With 0 all wait for the function as soon as the ttl is over, and have
// its error.
func WithStale(d time.Duration) Option {
	return func(s *settings) error {
		if d < 0 {
			return fmt.Errorf("%w: WithStale(%v)", store.ErrInvalidOption, d)
		}
		s.stale = d
		return nil
	}
}

// WithTimeout ends the context of a query after d, above 0. The default is 5 s. The function must
// heed it.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("%w: WithTimeout(%v)", store.ErrInvalidOption, d)
		}
		s.timeout = d
		return nil
	}
}

// New returns a cache of what f says of keys, each for ttl, above 0. f gets the values of the
// context of one of its callers, but not its end. Its error is [store.ErrInvalidOption]: f or an
// option is nil, or one is out of range.
func New[V any](f func(ctx context.Context, key string) (V, error), ttl time.Duration, opts ...Option) (*Cache[V], error) {
	switch {
	case f == nil:
		return nil, fmt.Errorf("%w: plancache.New(nil, ...)", store.ErrInvalidOption)
	case ttl <= 0:
		return nil, fmt.Errorf("%w: plancache.New with a ttl of %v", store.ErrInvalidOption, ttl)
	}
	c := &Cache[V]{ask: f, ttl: ttl, settings: settings{defaultMaxKeys, defaultStale, defaultTimeout}}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(&c.settings); err != nil {
			return nil, err
		}
	}
	c.stale = min(c.stale, math.MaxInt64-ttl)
	c.young = map[string]*entry[V]{}
	return c, nil
}

// Get returns what the function says of key: now, or up to the ttl ago. Errors are those of the
// function and ctx's own.
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

// recall returns what is known of key, or the query to wait for.
func (c *Cache[V]) recall(ctx context.Context, key string) (answer V, wait *query[V], err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryOf(key)
	if e.query == nil && !now.Before(e.next) {
		ctx = context.WithoutCancel(ctx) // which panics if it is nil: before a query is noted that nobody makes
		e.query = &query[V]{began: now, done: make(chan struct{})}
		if e.known {
			e.query.older, e.query.until = e.answer, e.asked.Add(c.ttl+c.stale)
		}
		c.stats.Queries++
		go c.run(ctx, key, e, e.query)
	}
	switch served, ok := c.serve(e, now); {
	case ok:
		return served, nil, nil
	case e.query != nil:
		return answer, e.query, nil
	}
	return answer, nil, e.err
}

// serve returns the answer of e if that may be served without waiting for another one.
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

// errPanic is what callers get of a function that has not returned.
var errPanic = errors.New("plancache: the function has panicked")

// run makes the query q.
func (c *Cache[V]) run(ctx context.Context, key string, e *entry[V], q *query[V]) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	q.err = errPanic
	defer func() {
		if p := recover(); p != nil {
			q.err = fmt.Errorf("%w: %v", errPanic, p)
		}
		c.learn(e, q)
		close(q.done)
	}()
	q.answer, q.err = c.ask(ctx, key)
}

// learn notes what a query has said.
func (c *Cache[V]) learn(e *entry[V], q *query[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.query, e.err = nil, q.err; q.err == nil {
		e.answer, e.known, e.asked, e.next = q.answer, true, q.began, q.began.Add(c.ttl)
		return
	}
	c.stats.Failures++
	e.next = time.Now().Add(min(pause, c.ttl))
}

// entryOf returns the entry of key, and makes it if there is none. Entries are in two generations:
// those asked for since the last change of generations are young. When there are too many of
// these, they become the old ones, and the old ones go.
func (c *Cache[V]) entryOf(key string) *entry[V] {
	e := c.young[key]
	if e != nil {
		return e
	}
	if e = c.old[key]; e == nil {
		e = new(entry[V])
	}
	if len(c.young) >= c.maxKeys/2 {
		c.old, c.young = c.young, map[string]*entry[V]{}
	}
	delete(c.old, key)
	c.young[strings.Clone(key)] = e // which may be a part of a long text
	return e
}

// Forget forgets the answer for key: the next call asks the function. It is for a program that
// has just changed what the database says. Other processes still have their answers.
func (c *Cache[V]) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, key)
	delete(c.old, key)
}

// Stats returns what the cache has done so far.
func (c *Cache[V]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Keys = len(c.young) + len(c.old)
	return s
}
