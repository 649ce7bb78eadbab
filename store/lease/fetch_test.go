package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
)

const (
	life = 50 * time.Millisecond
	trip = 10 * time.Millisecond
)

// window is a limit whose windows last long enough.
var window = ratelimit.PerMinute(1_000_000)

// A lease ends a life after the store was asked, to the nanosecond, and not after its answer.
func TestLeaseEndsALifeAfterTheStoreWasAsked(t *testing.T) {
	for _, late := range []time.Duration{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t), latency: trip}
			d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
			for d.Stats().Held < 4 { // and then no further lease is on its way
				began := time.Now()
				if allow(t, d).Source() == ratelimit.SourceStore {
					require.Equal(t, trip, time.Since(began))
				}
			}
			time.Sleep(life - trip - 1 + late)
			require.Equal(t, late == 0, allow(t, d).Source() == ratelimit.SourceLease)
			closeLease(t, d)
		})
	}
}

// A lease of a window ends before its window, by as much as clocks may differ.
func TestLeaseEndsWithItsWindow(t *testing.T) {
	for _, algorithm := range algorithms[:2] {
		for _, late := range []time.Duration{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				d := newLease(t, newLimiter(t, algorithm, memory(t), ratelimit.Limit{Rate: 1_000_000, Period: time.Second}), time.Second)
				time.Sleep(1900 * time.Millisecond)
				for d.Stats().Held < 4 {
					require.True(t, allow(t, d).Allowed)
				}
				time.Sleep(100*time.Millisecond - 100*time.Microsecond - time.Microsecond - 1 + late)
				require.Equal(t, late == 0, d.Stats().Held > 0)
				require.Equal(t, late == 0, allow(t, d).Source() == ratelimit.SourceLease)
				closeLease(t, d)
			})
		}
	}
}

// The size of leases follows demand.
func TestLeasesFollowTheDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "sliding_window", s, window), life, lease.WithMaxLease(16))
		ask := func(times int) {
			for range times {
				require.True(t, allow(t, d).Allowed)
				synctest.Wait()
			}
		}
		ask(100)
		require.Equal(t, []int{1, 1, 2, 4, 8, 16}, asked(s.reset(), "TakeUpTo")[:6], "it doubles while it is spent at once")
		held := d.Stats().Held
		require.Positive(t, held)
		ask(held) // it fetches ahead when a quarter is left
		require.Positive(t, d.Stats().Held)
		require.Equal(t, 16, asked(s.reset(), "TakeUpTo")[0])
		time.Sleep(2 * life)
		s.reset()
		ask(3)
		first := asked(s.reset(), "TakeUpTo")
		time.Sleep(2 * life)
		ask(1)
		require.Equal(t, []int{first[0], 3}, append(first, asked(s.reset(), "TakeUpTo")...), "as many as were spent")

		errBroken := fmt.Errorf("%w: broken", store.ErrUnavailable)
		s.set(0, func(op string) error {
			if op == "TakeUpTo" {
				return errBroken
			}
			return nil
		})
		for range 40 { // first there is a lease
			if _, err := d.Allow(t.Context(), "key"); err != nil {
				require.ErrorIs(t, err, errBroken)
			}
			synctest.Wait()
		}
		s.set(0, nil)
		s.reset()
		ask(1)
		require.Equal(t, []int{1}, asked(s.reset(), "TakeUpTo"), "what was lost may be charged")
		require.Positive(t, d.Stats().Lost)
		closeLease(t, d)
	})
}

// Nobody waits for the store under a steady demand: the next lease is there before the current one is used up.
func TestUnderASteadyDemandNobodyWaits(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			d := newLease(t, newLimiter(t, algorithm, s, window), life)
			hold(t, d, 60)
			s.set(trip/5, nil)
			began := time.Now()
			for range 1000 {
				r, err := ratelimit.AllowWithin(t.Context(), d, "key", 1, 0) // which is as an Allow
				require.NoError(t, err)
				require.True(t, r.Allowed)
				time.Sleep(life / 100)
			}
			require.Equal(t, 10*life, time.Since(began))
			s.set(0, nil)
			closeLease(t, d)
		})
	})
}

