package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func rateAndSlots(t *testing.T, perHour, n int) (ratelimit.Limiter, *ratelimit.All) {
	s, err := memstore.New()
	require.NoError(t, err)
	bucket, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(perHour), ratelimit.WithName("tokens"))
	require.NoError(t, err)
	l, err := ratelimit.NewAll(bucket, slots(t, s, n, ratelimit.WithName("at_once")))
	require.NoError(t, err)
	return l, l
}

// The first in the queue wants many tokens, which come in half an hour, and hangs up. The next wants one, and there
// are 500: it does not sleep for half an hour.
func TestNobodyWaitsForWhatOneWhoLeftHasWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := rateAndSlots(t, 1000, 8)
		s, r, err := inflight.Hold(t.Context(), l, "key", 500)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		s.Release()
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _, _ = inflight.Wait(ctx, l, "key", 1000) }()
		synctest.Wait()
		got := make(chan time.Time, 1)
		go func() {
			s, _, err := inflight.Wait(t.Context(), l, "key", 1)
			require.NoError(t, err)
			s.Release()
			got <- time.Now()
		}()
		synctest.Wait()
		began := time.Now()
		leave()
		require.LessOrEqual(t, (<-got).Sub(began), time.Second, "all 8 slots and 500 tokens are free, and nobody is before it")
	})
}

// The same by Hold with WaitUpTo, which does not deny it.
func TestNobodyIsDeniedForWhatOneWhoLeftHasWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := rateAndSlots(t, 1000, 8)
		s, _, err := inflight.Hold(t.Context(), l, "key", 999)
		require.NoError(t, err)
		s.Release()
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = inflight.Hold(ctx, l, "key", 10, inflight.WaitUpTo(time.Minute)) // in 32.4 s
		}()
		synctest.Wait()
		time.AfterFunc(100*time.Millisecond, leave)
		slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(5*time.Second))
		slot.Release()
		<-done
		synctest.Wait()
		require.NoError(t, err)
		require.True(t, r.Allowed, "there was a token and 8 free slots, and nobody else for 4.9 s: %+v", r)
	})
}

// The ErrWouldExceedDeadline of a rate comes at once, as Wait's documentation says.
func TestARateBesideFullSlotsIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := rateAndSlots(t, 1, 1)
		a, _, err := inflight.Hold(t.Context(), l, "key", 1)
		require.NoError(t, err)
		defer a.Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, _, err = inflight.Wait(ctx, l, "key", 1)
		t.Log(err)
		require.Zero(t, time.Since(began), "the rate has no room for an hour")
	})
}

// Tokens that are given back after the Release are seen by who waits for them.
func TestASettleAfterTheReleaseIsSeenByWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := rateAndSlots(t, 1000, 8)
		a, _, err := inflight.Hold(t.Context(), l, "key", 1000)
		require.NoError(t, err)
		got := make(chan time.Time, 1)
		go func() {
			s, _, err := inflight.Wait(t.Context(), l, "key", 500)
			require.NoError(t, err)
			s.Release()
			got <- time.Now()
		}()
		synctest.Wait()
		began := time.Now()
		a.Release()
		synctest.Wait()
		require.NoError(t, a.Settle(t.Context(), 10))
		require.LessOrEqual(t, (<-got).Sub(began), time.Second, "990 tokens are free")
	})
}

func TestAResetIsSeenByWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all := rateAndSlots(t, 1000, 8)
		a, _, err := inflight.Hold(t.Context(), l, "key", 1000)
		require.NoError(t, err)
		a.Release()
		got := make(chan time.Time, 1)
		go func() {
			s, _, err := inflight.Wait(t.Context(), l, "key", 500)
			require.NoError(t, err)
			s.Release()
			got <- time.Now()
		}()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, all.Reset(t.Context(), "key"))
		require.LessOrEqual(t, (<-got).Sub(began), time.Second)
	})
}

// A key is Unlimited, and then has 1 slot: its queue does not ask as fast as the store answers.
func TestAfterUnlimitedWaitersAskSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = time.Millisecond
		var limited atomic.Bool
		l := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if limited.Load() {
				return ratelimit.PerHour(1), nil
			}
			limited.Store(true)
			time.Sleep(time.Millisecond) // as a database
			return ratelimit.Unlimited(), nil
		}))
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if slot, _, err := inflight.Wait(ctx, l, "key", 1); err == nil {
					<-ctx.Done()
					slot.Release()
				}
			})
		}
		time.Sleep(time.Minute)
		called := s.called.Load()
		time.Sleep(10 * time.Second)
		n := s.called.Load() - called
		end()
		all.Wait()
		time.Sleep(time.Second)
		require.LessOrEqual(t, n, int64(60), "calls of the store in 10 s: one question a second, and renewals")
	})
}

