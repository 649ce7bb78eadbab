package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Wait blocks until l admits n events of key, and then for their Delay, which the Result still has: do
// not sleep for it again. It returns [ErrNever]
// immediately if the events are never admitted, and [ErrWouldExceedDeadline] as soon as the decisions of
// l show that they would be admitted only after the deadline of ctx. It returns [ErrInvalidOption] if l
// counts slots, for which there is inflight.Wait, or if l waits by itself, as throttle's Waiter does.
//
// Within a process, the callers that wait for a key of a limiter [wait in a queue], and each wait costs
// about one call to l. If ctx ends, the permit goes to the next waiter, or is refunded. Errors of l end
// the wait, except [store.ErrOverloaded] and [store.ErrUnavailable], after which Wait asks again within
// 5 ms to 1 s.
//
// [wait in a queue]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/promises.md#waiting
func Wait(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	if w, ok := ctx.(*queue.Waiter); ok { // from package throttle, which has checked the arguments
		return wait(w.Context, w, l, key, n)
	}
	if isnil.Is(l) {
		return Result{}, errNilLimiter
	}
	if err := store.CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	if err := see.NoWait(l); err != nil {
		return Result{}, err
	}
	w, queues := queue.NewWaiter(), queuesOf(l)
	w.Key, w.Kind = queues.Key(ctx, key, n), queues.Kind
	r, err := wait(ctx, w, l, key, n)
	most, asked := w.Answer.Limit, w.Answer.Asked
	w.Free()
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, queue.ErrTooLate):
		return Result{}, ErrWouldExceedDeadline
	case errors.Is(err, queue.ErrNever):
		if asked { // with several limits, the Answer's Limit may not be that of the limit that denies
			most = r.denier().Limit
		}
		return Result{}, fmt.Errorf("%w: %d events exceed the limit of %d", ErrNever, n, most)
	default:
		return Result{}, err
	}
}

// wait waits for the call w. If it returns an error, the Result is the last answer of l, without the events that were
// refunded.
func wait(ctx context.Context, w *queue.Waiter, l Limiter, key string, n int) (r Result, err error) {
	a, ok := w.Asker.(*asker)
	if !ok {
		a = new(asker)
		w.Asker = a
	}
	a.limiter, a.key, a.n = l, key, n
	w.Limiter, w.N, w.Size = l, see.Events(l, n), 1
	if w.N < n && !see.Behind(l).Calls { // other limits in l count events
		w.Size = n
	}
	err = w.Wait(ctx)
	r = a.result
	*a = asker{} // so that it keeps nothing alive
	if err != nil && r.Allowed {
		r = r.without(n, n)
	}
	return r, err
}

// queuesOf returns how l's waiters queue, as far as that is known.
func queuesOf(l Limiter) see.Queues { return see.QueuesOf[Delayer](l) }

// asker asks l for a call in a queue.
type asker struct {
	limiter Limiter
	key     string
	n       int
	result  Result
}

func (a *asker) Ask(ctx context.Context, d time.Duration) (queue.Answer, error) {
	var err error
	a.result, err = AllowWithin(ctx, a.limiter, a.key, a.n, d)
	return a.answer(), err
}

func (a *asker) Refund(ctx context.Context) error {
	return a.limiter.Refund(ctx, a.key, a.result, a.n)
}

func (a *asker) MayHandOn() bool { return !see.Calls(a.limiter) && see.ByKey(a.limiter) }
func (a *asker) Permit() any     { return a.result }
func (a *asker) Take(permit any) { a.result, _ = permit.(Result) }

// kind returns how lim admits waiters. A lease takes events ahead, so it admits none for a later time.
func (lim *limiter) kind() queue.Kind {
	switch {
	case see.Leased(lim.store):
		return queue.Leased
	case lim.reserved == 0:
	case lim.rule == &leakyBucket: // the number of charged events, and so the step, is not known
		return queue.Turns
	default:
		return queue.Plain
	}
	if k, err := kindOf(lim.rule.Name); err == nil {
		return k.waits
	}
	if !lim.rule.Burst {
		return queue.Plain
	}
	return queue.Unknown
}

