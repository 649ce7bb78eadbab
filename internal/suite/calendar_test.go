package suite_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	require.NoError(t, err)
	return loc
}

// instant is a time such as "2026-03-01 18:30" in UTC.
func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04", text)
	require.NoError(t, err)
	return at
}

// set puts c at a time.
func set(c *clock, at time.Time) { c.Advance(at.Sub(c.Now())) }

// following is a fixed window whose limit is what l is at the time.
func following(t testing.TB, s store.Store, l *ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	return newLimiter(t, "fixed_window", s, *l, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return *l, nil }))
}

func TestCalendarLimitsAreComparedAndToldByWhatTheySay(t *testing.T) {
	kolkata, paulo := zone(t, "Asia/Kolkata"), zone(t, "America/Sao_Paulo")
	for text, same := range map[string][]ratelimit.Limit{
		"10/month":                              {ratelimit.PerMonth(10), ratelimit.PerMonth(10).From(1), ratelimit.PerMonth(10).In(time.UTC), ratelimit.PerMonth(10).From(7).In(kolkata).In(time.UTC).From(1)},
		"10/week":                               {ratelimit.PerWeek(10), ratelimit.PerWeek(10).From(int(time.Monday)).In(time.UTC)},
		"10/month from 31 in America/Sao_Paulo": {ratelimit.PerMonth(10).From(31).In(paulo), ratelimit.PerMonth(10).In(paulo).From(31)},
		"10/week from sunday in Asia/Kolkata":   {ratelimit.PerWeek(10).From(int(time.Sunday)).In(kolkata)},
		"10/day in Asia/Kolkata":                {ratelimit.PerDay(10).In(kolkata), ratelimit.PerDay(10).In(paulo).In(kolkata)},
		"10/day in UTC":                         {ratelimit.PerDay(10).In(time.UTC)},
		"10/d":                                  {ratelimit.PerDay(10)},
		"unlimited":                             {ratelimit.Unlimited(), ratelimit.Unlimited().In(paulo), ratelimit.Unlimited().From(40)},
	} {
		for _, l := range same {
			require.NoError(t, l.Validate(), text)
			require.Equal(t, text, l.String())
			parsed, err := ratelimit.ParseLimit(text)
			require.NoError(t, err)
			require.True(t, l == parsed, "%#v and %#v", l, parsed)
		}
	}
	require.False(t, ratelimit.PerMonth(10) == ratelimit.PerMonth(10).From(2))
	require.False(t, ratelimit.PerDay(10) == ratelimit.PerDay(10).In(time.UTC))
}

func TestCalendarsThatCannotBeAreRefused(t *testing.T) {
	changed := ratelimit.PerMonth(5)
	changed.Period = time.Hour
	aDay := changed
	aDay.Period = 24 * time.Hour
	burst := ratelimit.PerWeek(5)
	burst.Burst = 5
	for _, c := range []struct {
		limit ratelimit.Limit
		want  string
	}{
		{ratelimit.PerMonth(5).From(0), "day 0 of the month"},
		{ratelimit.PerMonth(5).From(32), "day 32 of the month"},
		{ratelimit.PerMonth(5).From(32).From(1), "day 32 of the month"},
		{ratelimit.PerWeek(5).From(7), "day 7 of the week"},
		{ratelimit.PerDay(5).From(1), "use From only with PerWeek or PerMonth"},
		{ratelimit.PerDay(5).From(int(time.Sunday)), "use From only with PerWeek or PerMonth"},
		{ratelimit.PerDay(5).In(time.UTC).From(0), "use From only with PerWeek or PerMonth"},
		{ratelimit.PerHour(5).From(1), "only limits per day, week or month"},
		{ratelimit.PerHour(5).In(time.UTC), "only limits per day, week or month"},
		{ratelimit.PerMonth(5).In(nil), "the time zone is nil or has no name"},
		{ratelimit.PerMonth(5).In(time.Local), `"Local" differs between machines`},
		{ratelimit.PerMonth(5).In(time.FixedZone("", 3600)), "the time zone is nil or has no name"},
		{ratelimit.PerMonth(5).In(time.FixedZone("UTC+5", 3600)), `zone "UTC+5" is unknown`},
		{ratelimit.PerMonth(5).In(time.FixedZone("Atlantis/Capital", 3600)), `zone "Atlantis/Capital" is unknown`},
		{changed, "period 1h0m0s does not match the calendar month: do not set Period"},
		{aDay, "period 24h0m0s does not match the calendar month: do not set Period"},
		{burst, "a calendar limit cannot have a burst"},
		{ratelimit.PerMonth(-5), "rate -5"},
	} {
		require.ErrorIs(t, c.limit.Validate(), ratelimit.ErrInvalidLimit, "%v", c.limit)
		require.ErrorContains(t, c.limit.Validate(), c.want)
		_, err := ratelimit.NewFixedWindow(memory(t, newClock()), c.limit)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		_, err = ratelimit.ParseLimit(c.limit.String())
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, c.limit.String())
	}
	for _, algorithm := range algorithms {
		if algorithm != "fixed_window" {
			require.ErrorIs(t, ratelimit.PerMonth(5).ValidateFor(algorithm), ratelimit.ErrInvalidLimit)
			require.ErrorContains(t, ratelimit.PerMonth(5).ValidateFor(algorithm), "a "+algorithm+" cannot count by calendar")
		}
	}
}

