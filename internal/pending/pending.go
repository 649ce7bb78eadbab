// Package pending has the calls that wait until another goroutine has their answer.
package pending

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
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

// Patience is for how long calls wait that may wait for several calls of a store: until it has not answered for
// as long as one of them may take. Of a store that does not say how long that is it has no end.
type Patience struct {
	timeout time.Duration
	waves   *waves.Waves
	heard   atomic.Int64 // when the store has answered last, since the beginning of the waves
}

// grace is the part of a timeout for which a call still waits after it: the error of the store says more.
const grace = 16

// longest is the longest timeout that is kept: a longer one has no end, and a time to which it is added may
// overflow.
const longest = 100 * 365 * 24 * time.Hour

// PatienceWith is that of calls of s.
func PatienceWith(s store.Store) *Patience {
	p := &Patience{timeout: see.Timeout(s)}
	if p.timeout > 0 && p.timeout <= longest {
		p.waves = waves.New(p.timeout)
	}
	return p
}

// Heard notes that the store has answered, unless err says that it has not.
func (p *Patience) Heard(err error) {
	if p.waves != nil && answers(err) {
		p.heard.Store(int64(time.Since(p.waves.Base)))
	}
}

// answers reports whether only an answer can have made err. A call that has not reached the store fails in other
// ways.
func answers(err error) bool {
	return err == nil || errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrClock) || errors.Is(err, store.ErrOutOfMemory)
}

// after is closed when the store should have answered that was asked, or has answered, at since.
func (p *Patience) after(since time.Time) <-chan struct{} {
	if p.waves == nil {
		return nil
	}
	return p.waves.After(since.Add(p.timeout + p.timeout/grace)).Over
}

// Wait returns the answer, or leaves when ctx ends, or the patience.
func (c *Call[T]) Wait(ctx context.Context, p *Patience) (T, error) {
	for since, over := time.Now(), false; !over; {
		select {
		case <-c.ready:
			over = true
		case <-ctx.Done():
			over = true
		case <-p.after(since):
			heard := p.waves.Base.Add(time.Duration(p.heard.Load()))
			over, since = !heard.After(since), heard
		}
	}
	if c.done.CompareAndSwap(false, true) {
		var none T
		if err := ctx.Err(); err != nil {
			return none, err
		}
		return none, fmt.Errorf("%w: no reply for several calls (timeout %v), the outcome is unknown", store.ErrTimeout, p.timeout)
	}
	<-c.ready // or the answer is being written
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.answer, c.err
}

// Done reports whether c does not wait any more.
func (c *Call[T]) Done() bool { return c.done.Load() }
