// Package throttle slows callers down instead of refusing them.
//
// Use [Waiter] to hold an event back until the limiter admits it. It bounds how long calls
// wait, and how many wait at once. Use [Slowdown] to let everything through, later and
// later the more a key does. [ratelimit.Wait] is a Waiter for as long as its caller's
// context lasts, without a bound on the callers. Use [Reader] and [Writer] for bytes a second.
package throttle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Waiter wraps a [ratelimit.Limiter] l and holds events back until l admits them. Allow and
// AllowN sleep until then, and for the Delay that l gives. They sleep no longer than a
// maximum in all, and not past the deadline of ctx. If that is not enough they deny at
// once. Delay is 0 in a Result that has been slept for.
//
// Bound: it sleeps at most the maximum, plus the time that its calls of l take. At most
// 1,024 callers sleep at once, or [WithMaxWaiting]. Beyond that an event that cannot go now
// is denied, whatever its key.
//
// Callers that wait for the same key of the same l stand in a queue in this process, in
// order of arrival. It is the queue of [ratelimit.Wait].
//
// The RetryAfter of a denial is the wait after which the event would be admitted without a
// sleep. For an event that stands behind others it is an estimate.
//
// If ctx ends in a sleep, the error is ctx's. A permit that the call had goes to the next
// in the queue, or is given back as far as l can. [store.ErrOverloaded] and
// [store.ErrUnavailable] do not end a sleep; other errors of l do.
//
// It starts no goroutine. It sleeps in real time, or in that of a
// synctest bubble, so l's store must not have a clock that stands still. AllowUpTo,
// AllowWithin, Peek and Charge never sleep. It is safe for concurrent use. Make it by
// [NewWaiter].
type Waiter struct {
	traits

	limiter ratelimit.Limiter
	fixed   bool // nothing in limiter can change
	own     see.Queues
	max     time.Duration
	places  queue.Places
}

const (
	defaultMaxWaiting = 1024
	leastRetryAfter   = time.Microsecond
)

// WaiterOption configures a [Waiter].
type WaiterOption func(*Waiter) error

// WithMaxWaiting bounds the callers that sleep at once to n, 1 to 2^31-1. The default is
// 1,024.
func WithMaxWaiting(n int) WaiterOption {
	return func(w *Waiter) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("%w: WithMaxWaiting(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, math.MaxInt32)
		}
		w.places.Most = int64(n)
		return nil
	}
}

