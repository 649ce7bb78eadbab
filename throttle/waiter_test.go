package throttle_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

const jitter = 10 * time.Millisecond

func TestAWaiterWithoutItsPartsIsRefused(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerSecond(1))
	var none *ratelimit.TokenBucket
	for name, refused := range map[string]func() (*throttle.Waiter, error){
		"no limiter":          func() (*throttle.Waiter, error) { return throttle.NewWaiter(nil, time.Second) },
		"a typed nil":         func() (*throttle.Waiter, error) { return throttle.NewWaiter(none, time.Second) },
		"no maximum":          func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, 0) },
		"a negative maximum":  func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, -1) },
		"a nil option":        func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, 1, nil) },
		"nobody may wait":     func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, 1, throttle.WithMaxWaiting(0)) },
		"fewer than nobody":   func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, 1, throttle.WithMaxWaiting(-1)) },
		"an option too large": func() (*throttle.Waiter, error) { return throttle.NewWaiter(lim, 1, throttle.WithMaxWaiting(beyond())) },
	} {
		w, err := refused()
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.Nil(t, w, name)
	}
	_, err := throttle.NewWaiter(lim, 0)
	require.ErrorContains(t, err, "NewWaiter: the maximum is 0s")
}

// beyond is 2^31, or where int has 32 bits what comes after 2^31-1 there.
func beyond() int {
	n := math.MaxInt32
	return n + 1
}

func TestAWaiterRefusesBadInput(t *testing.T) {
	badInputIsRefused(t, waiter(t, inMemory(t, "token_bucket", ratelimit.PerSecond(1)), time.Second))
	aZeroValueIsAnError(t, new(throttle.Waiter))
}

func TestAWaiterHandsOnErrorsAndPolicies(t *testing.T) {
	wrap := func(l ratelimit.Limiter) ratelimit.Limiter { return waiter(t, l, time.Second) }
	errorsAreTheLimiters(t, wrap)
	policiesAreTheLimiters(t, wrap)
}

func TestCallsAdmittedImmediatelyAreNotDelayed(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerMinute(2), func(t *testing.T, lim ratelimit.Limiter) {
		took, r := allow(t, t.Context(), waiter(t, lim, time.Second))
		require.Zero(t, took)
		require.True(t, r.Allowed)
		require.Equal(t, 1, r.Remaining)
	})
}

func TestAWaiterSleepsUntilTheLimiterAdmits(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerMinute(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 2*time.Minute)
		spend(t, lim, 2)
		before := peek(t, lim)
		took, r := allow(t, t.Context(), w)
		require.True(t, r.Allowed)
		require.Zero(t, r.Delay, "it has been slept")
		require.Zero(t, r.RetryAfter)
		require.GreaterOrEqual(t, took, before.RetryAfter)
		require.LessOrEqual(t, took, before.ResetAfter+jitter)
		require.Zero(t, w.Waiting())

		left := peek(t, lim).Remaining
		require.NoError(t, w.Refund(t.Context(), "key", r, 1))
		require.Equal(t, left+1, peek(t, lim).Remaining, "what was slept for can be refunded")
	})
}

func TestAWaiterDeniesAtOnceWhatWouldTakeLonger(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, lim ratelimit.Limiter) {
		time.Sleep(time.Minute) // so that the window ends in 59
		w := waiter(t, lim, time.Minute)
		spend(t, lim, 2)
		want := peek(t, lim)
		if _, leaky := lim.(*ratelimit.LeakyBucket); leaky {
			want.RetryAfter = 59 * time.Minute // of the hour until its turn; the sleep is a minute
		}
		took, r := allow(t, t.Context(), w)
		require.Zero(t, took)
		require.Equal(t, want, r)
		require.ErrorIs(t, w.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN)

		r, err := w.AllowN(t.Context(), "key", 3)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Never, r.RetryAfter)
	})
}

func TestTheLongestMaximumDoesNotWaitForWhatNeverComes(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerHour(0), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, math.MaxInt64)
		took, r := allow(t, t.Context(), w)
		require.Zero(t, took)
		for _, r := range []ratelimit.Result{r, peek(t, w)} {
			require.False(t, r.Allowed)
			require.Equal(t, ratelimit.Never, r.RetryAfter)
		}
	})
}

func TestAWaitOfExactlyTheMaximumIsSlept(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.Every(time.Minute), func(t *testing.T, lim ratelimit.Limiter) {
		spend(t, lim, 1)
		took, r := allow(t, t.Context(), waiter(t, lim, time.Minute-1))
		require.Zero(t, took)
		require.False(t, r.Allowed)
		took, r = allow(t, t.Context(), waiter(t, lim, time.Minute))
		require.Equal(t, time.Minute, took, "the jitter is cut by the maximum")
		require.True(t, r.Allowed)
	})
}

