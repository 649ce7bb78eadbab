package suite_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/queue"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// remote is a limiter at a distance: questions and answers take their time. It counts what it
// is asked.
type remote struct {
	ratelimit.Limiter
	way     time.Duration // one way
	asked   atomic.Int64
	refunds atomic.Int64
	fail    func(asked int64) error // in place of an answer, if not nil
}

func (f *remote) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return f.do(func() (ratelimit.Result, error) { return f.Limiter.AllowN(ctx, key, n) })
}

func (f *remote) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return f.do(func() (ratelimit.Result, error) { return ratelimit.AllowWithin(ctx, f.Limiter, key, n, d) })
}

func (f *remote) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	f.refunds.Add(1)
	return f.Limiter.Refund(ctx, key, charged, n)
}

func (f *remote) do(ask func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	asked := f.asked.Add(1)
	if f.fail != nil {
		if err := f.fail(asked); err != nil {
			return ratelimit.Result{}, err
		}
	}
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return ask()
}

// known is a remote that says what is inside.
type known struct{ *remote }

func (k known) Unwrap() ratelimit.Limiter { return k.Limiter }

// crowd is waiters, in the order in which they came.
type crowd struct {
	mu     sync.Mutex
	served []int           // in the order of their turns
	took   []time.Duration // from the first arrival, as served
	errs   map[int]error
	began  time.Time
	wg     sync.WaitGroup
}

// join lets waiter i wait, who stands in the queue when it returns. Call it in a bubble.
func (c *crowd) join(ctx context.Context, lim ratelimit.Limiter, i, n int) {
	if c.errs == nil {
		c.errs, c.began = map[int]error{}, time.Now()
	}
	c.wg.Go(func() {
		r, err := ratelimit.Wait(ctx, lim, "key", n)
		if err == nil && !r.Allowed {
			err = errors.New("a denial, though the wait has ended well: " + r.String())
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.errs[i] = err; err == nil {
			c.served, c.took = append(c.served, i), append(c.took, time.Since(c.began))
		}
	})
	synctest.Wait()
}

// all lets n waiters come for an event each, and returns when their waits have ended.
func (c *crowd) all(ctx context.Context, lim ratelimit.Limiter, n int) {
	for i := range n {
		c.join(ctx, lim, i, 1)
	}
	c.wg.Wait()
}

// keptOrder checks that nobody of n had its turn before one who came earlier. (Of those
// that have it at one instant it is not known who returns first.)
func (c *crowd) keptOrder(t *testing.T, n int) {
	t.Helper()
	require.Len(t, c.served, n)
	turns := make([]time.Duration, n)
	for at, i := range c.served {
		turns[i] = c.took[at]
	}
	require.IsNonDecreasing(t, turns)
}

func TestWaitersAreServedInTheOrderOfArrival(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, way := range []time.Duration{0, 2 * time.Millisecond} {
			t.Run(fmt.Sprint(algorithm, way), func(t *testing.T) {
				inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
					lim = &remote{Limiter: lim, way: way}
					var c crowd
					for i := range 60 {
						c.join(t.Context(), lim, i, 1)
					}
					c.wg.Wait()
					c.keptOrder(t, 60)
					require.Zero(t, queue.Len(), "nothing is left of a queue")
				})
			})
		}
	}
}

// A waiter for many events holds up those behind it, and is itself not overtaken.
func TestWaitersForSeveralEventsKeepTheirPlace(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
			var c crowd
			for i := range 40 {
				c.join(t.Context(), lim, i, 1+i%4*3)
			}
			c.wg.Wait()
			c.keptOrder(t, 40)
		})
	}
}

