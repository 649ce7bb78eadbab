package inflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// ErrLost is the cause of the end of a [Slot.Context]: the slot ended before its Release, since
// it could not be renewed in time.
var ErrLost = errors.New("inflight: the slot is lost")

// Slot is a slot that is held, or several, of an All that has several limits of slots. Give it
// back by Release.
type Slot struct{ hold *hold }

// Release gives back the slot, and of an All the slots alone, not the events that were charged
// with them. It returns at once: a slot in memory is free then, and one on Redis a trip later.
// It goes before calls that want a slot. What cannot be sent is sent again after 5 ms, and less
// often in an outage. Further calls do nothing.
func (s *Slot) Release() {
	if s != nil {
		s.hold.end(Released)
	}
}

// Settle replaces the n events of Hold, an estimate, by the actual cost, 0 or more. It gives back
// what was too much, or charges what was too little, also when ctx has ended. With 0 it is Refund.
// It concerns what is counted beside the slot, before or after Release. See
// [ratelimit.Reservation.Settle] for what that means. [ratelimit.ErrSettled] and
// [ratelimit.ErrInvalidN] change nothing.
func (s *Slot) Settle(ctx context.Context, actual int) error {
	switch {
	case actual == 0:
		return s.Refund(ctx)
	case s != nil && actual < 0:
		return fmt.Errorf("%w: an actual cost of %d", ratelimit.ErrInvalidN, actual)
	}
	h, estimate, err := s.settle()
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case actual > estimate:
		_, err := ratelimit.Charge(ctx, h.limiter, h.key, actual-estimate)
		return err
	case actual < estimate:
		return h.limiter.Refund(ctx, h.key, h.charged, estimate-actual)
	}
	return nil
}

// Refund gives back the events that were charged beside the slot, all of them, also when ctx has
// ended. It is Settle(ctx, 0), for a call that is not to count. The slot stays held.
func (s *Slot) Refund(ctx context.Context) error {
	h, events, err := s.settle()
	if err != nil || several(h.limiter) == nil && h.charged.Parts() == nil { // of slots alone, then and now
		return err
	}
	return h.limiter.Refund(see.Only(context.WithoutCancel(ctx), see.Rates), h.key, h.charged, events)
}

// settle returns the events that were not settled, and settles them.
func (s *Slot) settle() (h *hold, events int, err error) {
	if s == nil {
		return nil, 0, fmt.Errorf("%w: the Slot is nil: the limiter has none, or has denied it", ratelimit.ErrInvalidOption)
	}
	h = s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events == 0 {
		return nil, 0, ratelimit.ErrSettled
	}
	events, h.events = h.events, 0
	return h, events, nil
}

// Lost reports whether the slot ended before its Release. It asks the clock: after a pause of
// the process it is right before the Context has noticed.
func (s *Slot) Lost() bool {
	if s == nil {
		return false
	}
	h := s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.late || !h.ended && h.passed(time.Now())
}

// Context returns a context that ends with the Slot: with the cause [ErrLost] if it is lost. It
// has the values of Hold's, and not its end. For a nil Slot it has ended.
func (s *Slot) Context() context.Context {
	if s == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrLost)
		return ctx
	}
	h := s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.work == nil {
		h.work, h.cancel = context.WithCancelCause(h.ctx)
		switch {
		case h.ended:
			h.cancel(context.Canceled)
		case h.late:
			h.cancel(ErrLost)
		}
	}
	return h.work
}

// Token is a number that grows from one taking of a key to the next, or stays if the slot before
// was given back within the same µs. A resource that refuses a smaller one than it has seen is safe
// from a process that was stopped and goes on after its slot is lost. It is smaller if the store's
// clock was set back while no slot of the key was held. It is 0 for a nil Slot, or one that was let
// through in an outage. Of several slots it is the first's.
func (s *Slot) Token() int64 {
	if s == nil {
		return 0
	}
	h := s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.taken) == 0 {
		return 0
	}
	return h.taken[0].core.ChargedAt(h.taken[0].charged())
}
