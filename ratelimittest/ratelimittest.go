// Package ratelimittest is for tests of programs that limit rates: limiters with a fixed
// answer, and a store whose time the test sets.
//
//	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Minute}, nil)
//
//	clock := ratelimittest.NewClock(time.Now())
//	limiter, err := ratelimit.NewTokenBucket(clock.Memory(t), ratelimit.PerMinute(5))
//	...
//	clock.Advance(time.Minute)
//
// A [Clock] moves what a store counts, and nothing else: [ratelimit.Wait] and package throttle sleep in real
// time, and X-RateLimit-Reset is a time of the machine's clock.
//
// In a bubble of testing/synctest all of that goes by the bubble's time, without a Clock. Make the
// store in the bubble, one for each: time never goes back for a key, so one that was counted outside
// is not admitted again in the bubble, which begins in the year 2000. A server of Redis has its own
// time, so it is memory there.
//
// A connection without an address, such as a bufconn or a Unix socket, has no PeerIP: the request or
// call is refused as one of an unknown client. Let the test give another key, such as Global.
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

// Static is a limiter that always answers r and err. Static(Result{Allowed: true}, nil) admits
// everything, and Static(Result{RetryAfter: time.Minute}, nil) nothing. Beside an error the
// Result is zero, as with every Limiter. Bad input and the end of ctx are errors, as elsewhere.
// It keeps no state: Refund and Reset do nothing.
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
		return fmt.Errorf("%w: the Result to refund has charged nothing", ratelimit.ErrInvalidN)
	}
	return s.err
}

func (s *static) Reset(ctx context.Context, key string) error {
	if err := store.CheckCall(ctx, key, 1); err != nil {
		return err
	}
	return s.err
}

// Clock is a time that only the test moves. It is safe for concurrent use. Make it by [NewClock].
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock that stands at now.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now returns the time. Give it to the WithClock of a store.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the time by d, which may be below 0.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Memory returns a new store in memory that goes by this clock.
func (c *Clock) Memory(t testing.TB) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.WithClock(c.Now))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// New returns ratelimit.New of its arguments. An error ends the test.
func New(t testing.TB, algorithm string, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(algorithm, s, l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// All returns ratelimit.NewAll of its arguments. An error ends the test.
func All(t testing.TB, limiters ...ratelimit.Limiter) *ratelimit.All {
	t.Helper()
	all, err := ratelimit.NewAll(limiters...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
