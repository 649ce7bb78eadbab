package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// In a synctest bubble time passes only while everybody waits, so that each wait
// can be measured exactly.

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

func TestErrNeverNamesTheLimitThatNeverAdmits(t *testing.T) {
	requests := inMemory(t, "token_bucket", ratelimit.PerMinute(100), ratelimit.CountCalls())
	perSecond, perHour := inMemory(t, "token_bucket", ratelimit.PerSecond(10)), inMemory(t, "token_bucket", ratelimit.PerHour(1000))
	allowN(t, perHour, 995)
	for _, l := range []ratelimit.Limiter{perSecond, all(t, perSecond, perHour), all(t, requests, perSecond)} {
		_, err := ratelimit.Wait(t.Context(), l, "key", 50)
		require.EqualError(t, err, ratelimit.ErrNever.Error()+": 50 events exceed the limit of 10")
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

// What turns are worth to each algorithm, to the microsecond and on each store, stands in
// store/storetest. Here stand the wrappers, bad input, and callers with deadlines.

func allowWithin(t testing.TB, lim ratelimit.Limiter, n int, d time.Duration) ratelimit.Result {
	t.Helper()
	r, err := ratelimit.AllowWithin(t.Context(), lim, "key", n, d)
	require.NoError(t, err)
	return r
}

// farMemory is memory that is a millisecond away, so that others come between a call and a
// refund.
type farMemory struct{ store.Store }

func (f farMemory) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	time.Sleep(time.Millisecond)
	return f.Store.Take(ctx, ns, key, l, n)
}

func (f farMemory) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	time.Sleep(time.Millisecond)
	return f.Store.Refund(ctx, ns, key, l, c)
}

// serve has callers ask for events within their patience until ctx ends, and sleep what
// the answer says. It returns how many have had their turn.
func serve(ctx context.Context, lim ratelimit.Limiter, callers int, patience time.Duration) int64 {
	var served atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				r, err := ratelimit.AllowWithin(ctx, lim, "key", 1, patience)
				if err != nil {
					continue
				}
				select {
				case <-time.After(max(r.Delay, min(r.RetryAfter, patience), 0)):
				case <-ctx.Done():
					return
				}
				if r.Allowed {
					served.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return served.Load()
}

// undelayed hides that a limiter is a Delayer.
type undelayed struct{ ratelimit.Limiter }

// Who takes a turn, learns that it comes too late, and gives it back, leaves a gap in the
// queue if another has come behind.
func TestCallersWithDeadlinesAreServedAtTheRate(t *testing.T) {
	limit := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 100}
	for _, algorithm := range []string{"leaky_bucket", "token_bucket"} {
		for _, callers := range []int{16, 64} {
			t.Run(fmt.Sprintf("%s, %d callers", algorithm, callers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem, err := memstore.New()
					require.NoError(t, err)
					lim := newLimiter(t, algorithm, farMemory{mem}, limit)
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					served := serve(ctx, lim, callers, 100*time.Millisecond)
					require.GreaterOrEqual(t, served, int64(285), "of 300")
				})
			})
		}
	}
	t.Run("and hardly at all without AllowWithin of the limiter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			lim := undelayed{newLimiter(t, "leaky_bucket", farMemory{mem}, limit)}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			require.Less(t, serve(ctx, lim, 64, 100*time.Millisecond), int64(60), "of 300")
		})
	})
}

// At 100 a second the 100 take a second. Where turns are lost they take half a minute.
func TestCallersWithDeadlinesAreServedAtTheRateOnRedis(t *testing.T) {
	effort.NeedFull(t)
	for _, callers := range []int{16, 64} {
		lim := newLimiter(t, "leaky_bucket", redisServer(t), ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 100}, ratelimit.WithName(fmt.Sprint(callers)))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		began := time.Now()
		counted := &counter{Limiter: lim, enough: 100, cancel: cancel}
		serve(ctx, counted, callers, 100*time.Millisecond)
		took := time.Since(began)
		cancel()
		require.GreaterOrEqual(t, counted.admitted.Load(), int64(100), "%d callers", callers)
		t.Logf("%d callers: 100 turns given in %v, by %d calls", callers, took, counted.calls.Load())
	}
}

// counter ends a test when enough events have been admitted.
type counter struct {
	ratelimit.Limiter
	enough          int64
	calls, admitted atomic.Int64
	cancel          func()
}

func (c *counter) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	c.calls.Add(1)
	r, err := ratelimit.AllowWithin(ctx, c.Limiter, key, n, d)
	if r.Allowed && c.admitted.Add(1) == c.enough {
		c.cancel()
	}
	return r, err
}

