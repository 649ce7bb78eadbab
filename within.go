package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Delayer is a [Limiter] with AllowWithin. All limiters of this module are, but for throttle's
// Slowdown. A type that embeds one, and has an AllowN of its own, needs an AllowWithin of its
// own.
type Delayer interface {
	// AllowWithin admits n events if their turn comes within d: see the function [AllowWithin].
	AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error)
}

// AllowWithin admits and charges n events of key if their turn comes within d, or none. It does
// not sleep: the caller sleeps the Delay, which is at most d, or refunds the events before.
//
//   - A [LeakyBucket] admits what AllowN would, if its Delay is at most d.
//   - A [TokenBucket] admits also what it would admit within d, and charges it now.
//   - Windows and logs have no turns, and decide as AllowN.
//
// RetryAfter of a denial is exact for the same call, and Never for n above the Burst. d is
// taken as 0 to 100 years.
//
// A limiter that is no [Delayer] is asked by AllowN. A turn that comes too late is given back and
// denied, with a RetryAfter that is not always exact. If it cannot be given back, that is the
// error.
func AllowWithin(ctx context.Context, l Limiter, key string, n int, d time.Duration) (Result, error) {
	if isnil.Is(l) {
		return Result{}, errNilLimiter
	}
	if l, ok := l.(Delayer); ok {
		return l.AllowWithin(ctx, key, n, d)
	}
	r, err := l.AllowN(ctx, key, n)
	if err != nil || r.inTime(d) {
		return r, err
	}
	err = l.Refund(context.WithoutCancel(ctx), key, r, n)
	if err != nil && !errors.Is(err, ErrInvalidN) { // or else it has charged nothing
		return Result{}, err
	}
	return r.tooLate(n, d), nil
}

// inTime is whether r is a denial, or an admission whose turn comes within d.
func (r *Result) inTime(d time.Duration) bool { return !r.Allowed || r.Delay <= max(d, 0) }

// tooLate is the denial of n events whose turn, by r, comes later than d.
func (r *Result) tooLate(n int, d time.Duration) Result {
	denial := r.without(n, n)
	denial.Allowed, denial.Delay, denial.RetryAfter = false, 0, wholeMicroseconds(r.Delay-max(d, 0))
	return denial
}

// AllowWithin: see the function of that name.
func (lim *limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (res Result, err error) {
	err = lim.decideWithOptions(ctx, key, n, asking{takeWithin, d}, &res)
	return res, err
}

// limitWithin is l for events that can wait for d.
func limitWithin(rule *store.Rule, l store.Limit, d time.Duration) store.Limit {
	if rule.Burst { // it has turns
		l.Before = 1 + min(max(d, 0).Microseconds(), maxRefill)
	}
	return l
}

// asking is how a limiter is asked for events: to take them, also within d, or to peek.
type asking struct {
	what operation
	d    time.Duration
}

// ask asks l for n events. (A Peek is always of one.)
func (a asking) ask(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	switch a.what {
	case peek:
		return l.Peek(ctx, key)
	case takeWithin:
		return AllowWithin(ctx, l, key, n, a.d)
	}
	return l.AllowN(ctx, key, n)
}

var _ Delayer = (*limiter)(nil)

// wholeMicroseconds is d rounded up.
func wholeMicroseconds(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
