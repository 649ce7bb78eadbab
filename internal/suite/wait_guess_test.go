package suite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// nextWindow sleeps until a window of that period begins.
func nextWindow(period time.Duration) {
	time.Sleep(time.Until(time.Now().Truncate(period).Add(period)))
}

// Whatever was charged when, however many each wants, and whoever has no time and leaves.
func TestNobodySleepsForLongWhileItsEventsFit(t *testing.T) {
	t.Parallel()
	mixes := [][]string{
		{"token_bucket", "fixed_window"},
		{"sliding_log", "token_bucket"},
		{"sliding_window", "token_bucket", "fixed_window"},
		{"leaky_bucket", "sliding_window"},
		{"leaky_bucket", "sliding_log", "token_bucket"},
	}
	for _, algorithm := range algorithms {
		mixes = append(mixes, []string{algorithm})
	}
	for _, mix := range mixes {
		for seed := range uint64(effort.Of(12, 100, 2000)) {
			for _, way := range []time.Duration{0, 10 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 7))
					rate := 1 + random.IntN(12)
					period := []time.Duration{time.Second, 10 * time.Second, time.Minute}[random.IntN(3)]
					step := period / time.Duration(rate)
					limits := make([]ratelimit.Limiter, len(mix))
					for i, algorithm := range mix {
						l := ratelimit.Limit{Rate: rate, Period: period}
						if i > 0 {
							l = ratelimit.Limit{Rate: 3 * rate, Period: 4 * period}
						}
						limits[i] = inMemory(t, algorithm, l, ratelimit.WithName(fmt.Sprint(i)))
					}
					l := limits[0]
					if len(limits) > 1 {
						l = all(t, limits...)
					}
					time.Sleep(time.Duration(random.Int64N(int64(period))))
					for range random.IntN(rate + 1) {
						allowN(t, l, 1)
						time.Sleep(time.Duration(random.Int64N(int64(step))))
					}
					guessed(t, random, known{&remote{Limiter: l, way: way}}, rate, step, fmt.Sprint(mix, seed, way))
				})
			}
		}
	}
}

// guessed lets callers come to f, and looks each moment whether the first of them could go.
func guessed(t *testing.T, random *rand.Rand, f known, rate int, step time.Duration, what string) {
	wants, ended := make([]int, 4+random.IntN(25)), make([]atomic.Bool, 28)
	var wg sync.WaitGroup
	for i := range wants {
		wants[i] = []int{1, 1, min(3, rate), rate}[random.IntN(4)]
		ctx := t.Context()
		if random.IntN(2) == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 1+time.Duration(random.Int64N(int64(8*step))))
			defer cancel()
		}
		wg.Go(func() {
			defer ended[i].Store(true)
			_, _ = ratelimit.Wait(ctx, f, "key", wants[i])
		})
		synctest.Wait()
		if random.IntN(2) == 0 {
			time.Sleep(time.Duration(random.Int64N(int64(step))))
		}
	}
	for since, first := time.Now(), 0; ; time.Sleep(50 * time.Millisecond) {
		synctest.Wait()
		before := first
		for first < len(wants) && ended[first].Load() {
			first++
		}
		if first == len(wants) {
			break
		}
		if r, err := f.Peek(t.Context(), "key"); err != nil || first != before || r.Remaining < wants[first] || r.Delay > 0 {
			since = time.Now()
		}
		require.Less(t, time.Since(since), 300*time.Millisecond, "%s: caller %d, %d events", what, first, wants[first])
	}
	wg.Wait()
}

// 4 of 12 a day wait. One of the questions gets no answer: nobody waits for a day.
func TestALostQuestionIsNotTakenAsCharged(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms[:4] {
		for lost := range int64(4) {
			synctest.Test(t, func(t *testing.T) {
				l := inMemory(t, algorithm, ratelimit.PerDay(12))
				nextWindow(24 * time.Hour)
				far := known{&remote{Limiter: l, way: 10 * time.Millisecond, fail: func(asked int64) error {
					if asked == lost+1 {
						time.Sleep(5 * time.Millisecond)
						return store.ErrUnavailable
					}
					return nil
				}}}
				var line crowd
				line.all(t.Context(), far, 4)
				require.Len(t, line.served, 4)
				require.Less(t, time.Since(line.began), time.Second, "%s, question %d", algorithm, lost+1)
			})
		}
	}
}

