package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

func TestALimiterBansByTheText(t *testing.T) {
	parse := func(text string) *config.Config {
		c, err := config.Parse([]byte("limiters:\n  login:\n    algorithm: fixed_window\n" + text))
		require.NoError(t, err)
		return c
	}
	const ban = "    ban: {denials: 2/10m, for: 15m, most: 1h}\n"
	clock := ratelimittest.NewClock(time.Now().Truncate(24 * time.Hour))
	ls, err := parse("    limits: [1/m, 100/d]\n" + ban).Build(clock.Memory(t))
	require.NoError(t, err)
	l, err := ls.Limiter("login")
	require.NoError(t, err)
	ask := func() ratelimit.Result {
		r, err := l.Allow(t.Context(), "ann")
		require.NoError(t, err)
		return r
	}
	for _, length := range []time.Duration{15 * time.Minute, 30 * time.Minute, time.Hour, time.Hour} {
		r := ask()
		require.True(t, r.Allowed)
		require.NoError(t, l.Refund(t.Context(), "ann", r, 1))
		require.True(t, ask().Allowed)
		require.Equal(t, ratelimit.SourceStore, ask().Source())
		require.Equal(t, length, ask().RetryAfter)
		require.NoError(t, ls.Update(parse("    limits: [1/m, 200/d]\n"+ban)))
		require.Equal(t, ratelimit.SourceBan, ask().Source(), "it stays when limits change")
		clock.Advance(length)
	}
	require.True(t, ask().Allowed)
	ask()
	require.Equal(t, ratelimit.SourceBan, ask().Source())
	require.NoError(t, l.Reset(t.Context(), "ann"))
	require.True(t, ask().Allowed)
	require.NoError(t, ls.Update(parse("    limits: [1/m, 200/d]\n")))
	for range 10 {
		require.Equal(t, ratelimit.SourceStore, ask().Source(), "no ban any more")
	}
}

// A caller that takes as much as there is has done nothing wrong: see [ratelimit.Ban.AllowUpTo].
func TestACallerThatIsGrantedAPartIsNotBanned(t *testing.T) {
	l := limiter(t, build(t, memory(t), "limiters:\n  a:\n    algorithm: fixed_window\n    limit: 5/m\n    ban: {denials: 1/10m, for: 15m}\n"), "a")
	for _, want := range []int{5, 0} {
		granted, r, err := ratelimit.AllowUpTo(t.Context(), l, "key", 7)
		require.NoError(t, err)
		require.Equal(t, want, granted)
		require.Equal(t, ratelimit.SourceStore, r.Source())
		require.Equal(t, want, r.Charged())
	}
}

func TestBansThatCannotBe(t *testing.T) {
	for block, want := range map[string]string{
		"{for: 15m}":                                                `5:5: limiter "a": ban: no denials: add them, such as 3/10m`,
		"{denials: 3/10m}":                                          `5:5: limiter "a": ban: no for: add it, such as 15m`,
		"{denials: 3/10m, for: soon}":                               `5:32: limiter "a": ban: for: "soon": want a time, such as 15m`,
		"{denials: 3/10m, for: 15m, most: 0s}":                      `5:43: limiter "a": ban: most: "0s": want a time, such as 24h`,
		"{denials: 3/10m, for: 15m, most: 5m}":                      `5:5: limiter "a": ban: ratelimit: invalid option: Penalty.Most is 5m0s, want 0, or 15m0s to 10 years, in whole microseconds`,
		"{denials: 0/10m, for: 15m}":                                `5:5: limiter "a": ban: ratelimit: invalid option: Penalty.Denials is 0, want 1 to 65535`,
		"{denials: 3/10m burst 5, for: 15m}":                        `5:20: limiter "a": ban: denials: "3/10m burst 5": want a number and a time, such as 3/10m`,
		"{denials: 3/month, for: 15m}":                              `5:20: limiter "a": ban: denials: "3/month": want a number and a time, such as 3/10m`,
		"{denials: 3/10m, for: 15m, longest: 1h}":                   `5:37: limiter "a": ban: unknown field "longest": want denials, for, most`,
		"{denials: 3/10m, for: 15m}\n    store: {deny_cache: true}": `6:5: limiter "a": store: has no effect together with a ban, which asks the store for every call`,
	} {
		_, err := config.Parse([]byte("limiters:\n  a:\n    algorithm: fixed_window\n    limit: 1/s\n    ban: " + block + "\n"))
		require.EqualError(t, err, "config: "+want, block)
	}
}

// A ban is on the store, even if the limits that it shares are on a lease.
func TestABanBesideShares(t *testing.T) {
	ls := build(t, memory(t), "limiters: {api: {algorithm: fixed_window, limit: 1000000/m, store: {lease: 50ms}}, batch: {shares: api, ban: {denials: 3/10m, for: 15m}}}")
	require.True(t, allow(t, limiter(t, ls, "batch"), "key").Allowed)
	require.NoError(t, ls.Close(t.Context()))
	_, err := config.Parse([]byte("limiters: {api: {algorithm: fixed_window, limits: [1/s, 2/2s, 3/3s, 4/4s, 5/5s, 6/6s, 7/7s, 8/8s, 9/9s, 10/10s, 11/11s, 12/12s, 13/13s, 14/14s, 15/15s, 16/16s]}, batch: {shares: api, ban: {denials: 3/10m, for: 15m}}}"))
	require.ErrorContains(t, err, `limiter "api" has 16 limits, and a ban takes one of the 16 places`)
}
