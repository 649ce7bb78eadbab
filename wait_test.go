package ratelimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// In a synctest bubble time passes only while everybody waits, so that each wait
// can be measured exactly.

// inBubble runs test with a limiter whose clock is the bubble's.
func inBubble(t *testing.T, algorithm string, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		test(t, newLimiter(t, algorithm, s, l))
	})
}

// wait is how long Wait takes.
func wait(t *testing.T, ctx context.Context, lim ratelimit.Limiter, n int) (time.Duration, ratelimit.Result, error) {
	t.Helper()
	began := time.Now()
	r, err := ratelimit.Wait(ctx, lim, "key", n)
	return time.Since(began), r, err
}

func TestWaitTakesTheRetryAfterAndNoLonger(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerMinute(2), func(t *testing.T, lim ratelimit.Limiter) {
			due := time.Duration(0)
			for range 2 {
				allowN(t, lim, 1)
			}
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			due = peek.RetryAfter
			took, r, err := wait(t, t.Context(), lim, 1)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.GreaterOrEqual(t, took, due)
			require.LessOrEqual(t, took, due+r.Delay)
		})
	}
}

func TestWaitWithTheLeakyBucketIsAConstantRate(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 5}, func(t *testing.T, lim ratelimit.Limiter) {
		began := time.Now()
		for i := range 5 {
			_, r, err := wait(t, t.Context(), lim, 1)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, time.Duration(i)*100*time.Millisecond, time.Since(began))
		}
	})
}

func TestWaitReturnsAtOnceIfThePermitWouldComeTooLate(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.Limit{Rate: 2, Period: time.Hour}, func(t *testing.T, lim ratelimit.Limiter) {
			allowN(t, lim, 2)
			before, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			took, r, err := wait(t, ctx, lim, 1)
			require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, took)
			require.Zero(t, r)
			after, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, before, after, "it keeps no permit")
		})
	}
}

func TestWaitGivesATurnBackThatWouldComeTooLate(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 10}, func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := wait(t, ctx, lim, 1) // admitted at once, with its turn in an hour
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		peek, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 9, peek.Remaining)
	})
}

func TestWaitReturnsErrNeverForWhatNoWaitingAdmits(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerMinute(2), func(t *testing.T, lim ratelimit.Limiter) {
			_, _, err := wait(t, t.Context(), lim, 3)
			require.ErrorIs(t, err, ratelimit.ErrNever)
		})
		inBubble(t, algorithm, ratelimit.PerMinute(0), func(t *testing.T, lim ratelimit.Limiter) {
			_, _, err := wait(t, t.Context(), lim, 1)
			require.ErrorIs(t, err, ratelimit.ErrNever)
		})
	}
}

func TestACancelledWaitKeepsNoPermit(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.Limit{Rate: 2, Period: time.Hour}, func(t *testing.T, lim ratelimit.Limiter) {
			allowN(t, lim, 1)
			if algorithm != "leaky_bucket" { // which has a turn to wait for already
				allowN(t, lim, 1)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			took, r, err := wait(t, ctx, lim, 1)
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, r)
			require.Equal(t, time.Second, took)
			time.Sleep(3 * time.Hour)
			require.Equal(t, 2, allowN(t, lim, 2).Limit)
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Zero(t, peek.Remaining, "exactly the capacity was left")
		})
	}
}

func TestManyWaitersAreAllAdmittedAndNoFasterThanTheLimit(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.Limit{Rate: 5, Period: time.Second}, func(t *testing.T, lim ratelimit.Limiter) {
			began := time.Now()
			done := make(chan error)
			for range 40 {
				go func() {
					_, err := ratelimit.Wait(t.Context(), lim, "key", 1)
					done <- err
				}()
			}
			for range 40 {
				require.NoError(t, <-done)
			}
			require.GreaterOrEqual(t, time.Since(began), 6*time.Second)
			require.LessOrEqual(t, time.Since(began), 12*time.Second)
		})
	}
}

func TestMemoryKeepsTheTimeOfABubble(t *testing.T) {
	// From a nanosecond to a year of idling, with odd steps between.
	steps := []time.Duration{1, 999, time.Microsecond, 1001, time.Millisecond, time.Second, time.Minute, 36 * time.Hour, 365 * 24 * time.Hour}
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
			for _, step := range steps {
				time.Sleep(2 * time.Second)
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the start of a window
				require.Equal(t, 10, admitted(t, lim, 30), "%s: a fresh key", algorithm)
				time.Sleep(step)
				n := admitted(t, lim, 30)
				switch {
				case step >= 2*time.Second:
					require.Equal(t, 10, n, "after %v", step)
				case step < 100*time.Millisecond:
					require.Zero(t, n, "after %v", step)
				}
			}
		})
	}
}

func TestWaitForALimiterThatGivesNoRetryAfterAsksOnceAMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 19500*time.Microsecond)
		defer cancel()
		denying := counting{Limiter: ratelimittest.Static(ratelimit.Result{}, nil)}
		_, err := ratelimit.Wait(ctx, &denying, "key", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, denying.calls, 20)
	})
	for _, none := range []ratelimit.Limiter{nil, (*ratelimit.TokenBucket)(nil)} {
		_, err := ratelimit.Wait(t.Context(), none, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// counting counts the calls of AllowN, and ends what never ends.
type counting struct {
	ratelimit.Limiter
	calls int
}

func (c *counting) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if c.calls++; c.calls > 1000 {
		return ratelimit.Result{}, context.DeadlineExceeded
	}
	return c.Limiter.AllowN(ctx, key, n)
}
