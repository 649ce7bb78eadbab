package inflight_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const clockLife = 10 * time.Second // of slots

// onClock is 3 slots on client, alone and in an All with a rate.
func onClock(t *testing.T, client redis.UniversalClient, opts ...redisstore.Option) map[string]ratelimit.Limiter {
	s := ratelimit.Must(redisstore.New(client, append(opts, redisstore.WithTimeout(time.Minute))...))
	rate := ratelimit.Must(ratelimit.NewFixedWindow(s, ratelimit.PerSecond(1_000_000), ratelimit.WithName("rate")))
	l := func(name string) *ratelimit.Custom {
		return ratelimit.Must(inflight.New(s, 3, clockLife, ratelimit.WithName(name)))
	}
	return map[string]ratelimit.Limiter{"alone": l("alone"), "in an All": ratelimit.Must(ratelimit.NewAll(rate, l("all")))}
}

// The server's clock is set back by an hour while processes that have died have slots. From the first call on, which
// may be denied, they are free again after a life.
func TestTheServersClockIsSetBack(t *testing.T) {
	mini := redistest.Mini(t)
	now := time.Unix(1_800_000_000, 0)
	pass := func(d time.Duration) { // of the server's time
		now = now.Add(d)
		mini.SetTime(now)
		mini.FastForward(max(0, d))
	}
	pass(0)
	for name, l := range onClock(t, mini.Client(t)) {
		allow := func() ratelimit.Result {
			r, err := l.Allow(t.Context(), "key")
			require.NoError(t, err, name)
			return r
		}
		for range 3 {
			require.True(t, allow().Allowed, name)
			pass(time.Second)
		}
		pass(-time.Hour)
		p, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, clockLife, p.RetryAfter, name)
		r := allow()
		require.False(t, r.Allowed, name)
		require.Zero(t, r.Remaining, name)
		require.Equal(t, clockLife, r.RetryAfter, name)
		pass(time.Second)
		r = allow()
		require.False(t, r.Allowed, name)
		require.Equal(t, clockLife-time.Second, r.RetryAfter, "%s: it is exact, and no denial prolongs it", name)
		pass(r.RetryAfter - time.Microsecond)
		require.False(t, allow().Allowed, name)
		pass(time.Microsecond)
		for i := range 3 {
			r = allow()
			require.True(t, r.Allowed, name)
			require.Equal(t, 2-i, r.Remaining, name)
			require.LessOrEqual(t, r.ResetAfter, clockLife, name)
		}
		r = allow()
		require.False(t, r.Allowed, name)
		require.LessOrEqual(t, r.RetryAfter, clockLife, name)
		pass(2 * time.Hour)
	}
}

// A process that is alive keeps its slot, because a renewal finds the slot and sets a new end.
func TestTheServersClockIsSetBackWhileASlotIsHeld(t *testing.T) {
	mini := redistest.Mini(t)
	now := time.Unix(1_800_000_000, 0)
	mini.SetTime(now)
	l := onClock(t, mini.Client(t))["alone"].(*ratelimit.Custom)
	var held []ratelimit.Result
	for range 3 {
		r, err := l.Allow(t.Context(), "key")
		require.NoError(t, err)
		held = append(held, r)
	}
	now = now.Add(-time.Hour)
	mini.SetTime(now)
	r, err := l.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	for range 20 {
		now = now.Add(clockLife / 2)
		mini.SetTime(now)
		r, err := l.Renew(t.Context(), "key", held[0])
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, l.ChargedAt(held[0]), l.ChargedAt(r), "it is the same slot")
	}
	p, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 2, p.Remaining, "the others were not renewed")
	r, err = l.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Greater(t, l.ChargedAt(r), l.ChargedAt(held[2]), "tokens go on growing")
	require.NoError(t, l.Refund(t.Context(), "key", r, 1))
	require.NoError(t, l.Refund(t.Context(), "key", held[0], 1))
	require.Equal(t, 3, free(t, l))
}

// Lives may differ as long as the clock is not set back, and callers' clocks may differ: no end is cut then.
func TestALongerLifeIsNotCut(t *testing.T) {
	for name, options := range map[string][]redisstore.Option{"the server's clock": nil, "the callers'": {redisstore.WithClock(time.Now)}} {
		server := redistest.Start(t)
		s := ratelimit.Must(redisstore.New(server.Client(t), append(options, redisstore.WithTimeout(time.Minute))...))
		long := ratelimit.Must(inflight.New(s, 1, time.Hour, ratelimit.WithName("x")))
		short := ratelimit.Must(inflight.New(s, 1, time.Second, ratelimit.WithName("x")))
		r, err := long.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		r, err = short.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Greater(t, r.RetryAfter, 50*time.Minute, name)
		r, err = short.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.Greater(t, r.RetryAfter, 50*time.Minute, name)
	}
}

// The same on a real server, whose clock cannot be set: slots are taken by a clock that is an hour ahead of it.
func TestARealServersClockIsSetBack(t *testing.T) {
	client := redistest.Start(t).Client(t)
	ahead := onClock(t, client, redisstore.WithClock(func() time.Time { return time.Now().Add(time.Hour) }))
	for name, l := range onClock(t, client) {
		for range 3 {
			r, err := ahead[name].Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed, name)
		}
		var before time.Duration
		for range 3 {
			r, err := l.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, r.Allowed, name)
			require.LessOrEqual(t, r.RetryAfter, clockLife, name)
			require.LessOrEqual(t, r.ResetAfter, clockLife, name)
			if before > 0 {
				require.Less(t, r.RetryAfter, before, "%s: no denial prolongs it", name)
			}
			before = r.RetryAfter
		}
	}
}
