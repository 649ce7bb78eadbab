package fallback_test

import (
	"context"
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
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// ---- Handing back.

// upTo is a limiter that has AllowUpTo.
type upTo struct {
	*faulty
	asked []int
}

func (u *upTo) AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error) {
	u.asked = append(u.asked, n)
	peek, err := u.Peek(ctx, key)
	if err != nil {
		return 0, ratelimit.Result{}, err
	}
	if n = min(n, peek.Remaining); n == 0 {
		return 0, peek, nil
	}
	r, err := u.AllowN(ctx, key, n)
	return n, r, err
}

func TestLocalAdmissionsAreChargedToTheStoreBeforeTheNextDecision(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, spent := range []int{0, 4, 8} { // at the store, by others
			synctest.Test(t, func(t *testing.T) {
				inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(10))}
				partial := &upTo{faulty: inner}
				for _, l := range []ratelimit.Limiter{inner, partial} {
					require.NoError(t, inner.Limiter.Reset(t.Context(), "key"))
					lim := failover(t, l, fallback.FailTo(inMemory(t, algorithm, ratelimit.PerHour(5))))
					inner.down.Store(true)
					require.Equal(t, 5, admitted(t, lim, 10))
					partial.asked = nil
					inner.comeBack()
					if spent > 0 {
						allowN(t, inner.Limiter, spent)
					}
					left := max(0, 10-spent-5)
					require.Equal(t, left, admitted(t, lim, 20), "%s, %d spent", algorithm, spent)
				}
				require.Equal(t, 5, partial.asked[0])
				if spent < 8 {
					require.Len(t, partial.asked, 1)
				}
			})
		}
	}
}

// A First is charged as a whole: the events were admitted once.
func TestDebtsOfAFirstAreChargedToOneOfItsLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		s := &testkit.Unreliable{Store: mem}
		plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("plan"))
		credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("credits"))
		first, err := ratelimit.NewFirst(plan, credits)
		require.NoError(t, err)
		lim := failover(t, first, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerDay(5))))
		s.Down.Store(true)
		require.Equal(t, 3, admitted(t, lim, 3))
		s.Down.Store(false)
		time.Sleep(time.Second) // after which a breaker probes
		require.True(t, allow(t, lim, "key").Allowed)
		require.Equal(t, 6, peek(t, plan, "key").Remaining)
		require.Equal(t, 10, peek(t, credits, "key").Remaining)
	})
}

// A plan that counts calls is charged with the calls of an outage, and what it has no room for, with its events, is
// charged to the credits. Inside an All, its other limits are charged with everything.
func TestDebtsOfAFirstThatCountsCallsAreItsCalls(t *testing.T) {
	for _, test := range []struct {
		inAll                             bool
		plan, calls, n, fromPlan, credits int
	}{
		{false, 10, 4, 1, 5, 0}, // and one that pays
		{false, 10, 4, 3, 5, 0},
		{false, 3, 4, 1, 3, 2},
		{false, 3, 4, 3, 3, 4},
		{true, 10, 4, 1, 5, 0},
		{true, 10, 4, 3, 5, 0},
		{true, 3, 5, 2, 3, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &testkit.Unreliable{Store: ratelimit.Must(memstore.New())}
			plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(test.plan), ratelimit.WithName("plan"), ratelimit.CountCalls())
			credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(20), ratelimit.WithName("credits"))
			total := newLimiter(t, "token_bucket", s, ratelimit.PerDay(50), ratelimit.WithName("total"))
			var inner ratelimit.Limiter = ratelimit.Must(ratelimit.NewFirst(plan, credits))
			charged := 0 // to total
			if test.inAll {
				inner, charged = all(t, total, inner), test.calls*test.n+1
			}
			lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerDay(50))))
			s.Down.Store(true)
			for range test.calls {
				require.True(t, allowN(t, lim, test.n).Allowed)
			}
			s.Down.Store(false)
			time.Sleep(time.Second) // after which a breaker probes
			require.True(t, allow(t, lim, "key").Allowed)
			require.Equal(t, test.plan-test.fromPlan, peek(t, plan, "key").Remaining, "%+v", test)
			require.Equal(t, 20-test.credits, peek(t, credits, "key").Remaining, "%+v", test)
			require.Equal(t, 50-charged, peek(t, total, "key").Remaining, "%+v", test)
			require.False(t, lim.Owes("key"))
		})
	}
}

