package throttle_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func slowdown(t testing.TB, l ratelimit.Limiter, s throttle.Slow) *throttle.Slowdown {
	t.Helper()
	slow, err := throttle.NewSlowdown(l, s)
	require.NoError(t, err)
	return slow
}

var gentle = throttle.Slow{Free: 2, Step: 100 * time.Millisecond, Max: 250 * time.Millisecond}

func TestASlowdownOutOfRangeIsRefused(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerSecond(1))
	var none *ratelimit.TokenBucket
	for _, l := range []ratelimit.Limiter{nil, none} {
		_, err := throttle.NewSlowdown(l, gentle)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	for _, s := range []throttle.Slow{
		{},
		{Free: -1, Step: time.Second, Max: time.Second},
		{Free: 1, Max: time.Second},
		{Free: 1, Step: time.Second},
		{Free: 1, Step: -time.Second, Max: time.Second},
		{Free: 1, Step: time.Second, Max: -time.Second},
		{Free: 1, Step: time.Microsecond + 1, Max: time.Second},
		{Free: 1, Step: time.Second, Max: time.Second + 1},
	} {
		slow, err := throttle.NewSlowdown(lim, s)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%+v", s)
		require.Nil(t, slow)
	}
}

func TestASlowdownRefusesBadInput(t *testing.T) {
	badInputIsRefused(t, slowdown(t, inMemory(t, "token_bucket", ratelimit.PerSecond(1)), gentle))
	aZeroValueIsAnError(t, new(throttle.Slowdown))
}

func TestASlowdownHandsOnErrorsAndPolicies(t *testing.T) {
	wrap := func(l ratelimit.Limiter) ratelimit.Limiter { return slowdown(t, l, gentle) }
	errorsAreTheLimiters(t, wrap)
	policiesAreTheLimiters(t, wrap)
}

func TestEventsBeyondTheFreeOnesAreDelayedStepByStep(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(6), func(t *testing.T, lim ratelimit.Limiter) {
		began := time.Now()
		requireSteps(t, lim)
		require.Zero(t, time.Since(began), "it is the caller who sleeps")
	})
}

func TestASlowdownOnRedis(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			requireSteps(t, onRedis(t, algorithm, ratelimit.Limit{Rate: 6, Period: 3650 * 24 * time.Hour}))
		})
	}
}

// requireSteps sends eight events, of which lim admits six.
func requireSteps(t *testing.T, lim ratelimit.Limiter) {
	t.Helper()
	s := slowdown(t, lim, gentle)
	var last ratelimit.Result
	for i, want := range []time.Duration{0, 0, 100, 200, 250, 250, 250, 250} {
		told, r := peek(t, s), spend(t, s, 1)
		require.Zero(t, r.RetryAfter)
		require.Equal(t, want*time.Millisecond, r.Delay, i)
		require.Equal(t, r.Delay, told.Delay, "Peek tells the same")
		require.True(t, told.Allowed)
		require.Zero(t, told.RetryAfter)
		require.Equal(t, 6, r.Limit)
		require.Equal(t, max(0, 5-i), r.Remaining)
		last = r
	}
	require.NoError(t, s.Refund(t.Context(), "key", last, 1), "nothing was charged")
	require.Zero(t, peek(t, lim).Remaining)
}

func TestEventsAtOnceAreDelayedAsTheLast(t *testing.T) {
	s := slowdown(t, inMemory(t, "token_bucket", ratelimit.PerHour(10)), gentle)
	for n, want := range map[int]time.Duration{2: 0, 3: 100, 4: 200, 5: 250, 10: 250, 11: 250} {
		r, err := s.AllowN(t.Context(), "key", n)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, want*time.Millisecond, r.Delay, n)
		require.NoError(t, s.Reset(t.Context(), "key"))
	}
}

func TestAKeyBecomesFastAgainAsTheLimiterGivesRoomBack(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerMinute(6), func(t *testing.T, lim ratelimit.Limiter) {
		s := slowdown(t, lim, gentle)
		spend(t, s, 6)
		time.Sleep(30 * time.Second)
		require.Equal(t, 200*time.Millisecond, spend(t, s, 1).Delay)
		time.Sleep(30 * time.Second)
		require.Zero(t, spend(t, s, 1).Delay)
	})
}

func TestNoProductOverflows(t *testing.T) {
	longest := math.MaxInt64 / time.Microsecond * time.Microsecond
	lim := inMemory(t, "token_bucket", ratelimit.PerSecond(math.MaxInt32))
	for _, tt := range []struct {
		slow throttle.Slow
		want time.Duration
	}{
		{throttle.Slow{Step: longest, Max: time.Second}, time.Second},
		{throttle.Slow{Step: time.Hour, Max: longest}, 100 * time.Hour},
		{throttle.Slow{Step: longest / 99 / 1000 * 1000, Max: longest}, longest},
		{throttle.Slow{Free: math.MaxInt32, Step: time.Second, Max: longest}, 0},
	} {
		require.Equal(t, tt.want, spend(t, slowdown(t, lim, tt.slow), 100).Delay)
		require.NoError(t, lim.Reset(t.Context(), "key"))
	}
}

