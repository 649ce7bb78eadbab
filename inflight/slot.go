package inflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// ErrLost is the cause of a [Slot.Context] that ended before the slot's Release, because the slot
// could not be renewed in time.
var ErrLost = errors.New("inflight: the slot is lost")

// Slot is a slot that is held, or several if an All contains several limits of slots. Use Release
// to release it.
type Slot struct{ hold *hold }

// Release releases the slot. In an All, it releases only slots, not the events that were charged
// with them. It returns immediately. A slot in memory is then free, and a slot on Redis is free
// after a round trip, ahead of calls that want a slot: see [Flush] for programs that end. A release
// that fails is repeated after 5 ms, and less often in an outage. Calling Release again has no effect.
func (s *Slot) Release() {
	if s != nil {
		s.hold.end(Released)
	}
}

// Settle replaces the n events of Hold, an estimate, by the actual cost, 0 or more. It refunds the
// difference, or charges it, even if ctx has ended. Settle(ctx, 0) refunds all of
// them. Settle concerns the rates that were charged together with the slot, before or after Release.
// See [ratelimit.Reservation.Settle] for the details. It returns [ratelimit.ErrSettled] if the cost is
// already settled, and [ratelimit.ErrInvalidN] for a negative cost; neither changes anything.
func (s *Slot) Settle(ctx context.Context, actual int) error {
	switch {
	case actual == 0:
		return s.refund(ctx)
	case s != nil && actual < 0:
		return fmt.Errorf("%w: an actual cost of %d, want 0 or more", ratelimit.ErrInvalidN, actual)
	}
	h, estimate, err := s.takeUnsettled()
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case actual > estimate:
		_, err := ratelimit.Charge(see.Settling(ctx, h.charged), h.limiter, h.key, actual-estimate)
		return err
	case actual < estimate:
		return h.limiter.Refund(ctx, h.key, h.charged, estimate-actual)
	}
	return nil
}

// refund refunds all events that were charged together with the slot, but not the slot.
func (s *Slot) refund(ctx context.Context) error {
	h, events, err := s.takeUnsettled()
	if err != nil || h.slotsOnly {
		return err
	}
	return h.limiter.Refund(see.Only(context.WithoutCancel(ctx), see.Rates), h.key, h.charged, events)
}

// takeUnsettled returns the events that are not settled yet, and settles them.
func (s *Slot) takeUnsettled() (h *hold, events int, err error) {
	if s == nil {
		return nil, 0, fmt.Errorf("%w: the Slot is nil: the call was denied or failed, or its limiter counts no slots", ratelimit.ErrInvalidOption)
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

// Lost reports whether the slot ended before its Release. It checks the clock, so after a pause of
// the process it is correct before the Context has ended.
func (s *Slot) Lost() bool {
	if s == nil {
		return false
	}
	h := s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost || !h.ended && h.passed(time.Now())
}

// Context returns a context that ends with the Slot, with the cause [ErrLost] if the slot is lost.
// It has the values of Hold's context, but not its end. For a nil Slot, it has already ended.
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
		case h.lost:
			h.cancel(ErrLost)
		}
	}
	return h.work
}

// Token returns a fencing token, a number that grows each time a slot of the key is taken. It can
// stay the same if the previous slot was released within the same µs. A resource that refuses
// tokens smaller than the largest it has seen is safe from a process that was stopped and continues
// after its slot is lost. Token can shrink if the store's clock is set back while no slot of the
// key is held. It returns 0 for a nil Slot, and for a Slot that was admitted in an outage. For
// several slots, it is the token of the first. Token does not change, even by the Release, unless a
// renewal has to take the slot again, after an outage or because the store has lost it.
func (s *Slot) Token() int64 {
	if s == nil {
		return 0
	}
	h := s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	first := &h.first[0]
	if first.core == nil { // nothing was taken
		return 0
	}
	return first.core.ChargedAt(first.charged())
}
