package redisstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// call is a group of requests on its way: all are charged, or none. A call for one limit is a
// group of one.
type call struct {
	script *script
	first  request
	more   []request
	slot   int  // of a cluster
	apart  bool // never in one script with others
	around bool // past the pipeline: the client itself knows where to
	rested int  // connections that it has found closed

	// What follows belongs to the batch of a carried call.
	ctx    context.Context
	left   bool          // its caller has left, or it was too late to go; protected by pipeline.mu
	goes   bool          // it goes with the trip, whether its caller leaves or not
	end    time.Duration // when its time is up, since the beginning of the pipeline
	values []int64       // of the reply
	err    error
}

// size is how many requests c has.
func (c *call) size() int { return 1 + len(c.more) }

func (c *call) request(i int) *request {
	if i == 0 {
		return &c.first
	}
	return &c.more[i-1]
}

// asks reports whether c asks the same as d, of other keys.
func (c *call) asks(d *call) bool {
	if c.size() != d.size() {
		return false
	}
	for i := range c.size() {
		if q, r := c.request(i), d.request(i); q.number != r.number || q.op != r.op || q.n != r.n || q.limit != r.limit {
			return false
		}
	}
	return true
}

// request is a decision on a key, with its arguments as in scripts/groups.lua.
type request struct {
	rule   *store.Rule
	number int    // of the rule, among those of the script
	op     string // with its arguments
	key    string // in Redis
	limit  store.Limit
	n      int64
}

// operations are the names of those whose argument is the turn.
var operations = [...]string{store.OpTake: "take", store.OpShadow: "shadow", store.OpLook: "look", store.OpGate: "gate"}

// operationOf is the operation of r.
func operationOf(r *store.Request) string {
	switch r.Op {
	case store.OpUpTo:
		return "upto"
	case store.OpOverdraw:
		return "charge " + strconv.FormatInt(r.Most, 10)
	}
	return within(operations[r.Op], r.Limit)
}

// within is the operation of this name under l.
func within(name string, l store.Limit) string {
	if before := l.Before(); before > 0 {
		return name + " " + strconv.FormatInt(before, 10)
	}
	return name
}

func refund(c store.Receipt) string {
	over := " 0"
	if c.Overdrawn {
		over = " 1"
	}
	text := append(make([]byte, 0, 80), "refund"...)
	for _, x := range [...]int64{c.At, c.Due, c.Rate, c.Period} {
		text = strconv.AppendInt(append(text, ' '), x, 10)
	}
	return string(append(text, over...))
}

// takes are what plain takes of the first rules say.
var takes = [...]any{"0", "1", "2", "3", "4"}

// what says what r is, in a group.
func (r *request) what() any {
	switch {
	case r.op != "take":
		return strconv.Itoa(r.number) + " " + r.op
	case r.number < len(takes):
		return takes[r.number]
	}
	return strconv.Itoa(r.number)
}

// renews reports whether l is asked for a slot that is held.
func renews(ns *store.Namespace, l store.Limit) bool { return ns.Rule.Held && l.Before() > 0 }

// attempt is what a command for one key needs, in one allocation.
type attempt struct {
	sending sending
	op      operation
	args    [10]any
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
	bytes   [len("groups")]byte // what MarshalBinary returns, here to save an allocation
}

// MarshalBinary returns the operation. If the callers have left, that is none, which
// changes nothing. Such a command may still wait in a client's queue, and be sent later. It
// must not charge for an event that its caller has already decided on.
func (o *operation) MarshalBinary() ([]byte, error) {
	if s := &o.sending.state; s.CompareAndSwap(unsent, written) || s.Load() == written {
		return append(o.bytes[:0], o.name...), nil
	}
	return append(o.bytes[:0], "none"...), nil
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
