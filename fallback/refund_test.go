package fallback_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// ---- Refunds and Reset.

func TestARefundGoesToWhoeverAdmitted(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			inner := &faulty{Limiter: inMemory(t, algorithm, ratelimit.PerHour(10))}
			local := inMemory(t, algorithm, ratelimit.PerHour(5))
			lim := failover(t, inner, fallback.FailTo(local), fallback.WithBreaker(1, time.Second))
			left := func(l ratelimit.Limiter, want int) {
				t.Helper()
				peek, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				require.Equal(t, want, peek.Remaining, algorithm)
			}
			both := allowN(t, lim, 4)
			left(inner.Limiter, 6)
			left(local, 1)
			require.NoError(t, lim.Refund(t.Context(), "key", both, 2))
			left(inner.Limiter, 8)
			left(local, 3)

			inner.down.Store(true)
			here := allowN(t, lim, 3)
			require.Equal(t, ratelimit.SourceLocal, here.Source())
			require.NoError(t, lim.Refund(t.Context(), "key", here, 2))
			left(local, 2)

			require.ErrorIs(t, lim.Refund(t.Context(), "key", both, 1), ratelimit.ErrStore, "the breaker is open")
			require.EqualValues(t, 3, inner.calls.Load())
			left(local, 2)
			left(inner.Limiter, 8)
			inner.down.Store(false)
			time.Sleep(time.Second)
			require.NoError(t, lim.Refund(t.Context(), "key", both, 1))
			left(inner.Limiter, 9)

			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 8, peek.Remaining, "1 of 3 is left to pay")
		})
	}
}

func TestARefundGivesTheLocalLimiterNoMoreThanItWasCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(100))}
		local := inMemory(t, "token_bucket", ratelimit.PerHour(5))
		lim := failover(t, inner, fallback.FailTo(local))
		for _, tt := range []struct {
			refunds []int
			left    int
		}{
			{[]int{9}, 3},
			{[]int{7}, 1},
			{[]int{3, 3, 3}, 0}, // each may be those that it was not charged with
		} {
			require.NoError(t, local.Reset(t.Context(), "key"))
			allowN(t, lim, 2)
			r := allowN(t, lim, 9) // 3 of which fit
			for _, n := range tt.refunds {
				require.NoError(t, lim.Refund(t.Context(), "key", r, n))
			}
			peek, err := local.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, tt.left, peek.Remaining, "%v of 9", tt.refunds)
		}
	})
}

func TestARefundForgivesNoMoreThanWasCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{1, 5, math.MaxInt} {
			for _, local := range []ratelimit.Limiter{
				inMemory(t, "token_bucket", ratelimit.PerHour(5)),
				all(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), inMemory(t, "fixed_window", ratelimit.PerDay(5))),
			} {
				inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
				lim := failover(t, inner, fallback.FailTo(local))
				inner.down.Store(true)
				first := allowN(t, lim, 1)
				require.Equal(t, 4, admitted(t, lim, 10))
				require.NoError(t, lim.Refund(t.Context(), "key", first, n))
				inner.comeBack()
				require.Equal(t, 10-4, admitted(t, lim, 20), "refunded %d of 1, %T", n, local)
			}
		}
	})
}

// A call of an outage is owed to a plan that counts calls, unless all of its events are refunded.
func TestARefundOfAllEventsForgivesTheCall(t *testing.T) {
	for refunded, calls := range map[int]int{0: 1, 2: 1, 3: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := newBreakable(t)
			plan := newLimiter(t, "token_bucket", s, ratelimit.PerDay(10), ratelimit.CountCalls())
			lim := failover(t, plan, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerDay(50))))
			s.down.Store(true)
			r := allowN(t, lim, 3)
			if refunded > 0 {
				require.NoError(t, lim.Refund(t.Context(), "key", r, refunded))
			}
			s.down.Store(false)
			time.Sleep(time.Second)
			require.Equal(t, 10-calls-1, allow(t, lim, "key").Remaining, "%d of 3 refunded", refunded)
		})
	}
}