// Under a steady demand leases grow until they last for half of a life.
func TestLeasesGrowUntilTheyLastForHalfALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "sliding_window", s, window), life)
		for range 1000 {
			time.Sleep(life / 5)
			require.True(t, allow(t, d).Allowed)
		}
		sizes := asked(s.reset(), "TakeUpTo")
		require.LessOrEqual(t, slices.Max(sizes), 4)
		require.LessOrEqual(t, len(sizes), 1000/3)
		require.LessOrEqual(t, d.Stats().Lapsed, int64(1000/6))
		closeLease(t, d)
	})
}

// Events that lapse during a call are refunded after it has ended, and not overwritten.
func TestEventsThatLapseDuringACallAreRefundedAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		s := &recorder{Store: mem}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		taken := len(hold(t, d, 1))
		time.Sleep(life + 10*time.Millisecond) // the timer comes 10 ms before the next lease ends
		taken += len(hold(t, d, 20))
		time.Sleep(life - 5*time.Millisecond)
		s.set(trip, nil)
		for asked := d.Stats().Asked; asked == d.Stats().Asked; { // for another one
			taken++
			require.Equal(t, ratelimit.SourceLease, allow(t, d).Source())
			synctest.Wait()
		}
		require.Positive(t, d.Stats().Held)
		time.Sleep(2 * trip)
		s.set(0, nil)
		closeLease(t, d)
		require.Equal(t, 1_000_000-taken, remaining(t, newLimiter(t, "fixed_window", mem, window)))
	})
}

// A fixed window is not taken by one process.
func TestLeaseOfAFixedWindowIsHalfAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerMinute(1000)), time.Second)
		left := 1000
		for left > 10 {
			before := d.Stats().Granted
			require.True(t, allow(t, d).Allowed)
			synctest.Wait()
			granted := int(d.Stats().Granted - before)
			require.LessOrEqual(t, granted, max(1, left/2))
			left -= granted
		}
		closeLease(t, d)
	})
}

// Leases of many keys are renewed by several concurrent calls. A caller that needs another lease
// does not wait for these.
func TestNobodyWaitsForLeasesOfOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), latency: 2 * trip}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), life)
		end := time.Now().Add(6 * life)
		var callers sync.WaitGroup
		for i := range 150 {
			callers.Go(func() {
				for key := strconv.Itoa(i); time.Now().Before(end); time.Sleep(time.Millisecond) {
					began := time.Now()
					r, err := d.Allow(t.Context(), key)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.LessOrEqual(t, time.Since(began), 2*s.latency)
				}
			})
		}
		callers.Wait()
		require.Greater(t, d.Stats().Local, 5*d.Stats().Asked)
		s.set(0, nil)
		closeLease(t, d)
	})
}

// Callers who wait are decided on by the answer, however small leases may be, and a store that
// answers more slowly than a life serves them in one round trip.
func TestAStoreThatAnswersMoreSlowlyThanALifeServesInOneRoundTrip(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			const slow = 3 * life
			s := &recorder{Store: memory(t), latency: slow}
			d := newLease(t, newLimiter(t, algorithm, s, window), life, lease.WithMaxLease(2))
			began := time.Now()
			for range 100 {
				require.True(t, allow(t, d).Allowed)
			}
			require.Equal(t, 100*slow, time.Since(began))
			require.LessOrEqual(t, len(s.reset()), 105)
			for range 20 { // the first is under way, and takes the others on its next trip
				began := time.Now()
				var waiting sync.WaitGroup
				for range 50 {
					waiting.Go(func() { require.True(t, allow(t, d).Allowed) })
				}
				waiting.Wait()
				require.LessOrEqual(t, time.Since(began), 2*slow)
			}
			require.LessOrEqual(t, len(s.reset()), 1050/20)
			closeLease(t, d)
		})
	})
}

// At the limit time decides how often the store is asked, not demand.
func TestDenialsAreRemembered(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t)}
			d := newLease(t, newLimiter(t, algorithm, s, perSecond), life)
			seconds, admitted, denied := effort.Of(1, 3, 10), 0, 0
			for range seconds * 10_000 {
				time.Sleep(time.Second / 10_000)
				r := allow(t, d)
				if r.Allowed {
					admitted++
				} else {
					denied++
					require.LessOrEqual(t, r.RetryAfter, time.Second+life)
				}
			}
			calls := len(s.reset())
			t.Logf("%d admitted, %d denied, %d calls", admitted, denied, calls)
			require.Less(t, calls, seconds*5*int(time.Second/life)) // two for each half of a life
			require.Greater(t, admitted, seconds*1000*9/10)
			closeLease(t, d)
		})
	})
}