// For an All of tokens and 1,000 slots, a caller that wants more tokens than there are does not ask
// 999 times in a row, nor as often as it would ask for a slot.
func TestCallersThatLackTokensAskOncePerFreeSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		bucket, err := ratelimit.NewTokenBucket(s.Store, ratelimit.PerHour(100_000), ratelimit.WithName("tokens"))
		require.NoError(t, err)
		var asked atomic.Int64
		at := slots(t, s.Store, 1000, ratelimit.WithName("at_once"))
		both, err := ratelimit.NewAll(bucket, at)
		require.NoError(t, err)
		l := countedCalls{both, &asked}
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				slot, _, err := inflight.Wait(ctx, l, "key", 40_000)
				if err == nil {
					<-ctx.Done()
					slot.Release()
				}
			})
		}
		time.Sleep(time.Millisecond)
		n := asked.Load()
		time.Sleep(10 * time.Second)
		later := asked.Load() - n
		end()
		all.Wait()
		require.LessOrEqual(t, n, int64(10), "questions of 3 waiters within 1 ms")
		require.LessOrEqual(t, later, int64(11), "one per second, because the tokens are missing for longer")
	})
}

type countedCalls struct {
	ratelimit.Limiter
	asked *atomic.Int64
}

func (c countedCalls) Unwrap() ratelimit.Limiter { return c.Limiter }

func (c countedCalls) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	c.asked.Add(1)
	time.Sleep(time.Microsecond)
	return c.Limiter.AllowN(ctx, key, n)
}

// While the store fails, FailOpen lets all through, and those who wait not one each 5 ms.
func TestFailOpenIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		inner := slots(t, s, 8)
		l, err := fallback.New(inner, fallback.FailOpen())
		require.NoError(t, err)
		s.down.Store(true)
		began := time.Now()
		var all sync.WaitGroup
		var last atomic.Int64
		for range 1000 {
			all.Go(func() {
				slot, _, err := inflight.Wait(t.Context(), l, "key", 1)
				require.NoError(t, err)
				last.Store(int64(time.Since(began)))
				slot.Release()
			})
		}
		all.Wait()
		synctest.Wait()
		require.LessOrEqual(t, time.Duration(last.Load()), 100*time.Millisecond, "until all 1,000 were let through")
	})
}

// The same by WaitUpTo, which denies nobody either.
func TestFailOpenDeniesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, err := fallback.New(slots(t, s, 8), fallback.FailOpen())
		require.NoError(t, err)
		var held []*inflight.Slot
		for range 8 {
			held = append(held, hold(t, l))
		}
		var all sync.WaitGroup
		var denied atomic.Int64
		for range 1000 {
			all.Go(func() {
				slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(2*time.Second), inflight.MaxWaiting(1000))
				require.NoError(t, err)
				if !r.Allowed {
					denied.Add(1)
				}
				slot.Release()
			})
		}
		time.Sleep(10 * time.Millisecond)
		s.down.Store(true)
		all.Wait()
		s.down.Store(false)
		for _, s := range held {
			s.Release()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Zero(t, denied.Load(), "of 1,000, though FailOpen admits all since 1.99 s")
	})
}

// A limit in shadow mode changes nothing, so nobody waits for it.
func TestAShadowIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, err := shadow.New(slots(t, s, 1), func(context.Context, string, int, ratelimit.Result, error) {})
		require.NoError(t, err)
		began := time.Now()
		var all sync.WaitGroup
		var last atomic.Int64
		for range 1000 {
			all.Go(func() {
				slot, r, err := inflight.Wait(t.Context(), l, "key", 1)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				last.Store(int64(time.Since(began)))
				time.Sleep(time.Minute)
				slot.Release()
			})
		}
		all.Wait()
		synctest.Wait()
		require.LessOrEqual(t, time.Duration(last.Load()), 100*time.Millisecond, "until all 1,000 were let through")
	})
}

// A limit function that fails at the Release, once, does not keep the slot.
func TestASlotIsFreeThoughTheLimitFunctionFailsAtItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		var fails atomic.Bool
		l := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if fails.Load() {
				return ratelimit.Limit{}, errors.New("the database is away")
			}
			return ratelimit.PerHour(1), nil
		}))
		a := hold(t, l)
		fails.Store(true)
		a.Release()
		fails.Store(false)
		a.Release()
		time.Sleep(24 * 365 * time.Hour)
		require.Equal(t, 1, free(t, l), "a year after the Release")
	})
}

