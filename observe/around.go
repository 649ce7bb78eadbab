package observe

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Around returns a limiter that decides as l does, and notifies the observers of each decision, in
// order. The observers see the decisions that callers get, including those of a fallback or an All.
// To see the decisions of a single limit, such as the errors of its store, use
// [ratelimit.WithObserver].
//
// Observers are notified of Allow, AllowN, AllowWithin, AllowUpTo and Charge, and therefore of the
// calls that [ratelimit.Wait] and [ratelimit.Reserve] make, but not of Peek, Refund and Reset.
// Around also measures how long the calls take, which costs two readings of the clock, about 75 ns
// per decision.
//
// If l consists of several limits, Around passes their names to each observer that has a method
// Expect(limits ...string), so that its counts per limit can start at 0 before any denial. Around
// returns [ratelimit.ErrInvalidOption] if l or an observer is nil, or if there are no observers.
func Around(l ratelimit.Limiter, observers ...ratelimit.Observer) (ratelimit.Limiter, error) {
	if isnil.Is(l) {
		return nil, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	if len(observers) == 0 {
		return nil, fmt.Errorf("%w: Around: want at least one observer", ratelimit.ErrInvalidOption)
	}
	names := see.Names(l)
	for _, o := range observers {
		if isnil.Is(o) {
			return nil, fmt.Errorf("%w: an observer is nil", ratelimit.ErrInvalidOption)
		}
		if e, ok := o.(interface{ Expect(limits ...string) }); ok && len(names) > 1 { // a single limit is not named by DeniedBy
			e.Expect(names...)
		}
	}
	return &around{wrapper: see.Has(see.Traits{Observes: true}), Limiter: l, observers: append([]ratelimit.Observer(nil), observers...)}, nil
}

type wrapper = see.Wrapper

// around is a limiter with observers.
type around struct {
	wrapper
	ratelimit.Limiter
	observers []ratelimit.Observer
}

func (a *around) tell(ctx context.Context, key string, n int, r ratelimit.Result, err error, since time.Time) {
	took := max(time.Since(since), 1) // a coarse clock, as Windows', may have stood still
	if err != nil {
		r = ratelimit.Result{}
	}
	for _, o := range a.observers {
		o.Decided(ctx, key, n, r, err, took)
	}
}

// Allow calls the limiter and notifies the observers.
func (a *around) Allow(ctx context.Context, key string) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = a.Limiter.Allow(ctx, key)
	a.tell(ctx, key, 1, r, err, since)
	return r, err
}

// AllowN calls the limiter and notifies the observers.
func (a *around) AllowN(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = a.Limiter.AllowN(ctx, key, n)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowWithin calls the limiter and notifies the observers.
func (a *around) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = ratelimit.AllowWithin(ctx, a.Limiter, key, n, d)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// AllowUpTo calls the limiter and notifies the observers.
func (a *around) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	since := time.Now()
	granted, r, err = ratelimit.AllowUpTo(ctx, a.Limiter, key, n)
	a.tell(ctx, key, n, r, err, since)
	return granted, r, err
}

// Charge calls the limiter and notifies the observers.
func (a *around) Charge(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	since := time.Now()
	r, err = ratelimit.Charge(ctx, a.Limiter, key, n)
	a.tell(ctx, key, n, r, err, since)
	return r, err
}

// AppendPolicies appends the policies of the limiter.
func (a *around) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, a.Limiter, key)
}

// Unwrap returns the observed limiter.
func (a *around) Unwrap() ratelimit.Limiter { return a.Limiter }

var (
	_ ratelimit.Limiter        = (*around)(nil)
	_ ratelimit.PolicyAppender = (*around)(nil)
	_ ratelimit.Charger        = (*around)(nil)
	_ ratelimit.Delayer        = (*around)(nil)
)