func TestTheTextOfCalendars(t *testing.T) {
	for text, want := range map[string]string{
		"10/1month":                       "10/month",
		"10 / 1 months":                   "10/month",
		"10/weeks from monday in UTC":     "10/week",
		"10/month from 01":                "10/month",
		"10/d in Asia/Kolkata":            "10/day in Asia/Kolkata",
		"10/1 day in Asia/Kolkata":        "10/day in Asia/Kolkata",
		"10/week from saturday in Cuba":   "10/week from saturday in Cuba",
		"0/month":                         "0/month",
		"2147483647/month from 28 in GMT": "2147483647/month from 28 in GMT",
	} {
		l, err := ratelimit.ParseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, l.String())
	}
	for text, want := range map[string]string{
		"10/2months":                    "unit",
		"10/w":                          "unit",
		"10/month from":                 "unit",
		"10/month from 31 in":           `"31 in" is not a day of the month`,
		"10/month in UTC from 31":       "is not a name",
		"10/month from -1":              `"-1" is not a day of the month`,
		"10/month from 0":               "day 0 of the month",
		"10/month from 32":              "day 32 of the month",
		"10/month from 300":             `"300" is not a day of the month`,
		"10/week from Sunday":           `"Sunday" is not a day of the week`,
		"10/week from 0":                `"0" is not a day of the week`,
		"10/day from 3 in UTC":          "from needs a week or a month, not a day",
		"10/h in UTC":                   `period "h" cannot count by calendar`,
		"10/24h in UTC":                 `period "24h" cannot count by calendar`,
		"10/month in Local":             "differs between machines",
		"10/month in Nowhere":           `zone "Nowhere" is unknown`,
		"10/month in":                   "unit",
		"10/month burst 5":              "a calendar limit cannot have a burst",
		"10/month burst 5 in UTC":       "is not a whole number: want digits only",
		"10/month  in UTC":              "cannot count by calendar",
		"10/month in UTC ":              "is not a name",
		"10/month in ../../etc/passwd":  "is not a name",
		"10/month from 5 from 6 in UTC": `"5 from 6" is not a day of the month`,
	} {
		_, err := ratelimit.ParseLimit(text)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, text)
		require.ErrorContains(t, err, want, text)
	}
}