// After RetryAfter the call is admitted, if nobody else comes.
func TestAfterRetryAfterTheCallIsAdmitted(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d := newLease(t, newLimiter(t, algorithm, memory(t), ratelimit.PerSecond(100)), life)
			for round := range 50 {
				r := allow(t, d)
				for r.Allowed {
					time.Sleep(time.Duration(round) * 10 * time.Microsecond)
					r = allow(t, d)
				}
				if round%2 == 0 { // also what is told a second time
					time.Sleep(r.RetryAfter / 3)
					r = allow(t, d)
					require.False(t, r.Allowed)
				}
				synctest.Wait()
				time.Sleep(r.RetryAfter)
				r = allow(t, d)
				require.True(t, r.Allowed, "round %d: %v", round, r)
			}
			closeLease(t, d)
		})
	})
}

// Several events are admitted from what is held, or by the store, and never in part.
func TestSeveralEventsAreAdmittedAllOrNone(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			d := newLease(t, newLimiter(t, algorithm, s, ratelimit.PerSecond(100)), life)
			taken := len(hold(t, d, 6))
			s.reset()
			before := d.Stats().Held
			r := allowN(t, d, 4)
			require.Equal(t, ratelimit.SourceLease, r.Source())
			require.Equal(t, 4, r.Charged())
			require.Equal(t, before-4, d.Stats().Held)
			require.Empty(t, asked(s.reset(), "Take"))
			taken += 4

			held := d.Stats().Held
			r = allowN(t, d, held+20)
			require.True(t, r.Allowed)
			require.Equal(t, ratelimit.SourceStore, r.Source())
			require.Equal(t, held+20, r.Charged())
			require.Equal(t, held, d.Stats().Held, "what is held stays held")
			taken += held + 20

			r = allowN(t, d, 100-taken)
			require.False(t, r.Allowed, "some of them are held")
			require.Equal(t, held, d.Stats().Held)
			closeLease(t, d)
			require.Equal(t, fullKey(t, d)-taken, allowN(t, d, 1).Remaining+1)
		})
	})
}

// Limits take turns. Each call is decided by its own, and a lease of another is given back.
func TestLimitsThatTakeTurnsDecideEachByItsOwn(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			var limit ratelimit.Limit
			tiered := func() ratelimit.Limiter {
				return newLimiter(t, algorithm, s, ratelimit.PerSecond(1000), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
					return limit, nil
				}))
			}
			d, other := newLease(t, tiered(), life), newLease(t, tiered(), life)
			taken := len(hold(t, d, 8)) + len(hold(t, other, 8))

			limit = ratelimit.PerSecond(500)
			r := allow(t, d)
			taken++
			synctest.Wait()
			require.Equal(t, ratelimit.SourceStore, r.Source())
			require.Greater(t, r.Limit, 400)
			require.LessOrEqual(t, r.Limit, 500)
			require.Zero(t, d.Stats().Held)
			require.Positive(t, d.Stats().GivenBack)
			require.Positive(t, other.Stats().Held, "the other one has not been asked")

			limit = ratelimit.Limit{Period: time.Second} // nothing
			for _, d := range []*onLease{d, other} {
				require.Equal(t, ratelimit.SourceZeroRate, allow(t, d).Source())
				n, r, err := d.AllowUpTo(t.Context(), "key", 2)
				require.NoError(t, err)
				require.Zero(t, n)
				require.False(t, r.Allowed)
			}
			limit = ratelimit.PerSecond(500)
			r = allow(t, other)
			taken++
			require.Equal(t, ratelimit.SourceStore, r.Source(), "what it had was of another limit")
			closeLease(t, d)
			closeLease(t, other)
			require.Equal(t, fullKey(t, d)-taken, remaining(t, d))
		})
	})
}

