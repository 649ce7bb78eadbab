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
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/order"
	"github.com/ratelimit-go/ratelimit/internal/queue"
)

// Waiter is a [ratelimit.Limiter] whose Allow and AllowN sleep until l admits the
// event, and then for its Delay, but no longer than a maximum in all, or than to the
// deadline of ctx. Where that is not enough they deny at once, without sleeping in
// vain. The Result of what has been slept for has Delay 0.
//
// Bound: it admits what l admits, when l does. It sleeps at most the maximum, and takes
// as much longer as its calls of l do. At most 1,024 callers sleep at once, or
// [WithMaxWaiting]; beyond that an event that cannot go now is denied. They are not bounded
// by key: a key with many callers can take all places, and the others are denied then as
// without a Waiter.
//
// Those who sleep for the same key of the same l stand in a queue in this process, in order
// of arrival: the queue of [ratelimit.Wait], which says how they ask. An event that would
// be admitted now stands behind them too. Refunds and Resets by others do not wake them, but
// the next who arrives does: see there.
//
// The RetryAfter of a denial is l's: the wait after which the event would be admitted
// without a sleep. For an event that stands behind others it is an estimate, and of more
// than one event without a place to sleep it is that of one event. It is shorter where l
// would admit the event now and Delay is too long for the caller: RetryAfter is the Delay
// less the time that the call had for sleeping, 1 µs at least (the whole Delay if all places
// are taken). A [ratelimit.LeakyBucket] denies by the same rule also while it is full: the
// turn behind what is in its queue would come after ResetAfter.
//
// If ctx ends in a sleep, the error is ctx's. A permit that the call had goes to the next in
// the queue who waits for as many events, or is given back, as far as Refund of l can: only
// given back where ctx has a say (see there). A
// leaky bucket takes back only its last turn: calls that end while others come can leave
// gaps in its queue.
//
// [store.ErrOverloaded] and [store.ErrUnavailable], after which nothing is charged, do not
// end a sleep: l is asked again after 5 ms, and after twice as long each time up to 1 s. They
// are the error if no time or no place is left for that. Other errors of l are the call's.
//
// It starts no goroutine and has nothing to close; what waits costs its caller's goroutine
// and a timer. An event that is admitted at once costs some 150 ns more. It sleeps in real
// time (or a synctest bubble's), so that l's store must not have a simulated clock that
// stands still.
//
// A denial has the source and the parts of l's. That of an event that stands behind others
// has those of the last denial in its queue. AllowUpTo, AllowWithin, Peek and Charge never
// sleep.
//
// It is safe for concurrent use. Make it by [NewWaiter].
type Waiter struct {
	sleeps

	limiter    ratelimit.Limiter
	kind       queue.Kind // of limiter, if that is no wrapper
	wrapper    bool       // limiter is one: what it wraps may change
	max        time.Duration
	maxWaiting int64
	waiting    atomic.Int64
}

type sleeps = order.Sleeps // see package order

const (
	defaultMaxWaiting = 1024
	leastRetryAfter   = time.Microsecond
	maxKey            = 64 << 10 // bytes
)

var errNoConstructor = fmt.Errorf("%w: a limiter is made by its constructor", ratelimit.ErrInvalidLimit)

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
	w := &Waiter{limiter: l, max: min(max, queue.Forever), maxWaiting: defaultMaxWaiting}
	w.kind = kindOf(l)
	_, w.wrapper = l.(interface{ Unwrap() ratelimit.Limiter })
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

// kindOf is how l admits those who wait, as far as that can be seen.
func kindOf(l ratelimit.Limiter) queue.Kind {
	_, delays := l.(ratelimit.Delayer)
	return queue.KindOf(five.AlgorithmOf(l), delays)
}

// kindNow is the kind of the limiter. That of a leaky bucket is known to turn denials into
// a Delay.
func (w *Waiter) kindNow() queue.Kind {
	if w.wrapper {
		return kindOf(w.limiter)
	}
	return w.kind
}

