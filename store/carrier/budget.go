package carrier

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Budget is a call's context and the time that it has.
type Budget struct {
	context.Context
	End  time.Time
	Left time.Duration // until End, when the call began
	Own  bool          // End is the store's own timeout, not the caller's deadline

	// Ahead is whether the call gives room to others, who wait for it. It goes before them and is not refused for want
	// of room, so there must not be more such calls than others that were admitted.
	Ahead bool

	gate   *gate         // that has admitted it, or refused
	before *Failure      // of an attempt, which gave a reason
	pause  time.Duration // before the last attempt
}

// Begin returns the budget of a call with ctx that begins now, and has timeout if ctx has no nearer deadline.
func Begin(ctx context.Context, timeout time.Duration) Budget {
	now := time.Now()
	end := now.Add(timeout)
	if callers, ok := ctx.Deadline(); ok && callers.Before(end) {
		return Budget{Context: ctx, End: callers, Left: callers.Sub(now)}
	}
	return Budget{Context: ctx, End: end, Left: timeout, Own: true}
}

// Leave ends a call that was admitted.
func (b *Budget) Leave() {
	if b.Ahead {
		b.gate.expected.ahead.Add(-1)
	} else {
		b.gate.expected.inside.Add(-1)
	}
}

// The pause before a call is tried again doubles each time. The first is some round trips long, and the last
// does not disturb a server that starts.
const (
	firstPause = time.Millisecond
	lastPause  = 32 * time.Millisecond
)

// Again reports whether the call of an attempt that ended in f is to be tried again, and waits a moment before: nothing
// ran, and there is time.
func (b *Budget) Again(f *Failure) bool {
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	if !f.Again || !b.rest(b.pause) {
		return false
	}
	if !errors.Is(f.Err, errGivenUp) { // which says nothing of the server
		b.before = f
	}
	return true
}

// rest waits for about d, and reports whether there is still time.
func (b *Budget) rest(d time.Duration) bool {
	d = d/2 + b.gate.refusals.jitter(d/2+1) // so that callers refused together do not return together
	if time.Until(b.End) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.Done():
		return false
	}
}

// Fail returns the error of an admitted call whose last attempt ended in f. That is the error of its context if that has
// ended, and otherwise a [*Failure].
func (b *Budget) Fail(f *Failure) error {
	full := errors.Is(f.Err, errQueued) || errors.Is(f.Err, errGivenUp)
	if b.before != nil && (full || timeUp(f.Err) || errors.Is(f.Err, errUnmade)) && f.Is(store.ErrUnavailable) {
		f = b.before // it gives the reason, not only that time was short
	}
	if full {
		b.gate.outlast(b)
	}
	return b.fail(f)
}

func (b *Budget) fail(f *Failure) error {
	ended := f.over
	if !f.sent {
		ended = b.Over()
	}
	if ended != nil {
		return ended
	}
	if f.Is(store.ErrOverloaded) {
		b.gate.overloaded.Add(1)
	}
	return f
}

// Over returns the error of the context if it has ended, even if a socket's timer ran out before its own.
func (b Budget) Over() error {
	if err := b.Err(); err != nil {
		return err
	}
	if end, ok := b.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return nil
}
