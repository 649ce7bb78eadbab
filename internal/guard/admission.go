package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/cooldown"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Admission is a limiter, and how calls ask it.
type Admission struct {
	Limiter ratelimit.Limiter

	Holder ratelimit.Limiter // Limiter, as it is asked for slots
	hold   []inflight.Option // options of the slots
	waits  bool              // whether one of them makes calls wait for a slot
	slots  bool              // whether the limiter counts slots
	fixed  bool              // whether nothing in the limiter can change

	Refuse   bool          // for clients: refuse instead of waiting
	MaxPause time.Duration // for clients
	Pauses   *cooldown.Set // for clients
}

// WithSlots sets the options of slots.
func (a *Admission) WithSlots(opts []inflight.Option) (err error) {
	if len(opts) == 0 {
		return Invalid("WithSlots: want at least one option")
	}
	a.hold = slices.Clone(opts)
	a.waits, err = inflight.Check(opts...)
	return err
}

// Holds reports whether the limiter counts slots. This can change if the limiter inside a wrapper
// changes.
func (a *Admission) Holds() bool {
	if a.fixed {
		return a.slots
	}
	return see.Held(a.Limiter)
}

// Take asks for n events, and for a slot if the limiter counts slots. If that changes in the
// meantime, Take asks again.
func (a *Admission) Take(ctx context.Context, key string, n int) (*inflight.Slot, ratelimit.Result, error) {
	for {
		if a.Holds() {
			s, r, err := inflight.Hold(ctx, a.Holder, key, n, a.hold...)
			if !errors.Is(err, ratelimit.ErrInvalidOption) || a.Holds() {
				return s, r, err
			}
			continue
		}
		r, err := a.Limiter.AllowN(ctx, key, n)
		if !r.Allowed || !a.Holds() {
			return nil, r, err
		}
		_ = a.Limiter.Refund(context.WithoutCancel(ctx), key, r, n) // the call may have taken a slot
	}
}

// Paused is the error of a call that would have to wait for the server's pause, and for how long.
type Paused time.Duration

func (p Paused) Error() string {
	return fmt.Sprintf("the server asked to wait another %v", time.Duration(p))
}

// Admit waits until the server's pause is over and the limiter admits n events of key. It does not
// ask the limiter if n is 0. If calls are refused instead of waiting, it returns a Paused or the
// denial. If it returns an error, nothing is charged.
func (a *Admission) Admit(ctx context.Context, key string, n int) (*inflight.Slot, ratelimit.Result, error) {
	giveBack := func() {}
	for {
		if err := a.pause(ctx, key, giveBack); err != nil || n == 0 {
			return nil, ratelimit.Result{Allowed: true}, err
		}
		slot, r, err := a.ask(ctx, key, n)
		end := ctx.Err()
		if err != nil || !r.Allowed || end == nil && a.Pauses.Left(key) <= 0 {
			return slot, r, err
		}
		// A pause has begun in the meantime, or ctx has ended. The charge is refunded, because
		// calls that keep their charge until the end of the pause would then all be sent at the
		// same time. If the refund fails, the charge of a call that was not sent stands.
		charged := r // so that r need not be on the heap
		giveBack = func() {
			_ = (&Charge{a.Limiter, n, slot}).Refund(ctx, key, &charged)
			slot.Release()
		}
		if end != nil {
			giveBack()
			return nil, r, end
		}
	}
}

// pause calls giveBack and waits until key has no pause.
func (a *Admission) pause(ctx context.Context, key string, giveBack func()) error {
	if !a.Refuse {
		return a.Pauses.Wait(ctx, key, giveBack)
	}
	giveBack()
	if left := a.Pauses.Left(key); left > 0 {
		return Paused(left)
	}
	return nil
}

// ask makes one decision, or as many as waiting takes.
func (a *Admission) ask(ctx context.Context, key string, n int) (*inflight.Slot, ratelimit.Result, error) {
	switch {
	case a.Refuse:
		return a.Take(ctx, key, n)
	case a.Holds():
		return inflight.Wait(ctx, a.Limiter, key, n, a.hold...)
	}
	r, err := ratelimit.Wait(ctx, a.Limiter, key, n)
	return nil, r, err
}

// Charge is what a call was charged: events, and a slot if the limiter counts some.
type Charge struct {
	Limiter ratelimit.Limiter
	N       int
	Slot    *inflight.Slot
}

// Refund refunds the events, even if ctx has ended. The slot is released separately.
func (c *Charge) Refund(ctx context.Context, key string, r *ratelimit.Result) error {
	if c.Slot != nil {
		return c.Slot.Settle(ctx, 0)
	}
	return c.Limiter.Refund(context.WithoutCancel(ctx), key, *r, c.N)
}

// EndWith returns a context that also ends when slot is lost. Call stop when the context is no
// longer needed.
func EndWith(ctx context.Context, slot *inflight.Slot) (_ context.Context, stop func()) {
	work, cancel := context.WithCancelCause(ctx)
	of := slot.Context()
	forget := context.AfterFunc(of, func() {
		if cause := context.Cause(of); errors.Is(cause, inflight.ErrLost) { // otherwise it was released, and the work continues
			cancel(cause)
		}
	})
	return work, func() {
		forget()
		cancel(nil)
	}
}