func TestTheMaximumIsOfAllSleepsTogether(t *testing.T) {
	inBubble(t, "sliding_log", ratelimit.PerMinute(1), func(t *testing.T, lim ratelimit.Limiter) {
		spend(t, lim, 1)
		w := waiter(t, lim, 90*time.Second)
		time.AfterFunc(31*time.Second, func() { // another event, from which a minute counts again
			require.NoError(t, lim.Reset(t.Context(), "key"))
			spend(t, lim, 1)
		})
		took, r := allow(t, t.Context(), w)
		require.False(t, r.Allowed)
		require.Equal(t, time.Minute, took, "30 s are left, and 31 would be needed")
		require.Equal(t, 31*time.Second, r.RetryAfter)
	})
}

func TestCallersThatWaitGetWhatTheLimiterAdmitsAndNoneSleepsLonger(t *testing.T) {
	onEachAlgorithm(t, ratelimit.Limit{Rate: 10, Period: 10 * time.Second}, func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 5500*time.Millisecond)
		spend(t, lim, 10)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				took, r := allow(t, t.Context(), w)
				require.LessOrEqual(t, took, 5500*time.Millisecond)
				if r.Allowed {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		want := 0 // the window is full until 10 s, the log as well; the queue is 10 s long
		if _, queue := lim.(*ratelimit.LeakyBucket); !queue && hasBurst(see.Algorithm(lim)) {
			want = 5
		}
		require.EqualValues(t, want, admitted.Load())
		require.Zero(t, w.Waiting())
	})
}

func TestAContextThatEndsInASleepGivesItsErrorAndKeepsNoPermit(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 3*time.Hour)
		spend(t, lim, 1)
		if _, leaky := lim.(*ratelimit.LeakyBucket); !leaky { // which has a turn to wait for already
			spend(t, lim, 1)
		}
		before := peek(t, lim)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		took, r, err := timed(func() (ratelimit.Result, error) { return w.Allow(ctx, "key") })
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, r)
		require.Equal(t, time.Second, took)
		require.Equal(t, before.Remaining, peek(t, lim).Remaining)
		require.Zero(t, w.Waiting())
	})
}

func TestADeadlineIsAShorterMaximum(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 3*time.Hour)
		spend(t, lim, 2)
		before := peek(t, lim)
		ctx, cancel := context.WithTimeout(t.Context(), before.RetryAfter)
		defer cancel()
		took, r := allow(t, ctx, w)
		require.Zero(t, took, "a permit at the deadline is too late")
		require.False(t, r.Allowed)
		want := before.RetryAfter
		if _, leaky := lim.(*ratelimit.LeakyBucket); leaky { // its turn is in an hour; 1 µs later it is in time
			want += time.Microsecond
		}
		require.Equal(t, want, r.RetryAfter)

		ctx, cancel = context.WithTimeout(t.Context(), before.ResetAfter+time.Second)
		defer cancel()
		_, r = allow(t, ctx, w)
		require.True(t, r.Allowed)
	})
}

func TestATurnIsSlept(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 5}, func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, time.Second)
		began := time.Now()
		for i := range 8 {
			_, r := allow(t, t.Context(), w)
			require.True(t, r.Allowed)
			require.Zero(t, r.Delay)
			require.Equal(t, time.Duration(i)*100*time.Millisecond, time.Since(began))
		}
	})
}

// The scheduled times are a minute apart, and the caller waits up to 150 s, which is enough for two
// of them.
func TestATurnThatWouldComeTooLateIsGivenBackAndRetryAfterIsExact(t *testing.T) {
	for name, burst := range map[string]int{"there is room in the queue": 10, "the queue is full": 4} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 60, Period: time.Hour, Burst: burst}, func(t *testing.T, lim ratelimit.Limiter) {
				w := waiter(t, lim, 150*time.Second)
				spend(t, lim, 4)
				took, r := allow(t, t.Context(), w)
				require.Zero(t, took)
				require.False(t, r.Allowed)
				require.Equal(t, 90*time.Second, r.RetryAfter)
				require.Equal(t, burst, r.Limit)
				require.Zero(t, r.Remaining)
				require.Equal(t, 4*time.Minute, r.ResetAfter)
				require.Equal(t, r, peek(t, w))
				require.Equal(t, burst-4, peek(t, lim).Remaining, "the turn was given back")
				require.ErrorIs(t, w.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN, "once")

				time.Sleep(r.RetryAfter - time.Microsecond)
				took, again := allow(t, t.Context(), w)
				require.Zero(t, took)
				require.False(t, again.Allowed)
				require.Equal(t, time.Microsecond, again.RetryAfter)
				time.Sleep(time.Microsecond)
				took, again = allow(t, t.Context(), w)
				require.True(t, again.Allowed)
				require.Equal(t, 150*time.Second, took)
			})
		})
	}
}