// On a clock that stands still, all that come at once get exactly the turns that there
// are.
func TestTurnsAreNotGivenTwice(t *testing.T) {
	for _, algorithm := range []string{"leaky_bucket", "token_bucket"} {
		c := newClock()
		client := redistest.Shared(t).Client(t)
		for name, s := range map[string]store.Store{
			"memory": memory(t, c),
			"Redis":  onRedis(t, client, redisstore.WithClock(c.Now)),
		} {
			lim := newLimiter(t, algorithm, newCoalesced(t, s), ratelimit.Limit{Rate: 10, Period: time.Minute, Burst: 40})
			want := int64(11) // 60 s for the last
			if algorithm == "token_bucket" {
				want = 40 + 10
			}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for range 4 {
						r, err := ratelimit.AllowWithin(t.Context(), lim, "key", 1, time.Minute)
						if err != nil {
							t.Error(err)
						}
						if r.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, want, admitted.Load(), "%s, %s", algorithm, name)
			require.NoError(t, lim.Reset(t.Context(), "key"))
		}
	}
}

func TestAllWrappersPassTheTurnOn(t *testing.T) {
	ctx := context.Background()
	deny, err := ratelimit.NewFixedWindow(untouched{t}, ratelimit.PerHour(0))
	require.NoError(t, err)
	wrappers := map[string]func(l ratelimit.Limiter) ratelimit.Limiter{
		"none": func(l ratelimit.Limiter) ratelimit.Limiter { return l },
		"All": func(l ratelimit.Limiter) ratelimit.Limiter {
			return all(t, l, inMemory(t, "fixed_window", ratelimit.PerDay(100)))
		},
		"All of others": func(l ratelimit.Limiter) ratelimit.Limiter {
			return all(t, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), undelayed{l})
		},
		"another key": func(l ratelimit.Limiter) ratelimit.Limiter { return onOneKey(t, l, "other") },
		"All of that": func(l ratelimit.Limiter) ratelimit.Limiter { return all(t, onOneKey(t, l, "other")) },
		"Failover":    func(l ratelimit.Limiter) ratelimit.Limiter { return failover(t, l, fallback.FailClosed()) },
		"Failover to local": func(l ratelimit.Limiter) ratelimit.Limiter {
			return failover(t, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailTo(l))
		},
		"without a Delayer": func(l ratelimit.Limiter) ratelimit.Limiter { return undelayed{l} },
		"a denied part":     func(l ratelimit.Limiter) ratelimit.Limiter { return all(t, l, deny) },
	}
	for name, wrap := range wrappers {
		onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
			inner := newLimiter(t, algorithm, s, ratelimit.PerMinute(10), ratelimit.WithName(name))
			lim := wrap(inner)
			defer func() {
				require.NoError(t, inner.Reset(ctx, "key"))
				require.NoError(t, inner.Reset(ctx, "other"))
			}()
			switch {
			case name == "a denied part":
				require.Equal(t, ratelimit.Never, allowWithin(t, lim, 1, time.Minute).RetryAfter)
				require.Equal(t, 10, peek(t, inner, "key").Remaining)
			case algorithm == "leaky_bucket":
				require.True(t, allowWithin(t, lim, 3, 0).Allowed)
				r := allowWithin(t, lim, 1, 10*time.Second)
				require.False(t, r.Allowed, name)
				require.Equal(t, 8*time.Second, r.RetryAfter, name)
				require.ErrorIs(t, lim.Refund(ctx, "key", r, 1), ratelimit.ErrInvalidN, "it has charged nothing")
				c.Advance(8*time.Second - time.Microsecond)
				r = allowWithin(t, lim, 1, 10*time.Second)
				require.Equal(t, time.Microsecond, r.RetryAfter, name)
				c.Advance(time.Microsecond)
				r = allowWithin(t, lim, 1, 10*time.Second)
				require.True(t, r.Allowed, name)
				require.Equal(t, 10*time.Second, r.Delay, name)
				require.NoError(t, lim.Refund(ctx, "key", r, 1))
				require.Equal(t, 10*time.Second, allowWithin(t, lim, 1, 10*time.Second).Delay, name)
			case hasBurst(algorithm) && (name == "without a Delayer" || name == "All of others"):
				require.True(t, allowWithin(t, lim, 10, time.Hour).Allowed)
				require.Equal(t, 6*time.Second, allowWithin(t, lim, 1, time.Hour).RetryAfter, "as AllowN")
			case hasBurst(algorithm):
				require.True(t, allowWithin(t, lim, 10, 0).Allowed)
				r := allowWithin(t, lim, 2, 10*time.Second)
				require.False(t, r.Allowed, name)
				require.Equal(t, 2*time.Second, r.RetryAfter, name)
				r = allowWithin(t, lim, 2, 12*time.Second)
				require.True(t, r.Allowed, name)
				require.Equal(t, 12*time.Second, r.Delay, name)
				require.NoError(t, lim.Refund(ctx, "key", r, 2))
				require.Equal(t, 6*time.Second, allowWithin(t, lim, 1, 6*time.Second).Delay, name)
			default:
				require.True(t, allowWithin(t, lim, 10, time.Hour).Allowed)
				r := allowWithin(t, lim, 1, time.Hour)
				require.False(t, r.Allowed, name)
				require.Positive(t, r.RetryAfter)
				require.Zero(t, r.Delay)
			}
		})
	}
}

func TestBadInputOfAllowWithinIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	errOfFunc := errors.New("of the function")
	limits := func(l ratelimit.Limit, err error) ratelimit.Option {
		return ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return l, err })
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, untouched{t}, ratelimit.PerMinute(10))
		failing := newLimiter(t, algorithm, untouched{t}, ratelimit.PerMinute(10), limits(ratelimit.Limit{}, errOfFunc))
		invalid := newLimiter(t, algorithm, untouched{t}, ratelimit.PerMinute(10), limits(ratelimit.Limit{Rate: 1}, nil))
		for i, c := range []struct {
			ctx  context.Context
			lim  ratelimit.Limiter
			key  string
			n    int
			want error
		}{
			{t.Context(), lim, "key", 0, ratelimit.ErrInvalidN},
			{t.Context(), lim, "key", -1, ratelimit.ErrInvalidN},
			{t.Context(), lim, "", 1, ratelimit.ErrInvalidKey},
			{ended, lim, "key", 1, context.Canceled},
			{t.Context(), failing, "key", 1, errOfFunc},
			{t.Context(), invalid, "key", 1, ratelimit.ErrInvalidLimit},
			{t.Context(), nil, "key", 1, ratelimit.ErrInvalidOption},
			{t.Context(), (*ratelimit.TokenBucket)(nil), "key", 1, ratelimit.ErrInvalidOption},
			{t.Context(), new(ratelimit.TokenBucket), "key", 1, ratelimit.ErrInvalidLimit},
			{t.Context(), new(ratelimit.All), "key", 1, ratelimit.ErrInvalidLimit},
			{t.Context(), new(fallback.Limiter), "key", 1, ratelimit.ErrInvalidLimit},
			{t.Context(), all(t, lim, lim), "", 1, ratelimit.ErrInvalidKey},
			{ended, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), "key", 1, context.Canceled},
		} {
			r, err := ratelimit.AllowWithin(c.ctx, c.lim, c.key, c.n, time.Second)
			require.ErrorIs(t, err, c.want, "%s, call %d", algorithm, i)
			require.Zero(t, r)
		}
		none := newLimiter(t, algorithm, untouched{t}, ratelimit.PerMinute(0))
		require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never}, allowWithin(t, none, 1, time.Hour))
		require.Equal(t, ratelimit.Never, allowWithin(t, all(t, none), 1, time.Hour).RetryAfter)
		free := newLimiter(t, algorithm, untouched{t}, ratelimit.Unlimited())
		require.True(t, allowWithin(t, free, 1, 0).Allowed)
		require.True(t, allowWithin(t, all(t, free, free), 1, 0).Allowed)
	}
}

// slowTake tells of each Take, which takes 50 ms.
type slowTake struct {
	store.Store
	told func(n int64)
}

func (s slowTake) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.told(n)
	time.Sleep(25 * time.Millisecond)
	defer time.Sleep(25 * time.Millisecond)
	return s.Store.Take(ctx, ns, key, l, n)
}

// Two waiters for 2^62 events, which a stranger may have asked for, are 2^63 together. That ended the
// process: a time for -2^63 events was looked for without end.
func TestWaitersForMoreEventsThanCanBeAdded(t *testing.T) {
	const huge = math.MaxInt/2 + 1
	synctest.Test(t, func(t *testing.T) {
		var lim ratelimit.Limiter
		var all sync.WaitGroup
		began, refused := time.Now(), 0
		told := func(n int64) {
			if n != 5000 || time.Since(began) < 2*time.Second || refused > 0 { // by then the last answer is too old to refuse them
				return
			}
			refused = 2
			for range refused {
				all.Go(func() {
					_, err := ratelimit.Wait(t.Context(), lim, "key", huge)
					assert.ErrorIs(t, err, ratelimit.ErrNever)
				})
			}
		}
		lim = newLimiter(t, "token_bucket", slowTake{ratelimit.Must(memstore.New()), told}, ratelimit.Limit{Rate: 1000, Period: time.Second, Burst: 5000})
		for _, n := range []int{5000, 1, 5000} {
			_, err := ratelimit.Wait(t.Context(), lim, "key", n)
			require.NoError(t, err)
		}
		all.Wait()
		require.Equal(t, 2, refused)
	})
}

