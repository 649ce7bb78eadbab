package fallback

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/sony/gobreaker/v2"
)

// State is the state of a [Limiter]'s circuit breaker.
type State uint8

const (
	// StateClosed sends all calls to the store.
	StateClosed State = iota
	// StateOpen sends no calls to the store.
	StateOpen
	// StateHalfOpen sends one call at a time to the store, the probe.
	StateHalfOpen
)

// String returns "closed", "open" or "half_open".
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateOpen:
		return "open"
	}
	return "half_open"
}

// MarshalText returns String, for logs and JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// stateOf translates gobreaker's states.
var stateOf = map[gobreaker.State]State{
	gobreaker.StateClosed: StateClosed, gobreaker.StateOpen: StateOpen, gobreaker.StateHalfOpen: StateHalfOpen,
}

// State returns the state of the circuit breaker, and the time of its last change, which is the
// time of [New] if it has never opened. If servers have breakers of their own, it is StateOpen while
// any of them is open, and otherwise StateHalfOpen while any of them is half open. A breaker that no
// call has used for 10 s, or for 10 times probeAfter if that is longer, is forgotten, because the keys
// may have moved to another server. It then counts as closed.
func (f *Limiter) State() (s State, since time.Time) {
	if f.limiter == nil {
		return StateClosed, time.Time{}
	}
	f.breakers.refresh()
	c := &f.breakers.changes
	c.report()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.since
}

// WithOnChange calls changed for each change of [Limiter.State], for example to log it
// or to raise an alarm, with the new state and the time of the change.
//
// The calls are made one at a time, in the order of the changes, by callers of the limiter after
// the decision that caused the change. No lock is held, so changed may call the limiter. The caller
// waits until changed returns; others do not wait. Changes that happen in the meantime are reported
// afterwards, up to the last 64 of them.
//
// It returns [ratelimit.ErrInvalidOption] if changed is nil.
func WithOnChange(changed func(s State, since time.Time)) Option {
	return options.Checked(options.Given("WithOnChange", changed != nil), func(f *Limiter) { f.breakers.changes.changed = changed })
}

const maxChanges = 64 // the most changes that are kept until they are reported

// changes are the changes of a limiter's state, which is the worst state of its breakers.
type changes struct {
	changed func(State, time.Time) // nil without WithOnChange
	bad     atomic.Bool            // whether state is not StateClosed
	pending atomic.Bool            // whether there are unreported ones, so that other calls need not take the lock

	mu         sync.Mutex             // protects what follows; never held while changed is called
	in         [StateHalfOpen + 1]int // how many breakers are in each state, without those that have always been closed
	state      State
	since      time.Time
	unreported []change
	reporting  bool
}

type change struct {
	state State
	since time.Time
}

// add records that b changes to the state to at since. It is called under b's lock, and therefore in
// order.
func (c *changes) add(b *breaker, to State, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.move(b, to, since)
}

// forget records that b is not used anymore, which is as good as closed.
func (c *changes) forget(b *breaker, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.move(b, StateClosed, now)
	b.forgotten = true
}

// move is add, with the lock held.
func (c *changes) move(b *breaker, to State, since time.Time) {
	if b.forgotten {
		return
	}
	c.in[b.state]--
	c.in[to]++
	b.state = to
	s := StateClosed
	switch {
	case c.in[StateOpen] > 0:
		s = StateOpen
	case c.in[StateHalfOpen] > 0:
		s = StateHalfOpen
	}
	if s == c.state {
		return
	}
	c.state, c.since = s, since
	c.bad.Store(s != StateClosed)
	if c.changed == nil {
		return
	}
	if len(c.unreported) == maxChanges {
		c.unreported = c.unreported[1:]
	}
	c.unreported = append(c.unreported, change{s, since})
	c.pending.Store(true)
}

// report reports the changes, unless another call is doing so.
func (c *changes) report() {
	for c.pending.Load() {
		next, ok := c.next()
		if !ok {
			return
		}
		c.reportOne(next)
	}
}

func (c *changes) reportOne(next change) {
	defer func() { // even if changed panics
		c.mu.Lock()
		c.reporting = false
		c.mu.Unlock()
	}()
	c.changed(next.state, next.since)
}

// next returns the first unreported change, which the caller must report.
func (c *changes) next() (first change, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reporting || len(c.unreported) == 0 {
		return first, false
	}
	first, c.unreported, c.reporting = c.unreported[0], c.unreported[1:], true
	c.pending.Store(len(c.unreported) > 0)
	return first, true
}
