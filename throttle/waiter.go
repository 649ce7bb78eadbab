// Package throttle slows callers down in place of refusing them: limiters around
// others.
//
// Use [Waiter] to hold an event back until the limiter admits it, for a bounded time
// and with a bounded number of callers at once, and [Slowdown] to let everything
// through, later and later the more a key does. [ratelimit.Wait] is a Waiter for
// as long as its caller's context lasts, without a bound on the callers.
package throttle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Waiter is a [ratelimit.Limiter] whose Allow and AllowN sleep until l admits the
// event, and then for its Delay, but no longer than a maximum in all, or than to the
// deadline of ctx. Where that is not enough they deny at once, without sleeping in
// vain. The Result of what has been slept for has Delay 0.
//
// Bound: it admits what l admits, when l does. It sleeps at most the maximum, and takes
// as much longer as its calls of l do: one for the decision, and one after each sleep,
// of 1 ms at least. At most 1,024 callers sleep at once, or [WithMaxWaiting]; beyond that an
// event that cannot go now is denied. They are not bounded by key: a key with
// many callers can take all places, and the others are denied then as without a Waiter.
//
// The RetryAfter of a denial is l's: the wait after which the event would be admitted
// without a sleep. It is shorter where l would admit the event now and Delay is too
// long for the caller: the turn is given back, and RetryAfter is the Delay less the
// time that the call had for sleeping, 1 µs at least (the whole Delay if all places
// are taken). A [ratelimit.LeakyBucket] denies by the same rule also while it is full,
// if it is l itself and not inside another limiter: the turn behind what is in its
// queue would come after ResetAfter.
//
// If ctx ends in a sleep, the error is ctx's, and the permit is given back, as far as
// Refund of l can. A leaky bucket takes back only its last turn, so that calls that
// are refused or end while others come can leave gaps in the queue: give it a Burst
// of which the last turn is within the maximum.
//
// Waiters are not served first come first served: each asks again after RetryAfter
// and a jitter of a tenth of it, 10 ms at most. Refunds and Resets do not wake them.
//
// It starts no goroutine and has nothing to close; what waits costs its caller's
// goroutine and a timer. An event that is admitted at once costs nothing more. It
// sleeps in real time (or a synctest bubble's), so that l's store must not have a
// simulated clock that stands still.
//
// It is safe for concurrent use. Make it by [NewWaiter].
type Waiter struct {
	limiter    ratelimit.Limiter
	leaky      bool // limiter is a leaky bucket, whose denials are known to become a Delay
	max        time.Duration
	maxWaiting int64
	waiting    atomic.Int64
}

const (
	defaultMaxWaiting = 1024
	maxJitter         = 10 * time.Millisecond
	leastPause        = time.Millisecond // so that many waiters of a fast limit do not ask without end
	leastRetryAfter   = time.Microsecond
)

var errNoConstructor = fmt.Errorf("%w: a limiter is made by its constructor", ratelimit.ErrInvalidOption)

// WaiterOption sets what is optional about a Waiter.
type WaiterOption func(*Waiter) error

// WithMaxWaiting bounds the callers that sleep at once to n, 1 to 2^31-1, in place of
// 1,024.
func WithMaxWaiting(n int) WaiterOption {
	return func(w *Waiter) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("%w: WithMaxWaiting(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, math.MaxInt32)
		}
		w.maxWaiting = int64(n)
		return nil
	}
}