// With a Burst of 1 what is asked late is lost. The limiter is asked ahead of time, and far
// away by several at once.
func TestAWaitingQueueGetsTheWholeRateForOneQuestionEach(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate int
		way  time.Duration
	}{{100, 0}, {100, 200 * time.Microsecond}, {100, 3 * time.Millisecond}, {500, 0}, {500, 200 * time.Microsecond}, {500, 3 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d/s, %v", c.rate, c.way), func(t *testing.T) {
			inBubble(t, "token_bucket", ratelimit.Limit{Rate: c.rate, Period: time.Second, Burst: 1}, func(t *testing.T, lim ratelimit.Limiter) {
				f := &remote{Limiter: lim, way: c.way}
				limit := lim.(*ratelimit.TokenBucket).Limit()
				itself := inMemory(t, "token_bucket", limit, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
					f.asked.Add(1)
					time.Sleep(2 * c.way)
					return limit, nil
				}))
				ideal := time.Second * 1000 / time.Duration(c.rate)
				for l, most := range map[ratelimit.Limiter]int64{f: 3000, itself: 1200} { // of a type that is not known more is asked
					var took time.Duration
					for range 3 { // those who wake at one instant may run in any order; a defect fails each time
						f.asked.Store(0)
						var line crowd
						for i := range 1000 {
							line.join(t.Context(), l, i, 1)
						}
						began := time.Now()
						line.wg.Wait()
						took = time.Since(began)
						require.Len(t, line.served, 1000)
						if took <= ideal*100/97 && f.asked.Load() <= most {
							break
						}
					}
					require.LessOrEqual(t, took, ideal*100/97)
					require.LessOrEqual(t, f.asked.Load(), most)
				}
			})
		})
	}
}

// More than one event can go: no answer need be waited for.
func TestFarAwayAQueueIsAsFastAsTheRoomAllows(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms[:4] {
		inBubble(t, algorithm, ratelimit.PerMinute(1000), func(t *testing.T, lim ratelimit.Limiter) {
			f := &remote{Limiter: lim, way: 10 * time.Millisecond}
			began := time.Now()
			var wg sync.WaitGroup
			for range 500 {
				wg.Go(func() {
					_, err := ratelimit.Wait(t.Context(), f, "key", 1)
					require.NoError(t, err)
				})
			}
			wg.Wait()
			require.LessOrEqual(t, time.Since(began), time.Second, "one after the other it would take ten")
			require.EqualValues(t, 500, f.asked.Load())
		})
	}
}

func TestWaitersOnEachAlgorithmAskLittleMoreThanOnce(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			inBubble(t, algorithm, ratelimit.PerSecond(20), func(t *testing.T, lim ratelimit.Limiter) {
				f := &remote{Limiter: lim, way: 200 * time.Microsecond}
				for l, most := range map[ratelimit.Limiter]int64{f: 400, known{f}: 240} {
					f.asked.Store(0)
					began := time.Now()
					var line crowd
					line.all(t.Context(), l, 200)
					require.LessOrEqual(t, f.asked.Load(), most)
					require.LessOrEqual(t, time.Since(began), 12*time.Second)
				}
			})
		})
	}
}

// Near and far away, whatever the other limit is.
func TestTwoLimitsTogetherAreWaitedForAtTheirRate(t *testing.T) {
	t.Parallel()
	for i, a := range algorithms {
		for _, b := range algorithms[i:] {
			for _, way := range []time.Duration{200 * time.Microsecond, 20 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					limit := func(algorithm string, rate int) ratelimit.Limiter {
						l := ratelimit.Limit{Rate: rate, Period: time.Second}
						if algorithm == "token_bucket" {
							l.Burst = 2
						}
						return inMemory(t, algorithm, l)
					}
					f := known{&remote{Limiter: all(t, limit(a, 50), limit(b, 80)), way: way}}
					began := time.Now()
					var line crowd
					line.all(t.Context(), f, 300)
					require.Len(t, line.served, 300)
					t.Logf("%s and %s, %v: %v by %d questions", a, b, way, time.Since(began), f.asked.Load())
					require.LessOrEqual(t, time.Since(began), 9*time.Second, "%s and %s, %v", a, b, way)
					require.LessOrEqual(t, f.asked.Load(), int64(900), "%s and %s, %v", a, b, way)
				})
			}
		}
	}
}

