package throttle

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/order"
)

// Slow says how a [Slowdown] delays.
type Slow struct {
	Free int           // events that are not delayed, as l counts them: 0 to 2^31-1
	Step time.Duration // delay for each event beyond Free: 1 µs or more, whole µs
	Max  time.Duration // the longest delay: 1 µs or more, whole µs
}

// Slowdown is a [ratelimit.Limiter] that denies nothing, and delays what a key does
// beyond a number of free events: the n-th event beyond by min(n·Step, Max). How far
// an event is beyond is told by l, which counts: the spend, Limit less Remaining. So a
// key becomes fast again as l gives room back, at l's rate or with its next window.
// Several events at once are delayed as the last of them.
//
// The time is in [ratelimit.Result]'s Delay, and it is the caller who sleeps it, or
// [ratelimit.Wait], or a [Waiter] around, which bounds how many do at once. The
// Slowdown itself does not sleep, so that one decision serves callers who block and
// callers who schedule, and ctx is in the hands of whoever sleeps. A caller
// who ignores Delay is not slowed down.
//
// l must have a higher limit than Free, of Free + Max/Step or more for all steps to be
// taken. Where l denies, which costs nothing there, the event goes through with the delay Max.
// What l lets through uncounted ([ratelimit.Unlimited], [fallback.Open]) is not
// delayed. A Delay of l's own is replaced. RetryAfter is always 0.
//
// Bound: c callers of a key who sleep each Delay before their next call get, in any
// interval x, what l would admit if its capacity were Free + ⌈Max/Step⌉ - 1 (of the
// windows this is the Rate, of the buckets the Burst, at l's Rate), and beyond that
// c·(1 + x/Max) events. Without a bound on the callers there is none on the events.
//
// Errors are l's, and the event has not gone through then. Refund gives back what l
// has charged; that of an event which l denied is no error and does nothing.
//
// A decision costs a few ns more than l's. It is safe for concurrent use. Make it by
// [NewSlowdown].
type Slowdown struct {
	place //nolint:unused // package order looks for it

	limiter ratelimit.Limiter
	slow    Slow
	passed  *ratelimit.Mark // on what the limiter has denied, and never charged
}

type place = order.Answers //nolint:unused // likewise

// NewSlowdown returns a limiter that delays by s what l counts. Its error is
// [ratelimit.ErrInvalidOption]: l is nil, a field of s is out of range, or l is a [Waiter],
// also inside of others, which goes around a Slowdown.
func NewSlowdown(l ratelimit.Limiter, s Slow) (*Slowdown, error) {
	sleeper, sleeps := order.Sleeping(l)
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case sleeps:
		return nil, fmt.Errorf("%w: a Slowdown around a %T, which goes around it", ratelimit.ErrInvalidOption, sleeper)
	case s.Free < 0 || s.Free > math.MaxInt32:
		return nil, fmt.Errorf("%w: %d free events, want 0 to %d", ratelimit.ErrInvalidOption, s.Free, math.MaxInt32)
	case s.Step <= 0 || s.Step%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a step of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Step)
	case s.Max <= 0 || s.Max%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a maximum of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Max)
	}
	slowdown := &Slowdown{limiter: l, slow: s}
	slowdown.passed = ratelimit.NewMark(slowdown, ratelimit.SourceStore, nil)
	return slowdown, nil
}

// Allow is AllowN of 1.
func (s *Slowdown) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.AllowN(ctx, key, 1)
}

// AllowN lets n events through. Delay is how long they should wait.
func (s *Slowdown) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if s.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	r, err := s.limiter.AllowN(ctx, key, n)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining), nil
}

// Peek answers what Allow would, and charges nothing.
func (s *Slowdown) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if s.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	r, err := s.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining+1), nil
}

// delayed is l's decision r, let through with the delay of the event that is l's
// spent-th.
func (s *Slowdown) delayed(r ratelimit.Result, spent int) ratelimit.Result {
	switch {
	case !r.Allowed:
		r = r.With(s.passed)
		r.Delay = s.slow.Max
	case r.Limit == 0, r.Source() == ratelimit.SourceUnlimited, r.Source() == ratelimit.SourceList: // let through uncounted
		r.Delay = 0
	default:
		r.Delay = s.slow.delay(spent)
	}
	r.Allowed, r.RetryAfter = true, 0
	return r
}

// delay is that of the spent-th event.
func (s Slow) delay(spent int) time.Duration {
	excess := int64(spent) - int64(s.Free)
	switch {
	case excess <= 0:
		return 0
	case excess > int64(s.Max/s.Step): // also where the product would overflow
		return s.Max
	}
	return time.Duration(excess) * s.Step
}

// Charge charges n events that have happened already to the limiter, and sleeps for
// none of them.
func (s *Slowdown) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if s.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	return ratelimit.Charge(ctx, s.limiter, key, n)
}

// Refund gives back n of the events that charged let through, as far as l has
// charged them.
func (s *Slowdown) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if s.limiter == nil {
		return errNoConstructor
	}
	if _, _, passed := charged.Of(s); passed && charged.Allowed { // or else AllowWithin has denied it for its Delay
		return ratelimit.CheckCall(ctx, key, n)
	}
	return s.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at l.
func (s *Slowdown) Reset(ctx context.Context, key string) error {
	if s.limiter == nil {
		return errNoConstructor
	}
	return s.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of l, which it counts by and does not enforce.
func (s *Slowdown) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if s.limiter == nil {
		return dst, errNoConstructor
	}
	return ratelimit.AppendPolicies(ctx, dst, s.limiter, key)
}

var (
	_ ratelimit.Limiter   = (*Slowdown)(nil)
	_ ratelimit.Describer = (*Slowdown)(nil)
	_ ratelimit.Charger   = (*Slowdown)(nil)
)