func TestARefundGivesBackWhatTheLimiterHasCharged(t *testing.T) {
	onEachAlgorithm(t, ratelimit.PerHour(4), func(t *testing.T, lim ratelimit.Limiter) {
		s := slowdown(t, lim, gentle)
		spend(t, s, 3)
		slow := spend(t, s, 1)
		require.Equal(t, 200*time.Millisecond, slow.Delay)
		denied := spend(t, s, 1)
		require.NoError(t, s.Refund(t.Context(), "key", denied, 1), "nothing was charged")
		require.Zero(t, peek(t, lim).Remaining)
		require.NoError(t, s.Refund(t.Context(), "key", slow, 1))
		require.Equal(t, 1, peek(t, lim).Remaining)
		require.ErrorIs(t, s.Refund(t.Context(), "key", slow, 0), ratelimit.ErrInvalidN)
	})
}

func TestUncountedCallsAreNotDelayed(t *testing.T) {
	open, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailOpen())
	require.NoError(t, err)
	for _, lim := range []ratelimit.Limiter{open, inMemory(t, "token_bucket", ratelimit.Unlimited())} {
		s := slowdown(t, lim, throttle.Slow{Step: time.Second, Max: time.Minute})
		require.Zero(t, peek(t, s).Delay)
		r := spend(t, s, 5)
		require.Zero(t, r.Delay)
		require.NoError(t, s.Refund(t.Context(), "key", r, 5))
	}
}

func TestWaitSleepsTheDelayAndACancelledOneKeepsNoPermit(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerHour(10), func(t *testing.T, lim ratelimit.Limiter) {
		s := slowdown(t, lim, throttle.Slow{Free: 4, Step: time.Second, Max: time.Minute})
		spend(t, s, 5)
		began := time.Now()
		_, err := ratelimit.Wait(t.Context(), s, "key", 2)
		require.NoError(t, err)
		require.Equal(t, 3*time.Second, time.Since(began))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = ratelimit.Wait(ctx, s, "key", 1)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 3, peek(t, lim).Remaining)
	})
}

func TestCallersWhoSleepAreHeldToTheBound(t *testing.T) {
	const callers, limit, rate = 3, 60, 12
	slow := throttle.Slow{Free: 5, Step: time.Second, Max: 10 * time.Second}
	for _, algorithm := range algorithms {
		l, refilled := ratelimit.PerMinute(limit), 0
		if hasBurst(algorithm) {
			l, refilled = ratelimit.Limit{Rate: rate, Period: time.Minute, Burst: limit}, rate
		}
		inBubble(t, algorithm, l, func(t *testing.T, lim ratelimit.Limiter) {
			s := slowdown(t, lim, slow)
			end := time.Now().Add(time.Minute)
			var events atomic.Int64
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for time.Now().Before(end) {
						_, r := allow(t, t.Context(), s)
						events.Add(1)
						time.Sleep(r.Delay)
					}
				})
			}
			wg.Wait()
			early := slow.Free + 10 - 1
			require.LessOrEqual(t, int(events.Load()), early+refilled+callers*(1+60/10), algorithm)
			require.Greater(t, int(events.Load()), early, "and they are served")
		})
	}
}

func TestAnEventThatASlowdownHasDeniedForItsDelayHasNothingToRefund(t *testing.T) {
	s := slowdown(t, inMemory(t, "token_bucket", ratelimit.PerHour(1)), gentle)
	spend(t, s, 1)
	late, err := ratelimit.AllowWithin(t.Context(), s, "key", 1, 0)
	require.NoError(t, err)
	require.False(t, late.Allowed)
	require.ErrorIs(t, s.Refund(t.Context(), "key", late, 1), ratelimit.ErrInvalidN)
}

func TestOneOfSeveralLimitsThatIsOpenDoesNotEndTheDelay(t *testing.T) {
	open, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailOpen())
	require.NoError(t, err)
	both, err := ratelimit.NewAll(open, inMemory(t, "token_bucket", ratelimit.PerHour(5)))
	require.NoError(t, err)
	require.Equal(t, gentle.Step, spend(t, slowdown(t, both, gentle), 3).Delay)
}

// What a wrapper admits although a limit of an All has denied it was denied by nobody.
func TestAnAdmissionIsDeniedByNobody(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	long := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 3}, ratelimit.WithName("long")))
	short := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 3}, ratelimit.WithName("short")))
	all := ratelimit.Must(ratelimit.NewAll(long, short))
	for range 3 {
		r, err := all.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	slow := ratelimit.Must(throttle.NewSlowdown(all, throttle.Slow{Free: 1, Step: time.Millisecond, Max: time.Second}))
	waiter := ratelimit.Must(throttle.NewWaiter(all, 2*time.Hour))
	for name, ask := range map[string]func() (ratelimit.Result, error){
		"Slowdown.Allow": func() (ratelimit.Result, error) { return slow.Allow(t.Context(), "key") },
		"Slowdown.Peek":  func() (ratelimit.Result, error) { return slow.Peek(t.Context(), "key") },
		"Waiter.Peek":    func() (ratelimit.Result, error) { return waiter.Peek(t.Context(), "key") },
	} {
		r, err := ask()
		require.NoError(t, err)
		require.True(t, r.Allowed, name)
		require.Empty(t, r.DeniedBy(), "%s: %v", name, r)
	}
}
