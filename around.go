package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
)

// Around is a wrapper of your own: a [Limiter] around another limiter, made of one function that
// decides on each [Call]. To add methods, embed an *Around in a type. Do not replace methods that way,
// because [Wait], [AllowUpTo] and others also use those that you have not replaced.
//
// Around keeps account of the events that the wrapped limiter has charged, whatever the function
// returns:
//
//   - If the function denies the call, returns an error or panics, the events are refunded. The same
//     applies if it returns a Delay that is longer than an AllowWithin may take.
//   - A Refund of events that the function admitted, but the wrapped limiter did not charge, has no
//     effect and returns nil.
//   - If the function returns a [Result] of its own, a Refund of it still reaches the charge.
//
// Reset and AppendPolicies are those of the wrapped limiter.
type Around struct {
	inside Limiter
	decide func(ctx context.Context, c Call) (Result, error)
	own    *Mark // on admissions that the limiter inside has not charged
}

// Call is a call to AllowN, AllowWithin, AllowUpTo, Peek or Charge. Allow calls AllowN. A Call must not be
// used after the function has returned.
type Call struct {
	Key    string
	N      int  // events; 1 for a Peek
	Peek   bool // the call charges nothing
	Charge bool // the events have already happened

	asked *asked
	use   uint64 // of asked, for which the Call is valid
}

// asked is the question of a Call to the limiter inside, and its answer.
type asked struct {
	use     atomic.Uint64 // incremented when the call ends, because an asked is reused
	inside  Limiter
	key     string
	n       int
	how     asking
	done    bool
	granted int
	result  Result
	err     error
}

var askeds = sync.Pool{New: func() any { return new(asked) }}

// NewAround returns a limiter that wraps l and decides by f. f asks l by [Call.Inside], or returns a
// Result of its own. f must be safe for concurrent use. NewAround returns [ErrInvalidOption] if l or f is
// nil.
func NewAround(l Limiter, f func(ctx context.Context, c Call) (Result, error)) (*Around, error) {
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	if f == nil {
		return nil, fmt.Errorf("%w: NewAround: the function is nil", ErrInvalidOption)
	}
	own := new(Mark)
	own.owner = own
	return &Around{l, f, own}, nil
}

// Inside asks the wrapped limiter. A second time, it returns the same again without asking. It returns
// [ErrInvalidOption] once the function has returned.
func (c Call) Inside(ctx context.Context) (Result, error) {
	a := c.asked
	if a == nil || a.use.Load() != c.use {
		return Result{}, fmt.Errorf("%w: Inside was called after the function had returned", ErrInvalidOption)
	}
	if a.done {
		return a.result, a.err
	}
	a.done = true
	switch a.how.what {
	case toTakeUpTo:
		a.granted, a.result, a.err = AllowUpTo(ctx, a.inside, a.key, a.n) // granted is 0 for a denial
	case toCharge:
		a.result, a.err = Charge(ctx, a.inside, a.key, a.n)
	default:
		a.result, a.err = a.how.ask(ctx, a.inside, a.key, a.n)
	}
	return a.result, a.err
}

// ask calls the function. granted is the number of events that an AllowUpTo gets.
func (a *Around) ask(ctx context.Context, key string, n int, how asking) (granted int, r Result, err error) {
	if err = a.check(ctx, key, n); err != nil {
		return 0, r, err
	}
	in := askeds.Get().(*asked)
	in.inside, in.key, in.n, in.how, in.granted = a.inside, key, n, how, n
	defer func() {
		if !r.Allowed && in.charges() { // also after a panic of the function
			_ = a.inside.Refund(context.WithoutCancel(ctx), key, in.result, in.granted)
		}
		in.use.Add(1)
		in.inside, in.key, in.done, in.result, in.err = nil, "", false, Result{}, nil
		askeds.Put(in)
	}()
	got, err := a.decide(ctx, Call{Key: key, N: n, Peek: how.what == toPeek, Charge: how.what == toCharge, asked: in, use: in.use.Load()})
	switch {
	case err != nil:
		return 0, r, err
	case how.what == toPeek:
		return 0, got, nil
	case !got.Allowed:
		return 0, got.without(n, n), nil // so that the caller cannot refund the events again
	case how.what == toTakeWithin && !got.inTime(how.d):
		return 0, got.tooLate(n, how.d), nil
	case !in.admitted():
		if got.uncounted() { // Refund recognizes this without a mark
			return n, got, nil
		}
		return n, got.WithMark(a.own), nil
	case !got.canRefund(&in.result):
		k := &chargeNote{charged: in.result}
		k.mark = Mark{owner: a.own, note: k}
		if got.isOf(&in.result) {
			n = in.granted
		}
		return n, got.WithMark(&k.mark), nil
	}
	return in.granted, got, nil
}

