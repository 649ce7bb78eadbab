package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// ErrSettled says that a [Reservation] has been settled or cancelled before.
var ErrSettled = errors.New("ratelimit: the reservation is settled")

// Charger is a [Limiter] that can charge events which have happened already, past its
// limit. The five types are, and all limiters of this module around others.
type Charger interface {
	// Charge charges n events, whether they fit or not. The Result says Allowed and
	// can be refunded.
	Charge(ctx context.Context, key string, n int) (Result, error)
}

// Reservation is a charge by estimate, made by [Reserve], that waits for the actual.
// Settle it once, or Cancel it; one that is never settled keeps its charge.
type Reservation struct {
	limiter  Limiter
	key      string
	reserved int
	charged  Result
	settled  atomic.Bool
}

// Reserve asks l for n events now, as an estimate. It is for costs that are known afterwards:
// the tokens of a language model, the bytes of an upload, the rows of a query. If they are admitted, it
// returns a Reservation to settle. If they are denied, that is nil, and the Result says when
// to come again.
//
// Bound: a limit admits estimates. What exceeds them is charged afterwards, beyond the limit if
// need be, and later calls wait until that debt has drained: see [TokenBucket.Charge]. With a
// bucket the actual costs of an interval exceed its bound by no more than the excess of the
// reservations that were open in it.
func Reserve(ctx context.Context, l Limiter, key string, n int) (*Reservation, Result, error) {
	if isnil.Is(l) {
		return nil, Result{}, errNilLimiter
	}
	r, err := l.AllowN(ctx, key, n)
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	return &Reservation{limiter: l, key: key, reserved: n, charged: r}, r, nil
}

// Settle replaces the estimate by the actual cost, 0 or more events. It gives back what was
// too much and is still charged, or charges what was too little. It does so also when ctx has
// ended, within the store's own timeout.
//
// [ErrSettled] says that it has been settled before, and [ErrInvalidN] that actual is below 0.
// Both change nothing. After any other error the estimate stays charged.
//
// The Result is that of the [Charge] if the estimate was too low. Otherwise it is the Result of
// Reserve for the actual cost: it is of that instant, and its ResetAfter may be too long.
func (r *Reservation) Settle(ctx context.Context, actual int) (Result, error) {
	switch {
	case r == nil || r.limiter == nil: // nil, too, where Reserve was denied
		return Result{}, fmt.Errorf("%w: a Reservation is made by Reserve", ErrInvalidOption)
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

// Cancel is Settle of 0: nothing was used.
func (r *Reservation) Cancel(ctx context.Context) (Result, error) { return r.Settle(ctx, 0) }

// Charge charges n events of key, which have happened already, to l. If l is a [Charger] it
// charges all of them, whether they fit or not. Otherwise it charges as many as fit.
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
