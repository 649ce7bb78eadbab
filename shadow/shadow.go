// Package shadow tries a limit out on live traffic. It decides, reports the decision, and
// lets everything through. For a share of the keys the limit can be in force already.
package shadow

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/evenhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Limiter wraps a [ratelimit.Limiter], reports what that decides, and lets the event through
// all the same. With [WithEnforcement] a share of the keys gets the decision itself.
//
// What is let through is not counted ([ratelimit.Result.Counted]): Allowed is true, all other
// fields are 0, and the policies are unlimited. So clients see nothing of a limit that is not
// enforced. The decision or its error is in the [Report] alone. Invalid input is an error all
// the same, and so is the end of ctx. A throttle.Waiter inside would sleep on all keys: put it around.
//
// Bound: on keys that are enforced, what the limiter admits. There is none on the others.
//
// The limiter is charged as if it were enforced. But a client that the limit would have slowed
// down goes on at its own rate. So its share of denials is larger than under an enforced limit.
//
// Whether a key is enforced depends only on the key, the percentage and the salt, in each
// process and later version. A higher percentage adds keys and drops none. The hash does not
// withstand clients that choose their own keys to be outside the share.
//
// A decision costs a hash of the key, 1 ns a byte, some 100 ns for the goroutine of the
// [Report], and, if it is not enforced, an allocation. Decisions that wait for the Report take
// 165 KB. The goroutine ends when none waits. It is safe for concurrent use. Make it by [New].
type Limiter struct {
	traits
	*around

	reports reports
	seed    uint64        // the hash of the salt
	percent atomic.Uint64 // the bits of a float64, 0 to 100
}

type (
	traits = see.Traits
	around = ratelimit.Around
)

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithEnforcement enforces the decisions on this percentage of all keys, 0 to 100. It is
// exact to 10⁻¹³. Without it no key is enforced.
func WithEnforcement(percent float64) Option {
	return func(l *Limiter) error { return l.SetEnforcement(percent) }
}

// WithSalt changes which keys are enforced. Limiters with the same salt enforce the same
// keys. The default is "".
func WithSalt(salt string) Option {
	return func(l *Limiter) error {
		l.seed = evenhash.Add(evenhash.Offset, salt)
		return nil
	}
}

// New returns a limiter that reports what l decides. It returns
// [ratelimit.ErrInvalidOption] if l, report or an option is nil, or an option is out of
// range.
func New(l ratelimit.Limiter, report Report, opts ...Option) (*Limiter, error) {
	if report == nil {
		return nil, fmt.Errorf("%w: the report is nil", ratelimit.ErrInvalidOption)
	}
	lim := &Limiter{traits: traits{Answers: true}, seed: evenhash.Offset}
	lim.reports.report = report
	var err error
	if lim.around, err = ratelimit.NewAround(l, lim.decide); err != nil {
		return nil, err
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(lim); err != nil {
			return nil, err
		}
	}
	return lim, nil
}

// SetEnforcement changes the percentage of enforced keys, 0 to 100, while the limiter is in
// use. If it is out of range the error is [ratelimit.ErrInvalidOption], and nothing
// changes.
func (l *Limiter) SetEnforcement(percent float64) error {
	if !(percent >= 0 && percent <= 100) { // NaN is neither
		return fmt.Errorf("%w: %v percent of the keys, want 0 to 100", ratelimit.ErrInvalidOption, percent)
	}
	l.percent.Store(math.Float64bits(percent))
	return nil
}

// Enforcement returns the percentage of enforced keys.
func (l *Limiter) Enforcement() float64 { return math.Float64frombits(l.percent.Load()) }

// Enforced reports whether decisions on key are enforced now.
func (l *Limiter) Enforced(key string) bool {
	percent := l.Enforcement()
	if percent == 0 {
		return false
	}
	return float64(evenhash.Mix(evenhash.Add(l.seed, key))>>11) < percent/100*(1<<53) // 53 bits, which a float64 holds exactly
}

// decide asks the limiter and reports that, but not of a Peek or a Charge. It answers with the decision
// or its error if key is enforced, and otherwise lets the events through, with no Delay.
func (l *Limiter) decide(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
	r, err := c.Inside(ctx)
	if !c.Peek && !c.Charge {
		l.reports.add(decision{ctx: ctx, key: c.Key, n: c.N, result: r, err: err})
	}
	gone := err != nil && ctx.Err() != nil // then the caller needs no answer
	if gone || l.Enforced(c.Key) {
		return r, err
	}
	return ratelimit.Result{Allowed: true}, nil
}

// AppendPolicies appends the policies of the limiter. Those of a key that is not enforced
// have the limit [ratelimit.Unlimited].
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

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