// A leaky bucket inside another limiter is not recognized. Its denial does not include the
// scheduled time, which is another minute away after a minute of sleep.
func TestATurnThatComesTooLateAfterASleepIsInTimeForANewCall(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 1, Period: time.Minute, Burst: 2}, func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, &broken{Limiter: lim}, 90*time.Second)
		spend(t, lim, 2)
		took, r := allow(t, t.Context(), w)
		require.GreaterOrEqual(t, took, time.Minute)
		require.LessOrEqual(t, took, time.Minute+jitter)
		require.False(t, r.Allowed)
		require.Equal(t, time.Microsecond, r.RetryAfter)
		time.Sleep(r.RetryAfter)
		took, r = allow(t, t.Context(), w)
		require.True(t, r.Allowed)
		require.LessOrEqual(t, took, time.Minute)
	})
}

func TestATurnThatCannotBeGivenBackIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broken{Limiter: inMemory(t, "leaky_bucket", ratelimit.PerHour(10)), refund: ratelimit.ErrStore}
		spend(t, b, 1)
		r, err := waiter(t, b, time.Second).Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
		require.Zero(t, r)

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, nil)
		time.AfterFunc(time.Second, cancel)
		_, err = waiter(t, b, time.Hour).Allow(ctx, "key")
		require.ErrorIs(t, err, ratelimit.ErrStore)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestAnErrorAfterASleepIsTheLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no limit")
		b := &broken{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(1)), allow: failure, works: 2}
		w := waiter(t, b, time.Hour)
		spend(t, w, 1)
		took, r, err := timed(func() (ratelimit.Result, error) { return w.Allow(t.Context(), "key") })
		require.ErrorIs(t, err, failure)
		require.Zero(t, r)
		require.Equal(t, time.Hour, took)
		require.Zero(t, w.Waiting())
	})
}

func TestOnlySoManyWaitAtOnce(t *testing.T) {
	onEachAlgorithm(t, ratelimit.Limit{Rate: 10, Period: time.Hour}, func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 2*time.Hour, throttle.WithMaxWaiting(3))
		spend(t, lim, 8)
		if _, leaky := lim.(*ratelimit.LeakyBucket); !leaky {
			spend(t, lim, 2)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _, _ = w.AllowN(ctx, "key", 1) })
		}
		synctest.Wait()
		require.Equal(t, 3, w.Waiting())

		for range 2 {
			plain := peek(t, lim)
			took, r := allow(t, t.Context(), w)
			require.Zero(t, took)
			require.False(t, r.Allowed)
			want := plain.RetryAfter
			if _, leaky := lim.(*ratelimit.LeakyBucket); leaky {
				want = plain.ResetAfter // the queue is full
			}
			require.Equal(t, want, r.RetryAfter, "without a sleep")
			require.Equal(t, r, peek(t, w))
			require.Equal(t, plain.Remaining, peek(t, lim).Remaining)
		}
		_, err := w.Allow(t.Context(), "another key")
		require.NoError(t, err, "what need not wait needs no place")

		cancel()
		wg.Wait()
		require.Zero(t, w.Waiting())
		_, r := allow(t, t.Context(), w)
		require.True(t, r.Allowed, "the places are free again")
	})
}

// Callers that come while others wait for the answer of a limiter far away need no place if there is room for all.
func TestWhatNeedNotWaitNeedsNoPlace(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(100), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, &counted{Limiter: lim, way: 20 * time.Millisecond}, time.Second, throttle.WithMaxWaiting(20))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for i := range 160 {
			wg.Go(func() {
				r, err := w.Allow(t.Context(), []string{"one", "two"}[i%2])
				require.NoError(t, err)
				require.Zero(t, r.Delay)
				if r.Allowed {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		if _, leaky := lim.(*ratelimit.LeakyBucket); leaky { // which admits one at a time
			require.Equal(t, int64(2), admitted.Load())
		} else {
			require.Equal(t, int64(160), admitted.Load())
		}
	})
}

func TestATurnNeedsAPlaceToWait(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.PerHour(60), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, time.Hour, throttle.WithMaxWaiting(1))
		spend(t, lim, 4)
		var wg sync.WaitGroup
		wg.Go(func() { allow(t, t.Context(), w) })
		synctest.Wait()
		for range 2 {
			_, r := allow(t, t.Context(), w)
			require.Equal(t, ratelimit.Result{Limit: 60, RetryAfter: 5 * time.Minute, ResetAfter: 5 * time.Minute}, r)
		}
		wg.Wait()
	})
}

