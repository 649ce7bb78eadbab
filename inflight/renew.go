package inflight

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// plan schedules the next tick of a slot that may expire.
func (h *hold) plan() {
	now := time.Now()
	var due time.Time
	first := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	if h.longest > 0 && !h.ended {
		due = h.since.Add(h.longest)
	}
	for i := range h.taken {
		p := &h.taken[i]
		switch {
		case h.pause > 0 && h.pause < p.life/3:
			first(now.Add(h.pause))
			continue
		case p.life == forever:
			if p.toTake {
				first(now.Add(mostPause))
			}
			continue
		}
		// Renewals are grouped, so that a store can send them in one round trip.
		first(now.Add(p.life / 3).Truncate(p.life / 30))
		if h.live() && p.counted() { // the loss must be noticed in time
			first(p.until)
		}
	}
	switch {
	case due.IsZero(): // all are in memory now
	case h.timer == nil:
		h.timer = time.AfterFunc(due.Sub(now), h.tick)
	default:
		h.timer.Reset(due.Sub(now))
	}
}

// live reports whether the slot is neither lost nor ended.
func (h *hold) live() bool { return !h.lost && !h.ended }

// tooLong reports whether the slot has been held for longer than it may be.
func (h *hold) tooLong(now time.Time) bool { return h.longest > 0 && now.Sub(h.since) >= h.longest }

// passed reports whether the slot may have expired by now.
func (h *hold) passed(now time.Time) bool { return h.tooLong(now) || h.heldSlots.passed(now) }

// tick renews the slots, ends a slot that is held for too long, or tries again to release.
func (h *hold) tick() {
	h.mu.Lock()
	forgotten := h.forgotten && !h.ended
	busy, ended, live := h.busy, h.ended, h.live()
	h.busy = !forgotten
	h.mu.Unlock()
	switch {
	case forgotten:
		h.end(Forgotten)
		return
	case busy:
		return // the goroutine that releases them plans what is left
	case ended:
		h.giveBack()
		return
	}
	shortest := forever
	for i := range h.taken {
		shortest = min(shortest, h.taken[i].life)
	}
	var lost atomic.Bool
	h.each(func(h *hold, p *heldSlot) { // with enough time left to renew the shortest again
		if p.due(time.Now()) && !h.renew(p, shortest/4, live) {
			lost.Store(true)
		}
	})
	h.mu.Lock()
	ended = h.ended
	now := time.Now()
	gone := lost.Load() || h.passed(now)
	tooLong := h.tooLong(now)
	h.busy = ended
	if !ended && !tooLong {
		h.plan()
	}
	h.mu.Unlock()
	switch {
	case ended:
		h.giveBack()
	case tooLong:
		h.end(TooLong)
	case gone:
		h.lose()
	}
}

// renew renews a slot within most, and reports whether it is still held, or may be. A renewal of a
// slot that is not lost ends when the slot expires.
func (h *hold) renew(p *heldSlot, most time.Duration, live bool) bool {
	began := time.Now()
	end := began.Add(most)
	if live && p.counted() && p.until.Before(end) {
		end = p.until
	}
	ctx, cancel := context.WithDeadline(h.ctx, end)
	defer cancel()
	var r ratelimit.Result
	err := unlessItPanics(func() (err error) {
		switch {
		case p.counted():
			r, err = p.core.Renew(ctx, h.key, p.charged())
		case p.standsIn(): // a store that hangs runs later what it was sent, so it is looked at first
			if r, err = p.core.Peek(ctx, h.key); err == nil && r.Allowed {
				r, err = p.core.Allow(ctx, h.key)
			}
		} // otherwise no slot was needed
		return err
	})
	if err != nil { // the slot may be held until it expires
		return true
	}
	if !r.Allowed {
		return !p.counted()
	}
	other := p.standsIn() || p.core.ChargedAt(r) != p.core.ChargedAt(p.charged()) // the slot is a different one
	switch {
	case p.toTake:
		h.giveBackBeside()
	case isStandIn(p.charged()):
		_ = unlessItPanics(func() error { return p.limiter.Refund(h.ctx, h.key, p.answer, h.n) })
	case other: // the store has lost the first slot, and only its answer names the local mirror of it
		h.giveBackMirrored(p.limiter, p.answer)
	}
	h.mu.Lock()
	if other {
		p.answer = r
		if p == &h.taken[0] {
			h.first[0] = *p
		}
	}
	p.toTake, p.until = false, began.Add(p.life)
	h.mu.Unlock()
	return true
}

// unlessItPanics calls f, and returns a panic as an error: a function of the user may panic, and there is no caller
// to panic for, or a slot to give back. The slot is renewed or released later, or expires.
func unlessItPanics(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("inflight: a function of the limiter panicked: %v", p)
		}
	}()
	return f()
}
