// Package regions shares one limit among regions, each with a store of its own.
//
//	limiter, err := regions.New(here, []ratelimit.Limiter{far, farther})
//
// A decision asks the store of its own region. Only what that denies asks the others, and
// moves to this region what they do not use.
package regions

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Limiter decides by the share of a limit that its region holds. What that denies makes the
// region fetch one half of what another region has left, or more if the call needs more. The
// events are charged there first, and then given back to the own share, which is asked once
// more. Each region has a Limiter of its own:
//
//	regions.New(eu, []ratelimit.Limiter{us}) // in the EU
//	regions.New(us, []ratelimit.Limiter{eu}) // in the US
//
// The limit is the sum of the shares. With 500 a second in each of two regions, one of them
// alone can use nearly 1,000. Cut off from each other, each has its 500.
//
// Bound: that of the algorithm for the sum of the shares, also when regions are cut off. A
// bucket admits besides what is refilled during one transfer. Clocks that differ add their
// difference to the interval. [Why it holds].
//
// What the own share admits costs nothing more. A fetch costs the denied caller three calls of
// the own store, and two of each region that it asks, for up to [WithWait]. One call at a time
// fetches for a key, and others are denied meanwhile.
//
// Limit, Remaining and RetryAfter are those of the own share. A call for more than it can hold is denied.
//
// It remembers at most 65,536 keys, in 4 MB. Do not use it for shares of a few events, or where
// all calls of a key come to one region. It is safe for concurrent use. Make it by [New].
//
// [Why it holds]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#regions
type Limiter struct {
	limiter ratelimit.Limiter
	own     *five.Limiter[ratelimit.Result] // limiter
	others  []*region
	wait    time.Duration

	base   time.Time // of all times, which are monotonic
	seeds  keyhash.Seeds
	pauses pauses
	turn   atomic.Uint32

	moved, fetches, failed atomic.Int64
}

// The algorithms whose shares can be moved, by name.
const (
	fixedWindow   = "fixed_window"
	slidingWindow = "sliding_window"
	tokenBucket   = "token_bucket"
)

const (
	defaultWait = 500 * time.Millisecond
	leastWait   = time.Millisecond
	mostWait    = time.Minute
)

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithWait bounds the time in which a denied call asks other regions, to d in sum: 1 ms to
// 1 min. The default is 500 ms. It must be more than two round trips to a region, or that gives
// nothing.
func WithWait(d time.Duration) Option {
	return func(l *Limiter) error {
		if d < leastWait || d > mostWait {
			return fmt.Errorf("%w: WithWait(%v), want %v to %v", ratelimit.ErrInvalidOption, d, leastWait, mostWait)
		}
		l.wait = d
		return nil
	}
}