// A local First that counts the calls of a plan, and the events of credits, still counts all of both.
func TestALocalFirstOfCallsAndEventsForgetsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &testkit.Unreliable{Store: ratelimit.Must(memstore.New())}
		total := newLimiter(t, "token_bucket", s, ratelimit.PerDay(50))
		mem := ratelimit.Must(memstore.New())
		plan := newLimiter(t, "token_bucket", mem, ratelimit.PerDay(3), ratelimit.CountCalls())
		credits := newLimiter(t, "token_bucket", mem, ratelimit.PerDay(20))
		lim := failover(t, total, fallback.FailTo(ratelimit.Must(ratelimit.NewFirst(plan, credits))))
		s.Down.Store(true)
		for range 5 { // 3 of the plan, and 2 of the credits
			require.True(t, allowN(t, lim, 2).Allowed)
		}
		s.Down.Store(false)
		time.Sleep(time.Second) // after which a breaker probes
		require.True(t, allow(t, lim, "key").Allowed)
		require.Equal(t, 50-10-1, peek(t, total, "key").Remaining)
	})
}

func TestDebtsOfAFirstAreTheCallsAndEventsOfAnAllInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		s := &testkit.Unreliable{Store: mem}
		plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.WithName("plan"), ratelimit.CountCalls())
		tokens := newLimiter(t, "token_bucket", s, ratelimit.PerDay(100), ratelimit.WithName("tokens"))
		credits := newLimiter(t, "token_bucket", s, ratelimit.PerDay(20), ratelimit.WithName("credits"))
		first, err := ratelimit.NewFirst(all(t, plan, tokens), credits)
		require.NoError(t, err)
		lim := failover(t, first, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerDay(50))))
		s.Down.Store(true)
		for range 4 {
			require.True(t, allowN(t, lim, 3).Allowed)
		}
		s.Down.Store(false)
		time.Sleep(time.Second) // after which a breaker probes
		require.True(t, allow(t, lim, "key").Allowed)
		require.Equal(t, 10-5, peek(t, plan, "key").Remaining)
		require.Equal(t, 100-13, peek(t, tokens, "key").Remaining)
		require.Equal(t, 20, peek(t, credits, "key").Remaining)
		require.False(t, lim.Owes("key"))
	})
}

func TestDebtsWithoutRoomStayOwedWhileTheyAreHeldLocally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "fixed_window", ratelimit.PerMinute(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "fixed_window", ratelimit.Limit{Rate: 5, Period: 2 * time.Minute})))
		inner.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 10))
		allowN(t, inner.Limiter, 8)
		inner.comeBack()
		require.Zero(t, admitted(t, lim, 10), "2 of 5 are paid")
		time.Sleep(time.Minute)
		require.Equal(t, 7, admitted(t, lim, 20), "3 are left")
		time.Sleep(time.Minute)
		require.Equal(t, 10, admitted(t, lim, 20))

		time.Sleep(time.Minute)
		inner.down.Store(true)
		require.Equal(t, 0, admitted(t, lim, 10), "warm")
		time.Sleep(time.Minute)
		require.Equal(t, 5, admitted(t, lim, 10))
		allowN(t, inner.Limiter, 10)
		inner.comeBack()
		require.Zero(t, admitted(t, lim, 10), "nothing can be paid")
		time.Sleep(2 * time.Minute)
		require.Equal(t, 10, admitted(t, lim, 20), "nor is it owed any more")
	})
}

