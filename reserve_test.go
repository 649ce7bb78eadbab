package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

func reserve(t *testing.T, l ratelimit.Limiter, n int) *ratelimit.Reservation {
	t.Helper()
	r, res, err := ratelimit.Reserve(t.Context(), l, "key", n)
	require.NoError(t, err)
	require.Equal(t, res.Allowed, r != nil)
	require.NotNil(t, r)
	return r
}

func settle(t *testing.T, r *ratelimit.Reservation, actual int) ratelimit.Result {
	t.Helper()
	settled, err := r.Settle(t.Context(), actual)
	require.NoError(t, err)
	return settled
}

func TestAReservationIsSettledByTheActual(t *testing.T) {
	onEach(t, ratelimit.PerHour(100), func(t *testing.T, lim ratelimit.Limiter, _ *clock) {
		r := reserve(t, lim, 30)
		settle(t, r, 10)
		require.Equal(t, 90, peek(t, lim, "key").Remaining, "the rest is given back")
		_, err := r.Settle(t.Context(), 10)
		require.ErrorIs(t, err, ratelimit.ErrSettled)
		_, err = r.Settle(t.Context(), 0)
		require.ErrorIs(t, err, ratelimit.ErrSettled)
		require.Equal(t, 90, peek(t, lim, "key").Remaining)

		settle(t, reserve(t, lim, 10), 35)
		require.Equal(t, 55, peek(t, lim, "key").Remaining, "the excess is charged")
		settle(t, reserve(t, lim, 55), 55)
		require.Equal(t, 0, peek(t, lim, "key").Remaining)
		none, res, err := ratelimit.Reserve(t.Context(), lim, "key", 1)
		require.NoError(t, err)
		require.Nil(t, none)
		require.False(t, res.Allowed)
		require.Positive(t, res.RetryAfter)
	})
}

func TestACancelledReservationChargesNothing(t *testing.T) {
	onEach(t, ratelimit.PerHour(100), func(t *testing.T, lim ratelimit.Limiter, _ *clock) {
		ctx, cancel := context.WithCancel(t.Context())
		r, _, err := ratelimit.Reserve(ctx, lim, "key", 30)
		require.NoError(t, err)
		_, err = r.Settle(ctx, -1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		cancel()
		_, err = r.Settle(ctx, 0)
		require.NoError(t, err, "also when the caller has gone")
		require.Equal(t, 100, peek(t, lim, "key").Remaining)
		_ = reserve(t, lim, 30) // never settled
		require.Equal(t, 70, peek(t, lim, "key").Remaining)
	})
}

// The debt of a bucket drains at its rate before anything is admitted, however the
// limit's Burst changes, and a log's events leave a Period later.
func TestADebtIsPaidByWaiting(t *testing.T) {
	onEach(t, ratelimit.PerHour(60), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		settle(t, reserve(t, lim, 10), 300)
		r := allowN(t, lim, 1)
		require.False(t, r.Allowed)
		require.Equal(t, 0, r.Remaining)
		if hasBurst(see.Algorithm(lim)) {
			require.Equal(t, 241*time.Minute, r.RetryAfter)
			require.Equal(t, 300*time.Minute, r.ResetAfter)
		} else {
			require.LessOrEqual(t, r.RetryAfter, 2*time.Hour)
		}
		c.Advance(r.RetryAfter - time.Microsecond)
		early := allowN(t, lim, 1)
		require.False(t, early.Allowed)
		require.Equal(t, time.Microsecond, early.RetryAfter)
		c.Advance(time.Microsecond)
		require.True(t, allowN(t, lim, 1).Allowed)
	})
}

func TestADebtCanBeRefunded(t *testing.T) {
	onEach(t, ratelimit.PerHour(60), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		allowN(t, lim, 20)
		c.Advance(time.Second)
		debt := overcharge(t, lim, 100)
		require.Equal(t, 0, debt.Remaining)
		require.False(t, allowN(t, lim, 1).Allowed)
		require.NoError(t, lim.Refund(t.Context(), "key", debt, 90))
		require.InDelta(t, 30, peek(t, lim, "key").Remaining, 1)
		require.NoError(t, lim.Refund(t.Context(), "key", debt, 10))
		require.InDelta(t, 40, peek(t, lim, "key").Remaining, 1)
		require.NoError(t, lim.Reset(t.Context(), "key"))
		require.Equal(t, 60, peek(t, lim, "key").Remaining)
	})
}