func TestAThousandAndTwentyFourWaitByDefault(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerHour(1), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 2000*time.Hour)
		spend(t, lim, 1)
		var wg sync.WaitGroup
		for range 1500 {
			wg.Go(func() { _, _ = w.Allow(t.Context(), "key") })
		}
		synctest.Wait()
		require.Equal(t, 1024, w.Waiting())
		wg.Wait()
		require.Zero(t, w.Waiting())
	})
}

func TestPeekTellsTheSleepAndChargesNothing(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 2*time.Hour)
		require.Equal(t, peek(t, lim), peek(t, w))
		time.Sleep(time.Minute) // so that the window ends in 59
		spend(t, lim, 2)
		hasty := waiter(t, lim, time.Second)
		_, denied := allow(t, t.Context(), hasty)
		require.False(t, denied.Allowed)
		require.Equal(t, denied, peek(t, hasty))

		before, r := peek(t, lim), peek(t, w)
		require.True(t, r.Allowed)
		require.Zero(t, r.RetryAfter)
		require.Equal(t, before, peek(t, lim))
		require.ErrorIs(t, w.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN)
		took, _ := allow(t, t.Context(), w)
		require.InDelta(t, r.Delay, took, float64(jitter))
	})
}

func TestResetIsTheLimiters(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerHour(2))
	w := waiter(t, lim, time.Second)
	spend(t, w, 2)
	require.NoError(t, w.Reset(t.Context(), "key"))
	require.Equal(t, 2, peek(t, w).Remaining)
}

// A denial without a RetryAfter violates the contract. It must not cause a busy loop.
func TestALimiterThatGivesNoRetryAfterIsAskedOnceAMillisecond(t *testing.T) {
	for _, retry := range []time.Duration{0, -time.Hour, 1} {
		synctest.Test(t, func(t *testing.T) {
			b := &broken{Limiter: ratelimittest.Static(ratelimit.Result{RetryAfter: retry}, nil)}
			began := time.Now()
			r, err := waiter(t, b, time.Second).AllowN(t.Context(), "key", 1)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.LessOrEqual(t, time.Since(began), time.Second)
			require.LessOrEqual(t, b.calls, 1001)
		})
	}
}

func TestAWaiterBoundsAndSleepsTheDelaysOfASlowdown(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerHour(1000), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, slowdown(t, lim, throttle.Slow{Free: 1, Step: time.Second, Max: time.Minute}), 2*time.Second)
		for i, want := range []time.Duration{0, time.Second, 2 * time.Second} {
			took, r := allow(t, t.Context(), w)
			require.True(t, r.Allowed, i)
			require.Equal(t, want, took, i)
		}
		before := peek(t, lim).Remaining
		took, r := allow(t, t.Context(), w)
		require.Zero(t, took)
		require.False(t, r.Allowed)
		require.Equal(t, time.Second, r.RetryAfter)
		require.Equal(t, before, peek(t, lim).Remaining)
	})
}

func TestAWaiterOnRedis(t *testing.T) {
	lim := onRedis(t, "token_bucket", ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 1})
	w := waiter(t, lim, time.Minute)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3 {
				_, r := allow(t, t.Context(), w)
				require.True(t, r.Allowed)
				require.Zero(t, r.Delay)
			}
		})
	}
	wg.Wait()

	slow := onRedis(t, "token_bucket", ratelimit.PerHour(1))
	spend(t, slow, 1)
	_, r := allow(t, t.Context(), waiter(t, slow, time.Minute))
	require.False(t, r.Allowed)
	require.Greater(t, r.RetryAfter, 50*time.Minute)
}

func TestAWaitThatIsCancelledGivesItsTurnBackOnRedis(t *testing.T) {
	lim := onRedis(t, "leaky_bucket", ratelimit.PerHour(10))
	w := waiter(t, lim, 24*time.Hour)
	spend(t, lim, 4)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for w.Waiting() == 0 {
			runtime.Gosched()
		}
		cancel()
	}()
	_, err := w.Allow(ctx, "key")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 6, peek(t, lim).Remaining)

	_, r := allow(t, t.Context(), waiter(t, lim, time.Minute))
	require.False(t, r.Allowed, "its turn is in 24 minutes")
	require.Equal(t, 6, peek(t, lim).Remaining)
}

