package throttle

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Slow configures the delays of a [Slowdown].
type Slow struct {
	Free int           // events that are not delayed, as l counts them: 0 to 2^31-1
	Step time.Duration // delay for each event beyond Free: 1 µs or more, whole µs
	Max  time.Duration // the longest delay: 1 µs or more, whole µs
}

// Slowdown wraps a [ratelimit.Limiter] l and delays events instead of denying them: l only counts.
// A key's spend is Limit minus Remaining. The first [Slow].Free events are not delayed, and the
// n-th event after them is delayed by min(n·Step, Max). The delays shrink again as l regains room.
// All events of a call are delayed like the last one.
//
// A Slowdown does not sleep. The caller must sleep for the Delay of the [ratelimit.Result], as
// [ratelimit.Wait] does. A [Waiter] around the Slowdown does it too, and limits the number of
// sleeping callers.
//
// Bound: c callers of a key that sleep for each Delay before their next call get at most a + c·(1 +
// x/Max) events in any interval x. Here, a is what l would admit in x with a capacity (the Rate of
// a window, the Burst of a bucket) of Free + ⌈Max/Step⌉ - 1. Without a bound on the callers, the
// events have none.
//
// The limit of l must be above Free, and at least Free + Max/Step to reach all steps. An event that
// l denies is admitted with the delay Max, and not charged. Events that l admits without counting
// them ([ratelimit.Unlimited], [fallback.FailOpen]) are not delayed. The Slowdown replaces any
// Delay of l. RetryAfter is always 0.
//
// If l returns an error, the Slowdown returns it, and the event is not admitted. Refunding an event
// that l denied has no effect. A Slowdown is safe for concurrent use. Use [NewSlowdown] to create
// one.
type Slowdown struct {
	wrapper
	inside

	slow   Slow
	passed *ratelimit.Mark // on events that the limiter denied, and therefore did not charge
}

type wrapper = see.Wrapper

// NewSlowdown returns a limiter that uses l to count and delays events according to s. It returns
// [ratelimit.ErrInvalidOption] if l is nil, if a field of s is out of range, if l counts slots, or if
// l is or contains a [Waiter]: put the Waiter around the Slowdown.
func NewSlowdown(l ratelimit.Limiter, s Slow) (*Slowdown, error) {
	sleeper, sleeps := see.Sleeping(l)
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case sleeps:
		return nil, fmt.Errorf("%w: a Slowdown cannot wrap a %T: put the %[2]T around the Slowdown", ratelimit.ErrInvalidOption, sleeper)
	case see.Held(l):
		return nil, see.ErrHeld
	case s.Free < 0 || s.Free > math.MaxInt32:
		return nil, fmt.Errorf("%w: %d free events, want 0 to %d", ratelimit.ErrInvalidOption, s.Free, math.MaxInt32)
	case s.Step <= 0 || s.Step%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a step of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Step)
	case s.Max <= 0 || s.Max%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a maximum of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Max)
	}
	slowdown := &Slowdown{wrapper: see.Has(see.Traits{Answers: true, Behind: l}), inside: inside{l}, slow: s}
	slowdown.passed = ratelimit.NewMark(slowdown, ratelimit.SourceStore, nil)
	return slowdown, nil
}

// Allow is shorthand for AllowN with 1 event.
func (s *Slowdown) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

// AllowN admits n events. The Delay is how long they should wait.
func (s *Slowdown) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := s.made().AllowN(ctx, key, n)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining), nil
}

// Peek returns what Allow would return, and charges nothing.
func (s *Slowdown) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	r, err := s.made().Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining+1), nil
}

// delayed turns the decision r of l into an admission, with the delay of the event that is the
// spent-th that l counted.
func (s *Slowdown) delayed(r ratelimit.Result, spent int) ratelimit.Result {
	switch {
	case !r.Allowed:
		r = r.WithMark(s.passed)
		r.Delay = s.slow.Max
	case r.Limit == 0, r.Source() == ratelimit.SourceUnlimited, r.Source() == ratelimit.SourceList: // admitted without being counted
		r.Delay = 0
	default:
		r.Delay = s.slow.delay(spent)
	}
	r.Allowed, r.RetryAfter = true, 0
	return r
}

// delay returns the delay of the spent-th event.
func (s Slow) delay(spent int) time.Duration {
	excess := int64(spent) - int64(s.Free)
	switch {
	case excess <= 0:
		return 0
	case excess > int64(s.Max/s.Step): // the product could overflow
		return s.Max
	}
	return time.Duration(excess) * s.Step
}

// Refund refunds n of the admitted events in charged, as far as l has charged them.
func (s *Slowdown) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if _, _, passed := charged.Unmark(s); passed && charged.Allowed { // otherwise AllowWithin has denied it because of its Delay
		return store.CheckCall(ctx, key, n)
	}
	return s.made().Refund(ctx, key, charged, n)
}

var (
	_ ratelimit.Limiter        = (*Slowdown)(nil)
	_ ratelimit.PolicyAppender = (*Slowdown)(nil)
	_ ratelimit.Charger        = (*Slowdown)(nil)
)
