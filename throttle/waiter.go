// Package throttle slows callers down instead of refusing them.
//
// Use [Waiter] to hold events back until the limiter admits them. It bounds how long calls wait,
// and how many wait at the same time. Use [Slowdown] to admit every event, but delay it more the
// more a key does. Use [Reader] and [Writer] to limit bytes per second.
//
// [ratelimit.Wait] waits as a Waiter does, for as long as the caller's context lasts, and without a
// bound on the number of callers.
package throttle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Waiter wraps a [ratelimit.Limiter] l and holds events back until l admits them. Allow and AllowN
// sleep until then, and for the Delay of l, but no longer than a maximum in total, and not past the
// deadline of ctx. If that is too short, they deny immediately. After a sleep, the Delay of the
// Result is 0.
//
// Bound: a call sleeps at most for the maximum, plus the time that its calls to l take. At most
// 1,024 callers sleep at the same time ([WithMaxWaiting]). Beyond that, events of any key that
// cannot be admitted now are denied.
//
// Within a process, callers for the same key of the same l wait in the queue of [ratelimit.Wait],
// in order of arrival.
//
// The RetryAfter of a denial is the time after which the event would be admitted without a sleep,
// or, by a leaky bucket, after a sleep of at most the maximum. Behind other callers, it is an
// estimate. Around a [Slowdown], it is only by how much the delay exceeds the maximum, which may be
// less than the time in which the delay shrinks by that.
//
// If ctx ends during a sleep, the call returns ctx's error. Its permit, if any, goes to the next
// caller in the queue, or is refunded if l can. [store.ErrOverloaded] and [store.ErrUnavailable] do
// not end a sleep, but other errors of l do.
//
// Waiters sleep in real time, or in a synctest bubble's, so the store of l must not use a clock
// that stands still. AllowUpTo, AllowWithin, Peek and Charge never sleep. A Waiter starts no
// goroutine and is safe for concurrent use. Use [NewWaiter] to create one.
type Waiter struct {
	wrapper
	inside

	fixed  bool // nothing in limiter can change
	own    see.Queues
	max    time.Duration
	places queue.Places
}

const (
	defaultMaxWaiting = 1024
	leastRetryAfter   = time.Microsecond
)

// WaiterOption configures a [Waiter].
type WaiterOption func(*Waiter) error

// WithMaxWaiting limits the number of callers that sleep at the same time to n, 1 to 2^31-1. The
// default is 1,024.
func WithMaxWaiting(n int) WaiterOption {
	return options.Checked(options.Within("WithMaxWaiting", n, 1, math.MaxInt32), func(w *Waiter) { w.places.Most = int64(n) })
}

// NewWaiter returns a limiter that decides as l does, after a sleep of up to max, which must be
// positive. It returns [ratelimit.ErrInvalidOption] if l or an option is nil, if max or an option is
// out of range, if l is or contains a Waiter, or if l counts slots: use inflight.Wait.
func NewWaiter(l ratelimit.Limiter, max time.Duration, opts ...WaiterOption) (*Waiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if max <= 0 {
		return nil, fmt.Errorf("%w: NewWaiter: the maximum is %v, want above 0", ratelimit.ErrInvalidOption, max)
	}
	if err := see.NoWait(l); err != nil {
		return nil, err
	}
	w := &Waiter{wrapper: see.Has(see.Traits{Sleeps: true, Behind: l}), inside: inside{l}, max: min(max, queue.Forever)}
	w.places.Most = defaultMaxWaiting
	w.own, w.fixed = w.queues(), see.Fixed(l)
	if err := options.Apply(w, opts); err != nil {
		return nil, err
	}
	return w, nil
}

// Waiting returns how many callers are sleeping.
func (w *Waiter) Waiting() int { return int(w.places.Taken()) }

// Allow is shorthand for AllowN with 1 event.
func (w *Waiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return w.AllowN(ctx, key, 1)
}

// queues returns how the callers of the limiter wait.
func (w *Waiter) queues() see.Queues {
	if w.fixed {
		return w.own
	}
	return see.QueuesOf[ratelimit.Delayer](w.limiter)
}

// leaky reports whether r is a decision of a leaky bucket.
func (w *Waiter) leaky(r *ratelimit.Result) bool {
	return w.queues().Kind == queue.Leaky && r.Source() == ratelimit.SourceStore
}

// AllowN decides on n events together, after a sleep if that helps.
func (w *Waiter) AllowN(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	if w.limiter == nil || store.CheckCall(ctx, key, n) != nil {
		return w.made().AllowN(ctx, key, n) // AllowN returns the error
	}
	patience := w.patience(ctx)
	queues, me := w.queues(), queue.NewWaiter()
	me.Context, me.Key, me.Kind, me.Max, me.Places = ctx, queues.Key(ctx, key, n), queues.Kind, w.max, &w.places
	r, err = ratelimit.Wait(me, w.limiter, key, n)
	d, ahead := me.Answer, me.Ahead
	me.Free()
	if err == nil {
		r.Delay = 0
		return r, nil
	}
	events := see.Events(w.limiter, n)
	room := d.Remaining >= events // if there is room, only the scheduled time is too far away
	switch {
	case errors.Is(err, queue.ErrFull) && !d.Asked:
		return w.withoutPlace(ctx, key, n, ahead)
	case errors.Is(err, queue.ErrFull): // even calls that a sleep would help are denied
		return w.denial(r, room, 0), nil
	case !errors.Is(err, queue.ErrTooLate) && !errors.Is(err, queue.ErrNever):
		return ratelimit.Result{}, err
	case !d.Asked:
		return w.notAsked(d, patience), nil
	}
	if !r.Allowed {
		r.RetryAfter = d.RetryAfter
		if r.RetryAfter != ratelimit.Never && room {
			r.RetryAfter = exact.WholeMicros(r.RetryAfter - patience)
		}
	}
	return w.denial(r, room, patience), nil
}