func TestAKeyOwesUntilTheStoreIsChargedOrTheLocalLimiterHasForgotten(t *testing.T) {
	require.False(t, new(fallback.Limiter).Owes("key"))
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		allowN(t, lim, 1)
		require.False(t, lim.Owes("key"), "the store has admitted it")
		inner.down.Store(true)
		allowN(t, lim, 1)
		require.True(t, lim.Owes("key"))
		require.False(t, lim.Owes("other"))
		inner.comeBack()
		peek(t, lim, "key")
		require.False(t, lim.Owes("key"))

		inner.down.Store(true)
		allowN(t, lim, 1)
		time.Sleep(time.Hour)
		require.False(t, lim.Owes("key"))
	})
}

func TestAPeekAfterAnOutageKnowsWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		inner.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 10))
		inner.comeBack()
		for range 2 {
			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 5, peek.Remaining)
		}
	})
}

func TestEventsThatDecayedLocallyAreNotOwed(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(10))}
			lim := failover(t, inner, fallback.FailTo(inMemory(t, algorithm, ratelimit.PerMinute(5))))
			inner.down.Store(true)
			require.Equal(t, 5, admitted(t, lim, 10))
			time.Sleep(3 * time.Minute)
			require.Equal(t, 2, admitted(t, lim, 2))
			inner.comeBack()
			require.Equal(t, 8, admitted(t, lim, 20), algorithm)
		})
	}
}

// What a Charge adds to the local count is not taken for what the key owed before.
func TestAChargeAfterAnOutageIsPaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerMinute(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerMinute(10))))
		inner.down.Store(true)
		allowN(t, lim, 5)
		time.Sleep(23 * time.Second)
		inner.comeBack() // 1 of them is left
		_, err := ratelimit.Charge(t.Context(), lim, "key", 4)
		require.NoError(t, err)
		require.Equal(t, 5, admitted(t, lim, 10))
	})
}

// Two limiters share a limit, and a memory for outages. What the store admits through one of them is not taken for what
// the other one owed until its events had left, or until a Reset.
func TestWhatNoLongerCountsIsNotPaidByEventsOfOthers(t *testing.T) {
	for name, c := range map[string]struct{ reset, long bool }{"time": {}, "a Reset": {reset: true}, "a long outage": {long: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBreakable(t)
				on := fallback.FailLocal(1).On(ratelimit.Must(memstore.New()))
				lim := failover(t, newLimiter(t, "token_bucket", s, ratelimit.PerMinute(10)), on)
				route := failover(t, newLimiter(t, "token_bucket", s, ratelimit.PerMinute(10)), on)
				s.down.Store(true)
				allowN(t, lim, 3)
				_, err := lim.AllowN(t.Context(), "other", 10) // for longer than key
				require.NoError(t, err)
				for i := 0; c.long && i < 5; i++ { // the breaker opens
					_, err = lim.Peek(t.Context(), "other")
					require.NoError(t, err)
				}
				s.down.Store(c.long)
				if time.Sleep(18 * time.Second); c.reset {
					s.down.Store(true)
					allowN(t, lim, 3)
					s.down.Store(false)
					require.NoError(t, lim.Reset(t.Context(), "key"))
					require.False(t, lim.Owes("key"))
				}
				owed := 0
				if c.long {
					owed = 1
					allowN(t, lim, owed)
					s.down.Store(false)
					time.Sleep(time.Second)
				}
				allowN(t, route, 4)
				require.Equal(t, 6-owed, peek(t, lim, "key").Remaining)
			})
		})
	}
}