// 7 of 10 in 100 s are left. The first wants 10 within a second, the second one.
func TestOneIsNotRefusedForWhatManyWanted(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms[:4] {
		for _, patience := range []time.Duration{20 * time.Second, time.Hour} {
			for kind := range 3 {
				synctest.Test(t, func(t *testing.T) {
					l := inMemory(t, algorithm, ratelimit.Limit{Rate: 10, Period: 100 * time.Second}, ratelimit.WithName("one"))
					nextWindow(100 * time.Second)
					require.True(t, allowN(t, l, 3).Allowed)
					if kind == 1 { // of which nothing is charged
						l = all(t, l, inMemory(t, "token_bucket", ratelimit.PerDay(1_000_000), ratelimit.WithName("day")))
					}
					var far ratelimit.Limiter = &remote{Limiter: l, way: 5 * time.Millisecond}
					if kind < 2 {
						far = known{far.(*remote)}
					}
					var line crowd
					for i, n := range []int{10, 1} {
						ctx, cancel := context.WithTimeout(t.Context(), []time.Duration{time.Second, patience}[i])
						defer cancel()
						line.join(ctx, far, i, n)
					}
					line.wg.Wait()
					require.Equal(t, []int{1}, line.served, "%s, %v, %d: %v", algorithm, patience, kind, line.errs)
					require.Less(t, line.took[0], time.Second, "%s, %v, %d", algorithm, patience, kind)
				})
			}
		}
	}
}

// A bucket of 24 a day has 1.9 tokens. The second of two goes in 6 minutes.
func TestAPartOfAnEventCounts(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{30 * time.Minute, 10 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := inMemory(t, "token_bucket", ratelimit.PerDay(24))
			require.True(t, allowN(t, l, 24).Allowed)
			time.Sleep(114 * time.Minute)
			far := known{&remote{Limiter: l, way: 5 * time.Millisecond}}
			waiter, err := throttle.NewWaiter(far, patience)
			require.NoError(t, err)
			began := time.Now()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					r, err := waiter.AllowN(t.Context(), "key", 1)
					require.NoError(t, err)
					require.True(t, r.Allowed, patience)
					require.Less(t, time.Since(began), 7*time.Minute, patience)
				})
			}
			wg.Wait()
		})
	}
}

// A bucket of 6 a day has 0.95 tokens, so that one more goes in 12 minutes. The first wants 6, and leaves.
func TestAPartOfAnEventIsForThoseBehindMany(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{time.Hour, 7 * time.Hour} { // of the third; two have their tokens in 4.2 h
		synctest.Test(t, func(t *testing.T) {
			l := inMemory(t, "token_bucket", ratelimit.PerDay(6))
			require.True(t, allowN(t, l, 6).Allowed)
			time.Sleep(228 * time.Minute)
			far := known{&remote{Limiter: l, way: 5 * time.Millisecond}}
			first, leave := context.WithCancel(t.Context())
			var line crowd
			line.join(first, far, 0, 6)
			time.Sleep(100 * time.Millisecond)
			line.join(t.Context(), far, 1, 1)
			leave()
			synctest.Wait()
			third, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			line.join(third, far, 2, 1)
			line.wg.Wait()
			require.Less(t, line.took[0], 13*time.Minute)
			require.Equal(t, patience > 4*time.Hour, line.errs[2] == nil, line.errs[2])
			require.LessOrEqual(t, far.asked.Load(), int64(8))
		})
	}
}