// A denial under a limit that has changed meanwhile says nothing of today's.
func TestDenialOfAnOlderLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		type tier struct{}
		l := newLimiter(t, "fixed_window", s, ratelimit.PerMinute(10_000), ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (l ratelimit.Limit, err error) {
			l, _ = ctx.Value(tier{}).(ratelimit.Limit)
			return l, nil
		}))
		d := newLease(t, l, time.Second)
		low := context.WithValue(t.Context(), tier{}, ratelimit.PerMinute(100))
		for { // use up the lower one
			r, err := d.Allow(low, "key")
			require.NoError(t, err)
			if !r.Allowed {
				break
			}
		}
		time.Sleep(2 * time.Second)
		s.set(trip, nil)
		var asking sync.WaitGroup
		asking.Go(func() {
			r, err := d.Allow(low, "key")
			require.NoError(t, err)
			require.False(t, r.Allowed)
		})
		asking.Go(func() { // waits behind it
			time.Sleep(trip / 4)
			r, err := d.Allow(low, "key")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, 100, r.Limit)
		})
		time.Sleep(trip / 2)
		require.True(t, allow(t, d).Allowed)
		asking.Wait()
		require.True(t, allow(t, d).Allowed)
		closeLease(t, d)
	})
}

// Events granted under a limit that has since changed are not spent under the current one.
func TestGrantOfAnOlderLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t)}
		limit := ratelimit.PerMinute(10_000)
		l := newLimiter(t, "fixed_window", s, window, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			return limit, nil
		}))
		d := newLease(t, l, time.Second)
		hold(t, d, 20)
		s.set(trip, nil)
		for asked := d.Stats().Asked; asked == d.Stats().Asked; { // for the next lease
			require.Equal(t, ratelimit.SourceLease, allow(t, d).Source())
			synctest.Wait()
		}
		limit = ratelimit.PerMinute(20_000)
		r := allow(t, d) // waits for it, and then asks
		require.Equal(t, 20_000, r.Limit)
		synctest.Wait()
		time.Sleep(2 * trip)
		s.set(0, nil)
		require.Equal(t, 20_000, allow(t, d).Limit)
		closeLease(t, d)
	})
}

// A caller leaves at its deadline, also from a call for others (law 13), and what it does not
// take is there for them.
func TestACallerLeavesAtItsDeadlineAndTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		s := &recorder{Store: mem, latency: 100 * time.Millisecond}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		var asking sync.WaitGroup
		asking.Go(func() { require.True(t, allow(t, d).Allowed) })
		synctest.Wait()
		admitted := 1
		for i := range 20 {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond+1)
				defer cancel()
				began := time.Now()
				r, err := d.Allow(ctx, "key")
				if took := time.Since(began); i < 20 && took < 200*time.Millisecond {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, time.Duration(i)*10*time.Millisecond+1, took)
				} else {
					require.True(t, r.Allowed)
					admitted++
				}
			})
		}
		asking.Go(func() {
			require.True(t, allow(t, d).Allowed)
			admitted++
		})
		asking.Wait()
		s.set(0, nil)
		closeLease(t, d)
		require.Equal(t, 1_000_000-admitted, remaining(t, newLimiter(t, "fixed_window", mem, window)))
	})
}

// Nor is anything lost of a grant that comes for those who have stood behind a call for others.
func TestCallersThatLeaveAQueueTakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		s := &recorder{Store: mem}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		var admitted atomic.Int64
		admitted.Add(int64(len(hold(t, d, 8))))
		s.set(100*time.Millisecond, nil)
		var asking sync.WaitGroup
		for i := range 40 {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if i%2 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
				}
				defer cancel()
				if r, err := d.Allow(ctx, "key"); err == nil {
					require.True(t, r.Allowed)
					admitted.Add(1)
				}
			})
			synctest.Wait()
		}
		asking.Wait()
		s.set(0, nil)
		closeLease(t, d)
		require.Equal(t, 1_000_000-int(admitted.Load()), remaining(t, newLimiter(t, "fixed_window", mem, window)))
	})
}

// Nor is anything lost of a lease that is shared out while some of those leave for whom it has come.
func TestCallersThatLeaveWhileALeaseIsSharedOutTakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		s := &recorder{Store: mem}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		var admitted atomic.Int64
		admitted.Add(int64(len(hold(t, d, 2000))))
		s.set(trip, nil)
		for ; d.Stats().Held > 0; admitted.Add(1) {
			require.True(t, allow(t, d).Allowed)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asking sync.WaitGroup
		for range 1000 {
			asking.Go(func() {
				if r, err := d.Allow(ctx, "key"); err == nil {
					cancel() // so that the others leave
					require.True(t, r.Allowed)
					admitted.Add(1)
				}
			})
		}
		asking.Wait()
		s.set(0, nil)
		closeLease(t, d)
		time.Sleep(time.Second) // what a call under way has charged for callers that have left goes back when it ends
		require.Equal(t, 1_000_000-int(admitted.Load()), remaining(t, newLimiter(t, "fixed_window", mem, window)))
	})
}