// What is charged past the limit adds up, and opens no room for others when it is given
// back, in whatever order.
func TestDebtsAddUp(t *testing.T) {
	onEach(t, ratelimit.PerDay(300), func(t *testing.T, lim ratelimit.Limiter, c *clock) {
		give := func(charged ratelimit.Result, n int) { require.NoError(t, lim.Refund(t.Context(), "key", charged, n)) }
		all := allowN(t, lim, 300)
		a, b := overcharge(t, lim, 8), overcharge(t, lim, 8)
		give(b, 8)
		give(a, 8)
		require.Zero(t, peek(t, lim, "key").Remaining)
		require.False(t, allowN(t, lim, 1).Allowed)
		give(all, 1)
		require.Equal(t, 1, peek(t, lim, "key").Remaining, "and nothing is owed any more")
		if _, queue := lim.(*ratelimit.LeakyBucket); queue { // which gives back its tail alone
			return
		}
		require.NoError(t, lim.Reset(t.Context(), "key"))
		all, a, b = allowN(t, lim, 300), overcharge(t, lim, 8), overcharge(t, lim, 20)
		give(a, 8)
		give(b, 20)
		require.Zero(t, peek(t, lim, "key").Remaining)
		give(all, 300)
		require.Equal(t, 300, peek(t, lim, "key").Remaining)

		first, second := reserve(t, lim, 150), reserve(t, lim, 150)
		settle(t, first, 160)
		settle(t, second, 170)
		give(allowAfterDebt(t, lim, c), 1)
	})
}

// allowAfterDebt is what is admitted at RetryAfter, and not before.
func allowAfterDebt(t *testing.T, lim ratelimit.Limiter, c *clock) ratelimit.Result {
	t.Helper()
	r := allowN(t, lim, 1)
	require.False(t, r.Allowed)
	c.Advance(r.RetryAfter - time.Microsecond)
	require.False(t, allowN(t, lim, 1).Allowed)
	c.Advance(time.Microsecond)
	r = allowN(t, lim, 1)
	require.True(t, r.Allowed)
	return r
}

// A window reads more than its Rate as its Rate in the window after, too, and keeps the
// true count for those who give some of it back there.
func TestTheWindowAfterADebt(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if algorithm != "sliding_window" {
			return
		}
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(100))
		give := func(charged ratelimit.Result, n int) { require.NoError(t, lim.Refund(t.Context(), "key", charged, n)) }
		all, debt := allowN(t, lim, 100), overcharge(t, lim, 60)
		require.Equal(t, 2*time.Hour, debt.ResetAfter)
		require.Equal(t, time.Hour+36*time.Second, allowN(t, lim, 1).RetryAfter, "one of the hundred has left then, and not of 160")
		c.Advance(90 * time.Minute)
		require.Equal(t, 50, peek(t, lim, "key").Remaining, "half of 100")
		require.True(t, allowN(t, lim, 10).Allowed)
		give(debt, 60)
		require.Equal(t, 40, peek(t, lim, "key").Remaining, "half of 100, and 10")
		give(all, 50)
		require.Equal(t, 65, peek(t, lim, "key").Remaining, "half of 50, and 10")
	})
}

// The limit changes under a debt, and back.
func TestAWindowCountsTrulyUnderAnotherLimit(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !strings.HasSuffix(algorithm, "window") {
			return
		}
		l := ratelimit.PerDay(300)
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		allowN(t, lim, 200)
		l = ratelimit.PerDay(100)
		a, b := overcharge(t, lim, 8), overcharge(t, lim, 8)
		require.Zero(t, a.Remaining)
		require.NoError(t, lim.Refund(t.Context(), "key", b, 8))
		require.Zero(t, peek(t, lim, "key").Remaining)
		l = ratelimit.PerDay(300)
		require.Equal(t, 92, peek(t, lim, "key").Remaining)

		overcharge(t, lim, 200)
		l = ratelimit.PerHour(500) // what counts goes into this hour
		require.Equal(t, 92, peek(t, lim, "key").Remaining)
		require.True(t, allowN(t, lim, 92).Allowed)
		a, b = overcharge(t, lim, 5), overcharge(t, lim, 5)
		require.NoError(t, lim.Refund(t.Context(), "key", a, 5))
		require.Zero(t, peek(t, lim, "key").Remaining)
		require.NoError(t, lim.Refund(t.Context(), "key", b, 5))
		require.Zero(t, peek(t, lim, "key").Remaining)
	})
}