func TestASlotIsFreeThoughTheKeyFunctionFailsAtItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		var fails atomic.Bool
		l := slots(t, s, 1, ratelimit.WithKeyFunc(func(context.Context, string) (string, error) {
			if fails.Load() {
				return "", errors.New("the database is away")
			}
			return "tenant", nil
		}))
		a := hold(t, l)
		fails.Store(true)
		a.Release()
		fails.Store(false)
		time.Sleep(24 * 365 * time.Hour)
		require.Equal(t, 1, free(t, l), "a year after the Release")
	})
}

// The same on a store with a life, which the slot does not wait for.
func TestAFarSlotIsFreeThoughTheLimitFunctionFailsAtItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		var fails atomic.Bool
		l, err := inflight.New(s, 1, 24*time.Hour, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if fails.Load() {
				return ratelimit.Limit{}, errors.New("the database is away")
			}
			return ratelimit.PerHour(1), nil
		}))
		require.NoError(t, err)
		a := hold(t, l)
		fails.Store(true)
		a.Release()
		synctest.Wait()
		fails.Store(false)
		time.Sleep(time.Hour)
		require.Equal(t, 1, free(t, l), "an hour after the Release")
	})
}

// The limit function's own timeout is an error, and no denial.
func TestAnErrorIsNoDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		var fails atomic.Bool
		l := slots(t, s, 1, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			if fails.Load() {
				return ratelimit.Limit{}, fmt.Errorf("database: %w", context.DeadlineExceeded)
			}
			return ratelimit.PerHour(1), nil
		}))
		a := hold(t, l)
		time.AfterFunc(time.Second, func() { fails.Store(true) })
		began := time.Now()
		_, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(time.Hour))
		fails.Store(false)
		a.Release()
		time.Sleep(5 * time.Second)
		t.Log(time.Since(began))
		require.Error(t, err, "%v", r)
	})
}

// The RetryAfter of a caller that has waited counts from the denial, even if its last request was
// long ago.
func TestRetryAfterIsNotOfLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, err := inflight.New(s, 2, 10*time.Second)
		require.NoError(t, err)
		for range 2 { // two slots of a process that has died
			_, err := l.Allow(t.Context(), "key")
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
		}
		type told struct {
			r   ratelimit.Result
			err error
		}
		got := make(chan told)
		go func() { // it stands first
			slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(5900*time.Millisecond))
			slot.Release()
			got <- told{r, err}
		}()
		first := <-got
		now, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.InDelta(t, now.RetryAfter, first.r.RetryAfter, float64(50*time.Millisecond))
		require.InDelta(t, now.ResetAfter, first.r.ResetAfter, float64(50*time.Millisecond))
		time.Sleep(time.Minute)
	})
}

// A denial of a full queue: RetryAfter is not after ResetAfter.
func TestRetryAfterIsBeforeResetAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l := slots(t, s, 1)
		s.way = time.Second
		go func() {
			slot, _, _ := inflight.Wait(t.Context(), l, "key", 1)
			slot.Release()
		}()
		synctest.Wait()
		_, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(time.Second), inflight.MaxWaiting(1))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.False(t, r.Allowed)
		require.Zero(t, r.Remaining)
		require.Zero(t, r.Delay)
		require.LessOrEqual(t, r.RetryAfter, r.ResetAfter)
	})
}

// With tiers too: a Release of a key asks the store for no waiter of another one.
func TestWithTiersAReleaseOfAnotherKeyWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		l, err := inflight.New(s, 1, 24*time.Hour, ratelimit.WithTiers(func(context.Context, string) (string, error) { return "", nil },
			map[string]ratelimit.Limit{"x": ratelimit.PerHour(2)}))
		require.NoError(t, err)
		a := hold(t, l)
		ctx, end := context.WithCancel(t.Context())
		go func() {
			slot, _, _ := inflight.Wait(ctx, l, "key", 1)
			slot.Release()
		}()
		time.Sleep(10*time.Second + 1*time.Millisecond)
		called := s.called.Load()
		for i := range 100 {
			slot, _, err := inflight.Hold(t.Context(), l, fmt.Sprint("other", i), 1)
			require.NoError(t, err)
			slot.Release()
			synctest.Wait()
		}
		n := s.called.Load() - called
		end()
		a.Release()
		time.Sleep(time.Minute)
		require.EqualValues(t, 200, n, "100 Holds and Releases of other keys")
	})
}

