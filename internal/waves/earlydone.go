package waves

import (
	"context"
	"time"
)

// EarlyDone is a context whose Done comes before its Deadline: it waits for a connection until a wave, and for
// what is done on the connection until its End. The context in it has no Done of its own.
type EarlyDone struct {
	context.Context
	End  time.Time
	Wave *Wave
}

// Deadline returns the End.
func (c *EarlyDone) Deadline() (time.Time, bool) { return c.End, true }

// Done is closed with the wave.
func (c *EarlyDone) Done() <-chan struct{} { return c.Wave.Over }

// Err returns context.DeadlineExceeded after the wave.
func (c *EarlyDone) Err() error {
	select {
	case <-c.Wave.Over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