// fickleTurns admits with a Delay, and takes refunds as it likes.
type fickleTurns struct {
	ratelimit.Limiter
	delay    time.Duration
	refund   error
	refunded []context.Context
}

func (f *fickleTurns) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := f.Limiter.AllowN(ctx, key, n)
	r.Delay = f.delay
	return r, err
}

func (f *fickleTurns) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	f.refunded = append(f.refunded, ctx)
	if f.refund != nil {
		return f.refund
	}
	return f.Limiter.Refund(ctx, key, charged, n)
}

func TestALimiterWithoutTurnsIsRefundedWhatComesTooLate(t *testing.T) {
	inner := inMemory(t, "token_bucket", ratelimit.PerDay(10))
	f := &fickleTurns{Limiter: inner, delay: 3*time.Second + 1}
	require.True(t, allowWithin(t, f, 2, 3*time.Second+1).Allowed, "in time")
	require.Empty(t, f.refunded)

	ctx, cancel := context.WithCancel(t.Context())
	r, err := ratelimit.AllowWithin(ctx, f, "key", 2, 2*time.Second)
	cancel()
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, time.Second+time.Microsecond, r.RetryAfter)
	require.Zero(t, r.Delay)
	require.Equal(t, 8, r.Remaining)
	require.Equal(t, 8, peek(t, inner, "key").Remaining)
	require.Len(t, f.refunded, 1)
	require.NoError(t, f.refunded[0].Err(), "a refund does not end with its caller")
	require.ErrorIs(t, inner.Refund(t.Context(), "key", r, 1), ratelimit.ErrInvalidN, "nor is it given back twice")

	f.refund = ratelimit.ErrStore
	r, err = ratelimit.AllowWithin(t.Context(), f, "key", 2, -time.Second)
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, r)
	f.refund = fmt.Errorf("%w: nothing was charged", ratelimit.ErrInvalidN)
	require.Equal(t, 3*time.Second+time.Microsecond, allowWithin(t, f, 1, -time.Second).RetryAfter)

	static := ratelimittest.Static(ratelimit.Result{Allowed: true, Delay: time.Second}, nil)
	require.True(t, allowWithin(t, static, 1, time.Second).Allowed)
	require.Equal(t, time.Millisecond, allowWithin(t, static, 1, 999*time.Millisecond).RetryAfter)
	require.False(t, allowWithin(t, static, 1, 0).Allowed)
	static = ratelimittest.Static(ratelimit.Result{Allowed: true, Delay: ratelimit.Never}, nil)
	require.Equal(t, ratelimit.Never, allowWithin(t, static, 1, 0).RetryAfter, "and no overflow")
	static = ratelimittest.Static(ratelimit.Result{Allowed: true, Delay: ratelimit.Never - time.Microsecond}, nil)
	require.Equal(t, ratelimit.Never.Truncate(time.Microsecond), allowWithin(t, static, 1, 0).RetryAfter, "the longest that is whole")
	_, err = ratelimit.AllowWithin(t.Context(), ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), "key", 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrStore)
}

func TestSeveralLimitsHaveTheirTurnsInOneScript(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := onRedis(t, client)
	day := func(algorithm string, n int) ratelimit.Limiter {
		return newLimiter(t, algorithm, s, ratelimit.PerDay(n))
	}
	lim := all(t, day("leaky_bucket", 24), day("token_bucket", 12), day("fixed_window", 1000), day("sliding_log", 1000))
	require.True(t, allowWithin(t, lim, 12, 0).Allowed)
	before := calls(t, client, "evalsha") + calls(t, client, "eval")

	r := allowWithin(t, lim, 1, 13*time.Hour) // 12 h in the queue, 2 h until a token
	require.True(t, r.Allowed)
	require.InDelta(t, 12*time.Hour, r.Delay, float64(time.Minute))
	require.InDelta(t, 2*time.Hour, r.Parts()[1].Delay, float64(time.Minute))
	require.Zero(t, r.Parts()[2].Delay)

	r = allowWithin(t, lim, 3, 2*time.Hour) // 13 h in the queue, 8 h until 4 tokens
	require.False(t, r.Allowed)
	require.InDelta(t, 11*time.Hour, r.RetryAfter, float64(time.Minute))
	require.InDelta(t, 11*time.Hour, r.Parts()[0].RetryAfter, float64(time.Minute))
	require.InDelta(t, 6*time.Hour, r.Parts()[1].RetryAfter, float64(time.Minute))
	require.True(t, r.Parts()[2].Allowed)
	require.Equal(t, 987, r.Parts()[2].Remaining, "which is not charged")
	require.Equal(t, 2, calls(t, client, "evalsha")+calls(t, client, "eval")-before)

	r = allowWithin(t, lim, 3, 14*time.Hour)
	require.True(t, r.Allowed)
	require.NoError(t, lim.Refund(t.Context(), "key", r, 3))
	require.Equal(t, 987, peek(t, lim, "key").Parts()[2].Remaining)
}

