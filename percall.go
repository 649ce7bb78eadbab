package ratelimit

import (
	"context"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// PerCall wraps a [Limiter] and charges it one event for each call, whatever its n. In an
// [All] it limits requests beside what they cost:
//
//	limiter, err := ratelimit.NewAll(requests, tokens) // requests is by PerCall
//	...
//	r, err := limiter.AllowN(ctx, key, 1200) // one request and 1,200 tokens, or neither
//
// The All decides on both together, as it does without PerCall.
//
// Its Results count calls, so that Remaining is how many more calls there is room for.
// [AllowUpTo] of n events grants all of them or none. A Refund of all events of a call gives
// back its one event, and one of fewer events nothing. Charge charges nothing, since it is for
// what a call has cost beyond its estimate: it asks by Peek for what is left.
//
// A call of n > 1 events takes an allocation. In an All it does not. After an outage a
// fallback charges l for one call, whatever its local limiter has admitted meanwhile.
//
// The error is [ErrInvalidOption]: l is nil.
func PerCall(l Limiter) (Limiter, error) {
	if isnil.Is(l) {
		return nil, errNilLimiter
	}
	return &perCall{l}, nil
}

// perCall marks its Results with how many events their calls were for, if not for one.
type perCall struct{ limiter Limiter }

// Allow is AllowN of 1.
func (p *perCall) Allow(ctx context.Context, key string) (Result, error) {
	return p.limiter.Allow(ctx, key)
}

// AllowN decides on one event, for a call of n.
func (p *perCall) AllowN(ctx context.Context, key string, n int) (Result, error) {
	if err := CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	r, err := p.limiter.Allow(ctx, key)
	return p.marked(r, n), err
}

// AllowWithin decides on one event whose turn must come within d, for a call of n.
func (p *perCall) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error) {
	if err := CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	r, err := AllowWithin(ctx, p.limiter, key, 1, d)
	return p.marked(r, n), err
}

func (p *perCall) marked(r Result, n int) Result {
	if n == 1 || !r.Allowed {
		return r
	}
	return r.With(NewMark(p, SourceStore, n))
}

// Peek is the limiter's.
func (p *perCall) Peek(ctx context.Context, key string) (Result, error) {
	return p.limiter.Peek(ctx, key)
}

// Charge charges nothing: the call has been charged when it was admitted. It says what is left.
func (p *perCall) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	r, err := p.limiter.Peek(ctx, key)
	if err != nil {
		return Result{}, err
	}
	r.Allowed, r.RetryAfter = true, 0
	return p.marked(r, math.MaxInt), nil // which no Refund reaches
}

// Refund gives back the event of a call if n are all that the call was for.
func (p *perCall) Refund(ctx context.Context, key string, charged Result, n int) error {
	under, events, _ := charged.Of(p)
	if of, ok := events.(int); ok && n < of {
		return CheckCall(ctx, key, n)
	}
	return p.limiter.Refund(ctx, key, under, min(n, 1))
}

// Reset is the limiter's.
func (p *perCall) Reset(ctx context.Context, key string) error { return p.limiter.Reset(ctx, key) }

// AppendPolicies appends those of the limiter.
func (p *perCall) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	return AppendPolicies(ctx, dst, p.limiter, key)
}

// Unwrap returns the limiter that is charged.
func (p *perCall) Unwrap() Limiter { return p.limiter }

var (
	_ Limiter   = (*perCall)(nil)
	_ Describer = (*perCall)(nil)
	_ Charger   = (*perCall)(nil)
	_ Delayer   = (*perCall)(nil)
)