// chargeNote is the note on a Result from which Refund could not tell what the limiter inside has charged.
type chargeNote struct {
	mark    Mark // the mark with this note, in the same allocation
	charged Result
}

// canRefund reports whether r has everything that a Refund of inner needs.
func (r *Result) canRefund(inner *Result) bool {
	return *r == *inner || r.isOf(inner) && !r.uncounted() && r.ResetAfter == inner.ResetAfter && r.Limit == inner.Limit // of which a receipt is made
}

// isOf reports whether r is inner, which has charged events, perhaps with other numbers and more marks.
func (r *Result) isOf(inner *Result) bool {
	m := r.mark
	for m != nil && m != inner.mark {
		m = m.under
	}
	return inner.Charged() > 0 && m == inner.mark && r.at == inner.at && r.period == inner.period && r.n == inner.n && r.rate == inner.rate
}

// admitted reports whether the limiter inside has admitted the call.
func (in *asked) admitted() bool { return in.done && in.err == nil && in.result.Allowed }

// charges reports whether the limiter inside has charged events that must go back if the function denies
// the call. The events of a Charge have happened.
func (in *asked) charges() bool {
	return in.admitted() && in.how.what != toPeek && in.how.what != toCharge
}

func (a *Around) check(ctx context.Context, key string, n int) error {
	return unmade.Check(ctx, a != nil && a.inside != nil, key, n)
}

// Allow implements [Limiter].
func (a *Around) Allow(ctx context.Context, key string) (r Result, err error) {
	_, r, err = a.ask(ctx, key, 1, asking{what: toTake})
	return r, err
}

// AllowN implements [Limiter].
func (a *Around) AllowN(ctx context.Context, key string, n int) (r Result, err error) {
	_, r, err = a.ask(ctx, key, n, asking{what: toTake})
	return r, err
}

// AllowWithin implements [Delayer].
func (a *Around) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r Result, err error) {
	_, r, err = a.ask(ctx, key, n, asking{toTakeWithin, d})
	return r, err
}

// AllowUpTo admits as many of n events as fit, as the function [AllowUpTo] does. If the decision is not
// that of the wrapped limiter, all events are granted or none.
func (a *Around) AllowUpTo(ctx context.Context, key string, n int) (granted int, r Result, err error) {
	return a.ask(ctx, key, n, asking{what: toTakeUpTo})
}

// Peek implements [Limiter].
func (a *Around) Peek(ctx context.Context, key string) (r Result, err error) {
	_, r, err = a.ask(ctx, key, 1, asking{what: toPeek})
	return r, err
}

// Charge implements [Charger].
func (a *Around) Charge(ctx context.Context, key string, n int) (r Result, err error) {
	_, r, err = a.ask(ctx, key, n, asking{what: toCharge})
	return r, err
}

// Refund implements [Limiter].
func (a *Around) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := a.check(ctx, key, n); err != nil {
		return err
	}
	inner := a.Inner(charged)
	if charged.Allowed && (inner.uncounted() || inner == (Result{})) {
		return nil
	}
	return a.inside.Refund(ctx, key, inner, n)
}

// Inner returns the decision of the wrapped limiter behind r, a Result of a. It is zero if the wrapped
// limiter was not asked, or denied a call that was then admitted.
func (a *Around) Inner(r Result) Result {
	if a == nil {
		return r
	}
	under, note, marked := r.Unmark(a.own)
	if k, ok := note.(*chargeNote); ok {
		return k.charged
	}
	if marked {
		return Result{}
	}
	return under
}

// Reset implements [Limiter].
func (a *Around) Reset(ctx context.Context, key string) error {
	if err := a.check(ctx, key, 1); err != nil {
		return err
	}
	return a.inside.Reset(ctx, key)
}

// AppendPolicies implements [PolicyAppender].
func (a *Around) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if a == nil || a.inside == nil {
		return dst, unmade.Err
	}
	return AppendPolicies(ctx, dst, a.inside, key)
}

// Unwrap returns the wrapped limiter.
func (a *Around) Unwrap() Limiter {
	if a == nil {
		return nil
	}
	return a.inside
}

var _ complete = (*Around)(nil)