func TestOfSeveralLimitsWhatAnyOfThemHoldsIsOwed(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			levels := all(t, inMemory(t, algorithm, ratelimit.PerSecond(10)), inMemory(t, algorithm, ratelimit.PerDay(100)))
			inner := &faulty{Limiter: levels}
			lim := failover(t, inner, fallback.FailTo(all(t,
				inMemory(t, algorithm, ratelimit.PerSecond(10)), inMemory(t, algorithm, ratelimit.PerDay(100)))))
			admittedIn := func(seconds int) (n int) {
				for range seconds {
					n += admitted(t, lim, 20)
					time.Sleep(2 * time.Second) // in which a sliding window forgets
				}
				return n
			}
			inner.down.Store(true)
			require.Equal(t, 80, admittedIn(8), algorithm)
			inner.comeBack()
			require.Equal(t, 20, admittedIn(20), algorithm)
		})
	}
}

// Each event of a First is charged to one of its limiters, so what they count adds up.
func TestTheLimitersOfAFirstPayWhatEachOwes(t *testing.T) {
	first := func(limiters ...ratelimit.Limiter) *ratelimit.First {
		return ratelimit.Must(ratelimit.NewFirst(limiters...))
	}
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			plan, credits := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerDay(5))}, &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerDay(50))}
			setDown := func(down bool) {
				plan.down.Store(down)
				credits.down.Store(down)
				time.Sleep(time.Second) // so that a breaker probes
			}
			local := [2]ratelimit.Limiter{inMemory(t, algorithm, ratelimit.PerDay(5)), inMemory(t, algorithm, ratelimit.PerDay(50))}
			lim := failover(t, first(plan, credits), fallback.FailTo(first(local[0], local[1])))
			spent := func() [2]int {
				return [2]int{5 - peek(t, plan, "key").Remaining, 50 - peek(t, credits, "key").Remaining}
			}

			setDown(true)
			require.Equal(t, 8, admitted(t, lim, 8), algorithm)
			setDown(false)
			allow(t, lim, "key")
			require.Equal(t, [2]int{5, 4}, spent(), algorithm)
			require.False(t, lim.Owes("key"))

			_, err := ratelimit.Charge(t.Context(), lim, "key", 10)
			require.NoError(t, err)
			require.Equal(t, [2]int{5, 14}, spent(), algorithm)
			require.Equal(t, 50-14, peek(t, local[1], "key").Remaining, "%s: the local limiter knows of it", algorithm)

			setDown(true)
			require.Equal(t, 3, admitted(t, lim, 3), algorithm)
			setDown(false)
			allow(t, lim, "key")
			require.Equal(t, [2]int{5, 18}, spent(), algorithm)
		})
	}
}

// What one limiter of a First inside an All has no room for, another one pays.
func TestAFirstInsideAnAllPaysWithTheLimiterThatHasRoom(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			mem, err := memstore.New()
			require.NoError(t, err)
			s := &testkit.Unreliable{Store: mem}
			plan := newLimiter(t, algorithm, s, ratelimit.PerDay(1), ratelimit.WithName("plan"))
			credits := newLimiter(t, algorithm, s, ratelimit.PerDay(6), ratelimit.WithName("credits"))
			tokens := newLimiter(t, algorithm, s, ratelimit.PerDay(100), ratelimit.WithName("tokens"))
			first, err := ratelimit.NewFirst(plan, credits)
			require.NoError(t, err)
			lim := failover(t, all(t, first, tokens), fallback.FailTo(inMemory(t, algorithm, ratelimit.PerDay(5))))
			require.True(t, allow(t, plan, "key").Allowed)
			require.True(t, allowN(t, credits, 3).Allowed)
			s.Down.Store(true)
			require.Equal(t, 5, admitted(t, lim, 5), algorithm)
			s.Down.Store(false)
			time.Sleep(time.Second) // after which a breaker probes
			require.False(t, allow(t, lim, "key").Allowed, "%s: 3 of 5 are paid", algorithm)
			require.Zero(t, peek(t, credits, "key").Remaining, algorithm)
			require.True(t, lim.Owes("key"), algorithm)
		})
	}
}

