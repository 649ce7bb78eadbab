package observe

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Around returns a limiter that decides as l does, and tells observers of it, in their order:
// what callers are told, behind a fallback or an All. To see the decisions of one limit, such as
// the errors of its store, use [ratelimit.WithObserver].
//
// It tells of Allow, AllowN, AllowWithin, AllowUpTo and Charge, and so of what [ratelimit.Wait]
// and [ratelimit.Reserve] ask, but not of Peek, Refund and Reset. It measures how long they take.
// That costs two readings of the clock, some 75 ns for each decision.
//
// If several limits decide in l, an observer that has a method Expect(limits ...string) is given
// their names. So what it counts by limit can begin at 0, before anything is denied. The error is
// [ratelimit.ErrInvalidOption]: l or an observer is nil, or there is none.
func Around(l ratelimit.Limiter, observers ...ratelimit.Observer) (ratelimit.Limiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if len(observers) == 0 {
		return nil, fmt.Errorf("%w: Around without an observer", ratelimit.ErrInvalidOption)
	}
	names := see.Names(l)
	for _, o := range observers {
		if isnil.Is(o) {
			return nil, fmt.Errorf("%w: an observer is nil", ratelimit.ErrInvalidOption)
		}
		if e, ok := o.(interface{ Expect(limits ...string) }); ok && len(names) > 1 { // one limit is not named as that which denies
			e.Expect(names...)
		}
	}
	return &around{traits: traits{LooksOn: true}, limiter: l, observers: append([]ratelimit.Observer(nil), observers...)}, nil
}

type traits = see.Traits

// around is a limiter with observers.
type around struct {
	traits
	limiter   ratelimit.Limiter
	observers []ratelimit.Observer
}

func (a *around) tell(ctx context.Context, key string, n int, r ratelimit.Result, err error, since time.Time) {
	took := time.Since(since)
	if err != nil {
		r = ratelimit.Result{}
	}
	for _, o := range a.observers {
		o.Decided(ctx, key, n, r, err, took)
	}
}

// Allow is the limiter's.
func (a *around) Allow(ctx context.Context, key string) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = a.limiter.Allow(ctx, key)
	a.tell(ctx, key, 1, r, err, since)
	return r, err
}

// AllowN is the limiter's.
func (a *around) AllowN(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = a.limiter.AllowN(ctx, key, n)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowWithin is the limiter's.
func (a *around) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = ratelimit.AllowWithin(ctx, a.limiter, key, n, d)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowUpTo is the limiter's.
func (a *around) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	since := time.Now()
	granted, r, err = ratelimit.AllowUpTo(ctx, a.limiter, key, n)
	a.tell(ctx, key, n, r, err, since)
	return granted, r, err
}

// Charge is the limiter's.
func (a *around) Charge(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = ratelimit.Charge(ctx, a.limiter, key, n)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// Peek is the limiter's.
func (a *around) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return a.limiter.Peek(ctx, key)
}

// Refund is the limiter's.
func (a *around) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return a.limiter.Refund(ctx, key, charged, n)
}

// Reset is the limiter's.
func (a *around) Reset(ctx context.Context, key string) error { return a.limiter.Reset(ctx, key) }

// AppendPolicies appends those of the limiter.
func (a *around) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, a.limiter, key)
}

// Unwrap returns the limiter that is observed.
func (a *around) Unwrap() ratelimit.Limiter { return a.limiter }

var (
	_ ratelimit.Limiter        = (*around)(nil)
	_ ratelimit.PolicyAppender = (*around)(nil)
	_ ratelimit.Charger        = (*around)(nil)
	_ ratelimit.Delayer        = (*around)(nil)
)
