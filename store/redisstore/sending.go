package redisstore

import "sync/atomic"

// sending is the argument of a command that names its operation, and what is known
// about one sending of it: go-redis asks for the argument's bytes when it writes the
// command, so a command whose bytes nobody asked for has never left the process.
type sending struct {
	op    string
	state atomic.Uint32
	bytes [len("refund")]byte // what MarshalBinary returns, to save an allocation
}

const (
	waiting   = iota // for a connection, or in a queue
	written          // perhaps not yet sent
	abandoned        // its caller has gone
)

// MarshalBinary returns the operation. That of a call which was given up is peek,
// which changes nothing: a command that still waits in a client's queue then is sent
// some time, and must not charge for an event that its caller has already decided on.
func (s *sending) MarshalBinary() ([]byte, error) {
	if s.state.CompareAndSwap(waiting, written) || s.state.Load() == written {
		return append(s.bytes[:0], s.op...), nil
	}
	return append(s.bytes[:0], "peek"...), nil
}

// String is for hooks that print commands.
func (s *sending) String() string { return s.op }

// abandon gives the call up, and reports whether it was ever written.
func (s *sending) abandon() bool { return s.state.Swap(abandoned) == written }
