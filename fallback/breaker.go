package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/sony/gobreaker/v2"
)

const (
	defaultFailures = 5
	defaultPause    = time.Second
	leastRetryAfter = time.Second
	longestPause    = 100 * 365 * 24 * time.Hour // so that it can be added to a time, and rounded up
)

var (
	errOpen = fmt.Errorf("%w: the circuit breaker is open", store.ErrUnavailable)
	// errUnasked means that the call was decided without the store.
	errUnasked = errors.New("fallback: the store was not asked")
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
// time of [New] if it has never opened.
func (f *Limiter) State() (s State, since time.Time) {
	c := &f.breaker.changes
	if f.limiter == nil {
		return StateClosed, time.Time{}
	}
	f.breaker.circuit.State() // changes the state if it is time to be half open
	c.tell()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.since
}

// WithBreaker opens the circuit breaker after this many consecutive failures, 1 to 2^31-1. When it
// has been open for probeAfter, above 0, it sends a probe, and another one each probeAfter until a
// probe succeeds. The defaults are 5 failures and 1 s.
func WithBreaker(failures int, probeAfter time.Duration) Option {
	return func(f *Limiter) error {
		if failures < 1 || failures > math.MaxInt32 || probeAfter <= 0 {
			return fmt.Errorf("%w: WithBreaker(%d, %v): want 1 to 2^31-1 failures, and a time above 0", ratelimit.ErrInvalidOption, failures, probeAfter)
		}
		f.breaker.failures, f.breaker.pause = uint32(failures), min(probeAfter, longestPause)
		return nil
	}
}

// WithOnChange calls changed for each change of the circuit breaker's state, for example to log it
// or to raise an alarm, with the new state and the time of the change.
//
// The calls are made one at a time, in the order of the changes, by callers of the limiter after
// the decision that caused the change. No lock is held, so changed may call the limiter. The caller
// waits until changed returns; others do not wait. Changes that happen in the meantime are reported
// afterwards, up to the last 64 of them.
//
// It returns [ratelimit.ErrInvalidOption] if changed is nil.
func WithOnChange(changed func(s State, since time.Time)) Option {
	return func(f *Limiter) error {
		if changed == nil {
			return fmt.Errorf("%w: WithOnChange(nil)", ratelimit.ErrInvalidOption)
		}
		f.breaker.changes.changed = changed
		return nil
	}
}

const maxChanges = 64 // the most changes that are kept until they are reported

// changes are the state changes of a breaker.
type changes struct {
	changed func(State, time.Time) // nil without WithOnChange
	some    atomic.Bool            // whether there are unreported ones, so that other calls need not take the lock

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

// add records a change. It is called under the breaker's lock, and therefore in order.
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

// tell reports the changes, unless another call is doing so.
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
	defer func() { // even if changed panics
		c.mu.Lock()
		c.telling = false
		c.mu.Unlock()
	}()
	c.changed(next.state, next.since)
}

// next returns the first unreported change, which the caller must report.
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

// breaker decides which calls go to the store.
type breaker struct {
	circuit  *gobreaker.CircuitBreaker[ratelimit.Result]
	failures uint32
	pause    time.Duration // from opening to the probe
	changes  changes
	base     time.Time    // the origin of the times below
	probeAt  atomic.Int64 // ns since base; 0 unless the breaker is open
	halfOpen atomic.Bool
	failing  atomic.Bool // whether the last call to the store failed
}

// begin makes the circuit breaker, which is closed at first.
func (b *breaker) begin() {
	b.base = time.Now()
	b.changes.since = b.base
	b.circuit = gobreaker.NewCircuitBreaker[ratelimit.Result](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     max(b.pause-1, 1), // gobreaker waits until more than its Timeout has passed
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= b.failures },
		IsExcluded:  func(err error) bool { return err != nil && !ofTheStore(err) },
		OnStateChange: func(_ string, _, to gobreaker.State) { // called under the breaker's lock
			now := time.Now()
			probeAt := time.Duration(0)
			if to == gobreaker.StateOpen {
				probeAt = now.Sub(b.base) + b.pause
			}
			b.halfOpen.Store(to == gobreaker.StateHalfOpen) // before probeAt, so that one of the two always shows that the breaker is not closed
			b.probeAt.Store(int64(probeAt))
			b.changes.add(stateOf[to], now)
		},
	})
}

// now returns the time since base.
func (b *breaker) now() time.Duration { return time.Since(b.base) }

