package waves

import (
	"context"
	"time"
)

// EarlyDone is a context whose Done is closed before its Deadline. A call waits for a connection until the Wave,
// and then uses the connection until the End. The embedded context must have no Done of its own.
type EarlyDone struct {
	context.Context
	End  time.Time
	Wave *Wave
}

// Deadline returns c.End.
func (c *EarlyDone) Deadline() (time.Time, bool) { return c.End, true }

// Done returns a channel that is closed at the end of the wave.
func (c *EarlyDone) Done() <-chan struct{} { return c.Wave.Over }

// Err returns context.DeadlineExceeded after the end of the wave.
func (c *EarlyDone) Err() error {
	select {
	case <-c.Wave.Over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