// Of what a state cannot hold nothing is charged, and so nothing is given back.
func TestTheLargestCountOfAWindow(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		if !strings.HasSuffix(algorithm, "window") {
			return
		}
		const most = 1<<31 - 1
		lim := newLimiter(t, algorithm, s, ratelimit.PerDay(300))
		allowN(t, lim, 300)
		debt := overcharge(t, lim, most)
		none := overcharge(t, lim, 1)
		require.ErrorIs(t, lim.Refund(t.Context(), "key", none, 1), ratelimit.ErrInvalidN)
		require.NoError(t, lim.Refund(t.Context(), "key", debt, most))
		require.Zero(t, peek(t, lim, "key").Remaining, "the 300 are still charged")
		overcharge(t, lim, 1)
		require.Zero(t, peek(t, lim, "key").Remaining)
	})
}

func TestTheLargestDebtDrainsInAHundredYears(t *testing.T) {
	for _, l := range []ratelimit.Limit{{Rate: 1, Period: 10 * 365 * 24 * time.Hour}, ratelimit.PerSecond(1), {Rate: 1<<31 - 1, Period: time.Minute}} { // TTLs run in real time
		onEach(t, l, func(t *testing.T, lim ratelimit.Limiter, c *clock) {
			for range 3 {
				overcharge(t, lim, 1<<31-1)
				r := peek(t, lim, "key")
				require.LessOrEqual(t, r.ResetAfter, 100*365*24*time.Hour)
				require.Zero(t, r.Remaining)
			}
		})
	}
}

// Of what was charged past the limit as much comes back as is still charged, also after
// others have been admitted, and no more.
func TestADebtCanBeRefundedAfterOthersWereAdmitted(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !hasBurst(algorithm) || algorithm == "leaky_bucket" {
			return
		}
		l := ratelimit.Limit{Rate: 1, Period: time.Minute, Burst: 10}
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		has := func(n int) { t.Helper(); require.Equal(t, n, peek(t, lim, "key").Remaining) }
		give := func(charged ratelimit.Result, n int) {
			t.Helper()
			require.NoError(t, lim.Refund(t.Context(), "key", charged, n))
		}
		debt := overcharge(t, lim, 30)
		c.Advance(22 * time.Minute)
		has(2)
		require.True(t, allowN(t, lim, 1).Allowed)
		has(1)
		give(debt, 3)
		has(4)

		require.NoError(t, lim.Reset(t.Context(), "key"))
		debt = overcharge(t, lim, 30)
		c.Advance(22 * time.Minute)
		require.True(t, allowN(t, lim, 1).Allowed)
		c.Advance(30 * time.Second)
		give(debt, 30)
		has(9)
		require.Equal(t, time.Minute, peek(t, lim, "key").ResetAfter, "of whoever was admitted since")

		require.NoError(t, lim.Reset(t.Context(), "key"))
		a := overcharge(t, lim, 30)
		b := overcharge(t, lim, 20)
		c.Advance(43 * time.Minute) // 7 of b's are left
		require.True(t, allowN(t, lim, 2).Allowed)
		give(a, 30)
		has(1)
		give(b, 20)
		has(8)

		// Under a lower limit, what was charged within the old one is read as at most
		// the capacity of today's, whoever has charged past it since.
		require.NoError(t, lim.Reset(t.Context(), "key"))
		l.Burst = 100
		within := allowN(t, lim, 100)
		l.Burst = 10
		c.Advance(5 * time.Minute)
		has(5)
		overcharge(t, lim, 50)
		give(within, 100) // the 5 of it that are left
		require.Equal(t, 41*time.Minute, allowN(t, lim, 1).RetryAfter)
	})
}

// Past the limit by less than an event.
func TestAPartOfAnEventPastTheLimitIsPaid(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !hasBurst(algorithm) {
			return
		}
		lim := newLimiter(t, algorithm, s, ratelimit.Limit{Rate: 60, Period: time.Minute, Burst: 10})
		require.True(t, allowN(t, lim, 4).Allowed)
		c.Advance(500 * time.Millisecond)
		overcharge(t, lim, 7) // a level of 10.5
		require.Equal(t, 1500*time.Millisecond, allowN(t, lim, 1).RetryAfter)
	})
}