// answer returns what a queue needs to know of the result.
func (a *asker) answer() queue.Answer {
	r := &a.result
	d := queue.Answer{
		Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining,
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay,
		Elsewhere: r.source() != SourceStore,
	}
	if r.Allowed && r.Limit == 0 { // no known limit counts the call
		d.Remaining = maxEvents
	}
	parts := r.Parts()
	if !r.Allowed && (d.Elsewhere || parts != nil) { // otherwise r has no more information than d
		d.Info = *r
	}
	switch {
	case parts == nil:
		return d
	case see.Alternatives(a.limiter): // they do not decide together, and another one may have a larger Limit
		d.Elsewhere, d.Alternatives = true, true
		d.Remaining /= a.n / see.Events(a.limiter, a.n) // the queue may count calls
		return d
	}
	for i := range parts {
		p := &parts[i]
		kind, unit := see.Queue(a.limiter, p.Limiter, a.n)
		d.Part(kind, unit, queue.Answer{
			Limit: p.Limit, Remaining: p.Remaining,
			RetryAfter: p.RetryAfter, ResetAfter: p.ResetAfter, Delay: p.Delay,
		})
	}
	return d
}

// Delayer is implemented by limiters that have a method [AllowWithin]. All limiters of this module do,
// except throttle's Slowdown and a ratelimittest.Static. A type that embeds a Delayer and defines its
// own AllowN must also define its own AllowWithin.
type Delayer interface {
	AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error)
}

// AllowWithin admits and charges n events of key if their scheduled time comes within d, or none of
// them. The caller must sleep for the Delay, which is at most d, or refund the events before it ends.
//
//   - A [LeakyBucket] admits the events that AllowN admits, if their Delay is at most d.
//   - A [TokenBucket] admits the events that AllowN would admit within d, and charges them now.
//   - Windows and logs have no schedule, and decide as AllowN does.
//
// The RetryAfter of a denial is exact for the same call. d is clamped to between 0 and 100 years.
//
// If l is not a [Delayer], AllowWithin calls AllowN. If the Delay is too long, it refunds the events and
// returns a denial, whose RetryAfter is not always exact.
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
	if err != nil && !errors.Is(err, ErrInvalidN) { // ErrInvalidN: nothing was charged
		return Result{}, err
	}
	return r.tooLate(n, d), nil
}

// inTime reports whether r is a denial, or an admission whose turn comes within d.
func (r *Result) inTime(d time.Duration) bool { return !r.Allowed || r.Delay <= max(d, 0) }

// tooLate returns the denial of n events whose turn, according to r, comes later than d.
func (r *Result) tooLate(n int, d time.Duration) Result {
	denial := r.without(n, n)
	denial.Allowed, denial.Delay, denial.RetryAfter = false, 0, exact.WholeMicros(r.Delay-max(d, 0))
	return denial
}

// AllowWithin implements [Delayer].
func (lim *limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (res Result, err error) {
	err = lim.takeWithOptions(ctx, key, n, asking{toTakeWithin, d}, &res)
	return res, err
}

// limitWithin returns l for events that can wait for d. A token bucket with reserved events charges none
// ahead of its time, because that event would be missing from the reserved ones.
func (lim *limiter) limitWithin(l store.Limit, d time.Duration) store.Limit {
	if lim.rule.Burst && (lim.reserved == 0 || lim.rule == &leakyBucket) { // the limiter has turns
		return l.TurnBefore(1 + min(max(d, 0).Microseconds(), bucket.MaxRefill))
	}
	return l
}

// asking is a question to a limiter: the operation and, for toTakeWithin, its d.
type asking struct {
	what operation
	d    time.Duration
}

// ask asks l for n events. (A Peek is always of one.)
func (a asking) ask(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	switch a.what {
	case toPeek:
		return l.Peek(ctx, key)
	case toTakeWithin:
		return AllowWithin(ctx, l, key, n, a.d)
	}
	return l.AllowN(ctx, key, n)
}