func perKeyAndTotal(t *testing.T, perKey, total int) (ratelimit.Limiter, *ratelimit.Custom) {
	s, err := memstore.New()
	require.NoError(t, err)
	each := slots(t, s, perKey, ratelimit.WithName("each"))
	all := slots(t, s, total, ratelimit.WithName("total"), ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil }))
	l, err := ratelimit.NewAll(each, all)
	require.NoError(t, err)
	return l, all
}

func holdOf(t *testing.T, l ratelimit.Limiter, key string) *inflight.Slot {
	s, r, err := inflight.Hold(context.Background(), l, key, 1)
	require.NoError(t, err)
	require.True(t, r.Allowed, key)
	return s
}

// waitFor has one wait for a slot of key in the background, and tells after how long since *from it had it.
func waitFor(t *testing.T, ctx context.Context, l ratelimit.Limiter, key string) <-chan time.Time {
	got := make(chan time.Time, 1)
	go func() {
		s, _, err := inflight.Wait(ctx, l, key, 1)
		if err != nil {
			return
		}
		got <- time.Now()
		<-t.Context().Done()
		s.Release()
	}()
	synctest.Wait()
	return got
}

// a2 waits for its own key's slot; c waits for the total. b gives back a slot of the total: c should have it at once.
func TestAReleaseWakesAQueueThatCanUseTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer end()
		l, total := perKeyAndTotal(t, 1, 2)
		first, b := holdOf(t, l, "a"), holdOf(t, l, "b")
		defer first.Release()
		waitFor(t, ctx, l, "a")
		c := waitFor(t, ctx, l, "c")
		time.Sleep(10 * time.Second)
		r, err := total.Peek(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, 0, r.Remaining)
		began := time.Now()
		b.Release()
		at := <-c
		require.Zero(t, at.Sub(began), "c slept though a slot was free")
	})
}

// Two slots of the total are given back at one instant, by b. Two keys wait, one waiter each.
func TestTwoReleasesWakeTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer end()
		l, _ := perKeyAndTotal(t, 2, 2)
		b1, b2 := holdOf(t, l, "b"), holdOf(t, l, "b")
		c, d := waitFor(t, ctx, l, "c"), waitFor(t, ctx, l, "d")
		time.Sleep(10 * time.Second)
		began := time.Now()
		b1.Release()
		b2.Release()
		require.Zero(t, (<-c).Sub(began))
		require.Zero(t, (<-d).Sub(began), "d slept though a slot was free")
	})
}

// A waiter that is woken and leaves notifies the other queues.
func TestAWokenWaiterThatLeavesLeavesTheSlotToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer end()
		l, _ := perKeyAndTotal(t, 2, 1)
		b := holdOf(t, l, "b")
		gone, leave := context.WithCancel(ctx)
		waitFor(t, gone, l, "c")
		d := waitFor(t, ctx, l, "d")
		time.Sleep(10 * time.Second)
		began := time.Now()
		leave()
		b.Release()
		require.Zero(t, (<-d).Sub(began), "d slept though a slot was free")
	})
}

// A key for which nobody waits any more does not keep a Release from waking those that wait for another.
func TestAQueueThatEndsKeepsNoReleaseFromOthers(t *testing.T) {
	inflight.ForgetShares()
	synctest.Test(t, func(t *testing.T) {
		l := slots(t, newRemote(t), 1)
		a, b := holdOf(t, l, "a"), holdOf(t, l, "b")
		ctx, end := context.WithCancel(t.Context())
		gone, leave := context.WithCancel(t.Context())
		waitFor(t, gone, l, "a")
		got := waitFor(t, ctx, l, "b")
		time.Sleep(time.Second)
		leave()
		synctest.Wait()
		began := time.Now()
		b.Release()
		require.Zero(t, (<-got).Sub(began))
		a.Release()
		end()
		synctest.Wait()
	})
}