func TestOnlyWhatIsInForceIsOwedAndOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerMinute(5))))
		inner.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 10))
		time.Sleep(29 * time.Second)
		inner.comeBack()
		require.Equal(t, 10-3, admitted(t, lim, 20), "half of 5, rounded up")
	})
}

func TestOnlyWhatWasAdmittedLocallyIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		require.Equal(t, 3, admitted(t, lim, 3))
		inner.down.Store(true)
		require.Equal(t, 1, admitted(t, lim, 1))
		for range 3 {
			_, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, allowN(t, lim, 2).Allowed)
		}
		inner.comeBack()
		require.Equal(t, 10-3-1, admitted(t, lim, 20))
	})
}

func TestADebtThatCouldNotBePaidIsStillOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		inner.down.Store(true)
		require.Equal(t, 3, admitted(t, lim, 3))
		inner.comeBack()
		inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := lim.Allow(ctx, "key")
		require.Equal(t, context.DeadlineExceeded, err)
		inner.before = func(context.Context) error { panic("limit function") }
		require.Panics(t, func() { _, _ = lim.Allow(t.Context(), "key") })
		inner.before = nil
		require.Equal(t, 7, admitted(t, lim, 20))
	})
}

func TestWhileAKeyPaysItsOtherCallsAskTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(100))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(50))))
		inner.before = func(context.Context) error { return store.ErrUnavailable } // nothing is sent, so no Peek comes first
		require.Equal(t, 20, admitted(t, lim, 20))
		inner.before = nil
		inner.comeBack()
		require.Equal(t, ratelimit.SourceStore, allow(t, lim, "the probe").Source())
		inner.calls.Store(0)
		answer := make(chan struct{})
		inner.before = func(context.Context) error { <-answer; return nil }
		var first sync.WaitGroup
		first.Go(func() { require.Equal(t, ratelimit.SourceStore, source(t, lim)) })
		synctest.Wait()
		inner.before = nil
		for range 10 {
			require.Equal(t, ratelimit.SourceStore, source(t, lim))
		}
		require.EqualValues(t, 1+10, inner.calls.Load(), "what is owed is charged once")
		close(answer)
		first.Wait()
		require.Equal(t, 100-20-10-1, admitted(t, lim, 200))
	})
}

// What is admitted locally while older events of the key are charged stays owed, even if the local limiter has forgotten
// those meanwhile.
func TestEventsAdmittedDuringAPaymentStayOwed(t *testing.T) {
	for _, othersCall := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var refuses, takesLong atomic.Bool
			inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerDay(100)), before: func(context.Context) error {
				if takesLong.Load() {
					time.Sleep(1500 * time.Millisecond)
				} else if refuses.Load() {
					return store.ErrUnavailable
				}
				return nil
			}}
			lim := failover(t, inner, fallback.FailTo(inMemory(t, "fixed_window", ratelimit.PerSecond(50))))
			refuses.Store(true)
			require.Equal(t, 4, admitted(t, lim, 4))
			refuses.Store(false)
			allow(t, lim, "other")
			takesLong.Store(true)
			var payer sync.WaitGroup
			payer.Go(func() { require.Equal(t, ratelimit.SourceStore, source(t, lim)) })
			time.Sleep(time.Second) // after which the local window is another
			takesLong.Store(false)
			if othersCall {
				allow(t, lim, "other")
			}
			refuses.Store(true)
			require.Equal(t, ratelimit.SourceLocal, source(t, lim))
			refuses.Store(false)
			payer.Wait()
			require.True(t, lim.Owes("key"))
			require.Equal(t, 100-4-1-1, peek(t, lim, "key").Remaining)
		})
	}
}