// An All that asks its leaky buckets one after the other reports, in a denial, a bucket that has taken the call's events and given them back.
func TestAWaiterIsNotRefusedForEventsThatWereRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := ratelimit.Must(memstore.New())
		slow := newLimiter(t, "leaky_bucket", mem, ratelimit.Limit{Rate: 4, Period: time.Second, Burst: 40}, ratelimit.WithName("slow"))
		small := newLimiter(t, "leaky_bucket", mem, ratelimit.Limit{Rate: 16, Period: time.Second, Burst: 9}, ratelimit.WithName("small"))
		l := ratelimit.Must(ratelimit.NewAll(slow, ratelimit.Must(fallback.New(small, fallback.FailClosed()))))
		_, err := l.AllowN(t.Context(), "key", 8) // for 2 s, and 0.5 s
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err = ratelimit.Wait(ctx, l, "key", 5)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

func TestPartsOnOneStateHaveTheirTurnsTogether(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		inner := newLimiter(t, algorithm, s, ratelimit.PerMinute(10))
		lim := all(t, inner, inner) // charged twice
		require.True(t, allowWithin(t, lim, 5, 0).Allowed)
		r := allowWithin(t, lim, 1, time.Minute)
		switch {
		case hasBurst(algorithm) && algorithm != "leaky_bucket":
			require.Equal(t, 12*time.Second, r.Delay)
			require.Equal(t, 6*time.Second, r.Parts()[0].Delay)
			require.Equal(t, 7*time.Second, allowWithin(t, lim, 1, 17*time.Second).RetryAfter)
			require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
			require.Equal(t, 6*time.Second, allowWithin(t, inner, 1, time.Minute).Delay)
		default:
			require.False(t, r.Allowed)
		}
	})
}

func TestADecisionOnATurnInMemoryAllocatesNothing(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, algorithm := range algorithms {
		for name, l := range map[string]ratelimit.Limit{"allowed": ratelimit.PerSecond(1_000_000), "denied": ratelimit.PerDay(1)} {
			lim := newLimiter(t, algorithm, mem, l)
			ctx := t.Context()
			allocs := testing.AllocsPerRun(1000, func() { _, _ = ratelimit.AllowWithin(ctx, lim, "key", 1, time.Minute) })
			require.Zero(t, allocs, "%s, %s", algorithm, name)
		}
	}
}

// Of the longest waits and the largest limits, none overflows.
func TestTheLongestWaitsDoNotOverflow(t *testing.T) {
	year := 365 * 24 * time.Hour
	for _, l := range []ratelimit.Limit{
		{Rate: 1, Period: 10 * year}, {Rate: 1, Period: year, Burst: 100}, {Rate: math.MaxInt32, Period: 10 * year},
		{Rate: math.MaxInt32, Period: time.Hour}, {Rate: 1, Period: time.Second, Burst: math.MaxInt32}, {Rate: 1000003, Period: time.Hour},
	} {
		onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
			if l.Burst > 0 && !hasBurst(algorithm) {
				return
			}
			lim := newLimiter(t, algorithm, s, l)
			d, ok := lim.(ratelimit.Delayer)
			require.True(t, ok)
			burst := peek(t, lim, "key").Limit
			for range 30 {
				r, err := d.AllowWithin(t.Context(), "key", max(1, burst/3), ratelimit.Never)
				require.NoError(t, err)
				require.LessOrEqual(t, r.Delay, 100*year)
				require.GreaterOrEqual(t, r.Delay, time.Duration(0))
				require.LessOrEqual(t, r.ResetAfter, 100*year)
				require.Equal(t, r.Allowed, r.RetryAfter == 0)
				require.GreaterOrEqual(t, r.RetryAfter, time.Duration(0))
			}
		})
	}
}

// shown is a store that shows the limit and the events of its last Take.
type shown struct {
	store.Store
	limit store.Limit
	n     int64
}

func (s *shown) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.limit, s.n = l, n
	return s.Store.Take(ctx, ns, key, l, n)
}