func TestCallersOfAWaiterAreServedInTheOrderOfArrival(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerSecond(5), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, time.Hour)
		turns := make([]time.Time, 40)
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() {
				if i%2 == 0 { // both stand in one queue
					_, r := allow(t, t.Context(), w)
					require.True(t, r.Allowed)
				} else {
					_, err := ratelimit.Wait(t.Context(), lim, "key", 1)
					require.NoError(t, err)
				}
				turns[i] = time.Now()
			})
			synctest.Wait()
		}
		wg.Wait()
		for i := range turns[1:] {
			require.False(t, turns[i+1].Before(turns[i]), i)
		}
	})
}

// counted counts the calls that ask a limiter.
type counted struct {
	ratelimit.Limiter
	asked atomic.Int64
	away  func() error
	way   time.Duration
}

func (c *counted) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	c.asked.Add(1)
	time.Sleep(c.way)
	if c.away != nil {
		if err := c.away(); err != nil {
			return ratelimit.Result{}, err
		}
	}
	return ratelimit.AllowWithin(ctx, c.Limiter, key, n, d)
}

func TestOneOfManyCallersOfAWaiterAsks(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 1}, func(t *testing.T, lim ratelimit.Limiter) {
		c := &counted{Limiter: lim}
		w := waiter(t, c, time.Minute)
		var wg sync.WaitGroup
		for range 600 {
			wg.Go(func() {
				_, r := allow(t, t.Context(), w)
				require.True(t, r.Allowed)
			})
		}
		wg.Wait()
		require.LessOrEqual(t, c.asked.Load(), int64(720))
	})
}

func TestCallersWithoutAPlaceDoNotOvertakeOthers(t *testing.T) {
	inBubble(t, "fixed_window", ratelimit.PerSecond(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, &counted{Limiter: lim, way: 3 * time.Millisecond}, time.Minute, throttle.WithMaxWaiting(3))
		spend(t, lim, 2)
		var admitted, overtook atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, r := allow(t, t.Context(), w)
				require.True(t, r.Allowed)
				admitted.Add(1)
			})
			time.Sleep(10 * time.Millisecond) // it is denied, and has a place
		}
		for range 2000 {
			r, err := w.AllowN(t.Context(), "key", 1)
			require.NoError(t, err)
			if r.Allowed && admitted.Load() < 2 {
				overtook.Add(1)
			}
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		require.Zero(t, overtook.Load())
		require.EqualValues(t, 3, admitted.Load())
	})
}

func TestAnEventThatIsTooLargeForTheQueueIsDeniedForGood(t *testing.T) {
	inBubble(t, "sliding_log", ratelimit.PerHour(2), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 2*time.Hour, throttle.WithMaxWaiting(2))
		spend(t, lim, 2)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { allow(t, t.Context(), w) })
			synctest.Wait()
		}
		for _, w := range []*throttle.Waiter{w, waiter(t, lim, 2*time.Hour)} { // without a place, and with one
			took, r, err := timed(func() (ratelimit.Result, error) { return w.AllowN(t.Context(), "key", 3) })
			require.NoError(t, err)
			require.Equal(t, ratelimit.Never, r.RetryAfter)
			require.Zero(t, took)
		}
		wg.Wait()
	})
}

func TestACallerBehindOthersThatComesTooLateIsDeniedAtOnce(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(1), func(t *testing.T, lim ratelimit.Limiter) {
		time.Sleep(time.Minute)
		spend(t, lim, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = waiter(t, lim, 3*time.Hour).Allow(ctx, "key") })
		synctest.Wait()
		took, r := allow(t, t.Context(), waiter(t, lim, 10*time.Minute))
		require.Zero(t, took)
		require.False(t, r.Allowed)
		require.Equal(t, 1, r.Limit)
		require.Greater(t, r.RetryAfter, 30*time.Minute)
		require.GreaterOrEqual(t, r.ResetAfter, r.RetryAfter-10*time.Minute)
		cancel()
		wg.Wait()
	})
}

