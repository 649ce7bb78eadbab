package carrier

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Budget is the context of a call and the time that the call has. It is made by [Carrier.Begin].
type Budget struct {
	context.Context
	End  time.Time     // when the call ends at the latest
	Left time.Duration // from the beginning of the call until End
	Own  bool          // End is the carrier's timeout, not the context's deadline

	// Ahead lets the call go before others, and keeps it from being refused for want of room or time. Set it for calls that
	// make room for others, such as a refund. There may be several of these calls for each of the others that was admitted,
	// such as a refund of each of its limits, but the others wait for no more than three.
	Ahead bool

	// Together keeps the call from going alone. Set it if the call has to wait for others at the server: the end of its time
	// would then cost a connection.
	Together bool

	admission *admission    // of the carrier that admits the call
	before    *Failure      // of an earlier attempt that gave a reason, or nil
	pause     time.Duration // before the last attempt
}

// Begin returns the budget of a call with ctx that begins now. It has the timeout, if ctx has no nearer deadline.
func (cr *Carrier[C]) Begin(ctx context.Context) Budget {
	now := time.Now()
	end := now.Add(cr.timeout)
	if callers, ok := ctx.Deadline(); ok && callers.Before(end) {
		return Budget{Context: ctx, End: callers, Left: callers.Sub(now), admission: &cr.admission}
	}
	return Budget{Context: ctx, End: end, Left: cr.timeout, Own: true, admission: &cr.admission}
}

// Leave ends a call that was admitted. Call it once.
func (b *Budget) Leave() {
	if b.Ahead {
		b.admission.forecast.ahead.Add(-1)
	} else {
		b.admission.forecast.admitted.Add(-1)
	}
}

// The pause before a call is tried again doubles each time. The first pause lasts some round trips, and the last
// is long enough not to disturb a server that is starting.
const (
	firstPause = time.Millisecond
	lastPause  = 32 * time.Millisecond
)

// Again reports whether to try a call again after an attempt that ended in f: nothing ran, and there is time for a round
// trip. It waits for 0.5 to 32 ms first, longer after each attempt.
func (b *Budget) Again(f *Failure) bool {
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	if !f.Again || !b.sleep(b.pause) {
		return false
	}
	if !errors.Is(f.Err, errGivenUp) { // errGivenUp says nothing about the server
		b.before = f
	}
	return true
}

// sleep waits for about d, and reports whether there is time for another attempt. One that is cut short would leave it
// unknown whether the call has run.
func (b *Budget) sleep(d time.Duration) bool {
	d = d/2 + b.admission.refusal.jitter(d/2+1) // so that callers refused together do not return together
	trip := time.Duration(b.admission.forecast.distance.Load())
	last := b.End.Add(-trip - max(min(b.admission.timeout/8, slack), trip/4))
	if time.Until(last) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return time.Now().Before(last) // in a busy process, timers are late
	case <-b.Done():
		return false
	}
}

// Fail returns the error of a call whose last attempt ended in f: the error of its context if that has ended, and a
// [*Failure] otherwise.
func (b *Budget) Fail(f *Failure) error {
	full := errors.Is(f.Err, errQueued) || errors.Is(f.Err, errGivenUp)
	if b.before != nil && (full || contextEnded(f.Err) || errors.Is(f.Err, errUnconnected)) && f.Is(store.ErrUnavailable) {
		f = b.before // its reason says more than that time was short
	}
	if full {
		b.admission.waitOutDeadline(b)
	}
	return b.fail(f)
}

func (b *Budget) fail(f *Failure) error {
	ended := f.ctxError
	if !f.sent {
		ended = b.Over()
	}
	if ended != nil {
		return ended
	}
	if f.Is(store.ErrOverloaded) {
		b.admission.overloaded.Add(1)
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