// leaky is whether r is a leaky bucket's.
func (w *Waiter) leaky(r *ratelimit.Result) bool {
	return w.kindNow() == queue.Leaky && r.Source() == ratelimit.SourceStore
}

// AllowN decides on n events at once, after a sleep if that helps.
func (w *Waiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	switch {
	case w.limiter == nil:
		return ratelimit.Result{}, errNoConstructor
	case n <= 0, key == "", len(key) > maxKey, ctx.Err() != nil:
		return w.limiter.AllowN(ctx, key, n) // which says what is wrong
	}
	kind := w.kindNow()
	var end time.Time
	if kind == queue.Leaky {
		end = time.Now().Add(w.patience(ctx))
	}
	turn, ok := queue.Enter(w.limiter, key, n, kind, end)
	if !ok {
		return w.standBehind(ctx, key, n)
	}
	var within time.Duration
	if turn.Tickets && w.waiting.Load() < w.maxWaiting {
		within = w.patience(ctx)
	}
	r, err := w.askAlone(ctx, key, n, within, &turn)
	switch {
	case err == nil && r.Allowed && r.Delay <= 0:
		d := decision(r)
		turn.Land(&d, true)
		return r, nil
	case w.takePlace():
		defer w.waiting.Add(-1)
		return w.wait(ctx, &asker{w.limiter, key, n, r}, &turn, within, err)
	}
	turn.Land(nil, false)
	switch {
	case err != nil:
		return ratelimit.Result{}, err
	case r.Allowed: // the last place went meanwhile
		if err := w.giveBack(ctx, key, n, r); err != nil {
			return ratelimit.Result{}, err // the charge may stand
		}
	}
	return w.denial(r, n, 0), nil
}

// askAlone asks for those before whom nobody waits.
func (w *Waiter) askAlone(ctx context.Context, key string, n int, within time.Duration, turn *queue.Turn) (r ratelimit.Result, err error) {
	returned := false
	defer func() {
		if !returned { // the limiter has panicked
			turn.Land(nil, false)
		}
	}()
	r, err = ratelimit.AllowWithin(ctx, w.limiter, key, n, within)
	returned = true
	return r, err
}

// takePlace is whether there is one.
func (w *Waiter) takePlace() bool {
	if w.waiting.Add(1) > w.maxWaiting {
		w.waiting.Add(-1)
		return false
	}
	return true
}

// standBehind waits behind others. Who has no place to do so does not ask for what those
// who have wait for, but only what there is to wait for.
func (w *Waiter) standBehind(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if w.takePlace() {
		defer w.waiting.Add(-1)
		return w.wait(ctx, &asker{limiter: w.limiter, key: key, n: n}, nil, 0, nil)
	}
	r, err := w.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	denial := w.denial(r, 1, 0)
	denial.Allowed, denial.Delay = false, 0
	if n > denial.Limit && denial.Limit > 0 {
		denial.RetryAfter = ratelimit.Never
	}
	return denial, nil
}

// patience is how long a call may sleep.
func (w *Waiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok { // at which it is too late
		return max(0, min(w.max, time.Until(deadline)-1))
	}
	return w.max
}

// wait waits behind others, or after a's question within d, which was asked in its turn and
// has been answered by a.result and err.
func (w *Waiter) wait(ctx context.Context, a *asker, turn *queue.Turn, d time.Duration, err error) (ratelimit.Result, error) {
	patience := w.patience(ctx)
	kind := w.kindNow()
	o := (&queue.Waiter{
		Limiter: w.limiter, Key: a.key, N: a.n, Kind: kind, Asker: a,
		End: time.Now().Add(patience), Timed: true,
	}).Wait(ctx, turn, d, told(a.result), err)
	switch {
	case o.Verdict == queue.Failed:
		return ratelimit.Result{}, o.Err
	case o.Verdict == queue.Admitted:
		a.result.Delay = 0
		return a.result, nil
	case !o.Asked: // it stood behind others
		d := o.Denial
		if kind == queue.Leaky {
			d.RetryAfter = max(leastRetryAfter, d.RetryAfter-patience)
		}
		r, ok := d.Told.(ratelimit.Result)
		if !ok {
			r.Limit = d.Limit
		}
		r.Remaining, r.RetryAfter, r.ResetAfter = 0, wholeMicros(d.RetryAfter), wholeMicros(d.ResetAfter)
		return r, nil
	}
	r := a.result
	if !r.Allowed {
		r.RetryAfter = o.Denial.RetryAfter
		if r.RetryAfter != ratelimit.Never && r.Remaining >= a.n { // RetryAfter is the Delay less o.Within
			r.RetryAfter += o.Within - patience
		}
	}
	return w.denial(r, a.n, patience), nil
}

