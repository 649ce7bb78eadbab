// Package shadow tries out a limit on live traffic. It asks the limiter, reports the decision, and
// admits every call. You can already enforce the limit for a share of the keys.
package shadow

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/evenhash"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Limiter wraps a [ratelimit.Limiter], reports its decisions, and admits every event. With
// [WithEnforcement], the decisions on a share of the keys are enforced.
//
// An event of a key that is not enforced is admitted without being counted
// ([ratelimit.Result.Counted]): Allowed is true, all other fields are 0, and the policies are
// unlimited, so clients do not notice the limit. Only the [Report] gets the decision or its error.
// Invalid input and the end of ctx are still errors. Put a throttle.Waiter outside, because inside
// it would also sleep for keys that are not enforced.
//
// Bound: for enforced keys, the bound of the wrapped limiter. Other keys have no bound.
//
// The wrapped limiter is charged as if its decisions were enforced. However, a client that an
// enforced limit would have slowed down keeps sending at its own rate, so its share of denials is
// larger than under enforcement.
//
// Whether a key is enforced depends only on the key and the percentage, in every process and in later
// versions. A higher percentage adds keys and removes none. The hash does not
// withstand clients that choose their keys to avoid enforcement.
//
// A decision costs a hash of the key at 1 ns per byte, about 100 ns for the goroutine of the
// [Report], and, if it is not enforced, an allocation. The queue of the Report takes 165 KB. The
// goroutine ends when the queue is empty. A Limiter is safe for concurrent use. Use [New] to create
// one.
type Limiter struct {
	wrapper
	*around

	reports reports
	percent atomic.Uint64 // the bits of a float64, 0 to 100
}

type (
	wrapper = see.Wrapper
	around  = ratelimit.Around
)

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithEnforcement enforces the decisions on a percentage of all keys, 0 to 100. The percentage is
// exact to 10⁻¹³. By default, no key is enforced.
func WithEnforcement(percent float64) Option {
	return func(l *Limiter) error { return l.SetEnforcement(percent) }
}

// New returns a limiter that reports the decisions of l. It returns [ratelimit.ErrInvalidOption] if
// l, report or an option is nil, or if an option is out of range.
func New(l ratelimit.Limiter, report Report, opts ...Option) (*Limiter, error) {
	if report == nil {
		return nil, fmt.Errorf("%w: shadow.New: the report is nil", ratelimit.ErrInvalidOption)
	}
	lim := &Limiter{wrapper: see.Has(see.Traits{Answers: true})}
	lim.reports.report = report
	var err error
	if lim.around, err = ratelimit.NewAround(l, lim.decide); err != nil {
		return nil, err
	}
	if err := options.Apply(lim, opts); err != nil {
		return nil, err
	}
	return lim, nil
}

// SetEnforcement changes the percentage of enforced keys, 0 to 100, while the limiter is in use. If
// the percentage is out of range, SetEnforcement returns [ratelimit.ErrInvalidOption] and changes
// nothing.
func (l *Limiter) SetEnforcement(percent float64) error {
	if !(percent >= 0 && percent <= 100) { // NaN is neither
		return fmt.Errorf("%w: %v percent of the keys, want 0 to 100", ratelimit.ErrInvalidOption, percent)
	}
	l.percent.Store(math.Float64bits(percent))
	return nil
}

// Enforced reports whether decisions on key are currently enforced.
func (l *Limiter) Enforced(key string) bool {
	percent := math.Float64frombits(l.percent.Load())
	if percent == 0 {
		return false
	}
	return float64(evenhash.Of(key)>>11) < percent/100*(1<<53) // 53 bits, which a float64 holds exactly
}

// decide asks the limiter and reports its decision, except for a Peek or a Charge. It returns the
// decision or its error if key is enforced, and otherwise admits the events, without a Delay.
func (l *Limiter) decide(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
	r, err := c.Inside(ctx)
	if !c.Peek && !c.Charge {
		l.reports.add(decision{ctx: ctx, key: c.Key, n: c.N, result: r, err: err})
	}
	gone := err != nil && ctx.Err() != nil // the caller needs no answer
	if gone || l.Enforced(c.Key) {
		return r, err
	}
	return ratelimit.Result{Allowed: true}, nil
}

// AppendPolicies appends the policies of the wrapped limiter. For a key that is not enforced, their
// limit is [ratelimit.Unlimited].
func (l *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	all, err := l.around.AppendPolicies(ctx, dst, key)
	if err != nil || l.Enforced(key) {
		return all, err
	}
	for i := len(dst); i < len(all); i++ {
		all[i] = ratelimit.Policy{Name: all[i].Name, Limit: ratelimit.Unlimited(), Quota: math.MaxInt32}
	}
	return all, nil
}
