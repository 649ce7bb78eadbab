package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

// Errors of [Wait], for use with errors.Is.
var (
	// ErrNever: no waiting will admit that many events.
	ErrNever = errors.New("ratelimit: never admitted")
	// ErrWouldExceedDeadline: the permit would come after the context's deadline.
	// It is also context.DeadlineExceeded.
	ErrWouldExceedDeadline = fmt.Errorf("ratelimit: the permit would come too late: %w", context.DeadlineExceeded)
)

// maxJitter is the most that a waiter adds to RetryAfter, so that waiters do not
// all ask again at once.
const maxJitter = 10 * time.Millisecond

// leastPause is before a limiter that denies without a RetryAfter is asked again.
const leastPause = time.Millisecond

// Wait blocks until l admits n events of key, and then for their Delay, which of
// the five only [LeakyBucket] has. It returns at once with [ErrWouldExceedDeadline] if
// the permit would come after ctx's deadline, with [ErrNever] if n can never be
// admitted, and with [ErrInvalidOption] if l is nil. If ctx ends while it waits, it
// returns ctx's error and gives the permit back, as far as [Limiter.Refund] of l can.
//
// Waiters are not served first come first served: each asks again after
// RetryAfter (1 ms if l gives none) plus a jitter of a tenth of it, 10 ms at most.
// Where order matters use a LeakyBucket, whose Delay is a ticket: an admitted event
// keeps its turn.
//
// Wait sleeps in real time (or a synctest bubble's), so that l's store must not
// have a simulated clock that stands still.
func Wait(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	if isnil.Is(l) {
		return Result{}, errNilLimiter
	}
	for {
		r, err := l.AllowN(ctx, key, n)
		if err != nil {
			return Result{}, err
		}
		if r.Allowed {
			return waitTurn(ctx, l, key, n, r)
		}
		if r.RetryAfter == Never {
			return Result{}, fmt.Errorf("%w: %d events with a limit of %d", ErrNever, n, r.Limit)
		}
		retry := r.RetryAfter
		if retry <= 0 { // none of the five, but Static may
			retry = leastPause
		}
		if err := sleep(ctx, retry, rand.N(min(retry/10, maxJitter)+1)); err != nil {
			return Result{}, err
		}
	}
}

// waitTurn sleeps the Delay of r, or gives its charge back.
func waitTurn(ctx context.Context, l Limiter, key string, n int, r Result) (Result, error) {
	if r.Delay == 0 {
		return r, nil
	}
	err := sleep(ctx, r.Delay, 0)
	if err == nil {
		return r, nil
	}
	if refund := l.Refund(context.WithoutCancel(ctx), key, r, n); refund != nil {
		err = errors.Join(err, refund)
	}
	return Result{}, err
}

// sleep waits for d and, as far as ctx's deadline has room for it, for the jitter.
func sleep(ctx context.Context, d, jitter time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if d >= left {
			return ErrWouldExceedDeadline
		}
		jitter = min(jitter, left-d-1)
	}
	timer := time.NewTimer(d + jitter)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
