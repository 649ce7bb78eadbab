package ratelimit

import (
	"context"
	"fmt"
)

// Static is a limiter that always answers r and err, for tests and as a switch.
// Static(Result{Allowed: true}, nil) admits everything, and
// Static(Result{RetryAfter: time.Minute}, nil) nothing. Beside an error the Result is zero, as
// with every Limiter. Bad input and the end of ctx are errors, as elsewhere. It keeps no
// state: Refund and Reset do nothing.
func Static(r Result, err error) Limiter {
	if err != nil {
		r = Result{}
	}
	return static{r, err}
}

type static struct {
	result Result
	err    error
}

func (s static) Allow(ctx context.Context, key string) (Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s static) AllowN(ctx context.Context, key string, n int) (Result, error) {
	if err := CheckCall(ctx, key, n); err != nil {
		return Result{}, err
	}
	return s.result, s.err
}

func (s static) Peek(ctx context.Context, key string) (Result, error) {
	return s.AllowN(ctx, key, 1)
}

func (s static) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := CheckCall(ctx, key, n); err != nil {
		return err
	}
	if !charged.Allowed {
		return errNothingCharged
	}
	return s.err
}

func (s static) Reset(ctx context.Context, key string) error {
	if err := CheckCall(ctx, key, 1); err != nil {
		return err
	}
	return s.err
}

var errNilLimiter = fmt.Errorf("%w: the limiter is nil", ErrInvalidOption)

var errNothingCharged = fmt.Errorf("%w: the Result to refund has charged nothing", ErrInvalidN)
