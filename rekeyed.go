package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Rekeyed wraps a [Limiter] and decides on another key than it is asked for: the user's
// network or tenant, or one key for all. In an [All] it lets each limit have a key of
// its own.
//
// Inside a fallback the other key should depend on the key alone, and not on ctx: a fallback
// knows what a key owes by the key that it is asked for.
//
// It is safe for concurrent use if its function is. Make it by [NewRekeyed].
type Rekeyed struct {
	limiter Limiter
	key     *func(ctx context.Context, key string) (string, error) // the same in a [Share]
}

// NewRekeyed returns a limiter that asks l for the key that f makes of ctx and the key.
// An error of f is returned as it is, and nothing is charged. A key of 0 bytes or over 64 KiB
// is [ErrInvalidKey]. NewRekeyed's own error is [ErrInvalidOption]: l or f is nil.
func NewRekeyed(l Limiter, f func(ctx context.Context, key string) (string, error)) (*Rekeyed, error) {
	switch {
	case isnil.Is(l):
		return nil, errNilLimiter
	case f == nil:
		return nil, fmt.Errorf("%w: the key function is nil", ErrInvalidOption)
	}
	return &Rekeyed{l, &f}, nil
}

// Allow is AllowN of 1.
func (r *Rekeyed) Allow(ctx context.Context, key string) (Result, error) {
	return r.AllowN(ctx, key, 1)
}

// AllowN is the limiter's, on the other key.
func (r *Rekeyed) AllowN(ctx context.Context, key string, n int) (Result, error) {
	other, err := r.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return r.limiter.AllowN(ctx, other, n)
}

// AllowWithin is the limiter's, on the other key.
func (r *Rekeyed) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error) {
	other, err := r.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return AllowWithin(ctx, r.limiter, other, n, d)
}

// Peek is the limiter's, on the other key.
func (r *Rekeyed) Peek(ctx context.Context, key string) (Result, error) {
	other, err := r.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return r.limiter.Peek(ctx, other)
}

// Charge is the limiter's, on the other key.
func (r *Rekeyed) Charge(ctx context.Context, key string, n int) (Result, error) {
	other, err := r.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return Charge(ctx, r.limiter, other, n)
}

// Refund is the limiter's, on the other key, which must still be the one that was
// charged.
func (r *Rekeyed) Refund(ctx context.Context, key string, charged Result, n int) error {
	other, err := r.of(ctx, key)
	if err != nil {
		return err
	}
	return r.limiter.Refund(ctx, other, charged, n)
}

// Reset is the limiter's, on the other key.
func (r *Rekeyed) Reset(ctx context.Context, key string) error {
	other, err := r.of(ctx, key)
	if err != nil {
		return err
	}
	return r.limiter.Reset(ctx, other)
}

// AppendPolicies appends those of the other key.
func (r *Rekeyed) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	other, err := r.of(ctx, key)
	if err != nil {
		return dst, err
	}
	return AppendPolicies(ctx, dst, r.limiter, other)
}

// of is the other key.
func (r *Rekeyed) of(ctx context.Context, key string) (string, error) {
	if r.limiter == nil {
		return "", fmt.Errorf("%w: a Rekeyed is made by its constructor", ErrInvalidLimit)
	}
	if err := CheckCall(ctx, key, 1); err != nil {
		return "", err
	}
	return (*r.key)(ctx, key)
}

// Unwrap returns the limiter that decides on the other key.
func (r *Rekeyed) Unwrap() Limiter { return r.limiter }

var (
	_ Limiter   = (*Rekeyed)(nil)
	_ Describer = (*Rekeyed)(nil)
	_ Charger   = (*Rekeyed)(nil)
	_ Delayer   = (*Rekeyed)(nil)
)