// 85 of 100 a day are used, one after the other, so a lease holds some. They come back after a second, and
// whoever wants 15 has them. Whoever wants 16 has them tomorrow, and asks few times.
func TestEventsThatALeaseRefundsGoToWaiters(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		for _, wants := range []int{15, 16} {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New()
				require.NoError(t, err)
				leases, err := lease.New(mem, time.Second)
				require.NoError(t, err)
				defer leases.Close(t.Context())
				l := newLimiter(t, algorithm, leases, ratelimit.PerDay(100))
				nextWindow(24 * time.Hour)
				for range 85 {
					require.True(t, allowN(t, l, 1).Allowed)
					time.Sleep(20 * time.Millisecond)
				}
				require.Positive(t, leases.Stats().Held, algorithm)
				far := known{&remote{Limiter: l}}
				var line crowd
				line.join(t.Context(), far, 0, wants)
				line.wg.Wait()
				require.Equal(t, wants == 15, line.took[0] < 5*time.Second, "%s: %v", algorithm, line.took)
				require.LessOrEqual(t, far.asked.Load(), int64(25), "%s, %d", algorithm, wants)
			})
		}
	}
}

// A window of an hour ends in 15 s, and three of its events are left. Those who came first have them, beside a
// bucket that has room for all.
func TestTheLastOfAWindowAreForThoseWhoCameFirst(t *testing.T) {
	t.Parallel()
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			l := all(t, inMemory(t, "fixed_window", ratelimit.PerHour(1000), ratelimit.WithName("hour")), inMemory(t, "token_bucket", ratelimit.PerSecond(10_000)))
			nextWindow(time.Hour)
			time.Sleep(time.Hour - 15*time.Second)
			require.True(t, allowN(t, l, 997).Allowed)
			far := known{&remote{Limiter: l, way: 10 * time.Millisecond}}
			var line crowd
			line.all(t.Context(), far, 31)
			line.keptOrder(t, 31)
		})
	}
}

// A turn of a leaky bucket is asked for with all the patience there is, also behind a Ban or beside a window.
// Nobody is banned for asking too early.
func TestTurnsInsideOthersAreAskedForOnce(t *testing.T) {
	t.Parallel()
	for beside := range 2 {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			l := newLimiter(t, "leaky_bucket", mem, ratelimit.PerSecond(5), ratelimit.WithName("turns"))
			if beside == 1 {
				l = all(t, l, newLimiter(t, "fixed_window", mem, ratelimit.PerHour(1000)))
			} else {
				l, err = ratelimit.NewBan(l, mem, ratelimit.Penalty{Denials: 10, Within: time.Minute, For: 10 * time.Second})
				require.NoError(t, err)
			}
			far := known{&remote{Limiter: l, way: 5 * time.Millisecond}}
			var line crowd
			line.all(t.Context(), far, 9)
			line.keptOrder(t, 9)
			require.Less(t, line.took[8], 2*time.Second)
			require.LessOrEqual(t, far.asked.Load(), int64(14))
		})
	}
}

// The first answer took 3 s, the next nine 2 ms. Those who have a second left are not told that there is
// no time for an answer.
func TestOneSlowAnswerIsSoonForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := inMemory(t, "fixed_window", ratelimit.Limit{Rate: 10, Period: 10 * time.Second})
		nextWindow(10 * time.Second)
		far := known{&remote{Limiter: l, way: time.Millisecond, fail: func(asked int64) error {
			if asked == 1 {
				time.Sleep(3 * time.Second)
			}
			return nil
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		var line crowd
		line.all(ctx, far, 20)
		require.Len(t, line.served, 20)
	})
}

// Questions overtake each other. The turns of a leaky bucket beside a token bucket are in order of arrival.
func TestTurnsBesideABucketAreInOrderOfArrival(t *testing.T) {
	t.Parallel()
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			leaky := inMemory(t, "leaky_bucket", ratelimit.PerSecond(8), ratelimit.WithName("turns"))
			require.True(t, allowN(t, leaky, 2).Allowed)
			l := all(t, leaky, inMemory(t, "token_bucket", ratelimit.Limit{Rate: 24, Period: 4 * time.Second}))
			ways := []time.Duration{15, 15, 15, 20, 10, 10, 10}
			far := known{&remote{Limiter: l, fail: func(asked int64) error {
				time.Sleep(2 * ways[min(int(asked), len(ways))-1] * time.Millisecond)
				return nil
			}}}
			var line crowd
			line.all(t.Context(), far, 6)
			line.keptOrder(t, 6)
		})
	}
}

type tenant struct{}

