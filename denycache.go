package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/denials"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/order"
)

// DenyCache wraps a [Limiter] and remembers its denials. Once the store has denied n events
// of a key until a time t, the same and larger calls of that key are denied in this process
// until t, without a round trip. All other calls go to the store. A flood against one key
// costs the store a call or two per RetryAfter, whatever its rate.
//
// Use it around a limiter on Redis. On memory it saves nothing. It goes around one of the
// five algorithms, and inside all other wrappers.
//
// Bound: it denies nothing that the store would admit. RetryAfter is taken as shorter by
// 1 µs and by a thousandth: NTP lets a clock gain or lose 500 µs a second, and there are two.
// Before t a key gets room only by a Refund, a Reset or another limit. Those made through
// this DenyCache end the denial. It can deny too much, until t at most or by
// [WithMaxDenialAge], after
//
//   - a Refund, a Reset or another limit by others, or one that failed here and reached
//     the store later;
//   - a change of the limit while calls of the key are under way, until they are back;
//   - a step of the store's clock, or its loss or eviction of the key;
//   - a change to a slower limit, for which RetryAfter may be too long: see [WithLimitFunc].
//
// A local denial has the [Source] SourceDenyCache, and the Limit and Remaining of the
// store's denial. RetryAfter runs from the store's answer, so it is too long by the time
// that the answer took. A larger call than the one that the store denied may have to wait
// longer. RetryAfter is Never for n above Limit.
//
// A denial without an end (Never) is not remembered. With [WithCoalescing] only denials of
// one event are. Peek and AllowWithin always ask the store. Errors are those of the wrapped
// limiter.
//
// A denied key costs 130 to 220 bytes, whatever its length, and the first few hundred up to
// 900. There are at most 65,536 of them, or [WithMaxDenials]. They go as other keys are
// decided on: there is no goroutine and nothing to close. A local denial takes some 100 ns
// and allocates nothing. A call that goes on to the store takes as much longer.
//
// Time is this process's monotonic clock. The store's clock must run as fast: it cannot be
// that of a simulation.
type DenyCache struct {
	limiter   Limiter
	asking    *limiter // limiter if it has a limit function, else nil: it is asked here, once a call
	coalesced bool     // single events of limiter are
	maxKeys   int
	maxAge    time.Duration
	denials   *denials.Table
}

const (
	defaultMaxDenials = 1 << 16
	maxMaxDenials     = 1 << 24
	maxDenial         = maxRefill * time.Microsecond
)

// DenyCacheOption configures a [DenyCache].
type DenyCacheOption func(*DenyCache) error

// WithMaxDenials bounds the keys that are remembered to n, 1 to 16,777,216,
// instead of 65,536 (which are 9 to 14 MB). Beyond that one that has ended goes, or
// the one that ends first of some: its next call asks the store again.
func WithMaxDenials(n int) DenyCacheOption {
	return func(d *DenyCache) error {
		if n < 1 || n > maxMaxDenials {
			return fmt.Errorf("%w: WithMaxDenials(%d), want 1 to %d", ErrInvalidOption, n, maxMaxDenials)
		}
		d.maxKeys = n
		return nil
	}
}

// WithMaxDenialAge asks the store again age after it has denied, 1 µs or more,
// even if RetryAfter is longer. That bounds how long a Refund or a Reset by another
// process goes unnoticed, at the price of a call per age and denied key.
func WithMaxDenialAge(age time.Duration) DenyCacheOption {
	return func(d *DenyCache) error {
		if age < time.Microsecond {
			return fmt.Errorf("%w: WithMaxDenialAge(%v), want 1µs or more", ErrInvalidOption, age)
		}
		d.maxAge = age
		return nil
	}
}

// NewDenyCache returns a Limiter that asks l only what it does not know to be
// denied. Its error is [ErrInvalidOption]: l or an option is nil, an option is out of
// range, or l is a limiter around others, whose denials can end in ways that it does not
// see. Those go around a DenyCache.
func NewDenyCache(l Limiter, opts ...DenyCacheOption) (*DenyCache, error) {
	switch {
	case isnil.Is(l):
		return nil, errNilLimiter
	case wraps(l):
		return nil, fmt.Errorf("%w: a DenyCache around a %T, which goes around it", ErrInvalidOption, l)
	}
	d := &DenyCache{limiter: l, maxKeys: defaultMaxDenials, maxAge: maxDenial}
	if core := coreOf(l); core != nil {
		d.coalesced = core.coalesced
		if core.limitFunc != nil {
			d.asking = core
		}
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a DenyCacheOption is nil", ErrInvalidOption)
		}
		if err := opt(d); err != nil {
			return nil, err
		}
	}
	d.denials = denials.New(d.maxKeys, d.maxAge)
	return d, nil
}