// Two plans: each of their windows of ten years admits what it should, to the
// microsecond.
func TestPlansHoldForTenYears(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	paulo, kolkata := zone(t, "America/Sao_Paulo"), zone(t, "Asia/Kolkata")
	lastDay := func(year int, month time.Month) time.Time {
		return time.Date(year, month, time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day(), 0, 0, 0, 0, paulo)
	}
	var months, days []time.Time
	for i := range 121 {
		months = append(months, lastDay(2016, time.Month(1+i)))
	}
	for i := range 3651 {
		days = append(days, time.Date(2016, 1, 1+i, 0, 0, 0, 0, kolkata))
	}
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		plans := map[string][]time.Time{"10000/month from 31 in America/Sao_Paulo": months, "100/day in Asia/Kolkata": days}
		if testing.Short() || !effort.Full() {
			plans["100/day in Asia/Kolkata"] = days[:60]
		}
		for text, edges := range plans {
			l, err := ratelimit.ParseLimit(text)
			require.NoError(t, err)
			lim := newLimiter(t, "fixed_window", s, l)
			for i, from := range edges[:len(edges)-1] {
				to := edges[i+1]
				set(c, from)
				r := allowN(t, lim, l.Rate)
				require.True(t, r.Allowed && r.Remaining == 0, "%v: %v", from, r)
				require.Equal(t, to.Sub(from), r.ResetAfter)
				set(c, to.Add(-time.Microsecond))
				r = allowN(t, lim, 1)
				require.False(t, r.Allowed)
				require.Equal(t, time.Microsecond, r.RetryAfter)
				require.Equal(t, time.Microsecond, r.ResetAfter)
			}
		}
	})
}

func TestAKeyOfACalendarExpiresWithItsWindow(t *testing.T) {
	client := redistest.Mini(t).Client(t) // where no time passes
	c := newClock()
	lim := newLimiter(t, "fixed_window", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMonth(100).From(15))
	for _, ahead := range []time.Duration{0, time.Hour, 13*24*time.Hour - time.Millisecond} {
		set(c, instant(t, "2026-02-01 23:00").Add(ahead))
		require.True(t, allowN(t, lim, 3).Allowed)
		require.Equal(t, instant(t, "2026-02-15 00:00").Sub(c.Now()).Truncate(time.Millisecond), client.PTTL(t.Context(), onlyKey(t, client, ":2:fixed_window:*")).Val())
	}
}

// Where the clocks are set back, a day or a week is an hour longer than its Period.
func TestAWindowOfACalendarCanBeLongerThanItsPeriod(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		for _, of := range []struct {
			limit ratelimit.Limit
			start string
			long  time.Duration
		}{
			{ratelimit.PerDay(5), "2026-10-24 22:00", 25 * time.Hour},
			{ratelimit.PerWeek(5), "2026-10-18 22:00", 7*24*time.Hour + time.Hour},
			{ratelimit.PerMonth(5), "2026-09-30 22:00", 31*24*time.Hour + time.Hour},
		} {
			lim := newLimiter(t, "fixed_window", s, of.limit.In(zone(t, "Europe/Berlin")))
			set(c, instant(t, of.start))
			for left := 4; left >= 0; left-- {
				r := allowN(t, lim, 1)
				require.True(t, r.Allowed, of.limit)
				require.Equal(t, left, r.Remaining, of.limit)
				require.Equal(t, of.long, r.ResetAfter, of.limit)
			}
			require.Equal(t, of.long, allowN(t, lim, 1).RetryAfter, of.limit)
		}
	})
}

func TestARefundIsOfTheCalendarWindowOfItsCharge(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		lim := newLimiter(t, "fixed_window", s, ratelimit.PerMonth(10).From(31).In(zone(t, "America/Sao_Paulo")))
		set(c, instant(t, "2026-02-27 12:00"))
		january := allowN(t, lim, 4)
		set(c, instant(t, "2026-02-28 02:59"))
		require.NoError(t, lim.Refund(t.Context(), "key", january, 1))
		require.Equal(t, 7, peek(t, lim, "key").Remaining)
		set(c, instant(t, "2026-02-28 03:00"))
		february := allowN(t, lim, 6)
		require.NoError(t, lim.Refund(t.Context(), "key", january, 3))
		require.Equal(t, 4, peek(t, lim, "key").Remaining, "it was in another window")
		require.NoError(t, lim.Refund(t.Context(), "key", february, 6))
		require.Equal(t, 10, peek(t, lim, "key").Remaining)
		require.Zero(t, peek(t, lim, "key").ResetAfter)
	})
}