// A limiter of another package may not report how many events it has charged.
func TestARefundToALimiterThatReportsNoChargeForgivesTheEvents(t *testing.T) {
	inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
	inner.down.Store(true)
	lim := failover(t, inner, fallback.FailTo(ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5, Remaining: 4, ResetAfter: time.Hour}, nil)))
	r := allow(t, lim, "key")
	require.True(t, lim.Owes("key"))
	require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
	require.False(t, lim.Owes("key"))
}

// A lease may have to go back to the store, so a refund into it goes through the breaker.
func TestARefundIntoALeaseWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBreakable(t)
		lim := failover(t, leased(t, s, ratelimit.PerHour(1000), time.Minute), fallback.FailClosed(), fallback.WithBreaker(1, time.Second))
		r := allow(t, lim, "key")
		for r.Source() != ratelimit.SourceLease {
			synctest.Wait()
			r = allow(t, lim, "key")
		}
		s.down.Store(true)
		allow(t, lim, "other")
		require.Equal(t, fallback.StateOpen, state(lim))
		require.ErrorIs(t, lim.Refund(t.Context(), "key", r, 1), store.ErrUnavailable)
	})
}

// What a local limiter has admitted without a count goes back to it, and the store is not asked.
func TestARefundOfWhatWasUnlimitedInAnOutageNeedsNoStore(t *testing.T) {
	inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
	inner.down.Store(true)
	lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.Unlimited())))
	r := allow(t, lim, "key")
	require.Equal(t, ratelimit.SourceUnlimited, r.Source())
	require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
}

func TestToRefundWhatFailOpenHasLetThroughNeedsNoStoreInside(t *testing.T) {
	for _, around := range []func(...ratelimit.Limiter) ratelimit.Limiter{
		func(l ...ratelimit.Limiter) ratelimit.Limiter { return l[0] },
		func(l ...ratelimit.Limiter) ratelimit.Limiter { return all(t, l...) },
	} {
		withFaulty(t, func(t *testing.T, inner *faulty, _ ratelimit.Source, p fallback.Answer) {
			open := failover(t, inner, fallback.FailOpen(), fallback.WithBreaker(1, time.Second))
			lim := failover(t, around(open), p, fallback.WithBreaker(1, time.Second))
			charged := allow(t, lim, "key")
			inner.down.Store(true)
			free := allow(t, lim, "key")
			require.Equal(t, ratelimit.SourceFailOpen, free.Source())
			require.ErrorIs(t, lim.Refund(t.Context(), "key", charged, 1), ratelimit.ErrStore)
			require.Equal(t, fallback.StateOpen, state(lim))
			require.NoError(t, lim.Refund(t.Context(), "key", free, 1))
			require.ErrorIs(t, lim.Refund(t.Context(), "key", charged, 1), store.ErrUnavailable)
		})
	}
}

func TestResetForgetsAKeyOnBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		allowN(t, lim, 5)
		inner.down.Store(true)
		require.Zero(t, admitted(t, lim, 1))
		require.ErrorIs(t, lim.Reset(t.Context(), "key"), ratelimit.ErrStore)
		require.Equal(t, 5, admitted(t, lim, 10))
		inner.comeBack()
		require.NoError(t, lim.Reset(t.Context(), "key"))
		require.Equal(t, 10, admitted(t, lim, 20), "nothing is owed any more")
	})
}

// A store that stands still takes all the time that the caller has.
func TestAResetThatEndsWithItsCallerForgetsTheKeyLocally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &faulty{Limiter: inMemory(t, "token_bucket", ratelimit.PerHour(10))}
		lim := failover(t, inner, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
		inner.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 10))
		inner.comeBack()
		inner.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.EqualError(t, lim.Reset(ctx, "key"), context.DeadlineExceeded.Error(), "of the store alone")
		inner.before = nil
		inner.down.Store(true)
		require.Equal(t, 5, admitted(t, lim, 10))
	})
}