// wraps is whether l is a limiter around others, as far as it says so.
func wraps(l Limiter) bool {
	_, several := l.(*All)
	_, one := l.(interface{ Unwrap() Limiter })
	return several || one || order.DoesAnswer(l)
}

var errNoDenyCache = fmt.Errorf("%w: a DenyCache is made by its constructor", ErrInvalidLimit)

// Allow is AllowN of 1.
func (d *DenyCache) Allow(ctx context.Context, key string) (Result, error) {
	return d.AllowN(ctx, key, 1)
}

// AllowN denies n events that are known to be denied, and asks the limiter
// otherwise.
func (d *DenyCache) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	if d.limiter == nil {
		return Result{}, errNoDenyCache
	}
	if err := CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	q := denials.Question{N: n}
	if d.asking != nil {
		if q.Limit, err = d.asking.limitOf(ctx, key); err != nil {
			return Result{}, err
		}
	}
	if d.denials.Recall(key, &q, func(known denials.Denial) {
		res.Limit, res.Remaining, res.mark = known.Capacity, known.Remaining, &byDenyCache
		res.RetryAfter, res.ResetAfter = known.RetryAfter, known.ResetAfter
	}) {
		return res, nil
	}
	if d.asking == nil {
		res, err = d.limiter.AllowN(ctx, key, n)
	} else {
		err = d.asking.decide(ctx, key, n, take, &q.Limit, &res)
	}
	d.learn(&q, &res, err)
	return res, err
}

var byDenyCache = Mark{source: SourceDenyCache}

// learn remembers a denial, and what it makes of an admission under a limit that
// may have changed.
func (d *DenyCache) learn(q *denials.Question, r *Result, err error) {
	switch {
	case err != nil || r.Allowed:
		if d.asking != nil {
			d.denials.ForgetOtherLimits(q)
		}
	case r.mark != nil: // made by a wrapper, or in part
	case d.coalesced && q.N > 1: // what coalesced callers left is given back unseen, but denies no single event
	case r.RetryAfter > maxDenial || r.ResetAfter > maxDenial || q.N > r.Limit: // Never, or nonsense
	default:
		d.denials.Remember(q, denials.Denial{
			Capacity: r.Limit, Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter,
		})
	}
}

// AllowWithin is the limiter's own: it is always asked, and its denials are not
// remembered.
func (d *DenyCache) AllowWithin(ctx context.Context, key string, n int, within time.Duration) (Result, error) {
	if d.limiter == nil {
		return Result{}, errNoDenyCache
	}
	if d.asking != nil { // by another limit than that of a denial it may make room, as AllowN may
		defer d.denials.BeginChange(key).End()
	}
	return AllowWithin(ctx, d.limiter, key, n, within)
}

// Peek is the limiter's own.
func (d *DenyCache) Peek(ctx context.Context, key string) (Result, error) {
	if d.limiter == nil {
		return Result{}, errNoDenyCache
	}
	return d.limiter.Peek(ctx, key)
}

// Charge is the limiter's own. It forgets the denial of key if that may have been under
// another limit.
func (d *DenyCache) Charge(ctx context.Context, key string, n int) (Result, error) {
	if d.limiter == nil {
		return Result{}, errNoDenyCache
	}
	if d.asking != nil {
		defer d.denials.BeginChange(key).End()
	}
	return Charge(ctx, d.limiter, key, n)
}

// Refund is the limiter's own, and forgets the denial of key. A local denial has
// charged nothing: [ErrInvalidN].
func (d *DenyCache) Refund(ctx context.Context, key string, charged Result, n int) error {
	if d.limiter == nil {
		return errNoDenyCache
	}
	defer d.denials.BeginChange(key).End()
	return d.limiter.Refund(ctx, key, charged, n)
}

// Reset is the limiter's own, and forgets the denial of key.
func (d *DenyCache) Reset(ctx context.Context, key string) error {
	if d.limiter == nil {
		return errNoDenyCache
	}
	defer d.denials.BeginChange(key).End()
	return d.limiter.Reset(ctx, key)
}

// AppendPolicies appends the policies of the limiter that is asked.
func (d *DenyCache) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	if d.limiter == nil {
		return dst, errNoDenyCache
	}
	return AppendPolicies(ctx, dst, d.limiter, key)
}

// Unwrap returns the limiter that is asked.
func (d *DenyCache) Unwrap() Limiter { return d.limiter }

// Len is the number of keys remembered now, of which some may have ended.
func (d *DenyCache) Len() int { return d.denials.Len() }

var (
	_ Limiter   = (*DenyCache)(nil)
	_ Describer = (*DenyCache)(nil)
	_ Charger   = (*DenyCache)(nil)
	_ Delayer   = (*DenyCache)(nil)
)
