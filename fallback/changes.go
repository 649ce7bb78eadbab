package fallback

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// WithOnChange calls changed for each change of the circuit breaker's state, to log it or to raise
// an alarm. It hands on the new state and the time of the change.
//
// The calls come one at a time, in the order of the changes. They are made by the callers of the
// limiter, after the decision that brought the change, and outside of all locks. So changed may
// call the limiter. While it does not return the caller waits for it. Others do not, and
// what changes meanwhile is told afterwards: the last 64 changes at most.
//
// It is [ratelimit.ErrInvalidOption] if changed is nil.
func WithOnChange(changed func(s State, since time.Time)) Option {
	return func(f *Limiter) error {
		if changed == nil {
			return fmt.Errorf("%w: WithOnChange of nil", ratelimit.ErrInvalidOption)
		}
		f.breaker.changes.changed = changed
		return nil
	}
}

const maxChanges = 64 // that are not told yet

// changes are those of a breaker.
type changes struct {
	changed func(State, time.Time) // or nil
	some    atomic.Bool            // whether there are untold ones, so that no other call takes the lock

	mu      sync.Mutex // protects what follows; never held while changed is called
	state   State
	since   time.Time
	untold  []change
	telling bool
}

type change struct {
	state State
	since time.Time
}

// add notes a change. It is called under the breaker's lock, and so in order.
func (c *changes) add(s State, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.since = s, since
	if c.changed == nil {
		return
	}
	if len(c.untold) == maxChanges {
		c.untold = c.untold[1:]
	}
	c.untold = append(c.untold, change{s, since})
	c.some.Store(true)
}

// tell tells what is untold, unless another call is doing so.
func (c *changes) tell() {
	for c.some.Load() {
		next, ok := c.next()
		if !ok {
			return
		}
		c.tellOf(next)
	}
}

func (c *changes) tellOf(next change) {
	defer func() { // also if it panics
		c.mu.Lock()
		c.telling = false
		c.mu.Unlock()
	}()
	c.changed(next.state, next.since)
}

// next returns the first change that is untold, which the caller is to tell.
func (c *changes) next() (first change, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.telling || len(c.untold) == 0 {
		return first, false
	}
	first, c.untold, c.telling = c.untold[0], c.untold[1:], true
	c.some.Store(len(c.untold) > 0)
	return first, true
}
