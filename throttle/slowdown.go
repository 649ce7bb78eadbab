package throttle

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Slow says how a [Slowdown] delays.
type Slow struct {
	Free int           // events that are not delayed, as l counts them: 0 to 2^31-1
	Step time.Duration // delay for each event beyond Free: 1 µs or more, whole µs
	Max  time.Duration // the longest delay: 1 µs or more, whole µs
}

// Slowdown wraps a [ratelimit.Limiter] l and delays events instead of denying them: l only
// counts. A key's spend is Limit less Remaining. Its first [Slow].Free events are not delayed,
// and the n-th beyond them by min(n·Step, Max). A key becomes fast again as l gives room back.
// Several events at once are delayed like the last of them.
//
// It does not sleep: the caller sleeps the Delay of the [ratelimit.Result]. So does
// [ratelimit.Wait], and a [Waiter] around it, which bounds how many sleep at once.
//
// Bound: c callers of a key that sleep each Delay before their next call get at most a + c·(1 +
// x/Max) events in any interval x. Here a is what l would admit there if its capacity (the Rate
// of a window, the Burst of a bucket) were Free + ⌈Max/Step⌉ - 1. Without a bound on the
// callers, the events have none.
//
// The limit of l must be above Free, and Free + Max/Step or more for all steps to be taken. An
// event that l denies goes through with the delay Max, and l charges nothing for it. What l
// lets through uncounted ([ratelimit.Unlimited], [fallback.FailOpen]) is not delayed. A Delay
// of l's own is replaced. RetryAfter is always 0.
//
// Errors are those of l, and the event has not gone through then. A Refund of an event that l
// denied does nothing. It is safe for concurrent
// use. Make it by [NewSlowdown].
type Slowdown struct {
	traits

	limiter ratelimit.Limiter
	slow    Slow
	passed  *ratelimit.Mark // on what the limiter has denied, and never charged
}

type traits = see.Traits

// NewSlowdown returns a limiter that delays by s what l counts. It returns
// [ratelimit.ErrInvalidOption] if l is nil or a field of s is out of range. The same goes
// for a [Waiter] in l, however deep: it goes around a Slowdown.
func NewSlowdown(l ratelimit.Limiter, s Slow) (*Slowdown, error) {
	sleeper, sleeps := see.Sleeping(l)
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case sleeps:
		return nil, fmt.Errorf("%w: a Slowdown around a %T: put the %[2]T around the Slowdown", ratelimit.ErrInvalidOption, sleeper)
	case see.Held(l):
		return nil, see.ErrHeld
	case s.Free < 0 || s.Free > math.MaxInt32:
		return nil, fmt.Errorf("%w: %d free events, want 0 to %d", ratelimit.ErrInvalidOption, s.Free, math.MaxInt32)
	case s.Step <= 0 || s.Step%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a step of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Step)
	case s.Max <= 0 || s.Max%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: a maximum of %v, want whole µs above 0", ratelimit.ErrInvalidOption, s.Max)
	}
	slowdown := &Slowdown{traits: traits{Answers: true, Behind: l}, limiter: l, slow: s}
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
		return ratelimit.Result{}, unmade.Err
	}
	r, err := s.limiter.AllowN(ctx, key, n)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining), nil
}

// Peek returns what Allow would, and charges nothing.
func (s *Slowdown) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if s.limiter == nil {
		return ratelimit.Result{}, unmade.Err
	}
	r, err := s.limiter.Peek(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.delayed(r, r.Limit-r.Remaining+1), nil
}

// delayed returns l's decision r as let through, with the delay of the event that is l's
// spent-th.
func (s *Slowdown) delayed(r ratelimit.Result, spent int) ratelimit.Result {
	switch {
	case !r.Allowed:
		r = r.WithMark(s.passed)
		r.Delay = s.slow.Max
	case r.Limit == 0, r.Source() == ratelimit.SourceUnlimited, r.Source() == ratelimit.SourceList: // let through uncounted
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
	case excess > int64(s.Max/s.Step): // also where the product would overflow
		return s.Max
	}
	return time.Duration(excess) * s.Step
}

// Charge charges l with n events that have happened already, and does not sleep.
func (s *Slowdown) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if s.limiter == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return ratelimit.Charge(ctx, s.limiter, key, n)
}

// Refund gives back n of the events that charged let through, as far as l has charged them.
func (s *Slowdown) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if s.limiter == nil {
		return unmade.Err
	}
	if _, _, passed := charged.Unmark(s); passed && charged.Allowed { // otherwise AllowWithin has denied it for its Delay
		return store.CheckCall(ctx, key, n)
	}
	return s.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at l.
func (s *Slowdown) Reset(ctx context.Context, key string) error {
	if s.limiter == nil {
		return unmade.Err
	}
	return s.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of l. The Slowdown counts by them and does not
// enforce them.
func (s *Slowdown) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if s.limiter == nil {
		return dst, unmade.Err
	}
	return ratelimit.AppendPolicies(ctx, dst, s.limiter, key)
}

var (
	_ ratelimit.Limiter        = (*Slowdown)(nil)
	_ ratelimit.PolicyAppender = (*Slowdown)(nil)
	_ ratelimit.Charger        = (*Slowdown)(nil)
)