func TestAStoreThatIsAwayForAWhileDoesNotEndASleep(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(1), func(t *testing.T, lim ratelimit.Limiter) {
		back := time.Now().Add(10 * time.Second)
		c := &counted{Limiter: lim, away: func() error {
			if time.Now().Before(back) {
				return store.ErrUnavailable
			}
			return nil
		}}
		took, r := allow(t, t.Context(), waiter(t, c, time.Minute))
		require.True(t, r.Allowed)
		require.GreaterOrEqual(t, took, 10*time.Second)
		require.LessOrEqual(t, took, 11*time.Second)

		back = time.Now().Add(time.Hour)
		took, _, err := timed(func() (ratelimit.Result, error) { return waiter(t, c, 5*time.Second).Allow(t.Context(), "key") })
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.LessOrEqual(t, took, 5*time.Second)

		full := waiter(t, c, time.Minute, throttle.WithMaxWaiting(1))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = full.Allow(ctx, "another key") })
		synctest.Wait()
		took, _, err = timed(func() (ratelimit.Result, error) { return full.Allow(t.Context(), "key") })
		require.ErrorIs(t, err, store.ErrUnavailable, "there is no place to wait for it")
		require.Zero(t, took)
		cancel()
		wg.Wait()
	})
}

// The deadline of the caller cuts the last of several attempts short. Its error alone would not say why.
func TestADeadlineDuringAnOutageIsToldWithTheOutage(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(1), func(t *testing.T, lim ratelimit.Limiter) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		c := &counted{Limiter: lim, away: func() error {
			if time.Since(began) < time.Second {
				return store.ErrUnavailable
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		_, err := ratelimit.Wait(ctx, c, "key", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, store.ErrUnavailable)
	})
}

func TestAWaiterAroundALeakyBucketServesItsRateToImpatientCallers(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.PerSecond(100), func(t *testing.T, lim ratelimit.Limiter) {
		w := waiter(t, lim, 100*time.Millisecond)
		var served atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range 64 {
			wg.Go(func() {
				for time.Since(began) < 3*time.Second {
					if _, r := allow(t, t.Context(), w); r.Allowed {
						served.Add(1)
					} else {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		require.GreaterOrEqual(t, served.Load(), int64(285))
	})
}

// A denial that a Waiter makes itself, because of the maximum sleep or because no place is left,
// has as much information as a denial by the limiter.
func TestADenialNamesTheLimitAndItsSourceWhoeverMakesIt(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	gone, err := ratelimit.New("token_bucket", failing{mem}, ratelimit.PerHour(1), ratelimit.WithName("far"))
	require.NoError(t, err)
	test := func(algorithm string, several, outage bool) {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			named := func(name string, l ratelimit.Limit) ratelimit.Limiter {
				lim, err := ratelimit.New(algorithm, mem, l, ratelimit.WithName(name))
				require.NoError(t, err)
				return lim
			}
			inside, parts, source := named("small", ratelimit.PerHour(1)), 0, ratelimit.SourceStore
			if several {
				inside, parts = ratelimit.Must(ratelimit.NewAll(inside, named("large", ratelimit.PerMinute(1000)))), 2
			}
			lim := inside
			if outage {
				lim, source = ratelimit.Must(fallback.New(gone, fallback.FailTo(inside))), ratelimit.SourceLocal
			}
			spend(t, lim, 1)
			behind, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			patient, full := waiter(t, lim, 3*time.Hour, throttle.WithMaxWaiting(1)), waiter(t, lim, 3*time.Hour, throttle.WithMaxWaiting(1))
			requireNamed := func(how string, r ratelimit.Result) {
				t.Helper()
				require.False(t, r.Allowed, how)
				require.Positive(t, r.RetryAfter, how)
				require.Equal(t, source, r.Source(), how)
				require.Len(t, r.Parts(), parts, how)
				require.Equal(t, 1, r.Limit, how)
				require.Zero(t, r.Charged(), how)
				require.ErrorIs(t, patient.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN, how)
				if several && algorithm != "leaky_bucket" { // whose turn would be given, only too late
					require.Equal(t, "small", r.DeniedBy(), how)
				}
			}
			_, r := allow(t, t.Context(), waiter(t, lim, time.Minute))
			requireNamed("the first in the queue", r)
			requireNamed("a Peek", peek(t, waiter(t, lim, time.Minute)))
			for range 2 { // the first of which is admitted
				wg.Go(func() { _, _ = full.Allow(behind, "another key") })
			}
			synctest.Wait()
			require.Equal(t, 1, full.Waiting())
			wg.Go(func() { _, _ = patient.Allow(behind, "key") })
			synctest.Wait()
			took, r := allow(t, t.Context(), waiter(t, lim, time.Minute))
			require.Zero(t, took)
			requireNamed("behind others, too late", r)
			took, r = allow(t, t.Context(), full)
			require.Zero(t, took)
			requireNamed("without a place", r)
			if algorithm == "sliding_log" { // the one in front is denied once more, at its time
				time.Sleep(30 * time.Minute)
				require.NoError(t, inside.Reset(t.Context(), "key"))
				spend(t, inside, 1)
				time.Sleep(31 * time.Minute)
				_, r = allow(t, t.Context(), waiter(t, lim, time.Minute))
				requireNamed("behind others, later", r)
			}
			if algorithm == "token_bucket" { // the one in front is admitted, and another stands behind it
				wg.Go(func() { _, _ = waiter(t, lim, 3*time.Hour).Allow(behind, "key") })
				time.Sleep(61 * time.Minute)
				took, r = allow(t, t.Context(), waiter(t, lim, time.Minute))
				require.Zero(t, took)
				requireNamed("behind others, after an admission", r)
			}
			cancel()
			wg.Wait()
		})
	}
	for _, algorithm := range algorithms {
		test(algorithm, true, false)
		test(algorithm, true, true)
		test(algorithm, false, true)
	}
}

// failing is a store that is down.
type failing struct{ store.Store }

// Decide implements [store.Store].
func (f failing) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, f, f.Store, requests, replies)
}

func (failing) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func (failing) Peek(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

// A leaky bucket's permit that comes too late, or finds no place, is refunded.
func TestATurnThatIsGivenBackSaysWhatTheLimitsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := inMemory(t, "leaky_bucket", ratelimit.PerHour(5))
		b := inMemory(t, "leaky_bucket", ratelimit.PerDay(200))
		both, err := ratelimit.NewAll(a, b)
		require.NoError(t, err)
		full := waiter(t, struct{ ratelimit.Limiter }{both}, time.Hour, throttle.WithMaxWaiting(1))
		spend(t, both, 1)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { _, _ = full.Allow(ctx, "another key") })
		wg.Go(func() { _, _ = full.Allow(ctx, "another key") })
		synctest.Wait()
		require.Equal(t, 1, full.Waiting())
		r := peek(t, full)
		require.False(t, r.Allowed)
		require.Equal(t, 12*time.Minute, r.RetryAfter)
		require.Len(t, r.Parts(), 2)
		_, r = allow(t, t.Context(), full)
		require.False(t, r.Allowed)
		require.Equal(t, 12*time.Minute, r.RetryAfter)
		require.Len(t, r.Parts(), 2)
		require.Equal(t, 4, r.Parts()[0].Remaining)
		require.Zero(t, r.Charged())
		require.Equal(t, 4, peek(t, both).Remaining)
		cancel()
		wg.Wait()
	})
}