func TestARefundOfAllForgetsAKeyOfACalendar(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, s := range []store.Store{mem, onRedis(t, client, redisstore.WithClock(newClock().Now))} {
		lim := newLimiter(t, "fixed_window", s, ratelimit.PerWeek(5))
		require.NoError(t, lim.Refund(t.Context(), "key", allowN(t, lim, 3), 3))
	}
	require.Zero(t, mem.Len())
	require.Zero(t, client.DBSize(t.Context()).Val())
}

// A week and a day that end at one midnight are different windows.
func TestARefundOfAWeekIsNotOneOfItsLastDay(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		now := ratelimit.PerWeek(10)
		lim := following(t, s, &now)
		set(c, instant(t, "2026-03-04 12:00")) // a Wednesday
		week := allowN(t, lim, 4)
		set(c, instant(t, "2026-03-08 12:00"))
		now = ratelimit.PerDay(10).In(time.UTC)
		require.Equal(t, 7, allowN(t, lim, 3).Remaining)
		require.NoError(t, lim.Refund(t.Context(), "key", week, 4))
		require.Equal(t, 7, peek(t, lim, "key").Remaining)
	})
}

// Under a limit function a key's zone changes. The count ends with the first of both windows, and
// a refund finds only its own.
func TestAChangeOfTheCalendarKeepsTheSpend(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		now := ratelimit.PerDay(10).In(zone(t, "Asia/Kolkata"))
		lim := following(t, s, &now)
		set(c, instant(t, "2026-03-01 10:00"))
		kolkata := allowN(t, lim, 4) // until 18:30
		now = ratelimit.PerDay(10)
		require.Equal(t, 6, peek(t, lim, "key").Remaining)
		require.Equal(t, 8*time.Hour+30*time.Minute, peek(t, lim, "key").ResetAfter)
		now = ratelimit.PerDay(10).In(zone(t, "America/Sao_Paulo")) // from 3:00
		require.Equal(t, 6, peek(t, lim, "key").Remaining)
		set(c, instant(t, "2026-03-01 18:30"))
		require.Equal(t, 10, peek(t, lim, "key").Remaining)
		now = ratelimit.PerDay(10)
		allowN(t, lim, 5)
		require.NoError(t, lim.Refund(t.Context(), "key", kolkata, 4))
		require.Equal(t, 5, peek(t, lim, "key").Remaining, "one day in UTC, and two days in Kolkata")
		now = ratelimit.PerMonth(10).From(1)
		require.Equal(t, 5, peek(t, lim, "key").Remaining)
		require.Equal(t, 5*time.Hour+30*time.Minute, peek(t, lim, "key").ResetAfter)
		allowN(t, lim, 1)
		require.Equal(t, instant(t, "2026-04-01 00:00").Sub(c.Now()), peek(t, lim, "key").ResetAfter)
	})
}

func TestACalendarAfterAPlainLimit(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		now := ratelimit.PerDay(10)
		lim := following(t, s, &now)
		set(c, instant(t, "2026-03-01 10:00"))
		plain := allowN(t, lim, 4)
		now = ratelimit.PerDay(10).In(zone(t, "America/Sao_Paulo")) // until 3:00
		require.Equal(t, 14*time.Hour, peek(t, lim, "key").ResetAfter, "until the plain day ends")
		now = ratelimit.PerDay(10).In(zone(t, "Asia/Kolkata"))
		require.Equal(t, 8*time.Hour+30*time.Minute, peek(t, lim, "key").ResetAfter, "until that of Kolkata ends")
		require.NoError(t, lim.Refund(t.Context(), "key", plain, 1))
		require.Equal(t, 7, peek(t, lim, "key").Remaining)
		set(c, instant(t, "2026-03-01 23:00"))
		require.Equal(t, 10, peek(t, lim, "key").Remaining)
	})
}