func TestStoresAreToldOfTurnsInWholeMicrosecondsUpTo100Years(t *testing.T) {
	century := (100 * 365 * 24 * time.Hour).Microseconds()
	for _, algorithm := range algorithms {
		s := &shown{Store: memory(t, newClock())}
		lim := newLimiter(t, algorithm, s, ratelimit.PerDay(100))
		for d, want := range map[time.Duration]int64{
			-time.Hour: 1, 0: 1, 999: 1, time.Microsecond: 2, time.Second + 1: 1_000_001, ratelimit.Never: century + 1,
		} {
			if !hasBurst(algorithm) {
				want = 0
			}
			allowWithin(t, lim, 1, d)
			require.Equal(t, want, s.limit.Before(), "%s within %v", algorithm, d)
		}
		allowN(t, lim, 1)
		require.Zero(t, s.limit.Before())
		allowN(t, lim, math.MaxInt)
		require.EqualValues(t, min(1<<31, math.MaxInt), s.n, "the most that a store is asked for")
	}
}

// A waiter fails as soon as an answer shows that its turn comes too late: at once where that has the
// turns of all who wait, and else when those before it have gone. docs/client.md has the table.
func TestWhenAWaiterLearnsThatItsTurnIsTooLate(t *testing.T) {
	perSecond := ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}
	roomy := perSecond
	roomy.Burst = 10
	for _, c := range []struct {
		algorithm string
		limit     ratelimit.Limit
		all       bool
		after     time.Duration
	}{
		{"token_bucket", perSecond, false, 0},
		{"leaky_bucket", roomy, false, 0},
		{"leaky_bucket", perSecond, false, 2 * time.Second},
		{"leaky_bucket", perSecond, true, 2 * time.Second},
		{"sliding_log", ratelimit.PerSecond(1), false, 2 * time.Second},
		{"sliding_log", ratelimit.PerSecond(1), true, 2 * time.Second},
	} {
		for range 100 { // they come in any order, also while another one asks
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New()
				require.NoError(t, err)
				l, err := ratelimit.New(c.algorithm, mem, c.limit)
				require.NoError(t, err)
				if c.all {
					daily, err := ratelimit.NewSlidingLog(mem, ratelimit.PerDay(1000))
					require.NoError(t, err)
					l, err = ratelimit.NewAll(l, daily)
					require.NoError(t, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
				defer cancel()
				began := time.Now()
				var went, late sync.Map // times, rounded
				var callers sync.WaitGroup
				for i := range 5 {
					callers.Go(func() {
						_, err := ratelimit.Wait(ctx, l, "key", 1)
						at := time.Since(began).Round(50 * time.Millisecond)
						if errors.Is(err, ratelimit.ErrWouldExceedDeadline) {
							late.Store(i, at)
						} else if err == nil {
							went.Store(at, i)
						}
					})
				}
				callers.Wait()
				for _, at := range []time.Duration{0, time.Second, 2 * time.Second} {
					_, ok := went.Load(at)
					require.True(t, ok, "%s in an All %v: %v", c.algorithm, c.all, at)
				}
				fails := 0
				late.Range(func(_, at any) bool {
					fails++
					require.Equal(t, c.after, at, "%s in an All %v", c.algorithm, c.all)
					return true
				})
				require.Equal(t, 2, fails)
			})
		}
	}
}