// g and h always have somebody waiting; each may hold one of two. c waits for a minute, and gets one.
func TestBusyKeysDoNotStarveAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		l, _ := perKeyAndTotal(t, 1, 2)
		var served atomic.Int64
		for _, key := range []string{"g", "h"} {
			for range 3 {
				go func() {
					for {
						s, _, err := inflight.Wait(ctx, l, key, 1)
						if err != nil {
							return
						}
						served.Add(1)
						time.Sleep(10 * time.Millisecond)
						s.Release()
					}
				}()
			}
		}
		time.Sleep(time.Second)
		before := served.Load()
		s, r, err := inflight.Hold(ctx, l, "c", 1, inflight.WaitUpTo(time.Minute))
		n := served.Load() - before
		s.Release()
		end()
		time.Sleep(time.Second)
		require.NoError(t, err)
		require.True(t, r.Allowed, "c waited for a minute while %d others, most of whom came later, had a slot", n)
	})
}

func TestNewcomersAskImmediatelyIfNoSlotIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		l, err := inflight.New(s, 2000, 24*time.Hour)
		require.NoError(t, err)
		var all sync.WaitGroup
		var mu sync.Mutex
		var sum time.Duration
		n := 0
		for i := range 1000 {
			all.Go(func() {
				began := time.Now()
				slot := wait(t.Context(), t, l, "key")
				if i > 200 {
					mu.Lock()
					sum += time.Since(began)
					n++
					mu.Unlock()
				}
				time.Sleep(time.Minute)
				slot.Release()
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		time.Sleep(5 * time.Second)
		t.Log(sum / time.Duration(n))
		require.Less(t, sum/time.Duration(n), 22*time.Millisecond, "on average, of a question that takes 20 ms, with 1,000 of 2,000 slots free")
	})
}

func TestTheNewestDenialIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote(t)
		s.way = 20 * time.Millisecond
		l := slots(t, s, 2, ratelimit.WithName("x"))
		other := slots(t, &remote{Store: s.Store}, 2, ratelimit.WithName("x"))
		a, b := hold(t, l), hold(t, l)
		got := make(chan ratelimit.Result, 2)
		for range 2 {
			go func() {
				slot, r, err := inflight.Hold(t.Context(), l, "key", 1, inflight.WaitUpTo(20*time.Second))
				require.NoError(t, err)
				slot.Release()
				got <- r
			}()
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		a.Release()
		b.Release()
		time.Sleep(s.way + time.Microsecond) // the slots are free now, and the waiters have not heard of it
		c, d := hold(t, other), hold(t, other)
		first, second := <-got, <-got
		now, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		c.Release()
		d.Release()
		time.Sleep(time.Minute)
		require.False(t, first.Allowed)
		require.False(t, second.Allowed)
		require.InDelta(t, now.RetryAfter, first.RetryAfter, float64(1100*time.Millisecond))
		require.InDelta(t, now.RetryAfter, second.RetryAfter, float64(1100*time.Millisecond))
	})
}

type tenant struct{}

// Tenant a holds its slot, and has one waiting. Tenant b holds none.
func TestTenantsDoNotWaitInOneQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		l := slots(t, s, 1, ratelimit.WithKeyFunc(func(ctx context.Context, key string) (string, error) {
			of, _ := ctx.Value(tenant{}).(string)
			return of + "/" + key, nil
		}))
		a, b := context.WithValue(t.Context(), tenant{}, "a"), context.WithValue(t.Context(), tenant{}, "b")
		first, _, err := inflight.Hold(a, l, "key", 1)
		require.NoError(t, err)
		next := waitFor(t, a, l, "key")
		synctest.Wait()
		began := time.Now()
		minute, cancel := context.WithTimeout(b, time.Minute)
		defer cancel()
		second, _, err := inflight.Wait(minute, l, "key", 1)
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		first.Release()
		require.Zero(t, (<-next).Sub(began))
		second.Release()
	})
}

// In an outage a slot of a local limiter that is given back wakes who waits for it, also of an All.
func TestAReleaseInAnOutageWakesWhoWaits(t *testing.T) {
	for _, several := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newRemote(t)
			atOnce, err := inflight.New(s, 1, 24*time.Hour, ratelimit.WithName("at_once"))
			require.NoError(t, err)
			var inside ratelimit.Limiter = atOnce
			if several {
				rate, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName("rate"))
				require.NoError(t, err)
				inside, err = ratelimit.NewAll(rate, atOnce)
				require.NoError(t, err)
			}
			l, err := fallback.New(inside, fallback.FailLocal(1))
			require.NoError(t, err)
			s.down.Store(true)
			a := hold(t, l)
			next := waitFor(t, t.Context(), l, "key")
			time.Sleep(10 * time.Second)
			began := time.Now()
			a.Release()
			require.Zero(t, (<-next).Sub(began), "in an All: %v", several)
		})
	}
}