// NewWaiter returns a limiter that decides as l does, after a sleep of up to max, which is
// above 0. It returns [ratelimit.ErrInvalidOption] if l or an option is nil, or max or an
// option is out of range.
func NewWaiter(l ratelimit.Limiter, max time.Duration, opts ...WaiterOption) (*Waiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if max <= 0 {
		return nil, fmt.Errorf("%w: the maximum is %v, want above 0", ratelimit.ErrInvalidOption, max)
	}
	if see.Held(l) {
		return nil, see.ErrHeld
	}
	w := &Waiter{traits: traits{Sleeps: true, Behind: l}, limiter: l, max: min(max, queue.Forever)}
	w.places.Most = defaultMaxWaiting
	w.own, w.fixed = w.queues(), see.Fixed(l)
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

// Waiting returns how many callers sleep now.
func (w *Waiter) Waiting() int { return int(w.places.Taken()) }

// Allow is AllowN of 1.
func (w *Waiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return w.AllowN(ctx, key, 1)
}

// queues is how the limiter's waiters stand.
func (w *Waiter) queues() see.Queues {
	if w.fixed {
		return w.own
	}
	_, delays := w.limiter.(ratelimit.Delayer)
	return see.QueuesOf(w.limiter, delays)
}

// leaky reports whether r is a leaky bucket's.
func (w *Waiter) leaky(r *ratelimit.Result) bool {
	return w.queues().Kind == queue.Leaky && r.Source() == ratelimit.SourceStore
}

// AllowN decides on n events at once, after a sleep if that helps.
func (w *Waiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	switch {
	case w.limiter == nil:
		return ratelimit.Result{}, unmade.Err
	case store.CheckCall(ctx, key, n) != nil:
		return w.limiter.AllowN(ctx, key, n) // which says what is wrong
	}
	queues := w.queues()
	patience := w.patience(ctx)
	a := askers.Get().(*asker)
	a.limiter, a.key, a.n = w.limiter, key, n
	me := &a.waiter
	me.Limiter, me.Key, me.N, me.Kind, me.Asker, me.Max, me.Places = w.limiter, queues.Key(ctx, key, n), n, queues.Kind, a, w.max, &w.places
	if n > 1 && see.Calls(w.limiter) {
		me.N = 1
	}
	err := me.Wait(ctx)
	r, d, events := a.result, me.Answer, me.N
	*a = asker{} // so that it keeps nothing alive
	askers.Put(a)
	switch {
	case err == nil:
		r.Delay = 0
		return r, nil
	case errors.Is(err, queue.ErrFull) && !d.Asked:
		return w.look(ctx, key, events)
	case errors.Is(err, queue.ErrFull): // it denies what could sleep, too
		return w.denial(r, n, d.Remaining >= events, 0), nil
	case !errors.Is(err, queue.ErrTooLate) && !errors.Is(err, queue.ErrNever):
		return ratelimit.Result{}, err
	case !d.Asked:
		return w.behind(d, patience), nil
	}
	room := d.Remaining >= events // only the turn is too far away
	if !r.Allowed {
		r.RetryAfter = d.RetryAfter
		if r.RetryAfter != ratelimit.Never && room {
			r.RetryAfter = wholeMicros(r.RetryAfter - patience)
		}
	}
	return w.denial(r, n, room, patience), nil
}

// look says how long the wait would be behind others, without a place. It must not ask for the
// events that they wait for.
func (w *Waiter) look(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := w.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	denial := w.denial(r, 1, r.Remaining > 0, 0)
	denial.Allowed, denial.Delay = false, 0
	if n > denial.Limit && denial.Limit > 0 {
		denial.RetryAfter = ratelimit.Never
	}
	return denial, nil
}

// behind is the denial of a call that stood behind others, and was not asked for.
func (w *Waiter) behind(d queue.Decision, patience time.Duration) ratelimit.Result {
	if w.queues().Kind == queue.Leaky && d.RetryAfter != ratelimit.Never {
		d.RetryAfter = max(leastRetryAfter, d.RetryAfter-patience)
	}
	r, ok := d.Told.(ratelimit.Result)
	if !ok {
		r.Limit = d.Limit
	}
	r.Remaining, r.RetryAfter, r.ResetAfter = 0, wholeMicros(d.RetryAfter), wholeMicros(d.ResetAfter)
	return r
}

// patience returns how long a call may sleep.
func (w *Waiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok { // at the deadline itself it is too late
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

// denial returns r on n events as refused, to a caller that could have slept for early. With room
// for them it is only too late. What l has admitted has been given back already.
func (w *Waiter) denial(r ratelimit.Result, n int, room bool, early time.Duration) ratelimit.Result {
	if r.Allowed {
		reset := r.ResetAfter
		if w.leaky(&r) { // the events before are gone when its turn comes
			reset = r.Delay
		}
		retry := max(leastRetryAfter, wholeMicros(r.Delay-early))
		r = withoutCharge(r, n)
		r.Allowed, r.Remaining, r.RetryAfter, r.ResetAfter, r.Delay = false, 0, retry, reset, 0
		return r
	}
	if room {
		r.Remaining = 0
	}
	r.RetryAfter = max(r.RetryAfter, leastRetryAfter)
	if w.leaky(&r) && r.RetryAfter != ratelimit.Never {
		r.RetryAfter = max(r.RetryAfter, wholeMicros(r.ResetAfter-early))
	}
	return r
}

// decided is a limiter that has decided already.
type decided struct {
	ratelimit.Limiter
	result ratelimit.Result
}

func (d decided) AllowN(context.Context, string, int) (ratelimit.Result, error) { return d.result, nil }

func (d decided) Refund(context.Context, string, ratelimit.Result, int) error { return nil }

// withoutCharge returns r, an admission of n events that were given back, as a Result that
// cannot be refunded again.
func withoutCharge(r ratelimit.Result, n int) ratelimit.Result {
	if r.Charged() > 0 { // otherwise it is a Peek's
		r, _ = ratelimit.AllowWithin(context.Background(), decided{result: r}, "", n, 0)
	}
	return r
}

// AllowWithin is l's own, for callers that sleep the Delay themselves: see
// [ratelimit.AllowWithin]. It does not sleep, and takes no place from those that do.
func (w *Waiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return ratelimit.AllowWithin(ctx, w.limiter, key, n, d)
}

// AllowUpTo admits as many of n events as l has room for now, and returns how many: 0 to n.
// It does not sleep. Delay is l's, for the caller to sleep.
func (w *Waiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	if w.limiter == nil {
		return 0, ratelimit.Result{}, unmade.Err
	}
	return ratelimit.AllowUpTo(ctx, w.limiter, key, n)
}

// Peek returns what Allow would, at once, and charges nothing. If Allow would sleep and
// then admit, Allowed is true and Delay is the sleep, as long as no other caller comes.
func (w *Waiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, unmade.Err
	}
	r, err := w.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	due, patience := w.due(r), w.patience(ctx)
	switch {
	case r.Allowed && due <= 0:
	case due > patience:
		r = w.denial(r, 1, r.Remaining > 0, patience)
	case w.places.Full():
		r = w.denial(r, 1, r.Remaining > 0, 0)
	default:
		r.Allowed, r.RetryAfter, r.Delay = true, 0, due
	}
	return r, nil
}

// Charge charges l with n events that have happened already, and does not sleep.
func (w *Waiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return ratelimit.Charge(ctx, w.limiter, key, n)
}

// Refund gives back n of the events that charged admitted, as l does.
func (w *Waiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if w.limiter == nil {
		return unmade.Err
	}
	return w.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at l. Callers that sleep for it sleep on.
func (w *Waiter) Reset(ctx context.Context, key string) error {
	if w.limiter == nil {
		return unmade.Err
	}
	return w.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of l.
func (w *Waiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if w.limiter == nil {
		return dst, unmade.Err
	}
	return ratelimit.AppendPolicies(ctx, dst, w.limiter, key)
}

var (
	_ ratelimit.Limiter        = (*Waiter)(nil)
	_ ratelimit.PolicyAppender = (*Waiter)(nil)
	_ ratelimit.Charger        = (*Waiter)(nil)
	_ ratelimit.Delayer        = (*Waiter)(nil)
)

var askers = sync.Pool{New: func() any { return new(asker) }}

// asker asks the limiter for a call in a queue.
type asker struct {
	limiter ratelimit.Limiter
	key     string
	n       int
	result  ratelimit.Result
	waiter  queue.Waiter
}

func (a *asker) Ask(ctx context.Context, d time.Duration) (queue.Decision, error) {
	r, err := ratelimit.AllowWithin(ctx, a.limiter, a.key, a.n, d)
	a.result = r
	return a.told(r), err
}

func (a *asker) Refund(ctx context.Context) error {
	return a.limiter.Refund(ctx, a.key, a.result, a.n)
}

func (a *asker) Hands() bool     { return !see.Calls(a.limiter) && see.ByKey(a.limiter) }
func (a *asker) Permit() any     { return a.result }
func (a *asker) Take(permit any) { a.result, _ = permit.(ratelimit.Result) }

// told returns what a queue needs of r.
func (a *asker) told(r ratelimit.Result) queue.Decision {
	d := queue.Decision{
		Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining,
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay,
		Elsewhere: r.Source() != ratelimit.SourceStore,
	}
	if r.Allowed && r.Limit == 0 { // no limit is known to count it
		d.Remaining = math.MaxInt32
	}
	for _, p := range r.Parts() {
		kind, unit := see.Queue(a.limiter, p.Limiter, a.n)
		d.Part(kind, unit, queue.Decision{
			Limit: p.Limit, Remaining: p.Remaining,
			RetryAfter: p.RetryAfter, ResetAfter: p.ResetAfter, Delay: p.Delay,
		})
	}
	if !r.Allowed && (d.Elsewhere || r.Parts() != nil) { // otherwise r says no more than d
		d.Told = r
	}
	return d
}

// wholeMicros rounds d up to whole µs.
func wholeMicros(d time.Duration) time.Duration {
	if rest := d % time.Microsecond; rest > 0 && d < math.MaxInt64-time.Microsecond {
		d += time.Microsecond - rest
	}
	return d
}
