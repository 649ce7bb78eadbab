package config

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// follower is a part of limiter i, according to the text that is in force when it is called.
type follower struct {
	see.Wrapper // Observes, for the parts inside a fallback: they change neither keys nor costs

	set  *Limiters
	i    int
	part func(st *stack, key string) ratelimit.Limiter
}

var (
	changes = see.Has(see.Traits{Changes: true})
	passive = see.Has(see.Traits{Changes: true, Observes: true})
)

var (
	_ ratelimit.PolicyAppender = (*follower)(nil)
	_ ratelimit.Charger        = (*follower)(nil)
	_ ratelimit.Delayer        = (*follower)(nil)
)

func (f *follower) stack() *stack { return (*f.set.now.Load())[f.i] }

func (f *follower) now(key string) ratelimit.Limiter { return f.part(f.stack(), key) }

func (f *follower) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.now(key).Allow(ctx, key)
}

func (f *follower) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return f.now(key).AllowN(ctx, key, n)
}

func (f *follower) AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error) {
	return ratelimit.AllowUpTo(ctx, f.now(key), key, n)
}

func (f *follower) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return ratelimit.AllowWithin(ctx, f.now(key), key, n, d)
}

func (f *follower) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return f.now(key).Peek(ctx, key)
}

func (f *follower) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return f.now(key).Refund(ctx, key, charged, n)
}

func (f *follower) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return ratelimit.Charge(ctx, f.now(key), key, n)
}

func (f *follower) Reset(ctx context.Context, key string) error {
	return f.now(key).Reset(ctx, key)
}

func (f *follower) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, f.now(key), key)
}

// Unwrap returns the limiter according to the text in force, or nil if there is no such text.
func (f *follower) Unwrap() ratelimit.Limiter {
	now := *f.set.now.Load()
	if f.i >= len(now) || now[f.i] == nil {
		return nil
	}
	return f.part(now[f.i], "")
}

// limiter is the follower that callers get.
type limiter struct{ follower }

// Refund refunds to the limiter that admitted, whichever text it is from. The events that a fallback admitted
// in an outage were never charged to the store.
func (l *limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	st := l.stack()
	for _, f := range st.fallbacks {
		if _, _, ok := charged.Unmark(f); ok {
			return f.Refund(ctx, key, charged, n)
		}
	}
	return st.whole(key).Refund(ctx, key, charged, n)
}

// Reset also resets what previous texts have counted, at the store and locally.
func (l *limiter) Reset(ctx context.Context, key string) error {
	if err := store.CheckCall(ctx, key, 1); err != nil {
		return err
	}
	st := l.stack()
	whole := st.whole(key)
	if f := st.fallbacks[failLocal]; f != nil {
		whole = f
	}
	errs := []error{whole.Reset(ctx, key)}
	for _, part := range st.counts {
		if !st.shared.has(part) && !st.local.has(part) {
			errs = append(errs, part.Reset(ctx, key))
		}
	}
	return errors.Join(errs...)
}
