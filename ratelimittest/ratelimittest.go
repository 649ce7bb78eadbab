// Package ratelimittest helps to test programs that limit rates. It provides limiters with a fixed
// answer, and a store whose time the test sets.
//
//	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Minute}, nil)
//
//	clock := ratelimittest.NewClock(time.Now())
//	limiter, err := ratelimit.NewTokenBucket(clock.Memory(t), ratelimit.PerMinute(5))
//	...
//	clock.Advance(time.Minute)
//
// A [Clock] affects only what a store counts: [ratelimit.Wait] and package throttle sleep in real
// time, and X-RateLimit-Reset follows the machine's clock.
//
// In a bubble of testing/synctest, all of that follows the bubble's time, without a Clock. Create
// the store inside the bubble, one per bubble, because time never goes back for a key, and a bubble
// begins in the year 2000. A key that was counted outside would not be admitted again inside. A Redis
// server has its own time, so use a store in memory there.
//
// A connection without an address, such as a bufconn or a Unix socket, has no PeerIP, so its
// requests and calls are refused as those of an unknown client. In such a test, use another key,
// such as Global.
package ratelimittest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Static returns a limiter that always returns r and err. Static(Result{Allowed: true}, nil) admits
// everything, and Static(Result{RetryAfter: time.Minute}, nil) denies everything. If err is not
// nil, the Result is zero, as with every Limiter. Invalid input and the end of ctx are errors, as
// with other limiters. The limiter keeps no state: Refund and Reset have no effect.
func Static(r ratelimit.Result, err error) ratelimit.Limiter {
	if err != nil {
		r = ratelimit.Result{}
	}
	return &static{r, err}
}

type static struct {
	result ratelimit.Result
	err    error
}

func (s *static) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s *static) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := store.CheckCall(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	return s.result, s.err
}

func (s *static) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s *static) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := store.CheckCall(ctx, key, n); err != nil {
		return err
	}
	if !charged.Allowed {
		return fmt.Errorf("%w: nothing can be refunded, because the Result charged no events", ratelimit.ErrInvalidN)
	}
	return s.err
}

func (s *static) Reset(ctx context.Context, key string) error {
	if err := store.CheckCall(ctx, key, 1); err != nil {
		return err
	}
	return s.err
}

// Clock is a time that only the test changes. It is safe for concurrent use. Use [NewClock] to
// create one.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock that is set to now.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now returns the time. Pass it to WithClock of a store.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the time by d, which may be negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Memory returns a new store in memory that uses this clock.
func (c *Clock) Memory(t testing.TB) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.WithClock(c.Now))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// New calls ratelimit.New, and ends the test if that returns an error.
func New(t testing.TB, algorithm string, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(algorithm, s, l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// All calls ratelimit.NewAll, and ends the test if that returns an error.
func All(t testing.TB, limiters ...ratelimit.Limiter) *ratelimit.All {
	t.Helper()
	all, err := ratelimit.NewAll(limiters...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
