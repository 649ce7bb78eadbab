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

// Charger is a [Limiter] with [Charge], as all of this module are.
type Charger interface {
	Charge(ctx context.Context, key string, n int) (Result, error)
}

// Reservation is a charge by estimate. Settle it once, or it keeps its charge.
type Reservation struct {
	limiter  Limiter
	key      string
	reserved int
	charged  Result
	settled  atomic.Bool
}

// Reserve asks l for n events now, as an estimate of a cost that is known afterwards, such as
// the tokens of a language model. If they are denied, the Reservation is nil. Slots (package
// inflight) are [ErrInvalidOption].
//
// Bound: that of the limit, and what reservations have cost beyond their estimates.
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

var errNotReserved = fmt.Errorf("%w: nothing was reserved: the call was denied, or failed", ErrInvalidOption)

// errHeldReserved: a settled Reservation would keep its slot.
var errHeldReserved = fmt.Errorf("%w: slots are held: use inflight.Hold, and its Settle", ErrInvalidOption)

// Settle replaces the estimate by the actual cost, 0 or more events, also when ctx has ended:
// it refunds what was too much, or charges what was too little ([Charge]). After an error the
// estimate stays charged. The Result is that of the Charge, or of Reserve for the actual cost
// (its ResetAfter may be too long).
func (r *Reservation) Settle(ctx context.Context, actual int) (Result, error) {
	switch {
	case r == nil:
		return Result{}, errNotReserved
	case r.limiter == nil:
		return Result{}, unmade.Err
	case actual < 0:
		return Result{}, fmt.Errorf("%w: an actual cost of %d", ErrInvalidN, actual)
	case !r.settled.CompareAndSwap(false, true):
		return Result{}, ErrSettled
	}
	ctx = context.WithoutCancel(ctx)
	rest := r.reserved - actual
	switch {
	case rest < 0:
		return Charge(ctx, r.limiter, r.key, -rest)
	case rest > 0:
		if err := r.limiter.Refund(ctx, r.key, r.charged, rest); err != nil {
			return Result{}, err
		}
	}
	return r.charged.without(rest, r.reserved), nil
}

// Charge charges n events of key that have happened already, whether they fit or not. The
// Result says Allowed and can be refunded. Calls are denied until the debt is paid:
//
//   - A bucket pays at its Rate: for estimates that may be far off use one.
//   - A [SlidingLog] forgets a debt after a Period, and a [FixedWindow] with its window.
//   - On the next window of a [SlidingWindow] a debt weighs as a full one.
//
// Debts add up, to at most 2^31-1 events, and in a bucket to what drains in 100 years: more is
// not charged. A Rate of 0 denies. A limiter that is no [Charger] is charged as many as fit.
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

// Credit gives back up to n events of key without the Result of their charge: no more than the
// current window or level has. Of a bucket one event stays charged. With the Result use Refund.
//
// It takes two calls of the store. l is a [FixedWindow], a [SlidingWindow] or a [TokenBucket];
// others are [ErrInvalidOption].
func Credit(ctx context.Context, l Limiter, key string, n int) (given int, err error) {
	lim := coreOf(l)
	if lim == nil || !credit.Has(lim.rule) {
		return 0, fmt.Errorf("%w: a %T takes back only events of a Result", ErrInvalidOption, l)
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