// How those who wait for a limiter stand: by how its limits admit, under the keys that are counted,
// and whether a context has a say.
func TestWaitersQueueByTheirKeyAndAlgorithm(t *testing.T) {
	mem := memory(t, newClock())
	limit := func(algorithm string, opts ...ratelimit.Option) ratelimit.Limiter {
		return newLimiter(t, algorithm, mem, ratelimit.PerHour(5), opts...)
	}
	bucket, window := limit("token_bucket"), limit("fixed_window")
	tenant := onOneKey(t, limit("sliding_log"), "tenant")
	calls := limit("sliding_window", ratelimit.CountCalls())
	tiers := limit("leaky_bucket", ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, nil }))
	toSame := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "same", nil })
	for name, c := range map[string]struct {
		l      ratelimit.Limiter
		kind   queue.Kind
		one    bool // queue for all keys
		alone  bool // without a say of the context
		limits int
		calls  bool
	}{
		"a window":            {window, queue.Plain, false, true, 1, false},
		"a bucket":            {bucket, queue.Bucket, false, true, 1, false},
		"one leaky bucket":    {all(t, limit("leaky_bucket")), queue.Leaky, false, true, 1, false},
		"a reserve":           {limit("token_bucket", ratelimit.WithReserved(1)), queue.Plain, false, true, 1, false},
		"a leaky reserve":     {limit("leaky_bucket", ratelimit.WithReserved(1)), queue.Turns, false, true, 1, false},
		"tiers":               {tiers, queue.Leaky, false, false, 1, false},
		"a tenant":            {tenant, queue.Plain, true, false, 1, false},
		"calls":               {calls, queue.Plain, false, true, 1, true},
		"two":                 {all(t, bucket, calls), queue.Joint(queue.Bucket, queue.Plain), false, true, 2, true},
		"windows":             {all(t, window, calls), queue.Plain, false, true, 2, true},
		"one beside a tenant": {all(t, bucket, tenant), queue.Joint(queue.Bucket, queue.Plain), false, false, 2, false},
		"a tenant alone":      {all(t, tenant), queue.Plain, true, false, 1, false},
		"a ban":               {newBan(t, bucket, mem, quarter), queue.Joint(queue.Bucket, queue.Plain), false, true, 1, false},
		"a ban of one key":    {newBan(t, tenant, mem, quarter, toSame), queue.Plain, true, false, 1, false},
		"another ban":         {newBan(t, bucket, mem, quarter, toSame), queue.Joint(queue.Bucket, queue.Plain), false, false, 1, false},
	} {
		queues := see.QueuesOf[ratelimit.Delayer](c.l)
		require.Equal(t, c.kind, queues.Kind, name)
		require.Equal(t, c.one, queues.Key(t.Context(), "ann", 1) == queues.Key(t.Context(), "bob", 1), name)
		require.Equal(t, c.alone, see.IgnoresContext(c.l), name)
		require.False(t, see.Held(c.l), name)
		require.Equal(t, c.calls, see.Calls(c.l), name)
		require.Len(t, see.Names(c.l), c.limits, name)
		require.Equal(t, "5/h", see.Names(c.l)[0], name)
	}
	events := see.Of(calls).ByEvents()
	allowN(t, calls, 3)
	require.Equal(t, 1, allowN(t, events, 3).Remaining, "one call, and three events, of one count")
	require.Equal(t, "5/h", see.Names(events)[0])
	require.False(t, see.Calls(events))
}