// One call that fails or is refused is answered in place of the store, and no other one is: neither the callers
// who ask at the same time nor those who come while what was admitted is paid. The share would deny most of
// these, since more is asked than it has.
func TestOneCallThatFailsIsNoOutageForTheOthers(t *testing.T) {
	t.Parallel()
	effort.OthersRace(t)
	const callers, rate, share = 16, 4000, 500 // a second
	limiters := map[string]func(t *testing.T) ratelimit.Limiter{
		"an All": func(t *testing.T) ratelimit.Limiter {
			return all(t, inMemory(t, "fixed_window", ratelimit.PerSecond(2*rate)), inMemory(t, "token_bucket", ratelimit.PerHour(100_000_000)))
		},
	}
	for _, algorithm := range algorithms {
		limiters[algorithm] = func(t *testing.T) ratelimit.Limiter { return inMemory(t, algorithm, ratelimit.PerSecond(2*rate)) }
	}
	for name, limiter := range limiters {
		for _, class := range []error{store.ErrOverloaded, store.ErrUnavailable, store.ErrTimeout, store.ErrCorrupt} {
			t.Run(fmt.Sprintf("%s, %v", name, class), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var fails atomic.Bool
					inner := &faulty{Limiter: limiter(t), before: func(context.Context) error {
						time.Sleep(2 * time.Millisecond) // a round trip
						if fails.CompareAndSwap(true, false) {
							return class
						}
						return nil
					}}
					lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerSecond(share))))
					var local, denied atomic.Int64
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							time.Sleep(time.Duration(i) * time.Second / rate)
							for range 2 * rate / callers { // 2 s
								next := time.Now().Add(callers * time.Second / rate)
								r := allowN(t, lim, 1)
								switch {
								case r.Source() == ratelimit.SourceLocal:
									local.Add(1)
								case !r.Allowed:
									denied.Add(1)
								}
								time.Sleep(time.Until(next))
							}
						})
					}
					time.Sleep(1500 * time.Millisecond)
					for range 3 { // fewer than open the breaker
						fails.Store(true)
						time.Sleep(100 * time.Millisecond)
					}
					all.Wait()
					require.EqualValues(t, 3, local.Load(), "answers in place of the store, for 3 calls that failed")
					require.Zero(t, denied.Load())
				})
			})
		}
	}
}

// Of more keys than are remembered those that owe the least go, which a flood of
// keys that owe 1 cannot change.
func TestTheKeysThatOweTheMostAreRemembered(t *testing.T) {
	effort.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(10))), fallback.WithBreaker(1, time.Second))
		inner.down.Store(true)
		const heavy, light = 100, 80_000
		for i := range heavy {
			for range 5 {
				allow(t, lim, fmt.Sprint("heavy", i))
			}
		}
		for i := range light {
			allow(t, lim, fmt.Sprint("light", i))
		}
		inner.comeBack()
		for i := range heavy {
			require.Equal(t, 4, allow(t, lim, fmt.Sprint("heavy", i)).Remaining)
		}
		handedBack := 0
		for i := range light {
			if allow(t, lim, fmt.Sprint("light", i)).Remaining == 8 {
				handedBack++
			}
		}
		require.Equal(t, 1<<16-heavy, handedBack)
	})
}

// A wrapper that nobody can see through may contain slots, which are not paid for.
func TestADebtBehindAWrapperTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		both := func(s store.Store) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAll(
				ratelimit.Must(ratelimit.NewTokenBucket(s, ratelimit.PerDay(100))),
				ratelimit.Must(inflight.New(s, 1, 30*time.Second))))
		}
		around := ratelimit.Must(ratelimit.NewAround(both(s), func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) }))
		l := ratelimit.Must(fallback.New(around, fallback.FailTo(both(ratelimit.Must(memstore.New())))))
		for _, down := range []bool{true, false} {
			s.down.Store(down)
			time.Sleep(2 * time.Second)
			slot, r, err := inflight.Hold(t.Context(), l, "key", 1)
			require.NoError(t, err)
			require.NotNil(t, slot, "%v", r)
			slot.Release()
			synctest.Wait()
		}
	})
}