// It is never admitted, so its events are not spent, and nobody is refused for them.
func TestACallForMoreThanTheLimitHoldsUpNobody(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
			allowN(t, lim, 10)
			var line crowd
			for i := range 5 {
				line.join(t.Context(), lim, i, 1)
			}
			time.Sleep(50 * time.Millisecond)
			_, err := ratelimit.Wait(t.Context(), lim, "key", 1000)
			require.ErrorIs(t, err, ratelimit.ErrNever)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			line.join(ctx, lim, 5, 1)
			line.wg.Wait()
			require.Len(t, line.served, 6, algorithm)
			require.LessOrEqual(t, line.took[5], 2500*time.Millisecond, algorithm)
		})
	}
}

// What the large one has left, in steps of its own, is above 292 years.
func TestALimitOfMillionsIsNotWaitedForBesideASmallOne(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log"} {
		for _, rate := range []int{100_000, 1_000_000, 3_000_000, 10_000_000, 1_000_000_000} {
			inBubble(t, algorithm, ratelimit.PerDay(rate), func(t *testing.T, large ratelimit.Limiter) {
				l := all(t, inMemory(t, "token_bucket", ratelimit.PerSecond(10)), large)
				var line crowd
				line.all(t.Context(), l, 30)
				require.LessOrEqual(t, line.took[29], 3*time.Second, "%s of %d", algorithm, rate)
			})
		}
	}
}

func TestAThousandWaitersOnRedisAskOnceEach(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s, err := redisstore.New(client, redisstore.WithPrefix(rand.Text()), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 500, Period: time.Second, Burst: 1})
	require.NoError(t, err)
	f := &remote{Limiter: lim}
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			_, err := ratelimit.Wait(t.Context(), f, "key", 1)
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.LessOrEqual(t, f.asked.Load(), int64(1200))
}

func TestACancelledWaiterLeavesNoGap(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 1}, func(t *testing.T, lim ratelimit.Limiter) {
		f := &remote{Limiter: lim, way: 500 * time.Microsecond}
		ctx, cancel := context.WithCancel(t.Context())
		var c crowd
		for i := range 120 { // every other one of 80 leaves: in the queue, in a question and with a permit
			if i%2 == 0 || i > 80 {
				c.join(t.Context(), f, i, 1)
				continue
			}
			soon, stop := context.WithCancel(ctx)
			defer stop()
			time.AfterFunc(time.Duration(i)*7*time.Millisecond, stop)
			c.join(soon, f, i, 1)
		}
		c.wg.Wait()
		cancel()
		last := time.Duration(len(c.served)-1) * 10 * time.Millisecond
		require.LessOrEqual(t, c.took[len(c.took)-1], last+5*time.Millisecond)
		require.GreaterOrEqual(t, c.took[len(c.took)-1], last)
		require.Zero(t, queue.Len())
		p, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.LessOrEqual(t, p.RetryAfter, 10*time.Millisecond)
	})
}

// The first gives back what the second, who wants more, has counted on to be spent.
func TestRefundsOfACanceledWaiterAreUsedImmediately(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 2}, func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 2)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(99*time.Millisecond, cancel) // it has its permit then, and 1 ms to sleep
		var c crowd
		c.join(ctx, lim, 0, 1)
		c.join(t.Context(), lim, 1, 2)
		c.wg.Wait()
		require.ErrorIs(t, c.errs[0], context.Canceled)
		require.Equal(t, []time.Duration{200 * time.Millisecond}, c.took)
	})
}

// The first has a turn in 3 s when it is cancelled; the last of 4 finds the queue full.
func TestTheTurnOfACancelledWaiterGoesToTheNext(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 3}, func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 2)
		f := &remote{Limiter: lim}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var c crowd
		c.join(ctx, f, 0, 1)
		c.join(t.Context(), f, 1, 1)
		cancel()
		c.wg.Wait()
		require.ErrorIs(t, c.errs[0], context.Canceled)
		require.Equal(t, []time.Duration{2 * time.Second}, c.took)
		require.Zero(t, f.refunds.Load())
	})
}

