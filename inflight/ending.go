package inflight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Ending describes how a Slot ended, for [OnEnd].
type Ending struct {
	Key    string
	Held   time.Duration
	Reason Reason
}

// Reason is the reason why a Slot ended.
type Reason uint8

// The reasons.
const (
	Released  Reason = iota // by a call of Release
	Lost                    // the slot could not be renewed; a Release follows
	TooLong                 // the time of [Longest] was over
	Forgotten               // nothing referred to the Slot any more
)

// String returns "released", "lost", "too_long" or "forgotten".
func (r Reason) String() string {
	switch r {
	case Released:
		return "released"
	case Lost:
		return "lost"
	case TooLong:
		return "too_long"
	}
	return "forgotten"
}

// forget ends a slot that nothing refers to. If there are renewals, the next one ends it, because a
// cleanup runs outside a synctest bubble and cannot touch a timer inside.
func (h *hold) forget() {
	h.mu.Lock()
	if h.timer != nil && !h.inMemory() {
		h.forgotten = true
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.end(Forgotten)
}

// unreleased is the number of holds that have ended, and whose slots are not given back yet. It leaves out those in
// memory, which are given back at once. It includes holds whose caller has left, and that may still get slots.
var unreleased atomic.Int64

// Flush waits until the stores have the releases of all slots that ended in this process, or until ctx ends. Among
// these are the slots, and the refunds, of calls of [Hold] and [Wait] whose context ended while a store was asked.
// Call it before a program ends, after the last [Slot.Release] and before the client of the store is closed.
// Otherwise a slot on Redis or Postgres may stay taken until its lifetime is over, because Release does not wait for
// the store.
func Flush(ctx context.Context) error {
	for pause := time.Millisecond; unreleased.Load() > 0; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}

// end ends the slot once.
func (h *hold) end(why Reason) {
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return
	}
	h.ended, h.lost = true, h.lost || why == TooLong
	if h.cancel != nil {
		if why == TooLong {
			h.cancel(ErrLost)
		}
		h.cancel(context.Canceled)
	}
	busy := h.busy
	h.busy = true
	if h.timer != nil && why != Forgotten { // see forget
		h.timer.Stop()
	}
	h.cleanup.Stop()
	h.yield()
	inMemory := h.inMemory()
	if h.unreleased = !inMemory; h.unreleased {
		unreleased.Add(1)
	}
	h.mu.Unlock()
	defer h.notify(why) // when the slots are free, whatever OnEnd does
	switch {
	case busy: // the goroutine that renews will release the slots
	case inMemory:
		h.giveBack()
	default:
		go h.giveBack()
	}
}

// yield decides which slots of a caller that has waited are left to other processes.
func (h *hold) yield() {
	if h.waited && !h.inMemory() {
		queues.yield(h.key, h.taken, time.Since(h.since))
	}
}

// lose reports a loss, once. The slot is still renewed, so that the work that continues is counted
// as far as possible.
func (h *hold) lose() {
	h.mu.Lock()
	first := h.live()
	if first {
		h.lost = true
		if h.cancel != nil {
			h.cancel(ErrLost)
		}
	}
	h.mu.Unlock()
	if first {
		h.notify(Lost)
	}
}

// notifies reports whether a function or Counters are notified of the end.
func (h *hold) notifies() bool { return h.onEnd != nil || h.counters != nil }

// notify notifies them of a loss or of the end.
func (h *hold) notify(why Reason) {
	if !h.notifies() {
		return
	}
	e := Ending{h.key, time.Since(h.since), why}
	if h.counters != nil {
		h.counters.end(e)
	}
	switch {
	case h.onEnd == nil:
	case why == Released:
		h.onEnd(e)
	default: // nobody has called
		_ = unlessItPanics(func() error { h.onEnd(e); return nil })
	}
}

// giveBack releases the slots. The caller has set busy. Slots that cannot be released are tried
// again, until they expire.
func (h *hold) giveBack() {
	h.giveBackBeside()
	h.each((*hold).release)
	var left []heldSlot // in an array of its own, because Token needs the first one
	for i := range h.taken {
		if !h.taken[i].gone {
			left = append(left, h.taken[i])
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken, h.busy = left, false
	switch {
	case len(left) > 0:
		h.pause = min(max(leastPause, 2*h.pause), time.Minute)
		h.plan()
	case h.unreleased:
		h.unreleased = false
		unreleased.Add(-1)
	}
}

// release releases p, and sets gone unless it has to be tried again.
func (h *hold) release(p *heldSlot) {
	if p.charged().Charged() == 0 { // let through in an outage
		p.gone = true
		queues.wake(h.key, p.core, false)
		return
	}
	err := unlessItPanics(func() error { return p.limiter.Refund(h.ctx, h.key, p.answer, h.n) }) // fewer than n would not be the whole call
	p.gone = err == nil || errors.Is(err, ratelimit.ErrInvalidN) || p.life < forever && !time.Now().Before(p.until)
	if err == nil {
		queues.wake(h.key, p.core, p.yields)
	}
}

// each calls f for each slot, at the same time if there are several, because some of their stores may hang.
func (h *hold) each(f func(*hold, *heldSlot)) {
	if len(h.taken) == 1 || h.inMemory() {
		for i := range h.taken {
			f(h, &h.taken[i])
		}
		return
	}
	var all sync.WaitGroup
	for i := range h.taken {
		all.Go(func() { f(h, &h.taken[i]) })
	}
	all.Wait()
}

// giveBackBeside releases the slots, but not the rates, that local limiters hold for an All. These
// were charged with what the store admitted, or admitted it themselves in an outage.
func (h *hold) giveBackBeside() {
	h.mu.Lock()
	beside := h.beside
	h.beside = false
	h.mu.Unlock()
	if beside {
		h.giveBackMirrored(h.limiter, h.charged)
	}
}

// giveBackMirrored releases the slots, but not the rates, that local limiters in l hold since l answered r.
func (h *hold) giveBackMirrored(l ratelimit.Limiter, r ratelimit.Result) {
	for ; l != nil; l = around(l) {
		if r = innerOf(l, r); see.Mirroring(l) {
			_ = unlessItPanics(func() error { return l.Refund(see.Only(h.ctx, see.Mirrored), h.key, r, h.n) })
		}
	}
}