// New returns the limiter of the region whose share is own. others are the shares of the other
// regions, 1 or more.
//
// All are of one algorithm and Period: a [ratelimit.FixedWindow], a [ratelimit.SlidingWindow],
// or a [ratelimit.TokenBucket] with a Burst of 2 or more. Their limits may differ, also by key
// ([ratelimit.WithLimitFunc]). They may be observed. Other limiters go around a Limiter. No two
// may share their state. Otherwise the error is [ratelimit.ErrInvalidOption].
func New(own ratelimit.Limiter, others []ratelimit.Limiter, opts ...Option) (*Limiter, error) {
	l := &Limiter{limiter: own, wait: defaultWait, base: time.Now(), seeds: keyhash.New()}
	var err error
	if l.own, err = share(own); err != nil {
		return nil, err
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("%w: there is no other region", ratelimit.ErrInvalidOption)
	}
	for _, other := range others {
		if err := l.add(other); err != nil {
			return nil, err
		}
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// share is l, if it can be one.
func share(l ratelimit.Limiter) (*five.Limiter[ratelimit.Result], error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	var one *five.Limiter[ratelimit.Result]
	if known := see.Of(l); known != nil && known.Algorithm != "" {
		one, _ = known.Five().(*five.Limiter[ratelimit.Result])
	}
	if one == nil {
		return nil, fmt.Errorf("%w: a %T is no share: share one of the five algorithms, and put the %[2]T around that",
			ratelimit.ErrInvalidOption, l)
	}
	switch one.Algorithm {
	case fixedWindow, slidingWindow:
	case tokenBucket:
		if one.Limit.Rate > 0 && one.Limit.Burst < 2 {
			return nil, fmt.Errorf("%w: a share with a burst of 1 takes nothing back, want 2 or more", ratelimit.ErrInvalidOption)
		}
	default:
		return nil, fmt.Errorf("%w: a %s is no share: it takes back only events of its own", ratelimit.ErrInvalidOption, one.Algorithm)
	}
	return one, nil
}

// add adds the share of another region.
func (l *Limiter) add(other ratelimit.Limiter) error {
	s, err := share(other)
	if err != nil {
		return err
	}
	if s.Algorithm != l.own.Algorithm || !sameWindows(s.Limit, l.own.Limit) {
		return fmt.Errorf("%w: shares are of one algorithm and Period, and of one calendar: a %s of %d µs and a %s of %d µs", ratelimit.ErrInvalidOption,
			l.own.Algorithm, l.own.Limit.Period, s.Algorithm, s.Limit.Period)
	}
	same := s.Space != nil && s.Space == l.own.Space
	for _, o := range l.others {
		same = same || s.Space != nil && s.Space == o.Space
	}
	if same {
		return fmt.Errorf("%w: two shares have the same state: give each region a store of its own", ratelimit.ErrInvalidOption)
	}
	l.others = append(l.others, &region{Limiter: s})
	return nil
}

func sameWindows(l, other store.Limit) bool {
	return l.Period == other.Period && l.Calendar() == other.Calendar()
}

func (l *Limiter) check(ctx context.Context, key string, n int) error {
	if l.own == nil {
		return unmade.Err
	}
	return store.CheckCall(ctx, key, n)
}

// Allow is AllowN of 1.
func (l *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN admits n events if the own share has room for them, or can fetch it.
func (l *Limiter) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return l.decide(ctx, five.Take, key, n, n, anyTurn)
}

// AllowWithin decides on n events whose turn must come within d: see [ratelimit.AllowWithin].
// Turns are those of the own share.
func (l *Limiter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	if l.own == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return l.decide(ctx, five.Take, key, n, n, max(d, 0))
}

// AllowUpTo admits as many of n events as the own share has room for. It fetches only if that
// has room for none.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, err = l.decide(ctx, five.TakeUpTo, key, n, 1, anyTurn)
	if err == nil && r.Source() == ratelimit.SourceUnlimited {
		return n, r, nil
	}
	return r.Charged(), r, err
}

// anyTurn is for events whose turn may come at any time.
const anyTurn time.Duration = -1

// decide asks the own share, and once more if room for want events was fetched.
func (l *Limiter) decide(ctx context.Context, op five.Operation, key string, n, want int, within time.Duration) (ratelimit.Result, error) {
	if err := l.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	by, err := l.own.LimitOf(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	asked := by
	if within != anyTurn {
		asked = l.own.Within(by, within)
	}
	r, err := l.own.By(ctx, op, key, n, asked)
	if err != nil || r.Allowed || r.RetryAfter == ratelimit.Never {
		return r, err
	}
	if l.fetch(ctx, key, want, by, r.RetryAfter) && ctx.Err() == nil {
		return l.own.By(ctx, op, key, n, asked)
	}
	return r, nil
}

// Peek tells what the own share would answer. It does not ask other regions, so Allow may
// admit what Peek says is denied.
func (l *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if l.own == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return l.limiter.Peek(ctx, key)
}

// Charge charges the own share.
func (l *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if l.own == nil {
		return ratelimit.Result{}, unmade.Err
	}
	return ratelimit.Charge(ctx, l.limiter, key, n)
}

// Refund gives back to the own share what was charged there, also where it was fetched.
func (l *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if l.own == nil {
		return unmade.Err
	}
	return l.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key in the own share, which is then whole. What others have taken of it stays
// with them.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.own == nil {
		return unmade.Err
	}
	return l.limiter.Reset(ctx, key)
}

// AppendPolicies appends those of the own share.
func (l *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if l.own == nil {
		return dst, unmade.Err
	}
	return ratelimit.AppendPolicies(ctx, dst, l.limiter, key)
}

// Unwrap returns the limiter of the own share.
func (l *Limiter) Unwrap() ratelimit.Limiter { return l.limiter }

// Stats counts what a [Limiter] has done with other regions.
type Stats struct {
	Fetches int64 // denied calls that asked them
	Moved   int64 // events that were debited there and credited here
	Failed  int64 // calls of stores, in fetches, that failed or were too slow
}

// Stats returns the counts since New.
func (l *Limiter) Stats() Stats {
	return Stats{Fetches: l.fetches.Load(), Moved: l.moved.Load(), Failed: l.failed.Load()}
}

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