// The first leaves while it has its permit, 2 ms ahead of its time.
func TestWhereTheContextHasASayAPermitIsNotHandedOn(t *testing.T) {
	type who struct{}
	for _, name := range []string{"another key", "All", "fallback"} {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			one := ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}
			lim := newLimiter(t, "token_bucket", mem, one)
			perCaller := newLimiter(t, "token_bucket", mem, one, ratelimit.WithKeyFunc(func(ctx context.Context, _ string) (string, error) {
				return ctx.Value(who{}).(string), nil
			}))
			queued := map[string]ratelimit.Limiter{
				"another key": perCaller, "All": all(t, perCaller), "fallback": failover(t, perCaller, fallback.FailOpen()),
			}[name]
			ann, ben := context.WithValue(t.Context(), who{}, "ann"), context.WithValue(t.Context(), who{}, "ben")
			_, err = ratelimit.Wait(ann, queued, "key", 1)
			require.NoError(t, err)
			ann, cancel := context.WithCancel(ann)
			var c crowd
			c.join(ann, queued, 0, 1)
			c.join(ben, queued, 1, 1)
			time.Sleep(998 * time.Millisecond)
			cancel()
			c.wg.Wait()
			require.ErrorIs(t, c.errs[0], context.Canceled)
			require.Zero(t, peek(t, lim, "ben").Remaining, name)
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, 1, peek(t, lim, "ann").Remaining, name)
		})
	}
	tiered := inMemory(t, "token_bucket", ratelimit.PerHour(1), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		return ratelimit.Limit{}, nil
	}))
	require.False(t, see.ByKey(tiered))
	require.True(t, see.ByKey[ratelimit.Limiter](failover(t, all(t, inMemory(t, "token_bucket", ratelimit.PerHour(1))), fallback.FailOpen())))
}

func TestAQueueOfTheDeadIsSoonGone(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerDay(1), func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var c crowd
		for i := range 2000 {
			c.join(ctx, lim, i, 1)
		}
		require.Equal(t, 1, queue.Len())
		cancel()
		c.wg.Wait()
		require.Zero(t, queue.Len())
		for _, err := range c.errs {
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

func TestAWaiterBehindOthersIsToldAtOnceThatItIsTooLate(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			inBubble(t, algorithm, ratelimit.Limit{Rate: 1, Period: time.Hour}, func(t *testing.T, lim ratelimit.Limiter) {
				time.Sleep(time.Minute)
				allowN(t, lim, 1)
				f := &remote{Limiter: lim}
				ctx, cancel := context.WithCancel(t.Context())
				var c crowd
				c.join(ctx, f, 0, 1)
				asked := f.asked.Load()

				short, stop := context.WithTimeout(t.Context(), 10*time.Minute)
				defer stop()
				took, _, err := wait(t, short, f, 1)
				require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
				require.Zero(t, took)
				require.Equal(t, asked, f.asked.Load(), "without a question")
				cancel()
				c.wg.Wait()
			})
		})
	}
}

// It stood there before it was known.
func TestAWaiterThatStandsIsToldWhenItIsKnown(t *testing.T) {
	inBubble(t, "sliding_log", ratelimit.PerHour(1), func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 1)
		f := &remote{Limiter: lim, way: time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		short, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		var c crowd
		c.join(ctx, f, 0, 1) // its question is under way
		took, _, err := wait(t, short, f, 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Equal(t, 2*time.Second, took)
		cancel()
		c.wg.Wait()
	})
}