// untilProbe returns how long the breaker stays open, or 0 if it is not open.
func (b *breaker) untilProbe() time.Duration {
	at := b.probeAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at)-b.now())
}

// retryAfter returns the time until the store may be asked again, in whole µs.
func (b *breaker) retryAfter() time.Duration {
	until := b.untilProbe()
	if rest := until % time.Microsecond; rest > 0 {
		until += time.Microsecond - rest
	}
	return max(until, leastRetryAfter)
}

// call runs do, which calls the limiter for key, if the breaker is closed or do may be the probe.
func (f *Limiter) call(ctx context.Context, key string, do func() (ratelimit.Result, error)) (r ratelimit.Result, err error) {
	b := &f.breaker
	if b.untilProbe() > 0 { // circuit would return the same error, but takes a lock
		return ratelimit.Result{}, errOpen
	}
	defer b.changes.tell() // even if the limiter panics
	if doubts := f.owed.doubts(key); doubts || b.probeAt.Load() != 0 || b.halfOpen.Load() || b.failing.Load() {
		r, err = b.carefully(func() (ratelimit.Result, error) { return f.lookAndDo(ctx, key, doubts, do) })
	} else { // the breaker is closed, and the last call succeeded
		r, err = b.circuit.Execute(do)
	}
	return r, b.learned(err)
}

// learned records whether the store failed with err, and returns the error for the caller.
func (b *breaker) learned(err error) error {
	switch {
	case err == nil:
		if b.failing.Load() { // writing each time would be slow
			b.failing.Store(false)
		}
	case errors.Is(err, errUnasked):
		return nil
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return errOpen
	case ofTheStore(err):
		b.failing.Store(true)
	}
	return err
}

// carefully lets the circuit breaker run do. gobreaker does not notice a runtime.Goexit and would
// wait forever for the end of that probe, so it gets a panic instead.
func (b *breaker) carefully(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	gone := false
	defer func() {
		if gone {
			_ = recover() // the goroutine ends
		}
	}()
	return b.circuit.Execute(func() (ratelimit.Result, error) {
		gone = true
		defer func() {
			p := recover()
			if gone = gone && p == nil; gone {
				p = "runtime.Goexit"
			}
			if p != nil {
				panic(p)
			}
		}()
		r, err := do()
		gone = false
		return r, err
	})
}

// lookAndDo runs do. While the store may be hanging, it first sends a Peek, because a hanging store
// later executes everything it was sent, and nobody would learn the result. A part of the store may be
// hanging while the breaker learns from the keys of other parts that it works.
func (f *Limiter) lookAndDo(ctx context.Context, key string, doubts bool, do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	looked := false
	if doubts || f.breaker.halfOpen.Load() || f.breaker.failing.Load() && f.owed.owes(key, f.breaker.now()) {
		err := f.look(ctx, key)
		looked = err == nil
		if ofTheStore(err) || errors.Is(err, store.ErrOverloaded) || !looked && ctx.Err() != nil { // with any other error, the store has answered the Peek
			return ratelimit.Result{}, err
		}
	}
	r, err := do()
	if looked && errors.Is(err, errUnasked) {
		err = nil
	}
	return r, err
}

// look asks the store with a Peek, which even a lease or a deny cache passes on. They can answer
// other calls on a key from memory for so long that a probe would never end.
func (f *Limiter) look(ctx context.Context, key string) error {
	r, err := f.limiter.Peek(ctx, key)
	return unasked(r, err)
}

// unasked returns err, or errUnasked if the store had no part in r, so that the breaker learns
// nothing from it. Of several limits, the store may have answered one that did not decide.
func unasked(r ratelimit.Result, err error) error {
	if err != nil || answeredByStore(r) {
		return err
	}
	for _, p := range r.Parts() {
		if p.Result != (ratelimit.Result{}) && answeredByStore(p.Result) { // zero if it was not asked, or has failed
			return nil
		}
	}
	return errUnasked
}

func answeredByStore(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceStore || s == ratelimit.SourceBan
}

// unsent reports whether nothing was sent to the store by a call that failed with err.
func unsent(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOverloaded)
}

// ofTheStore reports whether err concerns the store as a whole. A corrupt state, clocks that
// differ, and a full queue of this process do not, and are neither failures nor successes.
func ofTheStore(err error) bool {
	return errors.Is(err, ratelimit.ErrStore) &&
		!errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrClock) && !errors.Is(err, store.ErrOverloaded)
}