// Nobody is asked for who has left.
func TestForWhoHasLeftTheStoreIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), latency: 100 * time.Millisecond}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		var asking sync.WaitGroup
		asking.Go(func() { require.True(t, allow(t, d).Allowed) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := d.Allow(ctx, "key")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		asking.Wait()
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, []call{{"TakeUpTo", 1}}, s.reset())
		closeLease(t, d)
	})
}

// A denial takes one call. The grant that empties a limit shows when there is room again, except
// for a log, which needs a look.
func TestADenialSaysWhenThereIsRoom(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, algorithm string) {
		synctest.Test(t, func(t *testing.T) {
			d, s := onStopped(t, life)
			l, fresh := newLimiter(t, algorithm, d, ratelimit.PerHour(72_000)), 0
			fresh = fullKey(t, l)
			require.True(t, allowN(t, l, fresh-2).Allowed)
			s.reset()
			s.set(10*time.Millisecond, nil)
			told := atOnce(t, l, 4, one)
			want := []call{{"TakeUpTo", 1}, {"TakeUpTo", 3}}
			if algorithm == "sliding_log" {
				want = append(want, call{"Peek", 1})
			}
			require.Equal(t, want, s.reset())
			require.Equal(t, 2, allowed(told, one))
			says, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			for _, r := range told[2:] {
				require.Equal(t, max(says.RetryAfter, life/2), r.RetryAfter) // no sooner than it asks again
				require.Equal(t, max(says.ResetAfter, r.RetryAfter), r.ResetAfter)
			}
			s.reset()
			s.set(0, nil)
			time.Sleep(life)
			require.False(t, allow(t, l).Allowed)
			require.Equal(t, []call{{"TakeUpTo", 1}}, s.reset())
			require.NoError(t, d.Close(t.Context()))
		})
	})
}

// If there is room again by the time of a look, callers are told to come again soon, and when the key will be as new
// if it is not.
func TestARoomThatComesDuringALookIsForThoseWhoComeAgain(t *testing.T) {
	for _, all := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t, stopped)}
			plain := newLimiter(t, "sliding_log", s.Store, ratelimit.PerHour(72_000))
			d := newLease(t, newLimiter(t, "sliding_log", s, ratelimit.PerHour(72_000)), life)
			before := allowN(t, plain, 72_000-2)
			s.set(10*time.Millisecond, func(op string) error {
				switch {
				case op != "Peek":
					return nil
				case all:
					return plain.Reset(t.Context(), "key")
				}
				return plain.Refund(t.Context(), "key", before, 1)
			})
			denied := 0
			for _, r := range atOnce(t, d.limiting, 4, one) {
				if r.Allowed {
					continue
				}
				denied++
				require.LessOrEqual(t, r.RetryAfter, 2*life)
				require.GreaterOrEqual(t, r.ResetAfter, r.RetryAfter)
				require.Equal(t, all, r.ResetAfter <= 2*life)
			}
			require.Equal(t, 2, denied)
			closeLease(t, d)
		})
	}
}

// A call for one caller uses that caller's context. Any other call ends with no caller: a caller
// that leaves does so in time, and the lease is there for others.
func TestACallForALeaseDoesNotEndWithItsCaller(t *testing.T) {
	type tag struct{}
	for n := range 3 { // the leases are of 1, 1 and 2 events
		synctest.Test(t, func(t *testing.T) {
			s := &tagged{recorder: &recorder{Store: memory(t)}, key: tag{}}
			d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
			for range n {
				require.True(t, allow(t, d).Allowed)
			}
			s.set(100*time.Millisecond, nil)
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), tag{}, "mine"), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := d.Allow(ctx, "key")
			if n == 2 {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 50*time.Millisecond, time.Since(began))
				time.Sleep(100 * time.Millisecond)
				require.Equal(t, 2, d.Stats().Held)
			}
			require.Equal(t, n < 2, s.value == "mine")
			s.set(0, nil)
			closeLease(t, d)
		})
	}
}