// The events may be more than the Limit of the limiter that admits again first.
func TestACallThatFindsNoPlaceBeforeAFirstIsNotDeniedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, err := ratelimit.NewFirst(inMemory(t, "token_bucket", ratelimit.PerMinute(5)), inMemory(t, "token_bucket", ratelimit.PerHour(100)))
		require.NoError(t, err)
		spend(t, first, 100)
		spend(t, first, 5)
		full := waiter(t, first, time.Hour, throttle.WithMaxWaiting(1))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = full.Allow(ctx, "key") })
		synctest.Wait()
		time.Sleep(2 * time.Second) // so that the last answer is old
		r, err := full.AllowN(t.Context(), "key", 20)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Less(t, r.RetryAfter, time.Hour)
		cancel()
		wg.Wait()
	})
}

// farAway is a store so slow that two calls overlap.
type farAway struct{ store.Store }

func (s farAway) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	time.Sleep(time.Millisecond)
	return s.Store.Decide(ctx, requests, replies)
}

func (s farAway) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Take(ctx, ns, key, l, n)
}

func TestATurnWhosePlaceHasGoneMeanwhileIsNoChargeAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		gone, err := ratelimit.New("leaky_bucket", failing{mem}, ratelimit.PerHour(5))
		require.NoError(t, err)
		local, err := ratelimit.New("leaky_bucket", farAway{mem}, ratelimit.PerHour(5))
		require.NoError(t, err)
		lim, err := fallback.New(gone, fallback.FailTo(local))
		require.NoError(t, err)
		w := waiter(t, lim, time.Hour, throttle.WithMaxWaiting(1))
		keys := []string{"a", "b"}
		var wg sync.WaitGroup
		results := make([]ratelimit.Result, len(keys))
		for _, key := range keys {
			_, err := lim.Allow(t.Context(), key)
			require.NoError(t, err)
		}
		for i, key := range keys {
			wg.Go(func() { results[i], _ = w.Allow(t.Context(), key) })
		}
		wg.Wait()
		denied := 0
		for i, r := range results {
			if r.Allowed {
				continue
			}
			denied++
			require.Equal(t, ratelimit.SourceLocal, r.Source())
			require.Positive(t, r.RetryAfter)
			require.Zero(t, r.Charged())
			require.ErrorIs(t, w.Refund(t.Context(), keys[i], r, 1), ratelimit.ErrInvalidN)
			require.ErrorIs(t, local.Refund(t.Context(), keys[i], r, 1), ratelimit.ErrInvalidN)
		}
		require.Equal(t, 1, denied)
	})
}