// The caller computes edges around its own now, and the script picks by the server's.
func TestTheServersClockPicksTheWindow(t *testing.T) {
	mini := redistest.Mini(t)
	lim := newLimiter(t, "fixed_window", onRedis(t, mini.Client(t)), ratelimit.PerDay(10).In(zone(t, "Asia/Kolkata")))
	now := time.Now()
	for days := -2; days <= 2; days++ {
		kolkata := now.AddDate(0, 0, days).In(zone(t, "Asia/Kolkata"))
		from := time.Date(kolkata.Year(), kolkata.Month(), kolkata.Day(), 0, 0, 0, 0, kolkata.Location())
		to := from.AddDate(0, 0, 1)
		mini.SetTime(from)
		r := allowN(t, lim, 10)
		require.True(t, r.Allowed, "%d days", days)
		require.Equal(t, to.Sub(from), r.ResetAfter)
		mini.SetTime(to.Add(-time.Microsecond))
		require.Equal(t, time.Microsecond, allowN(t, lim, 1).RetryAfter)
		require.NoError(t, lim.Refund(t.Context(), "key", r, 10))
	}
	for _, days := range []int{-4, 4} {
		mini.SetTime(now.AddDate(0, 0, days))
		_, err := lim.Allow(t.Context(), "other")
		require.ErrorIs(t, err, store.ErrClock)
		require.ErrorContains(t, err, "the clocks of server and caller differ by more than two windows")
	}
	mini.SetTime(now)
	require.Equal(t, 10, peek(t, lim, "other").Remaining)
	allowN(t, lim, 1)
	mini.SetTime(now.AddDate(0, 0, -4))
	_, err := lim.Allow(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrClock, "nor is the state's window that of a clock that has gone back")
}

// A calendar that is tried out keeps nobody out while the clocks differ, in whichever order it is asked.
func TestAShadowWhoseClocksDifferKeepsNobodyOut(t *testing.T) {
	mini := redistest.Mini(t)
	s := onRedis(t, mini.Client(t))
	trial := newLimiter(t, "fixed_window", s, ratelimit.PerDay(9).In(time.UTC), ratelimit.WithName("trial"))
	limit := newLimiter(t, "token_bucket", s, ratelimit.PerHour(9), ratelimit.WithName("limit"))
	mini.SetTime(time.Now().AddDate(0, 0, 4))
	for i := range 2 {
		asks := []ratelimit.Ask{{Limiter: trial, Key: "key", N: 1, Shadow: true}, {Limiter: limit, Key: "key", N: 1}}
		if i == 1 {
			slices.Reverse(asks)
		}
		r, err := ratelimit.Decide(t.Context(), asks...)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.Parts()[i].Result)
		require.Equal(t, 8-i, r.Parts()[1-i].Remaining)
		asks[i].Shadow = false
		_, err = ratelimit.Decide(t.Context(), asks...)
		require.ErrorIs(t, err, store.ErrClock)
		require.Equal(t, 8-i, peek(t, limit, "key").Remaining, "an error charges nothing")
	}
}

// The server's clock is set back by a window. The spend then counts in the window of now, and no
// longer than in its own.
func TestACalendarOnAServerWhoseClockGoesBack(t *testing.T) {
	mini := redistest.Mini(t)
	lim := newLimiter(t, "fixed_window", onRedis(t, mini.Client(t)), ratelimit.PerDay(10).In(time.UTC))
	noon := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	mini.SetTime(noon)
	r := allowN(t, lim, 10)
	mini.SetTime(noon.AddDate(0, 0, -1))
	require.Equal(t, 12*time.Hour, allowN(t, lim, 1).RetryAfter)
	require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
	require.Equal(t, 9, allowN(t, lim, 1).Limit-peek(t, lim, "key").Remaining-1)
	mini.SetTime(noon.Add(-12 * time.Hour))
	require.Equal(t, 10, peek(t, lim, "key").Remaining)
}