// due is how long the events of r have to wait, nobody else calling.
func (w *Waiter) due(r ratelimit.Result) time.Duration {
	switch {
	case r.Allowed:
		return r.Delay
	case w.leaky(&r):
		return max(r.RetryAfter, r.ResetAfter)
	}
	return max(r.RetryAfter, leastRetryAfter)
}

// denial is r on n events as refused, to a caller who could have slept for early. What l has
// admitted has been given back.
func (w *Waiter) denial(r ratelimit.Result, n int, early time.Duration) ratelimit.Result {
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
	if r.Remaining >= n { // there is room, but too late
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

// withoutCharge is r, an admission of n events that were given back, as what cannot be
// refunded again.
func withoutCharge(r ratelimit.Result, n int) ratelimit.Result {
	if r.Charged() > 0 { // and else it is a Peek's
		r, _ = ratelimit.AllowWithin(context.Background(), decided{result: r}, "", n, 0)
	}
	return r
}

func (w *Waiter) giveBack(ctx context.Context, key string, n int, r ratelimit.Result) error {
	return w.limiter.Refund(context.WithoutCancel(ctx), key, r, n)
}

// AllowWithin is l's own, for callers who sleep the Delay themselves: see
// [ratelimit.AllowWithin]. It does not sleep, and takes no place of those who do.
func (w *Waiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if w.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	return ratelimit.AllowWithin(ctx, w.limiter, key, n, d)
}

// AllowUpTo admits as many of n events as l has room for now: granted of them, 0 to n. It does
// not sleep. Delay is l's, for the caller to sleep.
func (w *Waiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	if w.limiter == nil {
		return 0, ratelimit.Result{}, errNoConstructor
	}
	return ratelimit.AllowUpTo(ctx, w.limiter, key, n)
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
		r = w.denial(r, 1, patience)
	case w.waiting.Load() >= w.maxWaiting:
		r = w.denial(r, 1, 0)
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
	_ ratelimit.Delayer   = (*Waiter)(nil)
)

// asker asks limiter for those in a queue.
type asker struct {
	limiter ratelimit.Limiter
	key     string
	n       int
	result  ratelimit.Result
}

func (a *asker) Ask(ctx context.Context, d time.Duration) (queue.Decision, error) {
	r, err := ratelimit.AllowWithin(ctx, a.limiter, a.key, a.n, d)
	a.result = r
	return told(r), err
}

func (a *asker) Refund(ctx context.Context) error {
	return a.limiter.Refund(ctx, a.key, a.result, a.n)
}

func (a *asker) Hands() bool     { return five.ByKey(a.limiter) }
func (a *asker) Permit() any     { return a.result }
func (a *asker) Take(permit any) { a.result, _ = permit.(ratelimit.Result) }

// decision is what a queue needs of r.
func decision(r ratelimit.Result) queue.Decision {
	return queue.Decision{
		Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining,
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay,
		Elsewhere: r.Source() != ratelimit.SourceStore, Free: r.Allowed && r.Limit == 0,
	}
}

// told is decision with what else a denial says.
func told(r ratelimit.Result) queue.Decision {
	d := decision(r)
	if !r.Allowed && (d.Elsewhere || r.Parts() != nil) { // or else r says no more than d
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
