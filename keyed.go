package ratelimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Rekeyed is a [Limiter] that decides on another key than it is asked for: the user's
// network, his tenant, or one key for all. In an [All] it lets each limit have a key of
// its own.
//
// It is safe for concurrent use if its function is. Make it by [NewRekeyed].
type Rekeyed struct {
	limiter Limiter
	key     func(ctx context.Context, key string) (string, error)
}

// NewRekeyed returns a limiter that asks l for the key that f makes of ctx and the key.
// An error of f is returned as it is, and nothing is consumed; a key of 0 bytes or
// over 64 KiB is [ErrInvalidKey]. Its own error is [ErrInvalidOption]: l or f is nil.
func NewRekeyed(l Limiter, f func(ctx context.Context, key string) (string, error)) (*Rekeyed, error) {
	switch {
	case isnil.Is(l):
		return nil, errNilLimiter
	case f == nil:
		return nil, fmt.Errorf("%w: the key function is nil", ErrInvalidOption)
	}
	return &Rekeyed{l, f}, nil
}

// Allow is AllowN of 1.
func (k *Rekeyed) Allow(ctx context.Context, key string) (Result, error) {
	return k.AllowN(ctx, key, 1)
}

// AllowN is the limiter's, on the other key.
func (k *Rekeyed) AllowN(ctx context.Context, key string, n int) (Result, error) {
	other, err := k.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return k.limiter.AllowN(ctx, other, n)
}

// Peek is the limiter's, on the other key.
func (k *Rekeyed) Peek(ctx context.Context, key string) (Result, error) {
	other, err := k.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return k.limiter.Peek(ctx, other)
}

// Charge is the limiter's, on the other key.
func (k *Rekeyed) Charge(ctx context.Context, key string, n int) (Result, error) {
	other, err := k.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return Charge(ctx, k.limiter, other, n)
}

// Refund is the limiter's, on the other key, which must still be the one that was
// charged.
func (k *Rekeyed) Refund(ctx context.Context, key string, charged Result, n int) error {
	other, err := k.of(ctx, key)
	if err != nil {
		return err
	}
	return k.limiter.Refund(ctx, other, charged, n)
}

// Reset is the limiter's, on the other key.
func (k *Rekeyed) Reset(ctx context.Context, key string) error {
	other, err := k.of(ctx, key)
	if err != nil {
		return err
	}
	return k.limiter.Reset(ctx, other)
}

// AppendPolicies appends those of the other key.
func (k *Rekeyed) AppendPolicies(ctx context.Context, dst []Policy, key string) ([]Policy, error) {
	other, err := k.of(ctx, key)
	if err != nil {
		return dst, err
	}
	return AppendPolicies(ctx, dst, k.limiter, other)
}

// of is the other key.
func (k *Rekeyed) of(ctx context.Context, key string) (string, error) {
	if k.limiter == nil {
		return "", fmt.Errorf("%w: a Rekeyed is made by its constructor", ErrInvalidOption)
	}
	if err := checkCall(ctx, key, 1); err != nil {
		return "", err
	}
	return k.key(ctx, key)
}
