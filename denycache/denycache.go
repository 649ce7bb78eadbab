// Package denycache spares a store the calls for keys that it has already denied.
//
//	limiter, err := denycache.New(bucket) // on Redis
package denycache

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/denials"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Limiter wraps a [ratelimit.Limiter] and remembers its denials. Once the store has denied n
// events of a key until a time t, calls of that key for n or more are denied in this process.
// That lasts until t and takes no round trip. All other calls go to the store. So a flood
// against one key costs the store a call or two per RetryAfter, whatever its rate.
//
// Use it around a limiter on Redis. On memory it saves nothing. It goes around one of the
// five algorithms, and inside all other wrappers.
//
// Bound: it denies nothing that the store would admit. RetryAfter is taken as shorter by
// 1 µs and by a thousandth: NTP lets each of two clocks gain or lose 500 µs a second.
// Before t a key gets room only by a Refund, a Reset or another limit. Those made through
// this Limiter end the denial. It can deny too much, until t at most or for [WithMaxAge],
// after
//
//   - a Refund, a Reset or another limit by others, or one that failed here and reached
//     the store later;
//   - a change of the limit while calls of the key are under way, until they are back;
//   - a step of the store's clock, or its loss or eviction of the key;
//   - a change to a slower limit, for which RetryAfter may be too long: see
//     [ratelimit.WithLimitFunc].
//
// A local denial has [ratelimit.SourceDenyCache], and the Limit and Remaining of the store's
// denial. RetryAfter runs from the store's answer, so it is too long by the time that the
// answer took. A larger call than the one that the store denied may have to wait longer.
// RetryAfter is Never for n above Limit.
//
// A denial without an end (Never) is not remembered. With [ratelimit.WithCoalescing] only
// denials of one event are. Peek always asks the store, and so does AllowWithin of a bucket: a
// Waiter (package throttle) around it has no use of what is remembered. Errors are those of the
// wrapped limiter.
//
// A denied key costs 130 to 220 bytes, whatever its length, and the first few hundred up to
// 900. There are at most 65,536 of them, or [WithMaxKeys]. They are removed as other keys
// are decided on: there is no goroutine and nothing to close. A local denial takes some 100 ns
// and allocates nothing. A call that goes on to the store takes as much longer.
//
// Time is this process's monotonic clock. The store's clock must run as fast, so it cannot be
// a simulated one.
//
// It is safe for concurrent use. Make it by [New].
type Limiter struct {
	place // package see looks for it

	limiter ratelimit.Limiter
	five    *five.Limiter[ratelimit.Result] // limiter
	denied  ratelimit.Result                // with the mark of a local denial: a copy costs less than With
	maxKeys int
	maxAge  time.Duration
	denials *denials.Table
}

type place = see.Remembers

const (
	defaultMaxKeys = 1 << 16
	maxMaxKeys     = 1 << 24
	maxDenial      = 100 * 365 * 24 * time.Hour // in which each bucket refills
)

// Option configures a [Limiter].
type Option func(*Limiter) error

// WithMaxKeys bounds the keys that are remembered to n, 1 to 16,777,216. The default is
// 65,536, which take 9 to 14 MB. Beyond n a denial that has ended is removed, or the one of
// a few that ends first. The next call of its key asks the store again.
func WithMaxKeys(n int) Option {
	return func(d *Limiter) error {
		if n < 1 || n > maxMaxKeys {
			return fmt.Errorf("%w: WithMaxKeys(%d), want 1 to %d", ratelimit.ErrInvalidOption, n, maxMaxKeys)
		}
		d.maxKeys = n
		return nil
	}
}

// WithMaxAge asks the store again age after it has denied, 1 µs or more, even if RetryAfter
// is longer. That bounds how long a Refund or a Reset by another process goes unnoticed. It
// costs a call per age and denied key.
func WithMaxAge(age time.Duration) Option {
	return func(d *Limiter) error {
		if age < time.Microsecond {
			return fmt.Errorf("%w: WithMaxAge(%v), want 1µs or more", ratelimit.ErrInvalidOption, age)
		}
		d.maxAge = age
		return nil
	}
}

