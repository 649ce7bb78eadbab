package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// withKey lets l decide on the key that f makes: by an option of one of the five, and else by a
// limiter around it, as a user may write one.
func withKey(l ratelimit.Limiter, f func(ctx context.Context, key string) (string, error)) ratelimit.Limiter {
	if one := ratelimit.With(l, ratelimit.WithKeyFunc(f)); one != l {
		return one
	}
	return &otherKey{l, f}
}

// onOneKey lets l decide on one key, whatever it is asked for.
func onOneKey(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Limiter {
	t.Helper()
	return withKey(l, func(context.Context, string) (string, error) { return key, nil })
}

// perCall charges l, one of the five, one event a call.
func perCall(t testing.TB, l ratelimit.Limiter) ratelimit.Limiter {
	t.Helper()
	calls := ratelimit.With(l, ratelimit.CountCalls())
	if calls == l {
		t.Fatalf("a %T has no options", l)
	}
	return calls
}

// otherKey is a limiter of a user, around any.
type otherKey struct {
	ratelimit.Limiter
	f func(ctx context.Context, key string) (string, error)
}

func (o *otherKey) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return o.AllowN(ctx, key, 1)
}

func (o *otherKey) AllowN(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	if err = store.CheckCall(ctx, key, n); err == nil {
		if key, err = o.f(ctx, key); err == nil {
			r, err = o.Limiter.AllowN(ctx, key, n)
		}
	}
	return r, err
}

func (o *otherKey) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (r ratelimit.Result, err error) {
	if err = store.CheckCall(ctx, key, n); err == nil {
		if key, err = o.f(ctx, key); err == nil {
			r, err = ratelimit.AllowWithin(ctx, o.Limiter, key, n, d)
		}
	}
	return r, err
}

func (o *otherKey) Peek(ctx context.Context, key string) (r ratelimit.Result, err error) {
	if key, err = o.f(ctx, key); err == nil {
		r, err = o.Limiter.Peek(ctx, key)
	}
	return r, err
}

func (o *otherKey) Charge(ctx context.Context, key string, n int) (r ratelimit.Result, err error) {
	if key, err = o.f(ctx, key); err == nil {
		r, err = ratelimit.Charge(ctx, o.Limiter, key, n)
	}
	return r, err
}

func (o *otherKey) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	key, err := o.f(ctx, key)
	if err != nil {
		return err
	}
	return o.Limiter.Refund(ctx, key, charged, n)
}

func (o *otherKey) Reset(ctx context.Context, key string) error {
	key, err := o.f(ctx, key)
	if err != nil {
		return err
	}
	return o.Limiter.Reset(ctx, key)
}

func (o *otherKey) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	key, err := o.f(ctx, key)
	if err != nil {
		return dst, err
	}
	return ratelimit.AppendPolicies(ctx, dst, o.Limiter, key)
}

func (o *otherKey) Unwrap() ratelimit.Limiter { return o.Limiter }