// The places of a bucket's queue are known, so that who comes too late is told by the
// length of it.
func TestAWaiterFarBehindIsToldAtOnce(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 1}, func(t *testing.T, lim ratelimit.Limiter) {
		var c crowd
		for i := range 10 {
			c.join(t.Context(), lim, i, 1)
		}
		time.Sleep(50 * time.Millisecond) // so that the rate is known
		for i := range 100 {
			c.join(t.Context(), lim, 10+i, 1)
		}
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		took, _, err := wait(t, short, lim, 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, took)
		longer, stop := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer stop()
		_, _, err = wait(t, longer, lim, 1)
		require.NoError(t, err)
		c.wg.Wait()
	})
}

func TestAWaiterInTheQueueLeavesAtItsDeadline(t *testing.T) {
	inBubble(t, "sliding_window", ratelimit.PerSecond(1), func(t *testing.T, lim ratelimit.Limiter) {
		var c crowd
		for i := range 10 {
			c.join(t.Context(), lim, i, 1)
		}
		short, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		took, _, err := wait(t, short, lim, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, took, 3*time.Second)
		c.wg.Wait()
		c.keptOrder(t, 10)
	})
}

func TestCallsThatAreNeverAdmittedDoNotBlockOthers(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
			f := &remote{Limiter: lim, way: time.Millisecond}
			var c crowd
			for i := range 30 {
				n := 1
				if i%3 == 1 {
					n = 11
				}
				c.join(t.Context(), f, i, n)
			}
			time.Sleep(50 * time.Millisecond)
			c.mu.Lock()
			errs := maps.Clone(c.errs)
			c.mu.Unlock()
			took, _, err := wait(t, t.Context(), f, 12)
			c.wg.Wait()
			require.ErrorIs(t, err, ratelimit.ErrNever, "it is known already")
			require.Equal(t, 2*f.way, took)
			for i := 1; i < 30; i += 3 {
				require.ErrorIs(t, errs[i], ratelimit.ErrNever, "%s: %d", algorithm, i)
			}
			require.Len(t, c.served, 20)
		})
	}
}

func TestWaitOnAFullLeakyBucketIsToldAtOnceThatItsTurnIsTooLate(t *testing.T) {
	inBubble(t, "leaky_bucket", ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 100}, func(t *testing.T, lim ratelimit.Limiter) {
		allowN(t, lim, 100)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		took, _, err := wait(t, ctx, lim, 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, took)

		longer, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		took, _, err = wait(t, longer, lim, 1)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, took)
	})
}

// wrapped is a limiter that nobody can see through.
type wrapped struct{ ratelimit.Limiter }

func (w wrapped) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (ratelimit.Result, error) {
	return ratelimit.AllowWithin(ctx, w.Limiter, key, n, d)
}

func TestALeakyBucketServesCallersWithDeadlinesAtItsRate(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(ratelimit.Limiter) ratelimit.Limiter{
		"itself":  func(l ratelimit.Limiter) ratelimit.Limiter { return l },
		"wrapped": func(l ratelimit.Limiter) ratelimit.Limiter { return wrapped{l} },
		"far":     func(l ratelimit.Limiter) ratelimit.Limiter { return &remote{Limiter: l, way: 500 * time.Microsecond} },
		"farther": func(l ratelimit.Limiter) ratelimit.Limiter { return &remote{Limiter: l, way: 3 * time.Millisecond} },
	} {
		for _, callers := range []int{16, 64} {
			t.Run(fmt.Sprintf("%s, %d callers", name, callers), func(t *testing.T) {
				if callers > 16 {
					effort.NeedFull(t)
				}
				synctest.Test(t, func(t *testing.T) {
					var asked atomic.Int64
					lim := wrap(inMemory(t, "leaky_bucket", ratelimit.PerSecond(100), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
						asked.Add(1)
						return ratelimit.PerSecond(100), nil
					})))
					var served atomic.Int64
					var wg sync.WaitGroup
					began := time.Now()
					for range callers {
						wg.Go(func() {
							for time.Since(began) < 3*time.Second {
								ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
								_, err := ratelimit.Wait(ctx, lim, "key", 1)
								cancel()
								if err == nil {
									served.Add(1)
									continue
								}
								require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
								time.Sleep(time.Millisecond)
							}
						})
					}
					wg.Wait()
					require.GreaterOrEqual(t, served.Load(), int64(285))
					most := served.Load() * 9 / 4
					if name == "itself" { // who comes too late need not ask
						most = served.Load() * 21 / 20
					}
					require.LessOrEqual(t, asked.Load(), most)
				})
			})
		}
	}
}

