package redisstore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// call is what a script is asked.
type call struct {
	script *script
	key    string // in Redis; of a script on several keys the first
	task   task
	args   []any // of a script on several keys: its whole EVALSHA, made of these
	at     int   // where the operation stands in args
	apart  bool  // never in one script with others

	rule     *store.Rule     // of one key, or nil
	requests []store.Request // of several

	// What follows belongs to the batch of a carried call.
	ctx    context.Context
	left   bool          // its caller has left, or it was too late to go; protected by pipeline.mu
	goes   bool          // it goes with the trip, whether its caller leaves or not
	end    time.Duration // when its time is up, since the beginning of the pipeline
	values []int64       // of the reply
	err    error
}

// task is an operation of a rule, with its arguments as in scripts/driver.lua.
type task struct {
	op    any // a string, boxed once for all calls
	limit store.Limit
	n     int64
	more  []any
}

func take(l store.Limit, n int64) task {
	if l.Before() > 0 {
		return task{"within", l, n, []any{l.Before()}}
	}
	return task{"take", l, n, nil}
}

// renews reports whether l is asked for a slot that is held.
func renews(ns *store.Namespace, l store.Limit) bool { return ns.Rule.Held && l.Before() > 0 }

func refund(l store.Limit, c store.Receipt) task {
	over := 0
	if c.Overdrawn {
		over = 1
	}
	return task{"refund", l, c.N, []any{c.At, c.Due, c.Rate, c.Period, over}}
}

func (t *task) equal(u *task) bool {
	return t.op == u.op && t.limit == u.limit && t.n == u.n && slices.Equal(t.more, u.more)
}

// attempt is what a command for one key needs, in one allocation.
type attempt struct {
	sending sending
	op      operation
	args    [15]any
}

// sending is whether commands have left the process: go-redis asks for the bytes of their
// operation when it writes them.
type sending struct {
	state atomic.Uint32

	waits waiting // the context that they are sent with, if that has no end of its own
}

const (
	unsent  = iota // they wait for a connection, or in a queue
	written        // perhaps not yet sent
	givenUp        // the callers have left
)

// giveUp marks the commands as left by their callers, and reports whether they were ever
// written.
func (s *sending) giveUp() bool { return s.state.Swap(givenUp) == written }

// operation is the argument of a command that names its operation.
type operation struct {
	name    string
	sending *sending
	bytes   [len("refund")]byte // what MarshalBinary returns, here to save an allocation
}

// MarshalBinary returns the operation. If the callers have left, that is peek, which
// changes nothing. Such a command may still wait in a client's queue, and be sent later. It
// must not charge for an event that its caller has already decided on.
func (o *operation) MarshalBinary() ([]byte, error) {
	if s := &o.sending.state; s.CompareAndSwap(unsent, written) || s.Load() == written {
		return append(o.bytes[:0], o.name...), nil
	}
	return append(o.bytes[:0], "peek"...), nil
}

// String is for hooks that print commands.
func (o *operation) String() string { return o.name }

// waitsWith is the context of a call whose own context has no end: see [budget.patient].
func (s *sending) waitsWith(w *waves.Waves, b budget) context.Context {
	s.waits = waiting{b.Context, b.end, w.After(b.end.Add(-time.Until(b.end) / 4))}
	return &s.waits
}

// waiting is a call's context that is patient until a wave. The call's own has no Done.
type waiting struct {
	context.Context
	end  time.Time
	wave *waves.Wave
}

func (c *waiting) Deadline() (time.Time, bool) { return c.end, true }

func (c *waiting) Done() <-chan struct{} { return c.wave.Over }

func (c *waiting) Err() error {
	select {
	case <-c.wave.Over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