// A lower Burst clamps what was admitted, and not what was charged past the limit.
func TestADebtOutlivesAChangeOfTheLimit(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "leaky_bucket"} {
		c, l := newClock(), ratelimit.Limit{Rate: 60, Period: time.Hour, Burst: 100}
		lim := newLimiter(t, algorithm, memory(t, c), l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		overcharge(t, lim, 150)
		l.Burst = 10
		require.Equal(t, 141*time.Minute, allowN(t, lim, 1).RetryAfter, algorithm)
		l = ratelimit.Limit{Rate: 120, Period: time.Hour, Burst: 10}
		require.Equal(t, 141*time.Minute/2, allowN(t, lim, 1).RetryAfter, algorithm)
		c.Advance(150 * time.Minute / 2)
		require.Equal(t, 10, peek(t, lim, "key").Remaining)
	}
}

// However slow the limit is that a debt meets, it drains in a hundred years: a time
// that a Duration can hold.
func TestADebtUnderASlowerLimitDrainsInAHundredYears(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		fast := ratelimit.PerSecond(1_000_000)
		l := fast
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		charged := overcharge(t, lim, 1<<31-1)
		for _, l = range []ratelimit.Limit{
			ratelimit.PerDay(1), ratelimit.PerDay(7), ratelimit.Every(10 * 365 * 24 * time.Hour),
			{Rate: 1, Period: time.Second + time.Microsecond}, {Rate: 3, Period: 1_000_003 * time.Microsecond},
		} {
			for _, r := range []ratelimit.Result{peek(t, lim, "key"), allowN(t, lim, 1)} {
				require.False(t, r.Allowed, l)
				require.Positive(t, r.RetryAfter, l)
				require.LessOrEqual(t, r.RetryAfter, century, l)
				require.LessOrEqual(t, r.ResetAfter, century, l)
			}
		}
		l = ratelimit.Every(365 * 24 * time.Hour) // on which 100 events drain in a century
		if hasBurst(algorithm) {
			require.InDelta(t, century, peek(t, lim, "key").ResetAfter, float64(time.Second))
			require.NoError(t, lim.Refund(t.Context(), "key", charged, 10))
			require.InDelta(t, century/10*9, peek(t, lim, "key").ResetAfter, float64(time.Second))
			overcharge(t, lim, 11)
			require.InDelta(t, century, peek(t, lim, "key").ResetAfter, float64(time.Second))
		}
	})
}

// The level that a charge left behind is rounded up: to more than a state holds.
func TestTheLargestChargeIsGivenBackAlikeOnBothStores(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !hasBurst(algorithm) {
			return
		}
		above := newLimiter(t, algorithm, s, ratelimit.Limit{Rate: 1<<31 - 57, Period: 59_999_948 * time.Microsecond})
		allowN(t, above, 1<<30) // which takes a server half a minute to forget
		for range 10 {
			c.Advance(time.Microsecond) // a part of an event is left, which stays above the most
			had := peek(t, above, "key").Remaining
			require.NoError(t, above.Refund(t.Context(), "key", overcharge(t, above, 1<<31-1), 1<<31-1))
			require.Equal(t, had, peek(t, above, "key").Remaining)
		}
		if !hasBurst(algorithm) || algorithm == "leaky_bucket" {
			return
		}

		most := newLimiter(t, algorithm, s, ratelimit.Limit{Rate: 1<<31 - 2, Period: time.Minute})
		all := overcharge(t, most, 1<<31-1)
		c.Advance(30 * time.Second)
		allowN(t, most, 1)
		require.NoError(t, most.Refund(t.Context(), "key", all, 1<<31-1))
		require.InDelta(t, 1<<31-3, peek(t, most, "key").Remaining, 2)

		l := ratelimit.PerSecond(3)
		lim := newLimiter(t, algorithm, s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		charged := overcharge(t, lim, 1<<31-1)
		l = ratelimit.Limit{Rate: 1<<31 - 1, Period: time.Minute}
		c.Advance(2 * time.Minute)
		allowN(t, lim, 1<<30)
		l = ratelimit.PerDay(7)
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 1<<31-1))
		require.Equal(t, 6, peek(t, lim, "key").Remaining, "7, less what has drained of the first since")

		l = ratelimit.PerSecond(999_983)
		overcharge(t, lim, 1<<31-1)
		c.Advance(time.Microsecond)
		overcharge(t, lim, 1<<31-1) // a part of an event above
		l = ratelimit.Every(time.Second / 2)
		require.Equal(t, (1<<31-1)*time.Second/2, peek(t, lim, "key").ResetAfter)
	})
}