func TestAStoreThatIsAwayForAWhileDoesNotEndAWait(t *testing.T) {
	for _, class := range []error{store.ErrOverloaded, store.ErrUnavailable} {
		for _, algorithm := range algorithms {
			inBubble(t, algorithm, ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
				away := time.Now().Add(time.Minute)
				f := &remote{Limiter: lim, fail: func(int64) error {
					if time.Now().Before(away) {
						return fmt.Errorf("%w: for now", class)
					}
					return nil
				}}
				var c crowd
				for i := range 20 {
					c.join(t.Context(), f, i, 1)
				}
				time.Sleep(time.Until(away))
				require.LessOrEqual(t, f.asked.Load(), int64(80), "one asks, and ever more rarely")
				c.wg.Wait()
				c.keptOrder(t, 20)
				require.LessOrEqual(t, c.took[0], 61*time.Second)
			})
		}
	}
}

func TestTheErrorOfAStoreIsToldWhenPatienceEnds(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
		f := &remote{Limiter: lim, fail: func(int64) error { return fmt.Errorf("%w: for good", store.ErrUnavailable) }}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		took, _, err := wait(t, ctx, f, 1)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.LessOrEqual(t, took, 3*time.Second)
		require.Greater(t, f.asked.Load(), int64(5))

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		_, _, err = wait(t, ctx, f, 1)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestAnErrorAfterWhichTheChargeMayStandEndsOneWait(t *testing.T) {
	for _, failure := range []error{store.ErrTimeout, ratelimit.ErrStore, errors.New("of a limit function")} {
		inBubble(t, "token_bucket", ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
			f := &remote{Limiter: lim, way: time.Millisecond, fail: func(asked int64) error {
				if asked == 1 {
					return failure
				}
				return nil
			}}
			var c crowd
			for i := range 5 {
				c.join(t.Context(), f, i, 1)
			}
			c.wg.Wait()
			require.ErrorIs(t, c.errs[0], failure)
			require.Len(t, c.served, 4)
		})
	}
}

// panicky panics when it is asked for the first and for the third time.
type panicky struct {
	ratelimit.Limiter
	asked atomic.Int64
}

func (f *panicky) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	time.Sleep(time.Second)
	if asked := f.asked.Add(1); asked == 1 || asked == 3 {
		panic("of the limiter")
	}
	return f.Limiter.AllowN(ctx, key, n)
}

func TestAPanicOfTheLimiterIsTheCallersAloneAndTheOthersGoOn(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
		f := &panicky{Limiter: lim}
		var panics atomic.Int64
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				_, err := ratelimit.Wait(t.Context(), f, "key", 1)
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 2, panics.Load())
		require.Zero(t, queue.Len())
	})
}

// incomparable cannot be the key of a map, and neither can unequal, which is not equal to
// itself.
type incomparable struct {
	ratelimit.Limiter
	_ []int
}

type unequal struct {
	ratelimit.Limiter
	_ float64
	x float64
}

func TestLimitersThatCannotBeComparedCanBeWaitedFor(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(10), func(t *testing.T, lim ratelimit.Limiter) {
		for _, l := range []ratelimit.Limiter{incomparable{Limiter: lim}, unequal{Limiter: lim, x: math.NaN()}, wrapped{incomparable{Limiter: lim}}} {
			began := time.Now()
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					_, err := ratelimit.Wait(t.Context(), l, "key", 1)
					require.NoError(t, err)
				})
			}
			wg.Wait()
			require.LessOrEqual(t, time.Since(began), 4*time.Second)
			require.Zero(t, queue.Len())
		}
	})
}