// Leases grow although every second caller leaves before the store has answered.
func TestCallersInAHurryKeepNoLeaseSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &punctual{&recorder{Store: memory(t)}}
		d := newLease(t, newLimiter(t, "fixed_window", s, window), time.Second)
		s.set(10*time.Millisecond, nil)
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			_, _ = d.Allow(ctx, "key")
			cancel()
			require.True(t, allow(t, d).Allowed)
			synctest.Wait()
		}
		require.Less(t, len(asked(s.reset(), "TakeUpTo")), 10)
		require.Greater(t, d.Stats().Held, 4)
		s.set(0, nil)
		closeLease(t, d)
	})
}

// punctual is a store whose calls for events end with the context.
type punctual struct{ *recorder }

// Decide implements [store.Store].
func (s *punctual) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *punctual) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r, err := s.recorder.TakeUpTo(ctx, ns, key, l, n)
	if ctx.Err() != nil {
		return store.Reply{}, ctx.Err()
	}
	return r, err
}

// tagged is a store that keeps a value of the last context.
type tagged struct {
	*recorder
	key, value any
}

// Decide implements [store.Store].
func (s *tagged) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *tagged) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	s.value = ctx.Value(s.key)
	return store.TakeUpTo(ctx, s.recorder, ns, key, l, n)
}

// The number of events left that one process reports is exact, whether it asks the store, uses a
// lease, or waits for others. Stats counts the decisions without the store.
func TestOneProcessIsToldWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t, stopped)}
		const limit = 1000
		d := newLease(t, newLimiter(t, "fixed_window", s, ratelimit.PerHour(limit)), time.Minute)
		random := rand.New(rand.NewPCG(7, 1))
		taken, held := 0, int64(0)
		for taken < limit+20 {
			s.set(time.Duration(random.IntN(2))*trip, nil)
			for _, r := range atOnce(t, d.limiting, 1+random.IntN(20)*random.IntN(2), one) {
				taken++
				require.Equal(t, taken <= limit, r.Allowed)
				require.Equal(t, max(0, limit-taken), r.Remaining)
				if r.Source() == ratelimit.SourceLease {
					held++
				}
			}
			if random.IntN(2) == 0 { // what is fetched ahead has come
				time.Sleep(trip)
			}
			require.Equal(t, held, d.Stats().Local)
		}
		require.Greater(t, held, int64(limit/2))
		s.set(0, nil)
		closeLease(t, d)
	})
}

// An error of the store is that of all who waited for the call, and of no others.
func TestErrorsGoToAllCallersOfAFetch(t *testing.T) {
	errBroken := fmt.Errorf("%w: broken", store.ErrUnavailable)
	for _, panics := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &recorder{Store: memory(t), latency: trip}
			calls := 0
			s.fail = func(string) error {
				if calls++; calls != 2 {
					return nil
				}
				if panics {
					panic(errBroken)
				}
				return errBroken
			}
			d := newLease(t, newLimiter(t, "token_bucket", s, window), life)
			var asking sync.WaitGroup
			var mu sync.Mutex
			failed := 0
			for i := range 30 { // the first is fetched for alone, 9 are together, the others wait
				asking.Go(func() {
					if i >= 10 {
						time.Sleep(trip + trip/4)
					} else if i > 0 {
						time.Sleep(time.Nanosecond)
					}
					defer func() {
						err, _ := recover().(error)
						if err != nil {
							require.ErrorIs(t, err, errBroken)
							mu.Lock()
							failed++
							mu.Unlock()
						}
					}()
					r, err := d.Allow(t.Context(), "key")
					if err != nil {
						panic(err)
					}
					require.True(t, r.Allowed)
				})
			}
			asking.Wait()
			require.Equal(t, 9, failed)
			require.EqualValues(t, 1, d.Stats().Lost)
			closeLease(t, d)
		})
	}
}

// A fetch for one caller takes its panic and its deadline.
func TestACallThatIsAloneTakesItsPanicAndItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &recorder{Store: memory(t), fail: func(string) error { panic("broken") }}
		d := newLease(t, newLimiter(t, "token_bucket", s, window), life)
		require.PanicsWithValue(t, "broken", func() { _, _ = d.Allow(t.Context(), "key") })
		s.set(0, func(string) error { return errors.New("lost") })
		_, err := d.Allow(t.Context(), "key")
		require.EqualError(t, err, "lost")
		s.set(0, nil)
		require.True(t, allow(t, d).Allowed)
		closeLease(t, d)
	})
}