// Those stand together for whom functions make the same keys, one by one.
func TestKeysThatContainAnySeparatorHaveQueuesOfTheirOwn(t *testing.T) {
	mem := memory(t, newClock())
	part := func(i int) ratelimit.Limiter {
		return newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName(strconv.Itoa(i)),
			ratelimit.WithKeyFunc(func(_ context.Context, key string) (string, error) { return strings.Split(key, "|")[i], nil }))
	}
	queues := see.QueuesOf[ratelimit.Delayer, ratelimit.Limiter](all(t, part(0), part(1)))
	for _, sep := range []string{"\x00", " ", ",", `"`, `" "`, `\`, "\xff"} {
		require.NotEqual(t, queues.Key(t.Context(), "a"+sep+"b|c", 1), queues.Key(t.Context(), "a|b"+sep+"c", 1), "%q", sep)
	}
}

// A wait for several events of a limit of calls is one for a call.
func TestCallsOfTwoEventsAreWaitedForAsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "token_bucket", newMemory(t), ratelimit.PerSecond(1), ratelimit.CountCalls())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second+500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if _, err := ratelimit.Wait(ctx, l, "key", 2); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// waited lets calls for these events wait in this order, and returns when each of them was admitted.
func waited(t *testing.T, l ratelimit.Limiter, events ...int) []time.Duration {
	t.Helper()
	began, at := time.Now(), make([]time.Duration, len(events))
	var group sync.WaitGroup
	for i, n := range events {
		group.Go(func() {
			_, err := ratelimit.Wait(t.Context(), l, "key", n)
			assert.NoError(t, err)
			at[i] = time.Since(began)
		})
		synctest.Wait()
	}
	group.Wait()
	return at
}

// The second limiter of a First may admit what exceeds the first one. Who waits for that neither goes before those
// who came earlier, nor lets them sleep for longer.
func TestWaitersOfAFirstKeepTheirOrderAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory(t)
		plan := newLimiter(t, "token_bucket", mem, ratelimit.Every(10*time.Second))
		credits := newLimiter(t, "fixed_window", mem, ratelimit.PerDay(3))
		l := newFirst(t, plan, credits)
		allowN(t, l, 1)
		allowN(t, l, 3)
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 24 * time.Hour}, waited(t, l, 1, 1, 2))
	})
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory(t)
		plan, credits := newLimiter(t, "token_bucket", mem, ratelimit.Every(10*time.Second)), newLimiter(t, "fixed_window", mem, ratelimit.PerDay(3))
		l := newFirst(t, plan, credits)
		allowN(t, l, 1)
		allowN(t, l, 3)
		var group sync.WaitGroup
		group.Go(func() {
			_, err := ratelimit.Wait(t.Context(), l, "key", 1)
			assert.NoError(t, err)
		})
		synctest.Wait()
		require.NoError(t, credits.Reset(t.Context(), "key")) // there is room now, but not yet for who came later
		require.Equal(t, 10*time.Second, waited(t, l, 2)[0].Round(time.Second))
		group.Wait()
	})
}

// Where there is room for all who wait, they do not wait for each other's answers.
func TestWaitersOfAFirstForSeveralEventsAskAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := slowly{newMemory(t), 10 * time.Millisecond}
		l := newFirst(t, newLimiter(t, "fixed_window", far, ratelimit.PerMinute(1)), newLimiter(t, "fixed_window", far, ratelimit.PerHour(10)))
		allowN(t, l, 10)
		at := waited(t, l, 3, 3, 3)
		require.Equal(t, at[1], at[2], at)
	})
}

// Who may want more than is ever admitted asks before its turn. Where another limit denies that for its own reasons,
// the answer is not one for those who wait.
func TestWhoWantsTooMuchLetsNobodySleepLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := all(t, newLimiter(t, "sliding_log", newMemory(t), ratelimit.PerMinute(2)), newLimiter(t, "fixed_window", newMemory(t), ratelimit.Every(10*time.Second)))
		allowN(t, l, 1)
		var group sync.WaitGroup
		group.Go(func() {
			took, _, err := wait(t, t.Context(), l, 1)
			assert.NoError(t, err)
			assert.Equal(t, 10*time.Second, took)
		})
		synctest.Wait()
		group.Go(func() {
			_, err := ratelimit.Wait(t.Context(), l, "key", 2)
			assert.ErrorIs(t, err, ratelimit.ErrNever)
		})
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			took, _, err := wait(t, ctx, l, 2)
			assert.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			assert.Zero(t, took)
		})
		group.Wait()
	})
}

// Requests are counted together with their tokens, of which none are left.
func costing(t *testing.T, tokens int) *ratelimit.All {
	t.Helper()
	mem := newMemory(t)
	l := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerMinute(60), ratelimit.CountCalls()), newLimiter(t, "token_bucket", mem, ratelimit.PerMinute(tokens)))
	allowN(t, l, tokens)
	return l
}

func TestACallWaitsForItsOwnCostAndNotForTheLastOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := waited(t, costing(t, 6000), 3000, 100, 100, 6000, 1)
		for i, want := range []time.Duration{30, 31, 32, 92, 92} {
			require.Equal(t, want*time.Second, at[i].Truncate(time.Second), at)
		}
	})
}

func TestACheapCallBehindACostlyOneIsNotTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := costing(t, 6000)
		for _, leaves := range []bool{false, true} { // the costly call
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() { _, _ = ratelimit.Wait(ctx, l, "key", 3000) })
			synctest.Wait()
			if leaves {
				time.AfterFunc(5*time.Second, cancel)
			}
			group.Go(func() {
				within, done := context.WithTimeout(t.Context(), 35*time.Second)
				defer done()
				took, _, err := wait(t, within, l, 100)
				assert.NoError(t, err)
				assert.Equal(t, leaves, took <= 5*time.Second, "%v", took)
			})
			group.Wait()
			cancel()
			require.NoError(t, l.Reset(t.Context(), "key"))
			allowN(t, l, 6000)
		}
	})
}

func TestACallOfOneEventBehindOneOfTwoIsNotTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := costing(t, 6)
		var group sync.WaitGroup
		group.Go(func() {
			_, err := ratelimit.Wait(t.Context(), l, "key", 2)
			assert.NoError(t, err)
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second) // 3 tokens take 30 s
		defer cancel()
		_, err := ratelimit.Wait(ctx, l, "key", 1)
		assert.NoError(t, err)
		group.Wait()
	})
}

func TestACheapCallIsNotRefusedBecauseACostlyOneIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := costing(t, 6000)
		var group sync.WaitGroup
		for _, c := range []struct {
			n, deadline int
			err         error
		}{{100, 60, nil}, {3000, 20, ratelimit.ErrWouldExceedDeadline}, {100, 10, nil}} {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(c.deadline)*time.Second)
				defer cancel()
				took, _, err := wait(t, ctx, l, c.n)
				assert.ErrorIs(t, err, c.err)
				assert.LessOrEqual(t, took, 2*time.Second)
			})
			synctest.Wait()
		}
		group.Wait()
	})
}