// byTenant counts by the tenant of the context.
func byTenant() ratelimit.Option {
	return ratelimit.WithKeyFunc(func(ctx context.Context, key string) (string, error) {
		of, _ := ctx.Value(tenant{}).(string)
		return of + "/" + key, nil
	})
}

// Tenant a has spent its events, and waits for an hour. Tenant b has spent none.
func TestTenantsDoNotStandInOneQueue(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		for kind := range 3 {
			synctest.Test(t, func(t *testing.T) {
				l := inMemory(t, algorithm, ratelimit.PerHour(1), byTenant())
				if kind == 1 {
					l = all(t, l, inMemory(t, algorithm, ratelimit.PerSecond(100), ratelimit.WithName("each")))
				}
				waiter, err := throttle.NewWaiter(l, 2*time.Hour)
				require.NoError(t, err)
				wait := func(ctx context.Context, of string) error {
					ctx = context.WithValue(ctx, tenant{}, of)
					if kind < 2 {
						_, err := ratelimit.Wait(ctx, l, "key", 1)
						return err
					}
					r, err := waiter.AllowN(ctx, "key", 1)
					if err == nil && !r.Allowed {
						err = ratelimit.ErrWouldExceedDeadline
					}
					return err
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				require.NoError(t, wait(ctx, "a"))
				go func() { _ = wait(ctx, "a") }()
				synctest.Wait()
				minute, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				require.NoError(t, wait(minute, "b"), "%s, %d", algorithm, kind)
				require.ErrorIs(t, wait(minute, "a"), ratelimit.ErrWouldExceedDeadline, "%s, %d", algorithm, kind)
			})
		}
	}
}

// Who is on a list needs no tenant.
func TestAKeyFunctionThatFailsEndsTheWaitOfThoseWhoAreCounted(t *testing.T) {
	t.Parallel()
	fails := errors.New("no tenant")
	l := inMemory(t, "token_bucket", ratelimit.PerHour(1), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "", fails }))
	list, err := accesslist.NewList("192.0.2.1")
	require.NoError(t, err)
	listed, err := accesslist.New(l, accesslist.WithLists(accesslist.Lists{Allow: list}))
	require.NoError(t, err)
	_, err = ratelimit.Wait(t.Context(), listed, "192.0.2.1", 1)
	require.NoError(t, err)
	waiter, err := throttle.NewWaiter(l, time.Hour)
	require.NoError(t, err)
	_, err = ratelimit.Wait(t.Context(), l, "key", 1)
	require.ErrorIs(t, err, fails)
	_, err = waiter.Allow(t.Context(), "key")
	require.ErrorIs(t, err, fails)
}

// 2 an hour, all spent, and three wait. Then the limit is 5, and one who comes late wants 3.
func TestAHigherLimitIsForThoseWhoCameFirst(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			var rate atomic.Int64
			rate.Store(2)
			l := inMemory(t, algorithm, ratelimit.PerHour(2), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
				return ratelimit.PerHour(int(rate.Load())), nil
			}))
			require.True(t, allowN(t, l, 2).Allowed)
			var line crowd
			for i, n := range []int{1, 1, 1, 3} {
				if n == 3 {
					time.Sleep(2 * time.Second)
					rate.Store(5)
				}
				line.join(t.Context(), l, i, n)
			}
			line.wg.Wait()
			line.keptOrder(t, 4)
		})
	}
}

// Beside a leaky bucket a token bucket gives turns, too. One that comes a moment too late is not asked for
// again and again.
func TestATurnThatComesTooLateIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := inMemory(t, "leaky_bucket", ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 10}, ratelimit.WithName("turns"))
		tokens := inMemory(t, "token_bucket", ratelimit.Limit{Rate: 1, Period: 10 * time.Second, Burst: 2}, ratelimit.WithName("tokens"))
		far := known{&remote{Limiter: all(t, turns, tokens)}}
		require.True(t, allowN(t, far, 1).Allowed)
		began := time.Now()
		var line crowd
		line.join(t.Context(), far, 0, 1) // in a second
		ctx, cancel := context.WithTimeout(t.Context(), 9950*time.Millisecond)
		defer cancel()
		line.join(ctx, far, 1, 1) // in ten
		line.wg.Wait()
		require.Equal(t, []int{0}, line.served)
		require.ErrorIs(t, line.errs[1], ratelimit.ErrWouldExceedDeadline)
		require.Less(t, time.Since(began), 2*time.Second)
		require.LessOrEqual(t, far.asked.Load(), int64(5))
	})
}