// tokensBesideRequests returns an All of a limit on calls and a limit on their tokens.
func tokensBesideRequests(t *testing.T, algorithm string, tokens ratelimit.Limit) (all, of ratelimit.Limiter) {
	t.Helper()
	of = inMemory(t, algorithm, tokens)
	return ratelimittest.All(t, inMemory(t, "token_bucket", ratelimit.PerMinute(100), ratelimit.CountCalls()), of), of
}

func TestADenialOfACallForManySaysWhatItsEventsWaitFor(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"} {
		synctest.Test(t, func(t *testing.T) {
			all, tokens := tokensBesideRequests(t, algorithm, ratelimit.PerMinute(60))
			spend(t, tokens, 55)
			want, err := all.AllowN(t.Context(), "key", 10)
			require.NoError(t, err)
			r, err := waiter(t, all, time.Second).AllowN(t.Context(), "key", 10)
			require.NoError(t, err)
			require.Equal(t, want.RetryAfter, r.RetryAfter, algorithm)
			require.Equal(t, 5, r.Remaining, algorithm)
		})
	}
}

func TestADenialOfACallForManyWithoutAPlaceHasChargedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, tokens := tokensBesideRequests(t, "token_bucket", ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 60})
		w := waiter(t, all, time.Minute, throttle.WithMaxWaiting(1))
		_, err := ratelimit.Charge(t.Context(), tokens, "sleeps", 10_000)
		require.NoError(t, err)
		go func() { _, _ = w.AllowN(t.Context(), "sleeps", 10) }()
		synctest.Wait()
		spend(t, tokens, 60)
		r, err := w.AllowN(t.Context(), "key", 5) // whose turn comes so soon that it is admitted before
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 5*time.Millisecond, r.RetryAfter)
		require.Zero(t, r.Charged())
		require.Zero(t, r.Parts()[1].Charged())
		time.Sleep(time.Minute)
	})
}

func TestAllowUpToNeverSleeps(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(5), func(t *testing.T, lim ratelimit.Limiter) {
		began := time.Now()
		w := waiter(t, lim, 10*time.Hour)
		spend(t, lim, 2)
		granted, r, err := ratelimit.AllowUpTo(t.Context(), w, "key", 5)
		require.NoError(t, err)
		require.Equal(t, 3, granted)
		require.Zero(t, r.Remaining)
		granted, r, err = ratelimit.AllowUpTo(t.Context(), w, "key", 5)
		require.NoError(t, err)
		require.Zero(t, granted)
		require.False(t, r.Allowed)
		granted, r, err = ratelimit.AllowUpTo(t.Context(), slowdown(t, lim, throttle.Slow{Step: time.Hour, Max: time.Hour}), "key", 5)
		require.NoError(t, err)
		require.Equal(t, 5, granted)
		require.Equal(t, time.Hour, r.Delay)
		require.Zero(t, time.Since(began))
	})
}

// What is left is compared with what others wait for in the unit of each limit: requests, or tokens.
func TestRequestsAndTokensNeedNoPlaceIfThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := farAway{ratelimit.Must(memstore.New())}
		requests := ratelimittest.New(t, "fixed_window", s, ratelimit.PerHour(600), ratelimit.CountCalls())
		tokens := ratelimittest.New(t, "fixed_window", s, ratelimit.PerHour(1_000_000))
		w := waiter(t, ratelimit.Must(ratelimit.NewAll(requests, tokens)), time.Second, throttle.WithMaxWaiting(1))
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				r, err := w.AllowN(t.Context(), "key", 1000)
				require.NoError(t, err)
				require.True(t, r.Allowed, r)
			})
		}
		wg.Wait()
	})
}

// Whoever waits for a Waiter would wait beyond its maximum, so it is refused, wherever the Waiter is. Its own calls wait.
func TestAWaitForAWaiterIsRefused(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerSecond(1))
	w := waiter(t, lim, time.Second)
	around := ratelimit.Must(ratelimit.NewAround(w, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }))
	for _, l := range []ratelimit.Limiter{w, around} {
		_, err := ratelimit.Wait(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		_, err = throttle.NewWaiter(l, time.Minute)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		_, err = throttle.NewReader(t.Context(), new(bytes.Buffer), l, "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	r, err := lim.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, r.Allowed, "nothing was charged")
}
