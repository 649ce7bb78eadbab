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

// Reserve asks l for n events now, for work of which the cost is only known
// afterwards: the tokens of a language model, the bytes of an upload, the rows of a
// query. If they are admitted it returns a Reservation, to be settled when the cost is
// known; if they are denied it is nil, and the Result says when to come again.
//
// Bound: a limit admits estimates. What turns out to exceed them is charged
// afterwards, past the limit if need be, and is paid by waiting: see
// [TokenBucket.Charge]. So with a bucket the actual costs of any interval exceed its bound
// by no more than the excess of the reservations that were open in it.
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

// Settle tells the actual cost, 0 or more events: what was reserved beyond it is given
// back, as far as it is still charged, and what exceeds the estimate is charged. It
// does so also when ctx has ended, within the store's own timeout. Of errors, [ErrSettled]
// says that it has been settled before, [ErrInvalidN] that actual is below 0, both of which
// change nothing; any other is the limiter's, after which the estimate stays charged.
//
// The Result is that of the [Charge] if there is an excess. Otherwise the store is not asked
// for one: it is the Result of Reserve, as it would have been for actual events at that
// instant, but for a ResetAfter that may be too long.
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

// Charge charges n events of key, which have happened already, to l: whether they fit or
// not if it is a [Charger], and else as many as fit. It is for limiters around others.
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
