// Package pending holds calls that wait until another goroutine has their answer.
package pending

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/faults"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// Call is a call that waits for a T. Either the caller leaves or another goroutine answers,
// whichever sets done first.
type Call[T any] struct {
	done  atomic.Bool
	ready chan struct{} // closed when the answer is there

	answer   T
	err      error
	panicked any
}

// New returns a waiting call.
func New[T any]() *Call[T] { return &Call[T]{ready: make(chan struct{})} }

// Answer answers c. It returns false if c has left or already has an answer.
func (c *Call[T]) Answer(answer T, err error) bool {
	return c.end(func() { c.answer, c.err = answer, err })
}

// Panic makes Wait panic with p on the goroutine of the caller, which may expect it.
func (c *Call[T]) Panic(p any) { c.end(func() { c.panicked = p }) }

func (c *Call[T]) end(answer func()) bool {
	if !c.done.CompareAndSwap(false, true) {
		return false
	}
	answer()
	close(c.ready)
	return true
}

// Patience limits the wait of calls that may need several calls to a store. They wait until the
// store has answered no call for their key for as long as one call may take. Answers for other keys
// do not count, because they may come from other servers. If the store does not report how long a
// call may take, there is no limit.
type Patience struct {
	timeout  time.Duration
	waves    *waves.Waves
	serverOf func(key string) string // nil if the store does not tell its servers apart
}

// Answered is when a store last answered a call for a key, relative to [waves.Waves].Base.
type Answered struct{ at atomic.Int64 }

// grace is the fraction of a timeout (1/16) for which a call waits longer, because the store's own
// error has more information.
const grace = 16

// longest is the longest timeout that is used. Longer ones count as infinite, because adding them
// to a time may overflow.
const longest = 100 * 365 * 24 * time.Hour

// PatienceWith returns the Patience for calls to s.
func PatienceWith(s store.Store) *Patience {
	p := &Patience{timeout: see.Timeout(s), serverOf: see.ServerIn(s)}
	if p.timeout > 0 && p.timeout <= longest {
		p.waves = waves.New(p.timeout)
	}
	return p
}

// Heard records in last that the store has answered, unless last is nil, or err shows that it has
// not.
func (p *Patience) Heard(last *Answered, err error) {
	if last != nil && p.waves != nil && answers(err) {
		last.at.Store(int64(time.Since(p.waves.Base)))
	}
}

// answers reports whether err can only come from an answer. A call that does not reach the store
// fails in other ways.
func answers(err error) bool {
	return err == nil || faults.OfKey(err) || errors.Is(err, store.ErrOutOfMemory)
}

// after returns a channel that is closed when a store that was asked, or last answered, at since
// should have answered.
func (p *Patience) after(since time.Time) <-chan struct{} {
	if p.waves == nil {
		return nil
	}
	return p.waves.After(since.Add(p.timeout + p.timeout/grace)).Over
}

// Wait returns the answer, or leaves when ctx ends or the patience is exhausted. last is of key.
func (c *Call[T]) Wait(ctx context.Context, p *Patience, key string, last *Answered) (T, error) {
	for since, over := time.Now(), false; !over; {
		select {
		case <-c.ready:
			over = true
		case <-ctx.Done():
			over = true
		case <-p.after(since):
			heard := p.waves.Base.Add(time.Duration(last.at.Load()))
			over, since = !heard.After(since), heard
		}
	}
	if c.done.CompareAndSwap(false, true) {
		var none T
		if err := ctx.Err(); err != nil {
			return none, err
		}
		err := fmt.Errorf("%w: the store did not answer in time (timeout %v), so the outcome is unknown", store.ErrTimeout, p.timeout)
		if p.serverOf != nil { // no other server is to blame
			err = see.At(p.serverOf(key), err)
		}
		return none, err
	}
	<-c.ready // otherwise the answer is being written
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.answer, c.err
}

// Done reports whether c no longer waits.
func (c *Call[T]) Done() bool { return c.done.Load() }
