package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// sending is the argument of a command that names its operation. It also records one
// sending of the command: go-redis asks for the argument's bytes when it writes the
// command. If it never asked, the command has never left the process.
type sending struct {
	op    string
	state atomic.Uint32
	bytes [len("refund")]byte // what MarshalBinary returns, here to save an allocation

	waits waiting // the context that it is sent with, if that has no end of its own; here too
}

// waitsWith is the context of a call whose own context has no end: see [budget.patient].
func (s *sending) waitsWith(w *waves, b budget) context.Context {
	s.waits = waiting{b.Context, b.end, w.after(b.end.Add(-time.Until(b.end) / 4))}
	return &s.waits
}

const (
	unsent    = iota // it waits for a connection, or in a queue
	written          // perhaps not yet sent
	abandoned        // the caller has left
)

// MarshalBinary returns the operation. For an abandoned call that is peek, which changes
// nothing. Such a command may still wait in a client's queue, and be sent later. It must
// not charge for an event that its caller has already decided on.
func (s *sending) MarshalBinary() ([]byte, error) {
	if s.state.CompareAndSwap(unsent, written) || s.state.Load() == written {
		return append(s.bytes[:0], s.op...), nil
	}
	return append(s.bytes[:0], "peek"...), nil
}

// String is for hooks that print commands.
func (s *sending) String() string { return s.op }

// abandon marks the call as left by its caller, and reports whether it was ever written.
func (s *sending) abandon() bool { return s.state.Swap(abandoned) == written }
