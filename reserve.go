package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/credit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Charger is implemented by limiters that have a method [Charge]. All limiters of this module do, except
// a ratelimittest.Static.
type Charger interface {
	Charge(ctx context.Context, key string, n int) (Result, error)
}

// Reservation is a charge for an estimated cost. Settle it once. Until then, the estimate stays charged.
type Reservation struct {
	limiter  Limiter
	key      string
	reserved int
	charged  Result
	settled  atomic.Bool
}

// Reserve asks l for n events, an estimate of a cost that is known only afterwards, such as the tokens
// of a language model. If the events are denied, the Reservation is nil. Reserve returns
// [ErrInvalidOption] for slots (package inflight).
//
// Bound: the bound of the limit, plus the amount by which costs exceed their estimates.
func Reserve(ctx context.Context, l Limiter, key string, n int) (*Reservation, Result, error) {
	if isnil.Is(l) {
		return nil, Result{}, errNilLimiter
	}
	if see.Held(l) {
		return nil, Result{}, errHeldReserved
	}
	r, err := l.AllowN(ctx, key, n)
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	return &Reservation{limiter: l, key: key, reserved: n, charged: r}, r, nil
}

var errNotReserved = fmt.Errorf("%w: the Reservation is nil, because Reserve was denied or failed", ErrInvalidOption)

// errHeldReserved: a settled Reservation would keep its slot.
var errHeldReserved = fmt.Errorf("%w: Reserve cannot be used with slots: use inflight.Hold, and Settle the Slot", ErrInvalidOption)

// Settle replaces the estimate with the actual cost, 0 or more events, even if ctx has ended. It refunds
// the difference, or charges it ([Charge]). After an error, the estimate stays charged. The Result is that
// of the Charge, or the one that Reserve would have returned for the actual cost (its ResetAfter may be
// too long). A second call returns [ErrSettled], and a negative cost [ErrInvalidN]; neither changes
// anything.
func (r *Reservation) Settle(ctx context.Context, actual int) (Result, error) {
	switch {
	case r == nil:
		return Result{}, errNotReserved
	case r.limiter == nil:
		return Result{}, unmade.Err
	case actual < 0:
		return Result{}, fmt.Errorf("%w: an actual cost of %d, want 0 or more", ErrInvalidN, actual)
	case !r.settled.CompareAndSwap(false, true):
		return Result{}, ErrSettled
	}
	ctx = context.WithoutCancel(ctx)
	rest := r.reserved - actual
	switch {
	case rest < 0:
		return Charge(see.Settling(ctx, r.charged), r.limiter, r.key, -rest)
	case rest > 0:
		if err := r.limiter.Refund(ctx, r.key, r.charged, rest); err != nil {
			return Result{}, err
		}
	}
	return r.charged.without(rest, r.reserved), nil
}

// Charge charges n events of key that have already happened, whether they fit the limit or not. The
// Result is allowed, and can be refunded. Until the debt is paid, calls are denied:
//
//   - A bucket pays a debt at its Rate. Use a bucket if estimates may be far off.
//   - A [SlidingLog] forgets a debt after a Period, and a [FixedWindow] at the end of the window.
//   - In the next window of a [SlidingWindow], a debt counts as a full window.
//
// Debts add up to at most 2^31-1 events, and in a bucket to the events that drain in 100 years. Events
// beyond that are not charged. A Rate of 0 denies. If l is not a [Charger], Charge charges as many of the
// events as fit.
func Charge(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	if isnil.Is(l) {
		return Result{}, errNilLimiter
	}
	if c, ok := l.(Charger); ok {
		return c.Charge(ctx, key, n)
	}
	_, r, err := AllowUpTo(ctx, l, key, n)
	r.Allowed, r.RetryAfter = err == nil, 0
	return r, err
}

// Credit refunds up to n events of key without the Result of their charge, but no more than are
// charged to the current window or bucket. In a bucket, one event stays charged. If you have the Result,
// use Refund.
//
// Credit makes two calls to the store. l must be a [FixedWindow], a [SlidingWindow] or a [TokenBucket].
// Otherwise Credit returns [ErrInvalidOption].
func Credit(ctx context.Context, l Limiter, key string, n int) (given int, err error) {
	lim := coreOf(l)
	if lim == nil || !credit.Has(lim.rule) {
		return 0, fmt.Errorf("%w: Credit cannot be used with a %T: use Refund with the Result of the charge", ErrInvalidOption, l)
	}
	if key, err = lim.keyOf(ctx, key, n); err != nil {
		return 0, err
	}
	by, err := lim.limitOf(ctx, key)
	if err != nil || by.Rate <= 0 { // then nothing is counted
		return 0, err
	}
	r, err := store.Peek(ctx, see.Bottom(lim.store), lim.namespace, key, by, 1)
	if err != nil {
		return 0, err
	}
	if given = int(min(int64(n), credit.Most(lim.rule, by, r))); given == 0 {
		return 0, nil
	}
	made := store.NewReceipt(by, r.X, lim.rule.Report(by, r, 1, 1).Reset, int64(given))
	return given, lim.store.Refund(ctx, lim.namespace, key, by, credit.Receipt(lim.rule, by, made))
}
