package carrier

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

// Trip is several calls on one connection, or none: then it only makes a connection, or finds out how far
// the server is.
type Trip[C any] struct {
	list     []*batch[C]
	first    [1]*batch[C] // where list begins
	calls    int          // that go with it
	begun    time.Time
	paused   time.Duration // of this process, when it began
	end      time.Time     // of the last of them
	made     bool          // it has taken one of the ready connections
	twice    bool          // it took several round trips
	state    Writing
	ctx      waves.Patient // of its Send
	panicked any           // the value that Send panicked with, or ErrExit

	batches int  // whose callers wait; protected by Carrier.mu, as are
	left    bool // all callers have left
	ended   bool
	gone    []*Carried[C] // whose callers have left since their contexts ended
}

// Carried is a call on its trip.
type Carried[C any] struct {
	Call C // Send puts the reply into it

	ctx  context.Context
	left bool          // its caller has left, or it was too late to go; protected by Carrier.mu
	goes bool          // it goes with the trip, whether its caller leaves or not
	told bool          // how it ended
	end  time.Duration // when its time is up, since the beginning of the carrier
	err  error
}

// End notes how the call has ended: err, if that is not nil, or the reply in Call.
func (c *Carried[C]) End(err error) { c.told, c.err = true, err }

// settle gives c an end, after its trip t, which has ended in err.
func (c *Carried[C]) settle(t *Trip[C], err error) {
	switch {
	case !c.told && err != nil:
		c.err = err
	case t.state.GivenUp() && c.err == nil:
		c.err = errGivenUp
	case !c.told:
		c.err = errNoEnd
	}
}

// Calls is an iterator over the calls, in the order in which they came: for c := range t.Calls.
func (t *Trip[C]) Calls(yield func(*Carried[C]) bool) {
	for _, bt := range t.list {
		for i := range bt.calls {
			if c := &bt.calls[i]; c.goes && !yield(c) {
				return
			}
		}
	}
}

// Len is how many calls go.
func (t *Trip[C]) Len() int { return t.calls }

// Writing returns whether the calls of t have left the process.
func (t *Trip[C]) Writing() *Writing { return &t.state }

// Twice notes that t takes more than one round trip, so that its time is no measure of others.
func (t *Trip[C]) Twice() { t.twice = true }

// Writing is whether calls have left the process.
type Writing struct{ state atomic.Uint32 }

const (
	unsent  = iota // they wait for a connection, or in a queue
	written        // perhaps not yet sent
	givenUp        // the callers have left
)

// Begin reports whether the calls may be written, and notes that they are. If not, they were given up:
// their callers were told that nothing was sent.
func (w *Writing) Begin() bool {
	return w.state.CompareAndSwap(unsent, written) || w.state.Load() == written
}

// Begun reports whether the calls were written.
func (w *Writing) Begun() bool { return w.state.Load() == written }

// GiveUp notes that the callers have left, and reports whether the calls were ever written.
func (w *Writing) GiveUp() (began bool) { return w.state.Swap(givenUp) == written }

// GivenUp reports whether the callers had left before the calls were written.
func (w *Writing) GivenUp() bool { return w.state.Load() == givenUp }

// leave notes that a caller has left, and reports whether the calls were written. If they
// were not, they will not be: the others go again.
func (t *Trip[C]) leave() (sent bool) {
	return !t.state.state.CompareAndSwap(unsent, givenUp) && t.state.state.Load() == written
}

// send makes the calls of t and ends its batches. It returns the error of the connection,
// or the server's last answer.
func (cr *Carrier[C]) send(t *Trip[C]) (err error) {
	t.panicked = ErrExit // unless it is made
	defer func() {
		if r := recover(); r != nil {
			t.panicked = r
		}
		if t.panicked != nil {
			err = errPanic
		}
		told := false
		for c := range t.Calls {
			told = told || c.told
			c.settle(t, err)
		}
		if err == nil && !told && t.state.GivenUp() { // nothing was sent, so nothing is known of the server
			err = errGivenUp
		}
		for _, bt := range t.list {
			if bt.ended.CompareAndSwap(false, true) {
				if bt.timer.Stop() {
					bt.unread.Store(int64(len(bt.calls)))
				}
				close(bt.done)
			}
		}
	}()
	values := context.Background()
	if t.calls == 1 { // hooks see the values of its caller's context
		for c := range t.Calls {
			values = context.WithoutCancel(c.ctx)
		}
	}
	t.ctx = waves.Patient{Context: values, End: t.begun.Add(max(lasting, lastingTimes*cr.timeout)), Wave: cr.waves.After(t.end.Add(t.begun.Sub(t.end) / 4))}
	err = cr.config.Send(&t.ctx, t)
	t.panicked = nil
	return err
}