// withoutPlace decides on a call that finds no place. It must not take the events that other callers wait for, ahead in all.
// They may only wait for an answer, so if there is room for them as well, the limiter decides now. Otherwise withoutPlace
// returns a denial, with the wait behind the others.
func (w *Waiter) withoutPlace(ctx context.Context, key string, call, ahead int) (ratelimit.Result, error) {
	r, err := w.limiter.Peek(ctx, key)
	n := see.Events(w.limiter, call)
	if err == nil && r.Allowed && r.Delay <= 0 && w.fits(&r, call, ahead) {
		if r, err = ratelimit.AllowWithin(ctx, w.limiter, key, call, 0); r.Allowed {
			return r, err
		}
	}
	if err != nil {
		return ratelimit.Result{}, err
	}
	denial := w.denial(r, r.Remaining > 0, 0)
	denial.Allowed, denial.Delay = false, 0
	if n > denial.Limit && denial.Limit > 0 && !see.Alternatives(w.limiter) { // another limiter of a First may have a larger one
		denial.RetryAfter = ratelimit.Never
	}
	return denial, nil
}

// fits reports whether each limit that r, of a Peek, has counted has room for a call and for what is ahead of it in
// the queue, which may count calls.
func (w *Waiter) fits(r *ratelimit.Result, call, ahead int) bool {
	n := see.Events(w.limiter, call)
	parts := r.Parts()
	if parts == nil || see.Alternatives(w.limiter) {
		return !r.Counted() || r.Remaining/(call/n)-ahead >= n
	}
	for i := range parts {
		p := &parts[i]
		if _, unit := see.Queue(w.limiter, p.Limiter, call); p.Counted() && p.Remaining/unit-ahead < n {
			return false
		}
	}
	return true
}

// notAsked returns the denial of a call that waited behind others in the queue, and for which l was
// not asked.
func (w *Waiter) notAsked(d queue.Answer, patience time.Duration) ratelimit.Result {
	if w.queues().Kind == queue.Leaky && d.RetryAfter != ratelimit.Never {
		d.RetryAfter = max(leastRetryAfter, d.RetryAfter-patience)
	}
	r, ok := d.Info.(ratelimit.Result)
	if !ok {
		r.Limit = d.Limit
	}
	r.Remaining, r.RetryAfter, r.ResetAfter = 0, exact.WholeMicros(d.RetryAfter), exact.WholeMicros(d.ResetAfter)
	return r
}

// patience returns how long a call may sleep.
func (w *Waiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok { // a wake-up at the deadline itself is too late
		return max(0, min(w.max, time.Until(deadline)-1))
	}
	return w.max
}

// due returns how long the events of r have to wait if no other caller comes.
func (w *Waiter) due(r ratelimit.Result) time.Duration {
	switch {
	case r.Allowed:
		return r.Delay
	case w.leaky(&r):
		return max(r.RetryAfter, r.ResetAfter)
	}
	return max(r.RetryAfter, leastRetryAfter)
}

// denial returns r as a denial of a caller that could have slept for early. room means that there is
// room for the events, but too late. Events that l admitted have been refunded already.
func (w *Waiter) denial(r ratelimit.Result, room bool, early time.Duration) ratelimit.Result {
	if r.Allowed {
		reset := r.ResetAfter
		if w.leaky(&r) { // at its scheduled time, all earlier events are gone
			reset = r.Delay
		}
		retry := max(leastRetryAfter, exact.WholeMicros(r.Delay-early))
		r.Allowed, r.Remaining, r.RetryAfter, r.ResetAfter, r.Delay = false, 0, retry, reset, 0
		return r
	}
	if room {
		r.Remaining = 0
	}
	r.RetryAfter = max(r.RetryAfter, leastRetryAfter)
	if w.leaky(&r) && r.RetryAfter != ratelimit.Never {
		r.RetryAfter = max(r.RetryAfter, exact.WholeMicros(r.ResetAfter-early))
	}
	return r
}

// AllowWithin calls l's, for callers that sleep for the Delay themselves: see
// [ratelimit.AllowWithin]. It does not sleep, and does not count toward the limit of sleeping
// callers.
func (w *Waiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return ratelimit.AllowWithin(ctx, w.made(), key, n, d)
}

// AllowUpTo admits as many of n events as l has room for now, and returns their number, 0 to n. It
// does not sleep. The caller must sleep for the Delay, which is l's.
func (w *Waiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	return ratelimit.AllowUpTo(ctx, w.made(), key, n)
}

// Peek immediately returns what Allow would return, and charges nothing. If Allow would sleep and
// then admit the event, Allowed is true, and Delay is the sleep, provided that no other caller
// comes.
func (w *Waiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	r, err := w.made().Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	due, patience := w.due(r), w.patience(ctx)
	switch {
	case r.Allowed && due <= 0:
	case due > patience:
		r = w.denial(r, r.Remaining > 0, patience)
	case w.places.Full():
		r = w.denial(r, r.Remaining > 0, 0)
	default:
		r.Allowed, r.RetryAfter, r.Delay = true, 0, due
	}
	return r, nil
}

// Refund refunds n of the admitted events in charged, as l does.
func (w *Waiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return w.made().Refund(ctx, key, charged, n)
}

var (
	_ ratelimit.Limiter        = (*Waiter)(nil)
	_ ratelimit.PolicyAppender = (*Waiter)(nil)
	_ ratelimit.Charger        = (*Waiter)(nil)
	_ ratelimit.Delayer        = (*Waiter)(nil)
)