func TestChargeGoesThroughWrappers(t *testing.T) {
	for _, algorithm := range algorithms {
		mem := memory(t, newClock())
		lim := newLimiter(t, algorithm, newDenyCache(t, mem), ratelimit.PerHour(10))
		local := newLimiter(t, algorithm, mem, ratelimit.PerHour(11))
		a := all(t, onOneKey(t, lim, "key"), newLimiter(t, algorithm, mem, ratelimit.PerDay(100)))
		f, err := fallback.New(a, fallback.FailTo(local))
		require.NoError(t, err)
		settle(t, reserve(t, f, 4), 13)
		require.False(t, allowN(t, f, 1).Allowed)
		require.Equal(t, 0, peek(t, lim, "key").Remaining)
		require.Equal(t, 0, peek(t, local, "key").Remaining, "the mirror is full too")
		require.Equal(t, 87, peek(t, a, "key").Parts()[1].Remaining)
		r := overcharge(t, a, 5)
		require.Len(t, r.Parts(), 2)
		require.NoError(t, a.Refund(t.Context(), "key", r, 5))
		require.Equal(t, 87, peek(t, a, "key").Parts()[1].Remaining)
	}
	_, _, err := ratelimit.Reserve(t.Context(), nil, "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = ratelimit.Charge(t.Context(), (*ratelimit.TokenBucket)(nil), "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = new(ratelimit.Reservation).Settle(t.Context(), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	none, _, err := ratelimit.Reserve(t.Context(), ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil), "key", 1)
	require.NoError(t, err)
	_, err = none.Settle(t.Context(), 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "nothing was reserved")

	down, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailOpen())
	require.NoError(t, err)
	_, err = down.Charge(t.Context(), "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrStore)
	local := inMemory(t, "token_bucket", ratelimit.PerHour(10))
	down, err = fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailTo(local))
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceLocal, overcharge(t, down, 4).Source())
	require.Equal(t, 6, peek(t, local, "key").Remaining)

	blocked, err := fallback.New(inMemory(t, "token_bucket", ratelimit.PerHour(0)), fallback.FailTo(local))
	require.NoError(t, err)
	denied, err := blocked.Charge(t.Context(), "key", 1)
	require.NoError(t, err)
	require.False(t, denied.Allowed)
	require.Equal(t, 6, peek(t, local, "key").Remaining, "what was charged to nobody is not mirrored")

	// Without a store that forces, as much as fits.
	plain := newLimiter(t, "token_bucket", withoutJoint{Store: memory(t, newClock())}, ratelimit.PerHour(10))
	allowN(t, plain, 7)
	overcharge(t, plain, 5)
	require.Equal(t, 0, peek(t, plain, "key").Remaining)
	for _, full := range []ratelimit.Limiter{struct{ ratelimit.Limiter }{plain}, ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil)} {
		charged, err := ratelimit.Charge(t.Context(), full, "key", 5)
		require.NoError(t, err)
		require.True(t, charged.Allowed)
		require.Zero(t, charged.RetryAfter)
	}
}