// New returns a limiter that asks l only what it does not know to be denied. The type of l
// must be one of the five algorithms, since denials of other limiters can end in ways that
// are not seen here. Put those limiters around a denycache.Limiter.
//
// It returns [ratelimit.ErrInvalidOption] if l is nil or another limiter, or an option is
// nil or out of range.
func New(l ratelimit.Limiter, opts ...Option) (*Limiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	one, ok := five.Of(l).(*five.Limiter[ratelimit.Result])
	if !ok {
		return nil, fmt.Errorf("%w: a denycache around a %T: put it around one of the five algorithms, and the %[2]T around that",
			ratelimit.ErrInvalidOption, l)
	}
	d := &Limiter{limiter: l, five: one, maxKeys: defaultMaxKeys, maxAge: maxDenial}
	d.place = see.NewRemembers(d)
	d.denied = d.denied.WithMark(ratelimit.NewMark(d, ratelimit.SourceDenyCache, nil))
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(d); err != nil {
			return nil, err
		}
	}
	d.denials = denials.New(d.maxKeys, d.maxAge)
	return d, nil
}

var errNoConstructor = fmt.Errorf("%w: a denycache.Limiter is made by New", ratelimit.ErrInvalidLimit)

// Allow is AllowN of 1.
func (d *Limiter) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return d.AllowN(ctx, key, 1)
}

// AllowN denies n events that are known to be denied, and asks the limiter about all
// others.
func (d *Limiter) AllowN(ctx context.Context, key string, n int) (res ratelimit.Result, err error) {
	if d.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	if err := ratelimit.CheckCall(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	q := denials.Question{N: n}
	if d.five.Tiered { // its limit function is called once
		if q.Limit, err = d.five.LimitOf(ctx, key); err != nil {
			return ratelimit.Result{}, err
		}
	}
	if d.denials.Recall(key, &q, func(known denials.Denial) {
		res = d.denied
		res.Limit, res.Remaining = known.Capacity, known.Remaining
		res.RetryAfter, res.ResetAfter = known.RetryAfter, known.ResetAfter
	}) {
		return res, nil
	}
	if d.five.Tiered {
		res, err = d.five.By(ctx, five.Take, key, n, q.Limit)
	} else {
		res, err = d.limiter.AllowN(ctx, key, n)
	}
	d.learn(&q, &res, err)
	return res, err
}

// learn remembers a denial. After anything else it forgets denials under other limits.
func (d *Limiter) learn(q *denials.Question, r *ratelimit.Result, err error) {
	switch {
	case err != nil || r.Allowed:
		if d.five.Tiered {
			d.denials.ForgetOtherLimits(q)
		}
	case d.five.Coalesced && q.N > 1: // what coalesced callers left is given back unseen, but denies no single event
	case r.RetryAfter > maxDenial || r.ResetAfter > maxDenial: // Never, or nonsense
	default:
		d.denials.Remember(q, denials.Denial{
			Capacity: r.Limit, Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter,
		})
	}
}

// AllowWithin is AllowN where no event has a turn that is to come: for the windows and the log. A
// bucket is always asked, and its denials are not remembered.
func (d *Limiter) AllowWithin(ctx context.Context, key string, n int, within time.Duration) (ratelimit.Result, error) {
	if d.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	if !report.IsBucket(d.limiter) {
		return d.AllowN(ctx, key, n)
	}
	if d.five.Tiered { // under another limit than a denial's it may make room, as AllowN may
		defer d.denials.BeginChange(key).End()
	}
	return ratelimit.AllowWithin(ctx, d.limiter, key, n, within)
}

// Peek always asks the limiter.
func (d *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if d.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	return d.limiter.Peek(ctx, key)
}

// Charge charges the limiter. It forgets the denial of key if that may have been under
// another limit.
func (d *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if d.limiter == nil {
		return ratelimit.Result{}, errNoConstructor
	}
	if d.five.Tiered {
		defer d.denials.BeginChange(key).End()
	}
	return ratelimit.Charge(ctx, d.limiter, key, n)
}

// Refund gives back to the limiter, and forgets the denial of key. For a local denial,
// which has charged nothing, the error is [ratelimit.ErrInvalidN].
func (d *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if d.limiter == nil {
		return errNoConstructor
	}
	defer d.denials.BeginChange(key).End()
	return d.limiter.Refund(ctx, key, charged, n)
}

// Reset forgets key at the limiter, and the denial of key.
func (d *Limiter) Reset(ctx context.Context, key string) error {
	if d.limiter == nil {
		return errNoConstructor
	}
	defer d.denials.BeginChange(key).End()
	return d.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of the wrapped limiter.
func (d *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if d.limiter == nil {
		return dst, errNoConstructor
	}
	return ratelimit.AppendPolicies(ctx, dst, d.limiter, key)
}

// Unwrap returns the wrapped limiter.
func (d *Limiter) Unwrap() ratelimit.Limiter { return d.limiter }

// Len returns the number of keys remembered now. Some of their denials may have ended.
func (d *Limiter) Len() int { return d.denials.Len() }

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