// A plain limit, for a moment, denies and moves the state to weeks before its window. It is still
// a state, and counts in the window of now.
func TestAPlainLimitMovesAStateOfACalendar(t *testing.T) {
	mini := redistest.Mini(t)
	kolkata := ratelimit.PerDay(10).In(zone(t, "Asia/Kolkata"))
	l := kolkata
	lim := following(t, onRedis(t, mini.Client(t)), &l)
	now := time.Now()
	mini.SetTime(now)
	r := allowN(t, lim, 10)
	mini.SetTime(now.AddDate(0, 0, -20))
	l = ratelimit.PerDay(10)
	require.False(t, allowN(t, lim, 1).Allowed)
	require.False(t, allowN(t, lim, 1).Allowed)
	require.Zero(t, peek(t, lim, "key").Remaining)
	mini.SetTime(now.AddDate(0, 0, -19))
	require.Equal(t, 10, peek(t, lim, "key").Remaining)
	require.NoError(t, lim.Refund(t.Context(), "key", r, 1))
}

// Another caller's clock is five days ahead: its day is the key's until it comes.
func TestACallerWhoseClockIsFarAhead(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	c := newClock()
	l := ratelimit.PerDay(10).In(time.UTC)
	lim := following(t, onRedis(t, client, redisstore.WithClock(c.Now)), &l)
	c.Advance(5 * 24 * time.Hour)
	allowN(t, lim, 4)
	c.Advance(-5 * 24 * time.Hour)
	require.Equal(t, 0, allowN(t, lim, 6).Remaining)
	r := allowN(t, lim, 1)
	require.False(t, r.Allowed)
	require.Equal(t, 24*time.Hour, r.RetryAfter, "from the time that the decision has moved to")
	l = ratelimit.PerWeek(10)
	require.Zero(t, peek(t, lim, "key").Remaining, "the weeks around now are known")
	c.Advance(-60 * 24 * time.Hour)
	_, err := lim.Peek(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)

	require.NoError(t, lim.Reset(t.Context(), "key"))
	l = ratelimit.PerDay(10) // which is no window of a calendar
	c.Advance(65 * 24 * time.Hour)
	allowN(t, lim, 4)
	c.Advance(-5 * 24 * time.Hour)
	l = l.In(time.UTC)
	_, err = lim.Peek(t.Context(), "key")
	require.ErrorIs(t, err, ratelimit.ErrStore)
}

func TestAtMostTwiceTheRateAcrossAnEdgeOfCalendars(t *testing.T) {
	l := ratelimit.PerDay(100).In(zone(t, "Europe/Berlin"))
	c := newClock()
	lim := newLimiter(t, "fixed_window", memory(t, c), l)
	for _, edge := range []string{"2026-03-28 23:00", "2026-03-29 22:00"} { // around the day of 23 hours
		set(c, instant(t, edge).Add(-time.Microsecond))
		require.LessOrEqual(t, admitted(t, lim, 300), 100)
		set(c, instant(t, edge))
		require.Equal(t, 100, admitted(t, lim, 300))
	}
	set(c, instant(t, "2026-03-29 22:00").Add(23*time.Hour-time.Microsecond))
	require.Zero(t, admitted(t, lim, 300), "300 in two days, and never more than 200 in 23 hours")
}

func TestIdentitiesOfCalendars(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	s := onRedis(t, client, redisstore.WithClock(newClock().Now))
	for i, l := range []ratelimit.Limit{
		ratelimit.PerDay(9), ratelimit.PerDay(9).In(time.UTC), ratelimit.PerDay(9).In(zone(t, "Asia/Kolkata")), {Rate: 9, Period: 31 * 24 * time.Hour},
		ratelimit.PerMonth(9), ratelimit.PerMonth(9).From(2), ratelimit.PerMonth(9).In(zone(t, "Asia/Kolkata")), ratelimit.PerWeek(9), ratelimit.PerWeek(9).From(2),
	} {
		for j, opts := range [][]ratelimit.Option{nil, {ratelimit.WithName("plan")}} {
			require.Equal(t, 8, allowN(t, newLimiter(t, "fixed_window", s, l, opts...), 1).Remaining, "%v has a count of its own", l)
			require.EqualValues(t, 2*i+j+1, client.DBSize(t.Context()).Val())
		}
	}
	require.EqualValues(t, 1, client.Exists(t.Context(), redistest.Prefix(t)+":2:fixed_window:86400000000:9,9:{=key}").Val(), "as it always was")
	require.EqualValues(t, 1, client.Exists(t.Context(), redistest.Prefix(t)+":2:fixed_window:month/1/Asia/Kolkata:=plan:{=key}").Val())
	require.Equal(t, 17, newLimiterOfRate(t, s, 20).Remaining, "a name keeps the spend")
}