func TestThousandsOfKeysHaveQueuesOfTheirOwn(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerSecond(2), func(t *testing.T, lim ratelimit.Limiter) {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 3000 {
			for range 4 {
				wg.Go(func() {
					_, err := ratelimit.Wait(t.Context(), lim, fmt.Sprint("key", i), 1)
					require.NoError(t, err)
				})
			}
		}
		wg.Wait()
		require.LessOrEqual(t, time.Since(began), 1100*time.Millisecond)
		require.Zero(t, queue.Len())
	})
}

// Another process takes permits too: the queue learns of it by denials, and goes on.
func TestAQueueGoesOnWhereOthersTakePermitsToo(t *testing.T) {
	for _, algorithm := range algorithms {
		inBubble(t, algorithm, ratelimit.PerSecond(50), func(t *testing.T, lim ratelimit.Limiter) {
			var c crowd
			end := time.Now().Add(3 * time.Second)
			c.wg.Go(func() {
				for time.Now().Before(end) {
					_, err := lim.Allow(t.Context(), "key")
					require.NoError(t, err)
					time.Sleep(37 * time.Millisecond)
				}
			})
			for i := range 100 {
				c.join(t.Context(), lim, i, 1)
			}
			c.wg.Wait()
			require.LessOrEqual(t, c.took[99], 12*time.Second, algorithm)
		})
	}
}

func TestWaitersThatShareAMapWithManyGoroutinesAreSafe(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 20_000, Period: time.Second, Burst: 1})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*time.Millisecond)
				_, err := ratelimit.Wait(ctx, lim, strings.Repeat("k", 1+i%3), 1)
				cancel()
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, queue.Len())
}

func TestAWaitThatIsAdmittedAtOnceAllocatesNothing(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(1<<30))
	require.NoError(t, err)
	around, err := fallback.New(lim, fallback.FailOpen())
	require.NoError(t, err)
	ctx := t.Context()
	for _, l := range []ratelimit.Limiter{lim, around} {
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			if _, err := ratelimit.Wait(ctx, l, "key", 1); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

// The first would sleep for a day by the answer that it has had. One who arrives when that is
// old has it ask again.
func TestANewcomerLetsTheFirstAskAgain(t *testing.T) {
	for i := range 2 * len(algorithms) {
		algorithm := algorithms[i/2]
		synctest.Test(t, func(t *testing.T) {
			s, err := memstore.New()
			require.NoError(t, err)
			var raised atomic.Bool
			f := &remote{Limiter: newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithLimitFunc(
				func(context.Context, string) (ratelimit.Limit, error) {
					if raised.Load() {
						return ratelimit.PerSecond(1000), nil
					}
					return ratelimit.PerDay(1), nil
				}))}
			if i%2 == 1 {
				f.Limiter = all(t, f.Limiter, newLimiter(t, "token_bucket", s, ratelimit.PerSecond(1000)))
			}
			allowN(t, f.Limiter, 1)
			var c crowd
			c.join(t.Context(), f, 0, 1)
			time.Sleep(time.Hour)
			asked := f.asked.Load()
			for i := range 100 { // within 1 s, who cannot change anything
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c.join(ctx, f, 1+i, 1)
				time.Sleep(9 * time.Millisecond)
			}
			require.LessOrEqual(t, f.asked.Load(), asked+1, "for all of them")
			raised.Store(true)
			require.NoError(t, f.Reset(t.Context(), "key"))
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c.join(ctx, f, 101, 1)
			time.Sleep(time.Second)
			c.mu.Lock()
			defer c.mu.Unlock()
			require.Contains(t, c.served, 0, algorithm)
			require.Contains(t, c.served, 101, algorithm)
		})
	}
}
