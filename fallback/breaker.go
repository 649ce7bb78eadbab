package fallback

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// State is what the circuit breaker of a [Limiter] does with calls.
type State uint8

const (
	// StateClosed lets all calls go to the store.
	StateClosed State = iota
	// StateOpen lets no call go to the store.
	StateOpen
	// StateHalfOpen lets one call at a time go to the store: the probe.
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

// MarshalText is String, for logs and JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// stateOf translates.
var stateOf = map[gobreaker.State]State{
	gobreaker.StateClosed: StateClosed, gobreaker.StateOpen: StateOpen, gobreaker.StateHalfOpen: StateHalfOpen,
}

// State returns the state of the circuit breaker, and the time of its last change: of [New], if
// it has never opened.
func (f *Limiter) State() (s State, since time.Time) {
	if f.breaker == nil {
		return StateClosed, time.Time{}
	}
	f.breaker.State() // it may be time to be half open
	f.changes.tell()
	f.changes.mu.Lock()
	defer f.changes.mu.Unlock()
	return f.changes.state, f.changes.since
}

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
		f.changes.changed = changed
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

func (f *Limiter) newBreaker() *gobreaker.CircuitBreaker[ratelimit.Result] {
	return gobreaker.NewCircuitBreaker[ratelimit.Result](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     max(f.pause-1, 1), // it ends when more than that has passed, by 1 ns
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= f.failures },
		IsExcluded:  func(err error) bool { return err != nil && !ofTheStore(err) },
		OnStateChange: func(_ string, _, to gobreaker.State) { // under the breaker's lock
			now := time.Now()
			probeAt := time.Duration(0)
			if to == gobreaker.StateOpen {
				probeAt = now.Sub(f.base) + f.pause
			}
			f.halfOpen.Store(to == gobreaker.StateHalfOpen) // first: one of both says that it is not closed
			f.probeAt.Store(int64(probeAt))
			f.changes.add(stateOf[to], now)
		},
	})
}

// ofTheStore reports whether err concerns the store as a whole. A corrupt state does not, nor
// clocks that differ, nor a full queue of this process: none is a failure or a success.
func ofTheStore(err error) bool {
	return errors.Is(err, ratelimit.ErrStore) &&
		!errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrClock) && !errors.Is(err, store.ErrOverloaded)
}
