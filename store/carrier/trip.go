package carrier

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

// Trip is a round trip for several calls on one connection. It can be without calls: see [Config.Send].
type Trip[C any] struct {
	list      []*batch[C]
	first     [1]*batch[C] // where list begins
	calls     int          // calls that go with it
	begun     time.Time
	paused    time.Duration // the pauses of this process until begun
	end       time.Time     // when the time of the last call is up
	connected bool          // it has taken one of the ready connections
	twice     bool          // it took several round trips
	writing   Writing
	ctx       waves.EarlyDone // of its Send
	panicked  any             // the value that Send or Means panicked with, or ErrExit

	batches int  // whose callers wait; this and what follows is protected by Carrier.mu
	left    bool // all callers have left
	ended   bool
	gone    []*Carried[C] // whose callers have left because their contexts ended
}

// Carried is a call of a [Trip].
type Carried[C any] struct {
	Call C // the call, in which Send stores the reply

	ctx   context.Context
	left  bool          // its caller has left, or it was too late to go; protected by Carrier.mu
	goes  bool          // it goes with the trip, whether its caller leaves or not
	ended bool          // Send has called End
	end   time.Duration // when its time is up, since the carrier's base
	err   error
}

// End ends the call: with err, or with the reply in Call if err is nil.
func (c *Carried[C]) End(err error) { c.ended, c.err = true, err }

// conclude gives c its final error, after its trip t has ended in err.
func (c *Carried[C]) conclude(t *Trip[C], err error) {
	switch {
	case !c.ended && err != nil:
		c.err = err
	case t.writing.GivenUp() && c.err == nil:
		c.err = errGivenUp
	case !c.ended:
		c.err = errNoEnd
	}
}

// Calls iterates over the calls in the order in which they came: for c := range t.Calls { … }.
func (t *Trip[C]) Calls(yield func(*Carried[C]) bool) {
	for _, bt := range t.list {
		for i := range bt.calls {
			if c := &bt.calls[i]; c.goes && !yield(c) {
				return
			}
		}
	}
}

// Len returns the number of calls.
func (t *Trip[C]) Len() int { return t.calls }

// Writing returns the state that the calls of t have in common: whether they were written.
func (t *Trip[C]) Writing() *Writing { return &t.writing }

// Twice tells the carrier that t took more than one round trip, so that it does not learn from how long t took.
func (t *Trip[C]) Twice() { t.twice = true }

// Writing records whether calls that go together were written, or given up before. A store that makes calls in a way of its own
// can use one for each of them.
type Writing struct{ state atomic.Uint32 }

const (
	unsent  = iota // they wait for a connection, or in a queue
	written        // perhaps not yet sent
	givenUp        // the callers have left
)

// Begin reports whether the calls may be written, and notes that they are. If it returns false, they were given up: their
// callers have left with an error that nothing was sent.
func (w *Writing) Begin() bool {
	return w.state.CompareAndSwap(unsent, written) || w.state.Load() == written
}

// Begun reports whether the calls were written, or are about to be.
func (w *Writing) Begun() bool { return w.state.Load() == written }

// GiveUp notes that the callers have left, and reports whether the calls were written before.
func (w *Writing) GiveUp() (began bool) { return w.state.Swap(givenUp) == written }

// GivenUp reports whether the callers had left before the calls were written.
func (w *Writing) GivenUp() bool { return w.state.Load() == givenUp }

// leave records that a caller has left, and reports whether the calls were written. If they were not,
// they never will be, and the others try again.
func (t *Trip[C]) leave() (sent bool) {
	return !t.writing.state.CompareAndSwap(unsent, givenUp) && t.writing.Begun()
}

// send makes the calls of t and ends its batches. It returns the error of the connection,
// or the server's last answer.
func (cr *Carrier[C]) send(t *Trip[C]) (err error) {
	t.panicked = ErrExit // unless Send and Means return or panic
	defer func() {
		if r := recover(); r != nil {
			t.panicked = r
		}
		if t.panicked != nil {
			err = errPanic
		}
		ended := false
		for c := range t.Calls {
			ended = ended || c.ended
			c.conclude(t, err)
		}
		if err == nil && !ended && t.writing.GivenUp() { // nothing was sent, so this says nothing about the server
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
	lasts := max(lasting, lastingTimes*min(cr.timeout, math.MaxInt64/lastingTimes))
	// Send waits for a connection for three quarters of the time until t.end. The last quarter is the server's.
	t.ctx = waves.EarlyDone{Context: values, End: t.begun.Add(lasts), Wave: cr.refusal.waves.After(t.end.Add(t.begun.Sub(t.end) / 4))}
	err = cr.config.Send(&t.ctx, t)
	_ = cr.answered(err) // if Means panics, it does so here, and not where no caller learns of it
	t.panicked = nil
	return err
}