func newLimiterOfRate(t *testing.T, s store.Store, rate int) ratelimit.Result {
	t.Helper()
	return allowN(t, newLimiter(t, "fixed_window", s, ratelimit.PerMonth(rate), ratelimit.WithName("plan")), 2)
}

func ExampleLimit_In() {
	loc, err := time.LoadLocation("America/Sao_Paulo")
	if err != nil {
		panic(err) // the system has no zones: import _ "time/tzdata"
	}
	plan := ratelimit.PerMonth(10_000).From(31).In(loc)
	fmt.Println(plan)
	// Output: 10000/month from 31 in America/Sao_Paulo
}

func TestARefundTakesNothingFromAWindowThatBeganAfterItsCharge(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after ratelimit.Limit
		charge, then  string
	}{
		{"both end on 28 February", ratelimit.PerMonth(10).From(28), ratelimit.PerMonth(10).From(31), "2026-01-29 00:00", "2026-02-01 00:00"},
		{"at the instant it began", ratelimit.PerMonth(10).From(28), ratelimit.PerMonth(10).From(31), "2026-01-29 00:00", "2026-01-31 00:00"},
		{"a day of 23 hours", ratelimit.PerDay(10).In(zone(t, "Africa/Johannesburg")), ratelimit.PerDay(10).In(zone(t, "Europe/Berlin")),
			"2026-03-28 22:30", "2026-03-28 23:30"},
		{"a plain day after one of 25 hours", ratelimit.PerDay(10).In(zone(t, "Europe/London")), ratelimit.PerDay(10), "2026-10-24 23:30", "2026-10-25 00:00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
				l := test.before
				lim := following(t, s, &l)
				set(c, instant(t, test.charge))
				old := allowN(t, lim, 5)
				l = test.after
				set(c, instant(t, test.then))
				full := allowN(t, lim, 10)
				require.True(t, full.Allowed)
				require.NoError(t, lim.Refund(t.Context(), "key", old, 5))
				require.Zero(t, peek(t, lim, "key").Remaining)
				require.NoError(t, lim.Refund(t.Context(), "key", full, 5))
				require.Equal(t, 5, peek(t, lim, "key").Remaining)
			})
		})
	}
}

// What a window still counts is given back, also under a limit whose window begins after its charge.
func TestARefundUnderAnotherLimitGivesBackWhatCounts(t *testing.T) {
	for _, test := range []struct {
		name           string
		counted, other ratelimit.Limit
		charge, then   string
	}{
		{"a plain day, and one of 23 hours", ratelimit.PerDay(10), ratelimit.PerDay(10).In(zone(t, "Atlantic/Azores")), "2026-03-29 00:30", "2026-03-29 02:00"},
		{"a day of 25 hours, and a plain one", ratelimit.PerDay(10).In(zone(t, "Europe/London")), ratelimit.PerDay(10), "2026-10-24 23:30", "2026-10-25 12:00"},
		{"a month, and its last week", ratelimit.PerMonth(10).From(1), ratelimit.PerWeek(10), "2026-05-05 00:00", "2026-05-30 00:00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
				l := test.counted
				lim := following(t, s, &l)
				set(c, instant(t, test.charge))
				old := allowN(t, lim, 2)
				set(c, instant(t, test.then))
				require.Equal(t, 5, allowN(t, lim, 3).Remaining)
				l = test.other
				require.NoError(t, lim.Refund(t.Context(), "key", old, 2))
				l = test.counted
				require.Equal(t, 7, peek(t, lim, "key").Remaining)
			})
		})
	}
}
