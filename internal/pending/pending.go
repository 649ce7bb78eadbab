// Package pending has the calls that wait until another goroutine has their answer.
package pending

import (
	"context"
	"slices"
	"sync/atomic"
)

// Call is a call that waits for a T. Whichever side sets done first, the caller leaving or the
// other one answering, decides which it is.
type Call[T any] struct {
	done  atomic.Bool
	ready chan struct{} // closed when the answer is there

	answer   T
	err      error
	panicked any
}

// New returns a call that waits.
func New[T any]() *Call[T] { return &Call[T]{ready: make(chan struct{})} }

// Answer answers c. It is false if c has left, or has an answer.
func (c *Call[T]) Answer(answer T, err error) bool {
	return c.end(func() { c.answer, c.err = answer, err })
}

// Panic has Wait panic with p, on the goroutine of the caller, who may expect it.
func (c *Call[T]) Panic(p any) { c.end(func() { c.panicked = p }) }

func (c *Call[T]) end(answer func()) bool {
	if !c.done.CompareAndSwap(false, true) {
		return false
	}
	answer()
	close(c.ready)
	return true
}

// Wait returns the answer, or leaves when ctx ends.
func (c *Call[T]) Wait(ctx context.Context) (T, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		if c.done.CompareAndSwap(false, true) {
			var none T
			return none, ctx.Err()
		}
		<-c.ready // the answer is being written
	}
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.answer, c.err
}

// Waiting returns the calls that still wait, in their order. It reuses calls.
func Waiting[T any](calls []*Call[T]) []*Call[T] {
	return slices.DeleteFunc(calls, func(c *Call[T]) bool { return c.done.Load() })
}