// Another process takes the turn that the first was to have. The one behind it has time for the next.
func TestALateTurnOfTwoBucketsIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}
		l := all(t, inMemory(t, "token_bucket", one), inMemory(t, "token_bucket", ratelimit.PerHour(100), ratelimit.WithName("more")))
		require.True(t, allowN(t, l, 1).Allowed)
		far, began := known{&remote{Limiter: l}}, time.Now()
		var line crowd
		for i, left := range []time.Duration{1003 * time.Millisecond, 2004 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			line.join(ctx, far, i, 1)
		}
		time.Sleep(990 * time.Millisecond)
		r, err := ratelimit.AllowWithin(t.Context(), l, "key", 1, time.Second)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		line.wg.Wait()
		require.Equal(t, []int{1}, line.served, line.errs)
		require.Less(t, time.Since(began), 2001*time.Millisecond)
	})
}

// One request a second, and tokens. Who wants 1 token leaves its permit, and the next wants 1,200.
func TestAPermitForOneTokenIsNotOneForMany(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			calls := inMemory(t, algorithm, ratelimit.PerSecond(1), ratelimit.WithName("requests"), ratelimit.CountCalls())
			tokens := inMemory(t, "token_bucket", ratelimit.PerHour(2000), ratelimit.WithName("tokens"))
			l := all(t, calls, tokens)
			require.True(t, allowN(t, l, 1).Allowed)
			ctx, leave := context.WithCancel(t.Context())
			var line crowd
			line.join(ctx, l, 0, 1)
			line.join(t.Context(), l, 1, 1200)
			time.Sleep(998 * time.Millisecond)
			leave()
			line.wg.Wait()
			require.Equal(t, []int{1}, line.served)
			require.LessOrEqual(t, peek(t, tokens, "key").Remaining, 801, algorithm)
		})
	}
}

// A log gives back events as they were taken, and not one after each mean of a step. So the last of
// these, who has 10 s, gets what is free in 4.
func TestNobodyIsRefusedByTheMeanOfALogBesideALeakyBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := all(t, inMemory(t, "leaky_bucket", ratelimit.PerSecond(10)), inMemory(t, "sliding_log", ratelimit.PerMinute(4)))
		require.True(t, allowN(t, l, 2).Allowed)
		time.Sleep(56 * time.Second)
		far := known{&remote{Limiter: l, way: 500 * time.Millisecond}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var line crowd
		line.join(t.Context(), far, 0, 1)
		line.join(t.Context(), far, 1, 1)
		line.join(ctx, far, 2, 1)
		line.wg.Wait()
		require.NoError(t, line.errs[2])
	})
}

// One has its turn in an hour, and sleeps. After a Reset there is room for all who come.
func TestASleepingWaiterDoesNotHideAReset(t *testing.T) {
	t.Parallel()
	for kind := range 3 {
		synctest.Test(t, func(t *testing.T) {
			l := inMemory(t, "leaky_bucket", ratelimit.Limit{Rate: 1, Period: time.Hour, Burst: 10})
			if kind == 1 {
				l = all(t, l, inMemory(t, "token_bucket", ratelimit.PerSecond(1000), ratelimit.WithName("each")))
			}
			waiter, err := throttle.NewWaiter(l, time.Minute)
			require.NoError(t, err)
			require.True(t, allowN(t, l, 1).Allowed)
			ctx, leave := context.WithCancel(t.Context())
			var line crowd
			line.join(ctx, l, 0, 1)
			for range 3 {
				time.Sleep(2 * time.Second)
				require.NoError(t, l.Reset(t.Context(), "key"))
				if kind == 2 {
					r, err := waiter.Allow(t.Context(), "key")
					require.NoError(t, err)
					require.True(t, r.Allowed)
					continue
				}
				minute, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := ratelimit.Wait(minute, l, "key", 1)
				cancel()
				require.NoError(t, err, kind)
			}
			leave()
			line.wg.Wait()
		})
	}
}