// NewWaiter returns a limiter that decides as l does after up to max, which is above
// 0. Its error is [ratelimit.ErrInvalidOption].
func NewWaiter(l ratelimit.Limiter, max time.Duration, opts ...WaiterOption) (*Waiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if max <= 0 {
		return nil, fmt.Errorf("%w: the maximum is %v, want above 0", ratelimit.ErrInvalidOption, max)
	}
	_, leaky := l.(*ratelimit.LeakyBucket)
	w := &Waiter{limiter: l, leaky: leaky, max: min(max, ratelimit.Never-1), maxWaiting: defaultMaxWaiting}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a WaiterOption is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(w); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Waiting is how many callers sleep now.
func (w *Waiter) Waiting() int { return int(w.waiting.Load()) }

// Allow is AllowN of 1.
func (w *Waiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return w.AllowN(ctx, key, 1)
}

// AllowN decides on n events at once, after a sleep if that helps.
func (w *Waiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	r, err := w.limiter.AllowN(ctx, key, n)
	if err != nil {
		return ratelimit.Result{}, err
	}
	if r.Allowed && r.Delay <= 0 {
		return r, nil
	}
	patience := w.patience(ctx)
	if w.due(r) > patience {
		return w.refuse(ctx, key, n, r, patience)
	}
	if w.waiting.Add(1) > w.maxWaiting {
		w.waiting.Add(-1)
		return w.refuse(ctx, key, n, r, 0)
	}
	defer w.waiting.Add(-1)
	return w.wait(ctx, key, n, r, patience)
}

// patience is how long a call may sleep.
func (w *Waiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok { // at which it is too late
		return max(0, min(w.max, time.Until(deadline)-1))
	}
	return w.max
}

// due is how long the events of r have to wait, nobody else calling.
func (w *Waiter) due(r ratelimit.Result) time.Duration {
	switch {
	case r.Allowed:
		return r.Delay
	case w.leaky:
		return max(r.RetryAfter, r.ResetAfter)
	}
	return max(r.RetryAfter, leastRetryAfter)
}

// wait sleeps until the limiter admits what it has answered r to, and for its Delay.
func (w *Waiter) wait(ctx context.Context, key string, n int, r ratelimit.Result, patience time.Duration) (ratelimit.Result, error) {
	end := time.Now().Add(patience)
	left := patience
	for !r.Allowed {
		err := sleep(ctx, pause(r.RetryAfter, left))
		if err == nil {
			r, err = w.limiter.AllowN(ctx, key, n)
		}
		if err != nil {
			return ratelimit.Result{}, err
		}
		if left = time.Until(end); w.due(r) > max(left, 0) { // late by the calls of l, if left is below 0
			return w.refuse(ctx, key, n, r, patience)
		}
	}
	if r.Delay > 0 {
		if err := sleep(ctx, r.Delay); err != nil {
			return ratelimit.Result{}, errors.Join(err, w.giveBack(ctx, key, n, r))
		}
		r.Delay = 0
	}
	return r, nil
}

// refuse denies what r would have to wait for too long, to a caller who could have
// slept for early.
func (w *Waiter) refuse(ctx context.Context, key string, n int, r ratelimit.Result, early time.Duration) (ratelimit.Result, error) {
	denial := w.denial(r, early)
	if r.Allowed {
		if err := w.giveBack(ctx, key, n, r); err != nil {
			return ratelimit.Result{}, err // the charge may stand
		}
	}
	return denial, nil
}

// denial is r as refused. One that l has admitted is made anew: r could be refunded a
// second time.
func (w *Waiter) denial(r ratelimit.Result, early time.Duration) ratelimit.Result {
	retry := max(leastRetryAfter, wholeMicros(w.due(r)-early))
	switch {
	case r.Allowed:
		reset := r.ResetAfter
		if w.leaky { // the events before are gone when its turn comes
			reset = r.Delay
		}
		return ratelimit.Result{Limit: r.Limit, RetryAfter: retry, ResetAfter: reset}
	case w.leaky:
		r.RetryAfter = max(r.RetryAfter, retry)
	}
	return r
}

func (w *Waiter) giveBack(ctx context.Context, key string, n int, r ratelimit.Result) error {
	return w.limiter.Refund(context.WithoutCancel(ctx), key, r, n)
}

// Peek answers what Allow would, at once: if that would sleep and then admit, nobody
// else calling, Allowed is true and Delay the sleep. It charges nothing.
func (w *Waiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	r, err := w.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	due, patience := w.due(r), w.patience(ctx)
	switch {
	case r.Allowed && due <= 0:
	case due > patience:
		r = w.denial(r, patience)
	case w.waiting.Load() >= w.maxWaiting:
		r = w.denial(r, 0)
	default:
		r.Allowed, r.RetryAfter, r.Delay = true, 0, due
	}
	return r, nil
}

// Charge charges n events that have happened already to the limiter, and sleeps for
// none of them.
func (w *Waiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	return ratelimit.Charge(ctx, w.limiter, key, n)
}

// Refund gives back n of the events that charged admitted, as l does.
func (w *Waiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if w.limiter == nil {
		return errNoConstructor
	}
	return w.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at l. Who sleeps for it sleeps on.
func (w *Waiter) Reset(ctx context.Context, key string) error {
	if w.limiter == nil {
		return errNoConstructor
	}
	return w.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of l.
func (w *Waiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if w.limiter == nil {
		return dst, errNoConstructor
	}
	return ratelimit.AppendPolicies(ctx, dst, w.limiter, key)
}

var (
	_ ratelimit.Limiter   = (*Waiter)(nil)
	_ ratelimit.Describer = (*Waiter)(nil)
	_ ratelimit.Charger   = (*Waiter)(nil)
)

// pause is the sleep before l is asked again, of the time that is left.
func pause(retryAfter, left time.Duration) time.Duration {
	jitter := rand.N(min(max(retryAfter, 0)/10, maxJitter) + 1)
	return min(max(retryAfter+jitter, leastPause), left)
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wholeMicros rounds d up to whole µs.
func wholeMicros(d time.Duration) time.Duration {
	if rest := d % time.Microsecond; rest > 0 && d < math.MaxInt64-time.Microsecond {
		d += time.Microsecond - rest
	}
	return d
}