// What Settle answers is what a call for the actual cost would have answered.
func TestTheResultOfSettleIsThatOfTheActual(t *testing.T) {
	for _, algorithm := range algorithms {
		mem := memory(t, newClock())
		lim := newLimiter(t, algorithm, mem, ratelimit.PerHour(100))
		safe := failover(t, newLimiter(t, algorithm, mem, ratelimit.PerHour(101)), fallback.FailLocal(1))
		calls := newLimiter(t, algorithm, mem, ratelimit.PerHour(3), ratelimit.WithName("calls"))
		a := all(t, perCall(t, calls), newLimiter(t, algorithm, mem, ratelimit.PerHour(40), ratelimit.WithName("a")))
		free := ratelimittest.Static(ratelimit.Result{Allowed: true}, nil)
		wide := newLimiter(t, algorithm, mem, ratelimit.PerHour(102))
		for name, l := range map[string]ratelimit.Limiter{
			"one": lim, "a fallback": safe, "calls": perCall(t, calls), "All": a, "All in a fallback": failover(t, a, fallback.FailOpen()),
			"All in an All": all(t, onOneKey(t, a, "key"), free, wide),
		} {
			for _, actual := range []int{30, 10, 0} {
				require.NoError(t, l.Reset(t.Context(), "key"))
				r := settle(t, reserve(t, l, 30), actual)
				require.NoError(t, l.Reset(t.Context(), "key"))
				want := ratelimit.Result{Allowed: true, Limit: r.Limit, Remaining: r.Limit} // of 0
				if actual > 0 {
					want = allowN(t, l, actual)
				}
				require.Equal(t, visible(want), visible(r), "%s: %s of %d", algorithm, name, actual)
				require.Equal(t, want.Charged(), r.Charged(), "%s: %s of %d", algorithm, name, actual)
				require.Len(t, r.Parts(), len(allowN(t, l, 1).Parts()))
				for i, part := range want.Parts() {
					require.Equal(t, visible(part.Result), visible(r.Parts()[i].Result), "%s: %s of %d", algorithm, name, actual)
				}
			}
			require.NoError(t, l.Reset(t.Context(), "key"))
			r := settle(t, reserve(t, l, 30), 10)
			require.Positive(t, r.Charged())
			require.NoError(t, l.Refund(t.Context(), "key", r, 30), "%s: what is charged is still to be refunded", name)
			back := peek(t, l, "key")
			require.Equal(t, back.Limit, back.Remaining, "%s: %s", algorithm, name)
		}
	}
	over := settle(t, reserve(t, inMemory(t, "sliding_log", ratelimit.PerHour(100)), 10), 12)
	require.Equal(t, []int{88, 2}, []int{over.Remaining, over.Charged()}, "of the Charge")
	full := allowN(t, inMemory(t, "token_bucket", ratelimit.PerHour(9)), 5)
	full.Remaining = full.Limit // as a wrapper may tell it, which hides what was spent
	require.Equal(t, full.Limit, settle(t, reserve(t, ratelimittest.Static(full, nil), 5), 3).Remaining, "there is no more")
	broken := deaf{inMemory(t, "token_bucket", ratelimit.PerHour(9))}
	r, err := reserve(t, broken, 5).Settle(t.Context(), 3)
	require.ErrorIs(t, err, errGone)
	require.Zero(t, r)
}

// noting leaves a note on the Results of a limiter.
type noting struct {
	ratelimit.Limiter
	mark *ratelimit.Mark
}

func (l *noting) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := l.Limiter.AllowN(ctx, key, n)
	return r.WithMark(l.mark), err
}

func TestTheResultOfSettleKeepsTheNotesOfWrappers(t *testing.T) {
	lim := inMemory(t, "token_bucket", ratelimit.PerHour(9))
	for _, inner := range []ratelimit.Limiter{lim, all(t, lim), onOneKey(t, all(t, lim, lim), "key")} {
		l := &noting{Limiter: inner}
		l.mark = ratelimit.NewMark(l, ratelimit.SourceLocal, "note")
		r := settle(t, reserve(t, l, 3), 1)
		under, note, ok := r.Unmark(l)
		require.True(t, ok)
		require.Equal(t, "note", note)
		require.Equal(t, ratelimit.SourceLocal, r.Source())
		require.Equal(t, 1, r.Charged())
		require.NoError(t, inner.Refund(t.Context(), "key", under, 1))
		require.Equal(t, 9, peek(t, inner, "key").Remaining)
	}
}

// visible is what can be read of r, but for a ResetAfter that may be too long.
func visible(r ratelimit.Result) ratelimit.Result {
	return ratelimit.Result{Allowed: r.Allowed, Limit: r.Limit, Remaining: r.Remaining, RetryAfter: r.RetryAfter, Delay: r.Delay}
}

func TestOfManyWhoSettleAtOnceOneDoes(t *testing.T) {
	onEach(t, ratelimit.PerHour(100), func(t *testing.T, lim ratelimit.Limiter, _ *clock) {
		r := reserve(t, lim, 30)
		var settled atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch _, err := r.Settle(context.Background(), 20); {
				case err == nil:
					settled.Add(1)
				case !errors.Is(err, ratelimit.ErrSettled):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, settled.Load())
		require.Equal(t, 80, peek(t, lim, "key").Remaining)
	})
}

