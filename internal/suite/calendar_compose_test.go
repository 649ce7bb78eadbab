package suite_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// plan is the limit of most tests here: 10 a month from the 31st in America/Sao_Paulo. At
// [start] its window ends at 2026-01-31 03:00 in UTC.
func plan(t testing.TB) ratelimit.Limit {
	t.Helper()
	return ratelimit.PerMonth(10).From(31).In(zone(t, "America/Sao_Paulo"))
}

const restOfPlan = 30*24*time.Hour + 3*time.Hour // from [start] on

func TestACalendarTogetherWithOtherLimitsIsOneScript(t *testing.T) {
	client := redistest.Start(t).Client(t)
	c := newClock()
	s := onRedis(t, client, redisstore.WithClock(c.Now))
	lim := all(t, newLimiter(t, "fixed_window", s, plan(t)), newLimiter(t, "token_bucket", s, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 4}),
		newLimiter(t, "sliding_log", s, ratelimit.PerMinute(100)), newLimiter(t, "fixed_window", s, ratelimit.PerDay(9).In(time.UTC)))
	allowN(t, lim, 1) // loads the script
	before := calls(t, client, "evalsha")
	r := allowN(t, lim, 3)
	require.True(t, r.Allowed)
	require.Equal(t, restOfPlan, r.ResetAfter)
	require.Equal(t, restOfPlan, r.Parts()[0].ResetAfter)
	require.Equal(t, 24*time.Hour, r.Parts()[3].ResetAfter)
	require.False(t, allowN(t, lim, 1).Allowed, "the bucket")
	require.Equal(t, 6, peek(t, lim, "key").Parts()[0].Remaining, "nothing is charged")
	require.NoError(t, lim.Refund(t.Context(), "key", r, 3))
	require.Equal(t, 9, peek(t, lim, "key").Parts()[0].Remaining)
	c.Advance(time.Minute)
	_, err := lim.AllowWithin(t.Context(), "key", 2, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 7, peek(t, lim, "key").Parts()[0].Remaining)
	require.Greater(t, calls(t, client, "evalsha"), before)
}

func TestAllOfCalendarsOnOneKeyTwice(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		lim := newLimiter(t, "fixed_window", s, plan(t))
		twice := all(t, lim, newLimiter(t, "fixed_window", s, plan(t)))
		r := allowN(t, twice, 2)
		require.Equal(t, 6, peek(t, lim, "key").Remaining)
		require.NoError(t, twice.Refund(t.Context(), "key", r, 2))
		require.Equal(t, 10, peek(t, lim, "key").Remaining)
		require.Zero(t, c.Now().Sub(start))
	})
}

func TestLevelsWithCalendars(t *testing.T) {
	c := newClock()
	lim := levels.New(t, "fixed_window", memory(t, c), "api", ratelimit.PerSecond(5), ratelimit.PerDay(8), ratelimit.PerDay(7).In(zone(t, "Asia/Kolkata")), plan(t))
	policies, err := ratelimit.AppendPolicies(t.Context(), nil, lim, "key")
	require.NoError(t, err)
	var names []string
	for _, p := range policies {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"api/s", "api/d", "api/day in Asia/Kolkata", "api/month from 31 in America/Sao_Paulo"}, names)
	allowN(t, lim, 5)
	c.Advance(time.Second)
	r := allowN(t, lim, 3)
	require.Equal(t, "api/day in Asia/Kolkata", r.DeniedBy())
	require.Equal(t, 18*time.Hour+30*time.Minute-time.Second, r.RetryAfter)
}

func TestTiersOfCalendars(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		tier := func(_ context.Context, key string) (string, error) { return key, nil }
		lim := newLimiter(t, "fixed_window", s, ratelimit.PerMonth(5), ratelimit.WithName("plans"), ratelimit.WithTiers(tier, map[string]ratelimit.Limit{
			"india": ratelimit.PerDay(3).In(zone(t, "Asia/Kolkata")), "brazil": plan(t), "hour": ratelimit.PerHour(2),
		}))
		for key, want := range map[string]time.Duration{
			"india": 18*time.Hour + 30*time.Minute, "brazil": restOfPlan, "hour": time.Hour, "other": 31 * 24 * time.Hour,
		} {
			require.Equal(t, want, allow(t, lim, key).ResetAfter, key)
			policies, err := ratelimit.AppendPolicies(t.Context(), nil, lim, key)
			require.NoError(t, err)
			if key == "hour" {
				require.Equal(t, time.Hour, policies[0].Window)
			} else {
				require.Zero(t, policies[0].Window, "calendars have none that is true of all their windows")
			}
		}
	})
	mem := memory(t, newClock())
	_, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(5), ratelimit.WithTiers(
		func(context.Context, string) (string, error) { return "", nil }, map[string]ratelimit.Limit{"brazil": plan(t)}))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestEachWayToChargeACalendar(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		lim := newLimiter(t, "fixed_window", s, plan(t))
		granted, r, err := ratelimit.AllowUpTo(t.Context(), lim, "key", 4)
		require.NoError(t, err)
		require.Equal(t, 4, granted)
		require.Equal(t, restOfPlan, r.ResetAfter)
		r, err = ratelimit.AllowWithin(t.Context(), lim, "key", 3, time.Hour)
		require.NoError(t, err)
		require.Equal(t, 3, r.Remaining)
		granted, _, err = ratelimit.AllowUpTo(t.Context(), lim, "key", 7)
		require.NoError(t, err)
		require.Equal(t, 3, granted)
		require.NoError(t, lim.Refund(t.Context(), "key", r, 3))
		charged, err := ratelimit.Charge(t.Context(), lim, "key", 20)
		require.NoError(t, err)
		require.Equal(t, restOfPlan, charged.ResetAfter)
		require.False(t, allowN(t, lim, 1).Allowed)
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 19))
		require.Equal(t, 2, peek(t, lim, "key").Remaining)
		c.Advance(restOfPlan)
		require.Equal(t, 10, peek(t, lim, "key").Remaining, "a debt ends with its window")
	})
}

func TestADenyCacheOfACalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from 2000-01-01 on
		mem, err := memstore.New()
		require.NoError(t, err)
		lim := newLimiter(t, "fixed_window", newDenyCache(t, mem), plan(t))
		allowN(t, lim, 10)
		require.Equal(t, ratelimit.SourceStore, allowN(t, lim, 1).Source())
		time.Sleep(time.Hour)
		r := allowN(t, lim, 1)
		require.Equal(t, ratelimit.SourceDenyCache, r.Source())
		require.Equal(t, 30*24*time.Hour+time.Hour, r.RetryAfter, "until the 31st, 2:00 by daylight saving time")
		time.Sleep(r.RetryAfter)
		require.True(t, allowN(t, lim, 10).Allowed)
	})
}

func TestAFallbackForACalendar(t *testing.T) {
	c := newClock()
	local, err := see.Local[ratelimit.Limiter](newLimiter(t, "fixed_window", memory(t, c), plan(t)), memory(t, c), 3)
	require.NoError(t, err)
	lim := failover(t, newLimiter(t, "fixed_window", away{Store: memory(t, c)}, plan(t)), fallback.FailTo(local))
	require.Equal(t, 3, admitted(t, lim, 10), "a third")
	require.Equal(t, restOfPlan, allowN(t, lim, 1).RetryAfter)
}

func TestALeaseEndsWithItsCalendarWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		leases, err := lease.New(mem, 100*time.Millisecond)
		require.NoError(t, err)
		one := newLimiter(t, "fixed_window", mem, ratelimit.PerMonth(20_000)) // few in a life
		lim := newLimiter(t, "fixed_window", leases, ratelimit.PerMonth(20_000))
		time.Sleep(31*24*time.Hour - time.Second) // to a second before February
		for time.Until(instant(t, "2000-02-01 00:00")) > 0 {
			for range 10 {
				allowN(t, lim, 1)
			}
			time.Sleep(time.Millisecond)
		}
		require.Positive(t, leases.Stats().Local)
		synctest.Wait()
		allowN(t, lim, 1)
		require.NoError(t, leases.Close(t.Context()))
		r := peek(t, one, "key")
		require.Less(t, r.Remaining, r.Limit, "what is admitted in February is charged in February")
		require.Equal(t, time.Until(instant(t, "2000-03-01 00:00")), r.ResetAfter)
	})
}

func TestRegionsShareACalendar(t *testing.T) {
	c := newClock()
	stores := map[string]store.Store{"here": memory(t, c), "there": memory(t, c)}
	limiterOf := func(region string) ratelimit.Limiter {
		shared, err := regions.New(region, stores)
		require.NoError(t, err)
		return newLimiter(t, "fixed_window", shared, plan(t))
	}
	here, there := limiterOf("here"), limiterOf("there")
	n := admitted(t, here, 40)
	require.Greater(t, n, 5, "events of the other region")
	require.LessOrEqual(t, n, 10)
	require.Equal(t, 10-n, peek(t, here, "key").Remaining+peek(t, there, "key").Remaining)
	c.Advance(restOfPlan)
	require.Equal(t, 5, peek(t, here, "key").Remaining)
}

func TestAdaptiveCalendars(t *testing.T) {
	floor := plan(t)
	floor.Rate = 2
	limit, err := adaptive.New(floor, plan(t), func() float64 { return 0 }, adaptive.WithStart(4))
	require.NoError(t, err)
	require.Equal(t, "4/month from 31 in America/Sao_Paulo", limit.Current().String())
	_, err = adaptive.New(ratelimit.PerMonth(2), plan(t), func() float64 { return 0 })
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestAWaiterOfACalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, err := throttle.NewWaiter(inMemory(t, "fixed_window", plan(t)), 40*24*time.Hour)
		require.NoError(t, err)
		require.True(t, allowN(t, lim, 10).Allowed)
		require.True(t, allowN(t, lim, 1).Allowed)
		require.Equal(t, instant(t, "2000-01-31 02:00"), time.Now().UTC())
	})
}

func TestCalendarsOfOneCallAndOfAnotherKey(t *testing.T) {
	c := newClock()
	mem := memory(t, c)
	calls := newLimiter(t, "fixed_window", mem, plan(t), ratelimit.CountCalls())
	rekeyed := onOneKey(t, newLimiter(t, "fixed_window", mem, ratelimit.PerWeek(50)), "team")
	lim := all(t, calls, rekeyed)
	r := allowN(t, lim, 20)
	require.Equal(t, []int{9, 30}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
	require.Equal(t, restOfPlan, r.Parts()[0].ResetAfter)
	require.Equal(t, 4*24*time.Hour, r.Parts()[1].ResetAfter, "from Thursday to Monday")
	require.NoError(t, lim.Refund(t.Context(), "key", r, 20))
	require.Equal(t, []int{10, 50}, []int{peek(t, lim, "key").Parts()[0].Remaining, peek(t, lim, "key").Parts()[1].Remaining})
}

func TestACalendarOfCoalescedCalls(t *testing.T) {
	mem := memory(t, newClock())
	lim := newLimiter(t, "fixed_window", newCoalesced(t, mem), plan(t))
	require.Equal(t, 10, admitted(t, lim, 20))
}
