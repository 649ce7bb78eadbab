// Package shadow tries a limit out on live traffic. It decides, reports the decision, and
// lets everything through. For a share of the keys the limit can be in force already.
package shadow

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/evenhash"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
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

	limiter ratelimit.Limiter
	passed  ratelimit.Result // for what is let through and was never charged
	reports reports
	seed    uint64        // the hash of the salt
	percent atomic.Uint64 // the bits of a float64, 0 to 100
}

type traits = see.Traits

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
	switch {
	case isnil.Is(l):
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	case report == nil:
		return nil, fmt.Errorf("%w: the report is nil", ratelimit.ErrInvalidOption)
	}
	lim := &Limiter{traits: traits{Answers: true}, limiter: l, seed: evenhash.Offset}
	lim.reports.report = report
	lim.passed = ratelimit.Result{Allowed: true}.WithMark(ratelimit.NewMark(lim, ratelimit.SourceStore, nil))
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

// Allow is AllowN of 1.
func (l *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN decides on n events at once and reports that. It returns the decision if key is
// enforced, and otherwise lets the events through.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := l.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := l.limiter.AllowN(ctx, key, n)
	l.reports.add(decision{ctx: ctx, key: key, n: n, result: r, err: err})
	return l.answer(ctx, key, r, err)
}

// AllowWithin decides on n events whose turn must come within d, and goes on as AllowN
// does. Events of a key that is not enforced have no Delay.
func (l *Limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if err := l.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := ratelimit.AllowWithin(ctx, l.limiter, key, n, d)
	l.reports.add(decision{ctx: ctx, key: key, n: n, result: r, err: err})
	return l.answer(ctx, key, r, err)
}

// Peek returns what Allow would. It charges nothing and reports nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if err := l.check(ctx, key, 1); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := l.limiter.Peek(ctx, key)
	return l.answer(ctx, key, r, err)
}

// check refuses calls that reach neither the limiter nor the report.
func (l *Limiter) check(ctx context.Context, key string, n int) error {
	if l.limiter == nil {
		return unmade.Err
	}
	return store.CheckCall(ctx, key, n)
}

// trial is the note on Results that were let through and charged.
type trial struct {
	mark    ratelimit.Mark // whose note it is: one allocation for both
	charged ratelimit.Result
}

// answer returns what the caller gets when the limiter has answered r and err. Beside an
// error r is zero.
func (l *Limiter) answer(ctx context.Context, key string, r ratelimit.Result, err error) (ratelimit.Result, error) {
	gone := err != nil && ctx.Err() != nil // then the caller needs no answer
	switch {
	case gone || l.Enforced(key):
		return r, err
	case err != nil || !r.Allowed:
		return l.passed, nil //nolint:nilerr // it is in the report
	}
	t := &trial{charged: r}
	t.mark = *ratelimit.NewMark(l, ratelimit.SourceStore, t)
	return ratelimit.Result{Allowed: true}.WithMark(&t.mark), nil
}

// Charge charges n events that have happened already, and reports nothing. Errors of the
// limiter are returned only if key is enforced.
func (l *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := l.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := ratelimit.Charge(ctx, l.limiter, key, n)
	return l.answer(ctx, key, r, err)
}

// Refund gives back n of the events that charged let through, as far as the limiter has
// charged them. It is no error and does nothing for events that the limiter denied or
// failed on. Errors of the limiter's Refund are returned for all keys.
func (l *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if l.limiter == nil {
		return unmade.Err
	}
	_, note, through := charged.Unmark(l)
	switch t, ok := note.(*trial); {
	case ok:
		charged = t.charged
	case through:
		return store.CheckCall(ctx, key, n)
	}
	return l.limiter.Refund(ctx, key, charged, n)
}

// Inner returns what the limiter has decided where the answer was r. It is zero if that was let
// through all the same, and r itself if it is enforced.
func (l *Limiter) Inner(r ratelimit.Result) ratelimit.Result {
	under, note, through := r.Unmark(l)
	switch t, charged := note.(*trial); {
	case charged:
		return t.charged
	case through:
		return ratelimit.Result{}
	}
	return under
}

// Reset forgets key at the limiter.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.limiter == nil {
		return unmade.Err
	}
	return l.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of the limiter. Those of a key that is not enforced
// have the limit [ratelimit.Unlimited].
func (l *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if l.limiter == nil {
		return dst, unmade.Err
	}
	all, err := ratelimit.AppendPolicies(ctx, dst, l.limiter, key)
	if err != nil || l.Enforced(key) {
		return all, err
	}
	for i := len(dst); i < len(all); i++ {
		all[i] = ratelimit.Policy{Name: all[i].Name, Limit: ratelimit.Unlimited(), Quota: math.MaxInt32}
	}
	return all, nil
}

// Unwrap returns the wrapped limiter.
func (l *Limiter) Unwrap() ratelimit.Limiter { return l.limiter }

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