func TestAReservationIsSettledAfterAChangeOfTier(t *testing.T) {
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		tier := "free"
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(10), ratelimit.WithTiers(
			func(context.Context, string) (string, error) { return tier, nil },
			map[string]ratelimit.Limit{
				"pro": ratelimit.PerHour(20), "daily": ratelimit.PerDay(10),
				"internal": ratelimit.Unlimited(), "banned": ratelimit.PerHour(0),
			}))
		for _, during := range []string{"free", "pro", "daily", "internal", "banned"} {
			tier = "free"
			r := reserve(t, lim, 8)
			tier = during
			settle(t, r, 3)
			tier = "free"
			require.Equal(t, 7, peek(t, lim, "key").Remaining, "the rest of the estimate is given back: %s", during)
			require.NoError(t, lim.Reset(t.Context(), "key"))
		}
		tier = "internal"
		r := reserve(t, lim, 8)
		tier = "free"
		settle(t, r, 12)
		require.Equal(t, 6, peek(t, lim, "key").Remaining, "what was free stays so")
	})
}

func TestACreditGivesBackWhatIsChargedAndNoMore(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
			l := newLimiter(t, algorithm, s, ratelimit.PerHour(20))
			credit := func(n int) int {
				given, err := ratelimit.Credit(t.Context(), l, "key", n)
				require.NoError(t, err)
				return given
			}
			require.Zero(t, credit(5), "nothing is charged")
			allowN(t, l, 9)
			allowN(t, l, 5)
			require.Equal(t, 1, credit(1))
			require.Equal(t, 3, credit(3))
			require.Equal(t, 10, peek(t, l, "key").Remaining, algorithm)
			all := 10
			if algorithm == "token_bucket" { // whose last event stays
				all = 9
			}
			require.Equal(t, all, credit(100), algorithm)
			require.Equal(t, 10+all, peek(t, l, "key").Remaining, algorithm)
			c.Advance(2 * time.Hour)
			require.Zero(t, credit(5), "it has gone")
			require.Equal(t, 20, peek(t, l, "key").Remaining)
			c.Advance(-2 * time.Hour)
		}
		one := newLimiter(t, "fixed_window", s, ratelimit.PerHour(1))
		allow(t, one, "key")
		given, err := ratelimit.Credit(t.Context(), one, "key", 1)
		require.NoError(t, err)
		require.Equal(t, 1, given, "of a Rate of 1")
	})
}

func TestACreditIsForLimitsThatNeedNoReceipt(t *testing.T) {
	mem := memory(t, newClock())
	for _, l := range []ratelimit.Limiter{
		nil, (*ratelimit.TokenBucket)(nil), new(ratelimit.TokenBucket), ratelimittest.Static(ratelimit.Result{Allowed: true}, nil),
		newLimiter(t, "sliding_log", mem, ratelimit.PerHour(5)), newLimiter(t, "leaky_bucket", mem, ratelimit.PerHour(5)),
		all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))),
	} {
		given, err := ratelimit.Credit(t.Context(), l, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%T", l)
		require.Zero(t, given)
	}
	l := newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5))
	given, err := ratelimit.Credit(t.Context(), l, "key", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidN)
	require.Zero(t, given)
	_, err = ratelimit.Credit(t.Context(), l, "", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	given, err = ratelimit.Credit(t.Context(), awayLimit(t), "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrStore)
	require.Zero(t, given)
	for _, uncounted := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerHour(0)} {
		free := newLimiter(t, "token_bucket", untouched{t}, uncounted, ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "k", nil }))
		given, err := ratelimit.Credit(t.Context(), free, "key", 1)
		require.NoError(t, err)
		require.Zero(t, given)
	}
}

func TestASettledEventIsGivenBackBeItOne(t *testing.T) {
	l := inMemory(t, "token_bucket", ratelimit.PerHour(9))
	require.Equal(t, 7, settle(t, reserve(t, l, 3), 2).Remaining)
	require.Equal(t, 7, peek(t, l, "key").Remaining)
}

func TestAReservationOfNothingLeavesTheKeyAsIfNeverSeen(t *testing.T) {
	mem := memory(t, newClock())
	a := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(9)), newLimiter(t, "fixed_window", mem, ratelimit.PerHour(12)))
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 9, Remaining: 9}, settle(t, reserve(t, a, 3), 0).Parts()[0].Result)
	require.Zero(t, settle(t, reserve(t, a, 3), 0).ResetAfter)

	full := ratelimit.Result{Allowed: true, Limit: 5, Remaining: 5, ResetAfter: time.Hour}
	for _, actual := range []int{3, 0} {
		require.Equal(t, full, settle(t, reserve(t, ratelimittest.Static(full, nil), 3), actual), "what has charged nothing is told as it was")
	}
}
