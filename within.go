package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Delayer is a [Limiter] that decides on events by when their turn comes. The five
// types are, and all limiters of this module around others, but for throttle's
// Slowdown, which admits everything. A type that embeds one, and has an AllowN of its own,
// needs an AllowWithin of its own.
type Delayer interface {
	// AllowWithin decides on n events whose turn must come within d: see the function
	// [AllowWithin].
	AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error)
}

// AllowWithin decides on n events of key whose turn must come within d, 0 or more. It
// is for callers who can wait, but not for long: those with a deadline. All n events are
// admitted and charged, and then Delay is at most d, or none is. It does not sleep: the
// caller sleeps the Delay, or refunds the events before.
//
//   - A [LeakyBucket] admits what AllowN would if its Delay is at most d. AllowN admits
//     with any Delay, and a turn that comes too late is lost unless it is the queue's last.
//   - A [TokenBucket] admits also what it would admit within d, nobody else calling. The
//     events are charged now. Delay says when their tokens are there.
//   - The windows and the log have no turns. They decide as AllowN, with a Delay of 0.
//
// RetryAfter of a denial is the exact wait after which the same call with the same d would
// be admitted, nobody else calling. It is Never for n above the Burst.
//
// A d of part of a microsecond is rounded down to whole ones. One below 0 is taken for 0,
// and one of more than 100 years for 100 years. Errors are those of AllowN.
//
// A limiter that is no [Delayer] is asked by AllowN. If it admits with a Delay above d, the
// events are given back, also when ctx has ended, and denied. RetryAfter is then the
// Delay less d, and not always exact. If they cannot be given back, that is the error, and
// the charge may stand.
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

// AllowWithin decides on n events whose turn must come within d: see the function
// [AllowWithin].
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
