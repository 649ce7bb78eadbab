package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// What the Lua scripts do beyond the decisions, which the conformance suite
// compares: bytes, expiry, the server's own clock, and values that are not ours.

func TestScriptsLeaveTheSameBytesAndExpiryOnRedisAndMiniredis(t *testing.T) {
	limits := []ratelimit.Limit{ // real servers expire in real time: no short Periods
		ratelimit.PerMinute(7),
		{Rate: 999_983, Period: 24 * time.Hour},
		{Rate: 2_147_483_647, Period: 365 * 24 * time.Hour},
		{Rate: 1, Period: 10 * 365 * 24 * time.Hour},
	}
	server, mini := redistest.Start(t).Client(t), redistest.Mini(t).Client(t)
	for _, algorithm := range algorithms {
		for i, l := range limits {
			t.Run(fmt.Sprintf("%s %v", algorithm, l), func(t *testing.T) {
				c := newClock()
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				onServer := newLimiter(t, algorithm, onRedis(t, server, redisstore.WithClock(c.Now)), l)
				onMini := newLimiter(t, algorithm, onRedis(t, mini, redisstore.WithClock(c.Now)), l)
				var last ratelimit.Result
				var written time.Time // before the last call that could write
				for range 150 {
					// Large costs, so that no bucket is empty again within the test.
					n := max(l.Rate/20, 1) + rng.IntN(max(l.Rate/10, min(l.Rate, 3)))
					if rng.IntN(8) == 0 && last.Allowed {
						require.NoError(t, onServer.Refund(t.Context(), "key", last, n))
						require.NoError(t, onMini.Refund(t.Context(), "key", last, n))
					} else {
						now := time.Now()
						if last = allowN(t, onServer, n); last.Allowed {
							written = now
						}
						require.Equal(t, last, allowN(t, onMini, n))
					}
					requireSameValues(t, server, mini, written)
					step := l.Period / time.Duration(min(max(l.Rate, 20), 100)) // at most 75 years in all
					c.Advance(time.Duration(rng.Int64N(int64(step))))
				}
			})
		}
	}
}

// requireSameValues compares the values of a server and of a miniredis, where no
// time passes. Expiry was last set no earlier than written.
func requireSameValues(t *testing.T, a, b *redis.Client, written time.Time) {
	t.Helper()
	keys, err := a.Keys(t.Context(), t.Name()+"*").Result()
	require.NoError(t, err)
	others, err := b.Keys(t.Context(), t.Name()+"*").Result()
	require.NoError(t, err)
	require.Equal(t, keys, others)
	for _, key := range keys {
		require.Equal(t, value(t, a, key), value(t, b, key))
		ttl, whole := a.PTTL(t.Context(), key).Val(), b.PTTL(t.Context(), key).Val()
		require.LessOrEqual(t, ttl, whole)
		require.GreaterOrEqual(t, ttl, whole-time.Since(written)-time.Millisecond)
	}
}

func value(t *testing.T, client *redis.Client, key string) []string {
	t.Helper()
	if client.Type(t.Context(), key).Val() == "list" {
		return client.LRange(t.Context(), key, 0, -1).Val()
	}
	return []string{client.Get(t.Context(), key).Val()}
}

func TestEachKeyExpiresWhenItsStateDoes(t *testing.T) {
	client := redistest.Mini(t).Client(t) // where no time passes
	for _, algorithm := range algorithms {
		c := newClock()
		lim := newLimiter(t, algorithm, onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMinute(7))
		for i := range 40 {
			c.Advance(time.Duration(i%9) * 1_234_567 * time.Microsecond)
			r := allowN(t, lim, 1+i%2)
			if !r.Allowed {
				continue
			}
			ttl := client.PTTL(t.Context(), onlyKey(t, client, ":1:"+algorithm+":*")).Val()
			require.Equal(t, (r.ResetAfter + time.Millisecond - 1).Truncate(time.Millisecond), ttl, algorithm)
		}
	}
}

func TestAnAdmissionRestoresALostExpiry(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	s := onRedis(t, client)
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(60))
		allowN(t, lim, 20)
		key := onlyKey(t, client, ":1:"+algorithm+":*")
		require.NoError(t, client.Persist(t.Context(), key).Err())
		require.False(t, allowN(t, lim, 50).Allowed)
		require.Negative(t, client.PTTL(t.Context(), key).Val(), "a denial changes nothing")
		require.True(t, allowN(t, lim, 1).Allowed)
		require.Positive(t, client.PTTL(t.Context(), key).Val())
	}
}

func onlyKey(t *testing.T, client *redis.Client, pattern string) string {
	t.Helper()
	keys, err := client.Keys(t.Context(), t.Name()+pattern).Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	return keys[0]
}

func TestNoKeyIsLeftWithoutExpiry(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerSecond(50))
		for i := range 300 {
			r, err := lim.AllowN(t.Context(), fmt.Sprint(i%7), 1+i%3)
			require.NoError(t, err)
			if i%5 == 0 && r.Allowed {
				require.NoError(t, lim.Refund(t.Context(), fmt.Sprint(i%7), r, 1))
			}
		}
	}
	keys := client.Scan(t.Context(), 0, "*", 1000).Iterator()
	n := 0
	for ; keys.Next(t.Context()); n++ {
		require.NotEqual(t, time.Duration(-1), client.PTTL(t.Context(), keys.Val()).Val(), keys.Val())
	}
	require.NoError(t, keys.Err())
	require.Positive(t, n)
}

// The server's clock goes back by an hour: the state is dated later than now.
func TestServiceGoesOnAfterTheServersClockHasGoneBack(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			mini := redistest.Mini(t)
			lim := newLimiter(t, algorithm, onRedis(t, mini.Client(t)), ratelimit.PerMinute(60))
			mini.SetTime(start)
			require.Equal(t, 60, admitted(t, lim, 100))
			mini.SetTime(start.Add(-time.Hour))

			peek, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Zero(t, admitted(t, lim, 100), "the spend is kept")
			require.Positive(t, peek.RetryAfter)
			require.LessOrEqual(t, peek.RetryAfter, 61*time.Second, "and counts from now")

			n := 0
			for i := range 120 { // ten minutes, each 5 s
				mini.SetTime(start.Add(-time.Hour + time.Duration(i+1)*5*time.Second))
				n += admitted(t, lim, 8)
			}
			require.GreaterOrEqual(t, n, 480, "%s: admitted in ten minutes at 60 a minute", algorithm)
			require.LessOrEqual(t, n, 660)
		})
	}
}

func TestARefundMintsNothingAfterTheServersClockHasGoneBack(t *testing.T) {
	for _, algorithm := range algorithms {
		mini := redistest.Mini(t)
		lim := newLimiter(t, algorithm, onRedis(t, mini.Client(t)), ratelimit.PerSecond(10))
		mini.SetTime(start)
		charged := allowN(t, lim, 10)
		back := start.Add(-time.Hour)
		mini.SetTime(back)
		allowN(t, lim, 10)
		n := 0
		for i := range 5 {
			mini.SetTime(back.Add(time.Duration(i+1) * 10 * time.Second))
			n += admitted(t, lim, 10)
			require.NoError(t, lim.Refund(t.Context(), "key", charged, 10))
			n += admitted(t, lim, 10)
		}
		require.Equal(t, 50, n, algorithm)
	}
}

func TestADenialMovesAStateOfTheFutureToNow(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			mini := redistest.Mini(t)
			client := mini.Client(t)
			lim := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerMinute(60))
			mini.SetTime(start)
			allowN(t, lim, 60)
			key := onlyKey(t, client, "*")
			before := value(t, client, key)
			require.False(t, allowN(t, lim, 1).Allowed)
			require.Equal(t, before, value(t, client, key), "a denial changes nothing")

			mini.SetTime(start.Add(-time.Hour))
			_, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, before, value(t, client, key), "a Peek changes nothing")
			r := allowN(t, lim, 1)
			require.False(t, r.Allowed)
			require.NotEqual(t, before, value(t, client, key))
			require.InDelta(t, r.ResetAfter.Milliseconds(), client.PTTL(t.Context(), key).Val().Milliseconds(), 1)

			mini.SetTime(start.Add(-time.Hour + r.RetryAfter - time.Microsecond))
			require.False(t, allowN(t, lim, 1).Allowed)
			mini.SetTime(start.Add(-time.Hour + r.RetryAfter))
			require.True(t, allowN(t, lim, 1).Allowed)
		})
	}
}

// A caller's clock that is ahead delays the others, and is never taken back.
func TestCallersWhoseClocksDisagreeAdmitNoMore(t *testing.T) {
	for _, algorithm := range algorithms {
		mini := redistest.Mini(t).Client(t)
		slow, fast := newClock(), newClock()
		fast.Advance(50 * time.Millisecond)
		limit := ratelimit.Limit{Rate: 100, Period: time.Second}
		a := newLimiter(t, algorithm, onRedis(t, mini, redisstore.WithClock(slow.Now)), limit)
		b := newLimiter(t, algorithm, onRedis(t, mini, redisstore.WithClock(fast.Now)), limit)
		n := 0
		for range 200 { // one second
			n += admitted(t, a, 2) + admitted(t, b, 2)
			slow.Advance(5 * time.Millisecond)
			fast.Advance(5 * time.Millisecond)
		}
		require.LessOrEqual(t, n, 100+105+1, algorithm)
		require.GreaterOrEqual(t, n, 100, algorithm)
	}
}

func TestValuesThatAreNotOursAreErrors(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerMinute(60))
		charged := allowN(t, lim, 1)
		key := onlyKey(t, client, ":1:"+algorithm+":*")
		values := map[string]func() error{
			"a hash":        func() error { return client.HSet(t.Context(), key, "f", "v").Err() },
			"an empty text": func() error { return client.Set(t.Context(), key, "", 0).Err() },
			"a text":        func() error { return client.Set(t.Context(), key, "tokens=3", 0).Err() },
			"a number":      func() error { return client.Set(t.Context(), key, "17", 0).Err() },
			"no period":     func() error { return client.Set(t.Context(), key, "1767225600000000 1 0 1 0", 0).Err() },
			"a fraction":    func() error { return client.Set(t.Context(), key, "1767225600000000 60 60000000 1.5 0", 0).Err() },
			"a list":        func() error { return client.RPush(t.Context(), key, "1", "2", "3").Err() },
			"an empty log":  func() error { return client.RPush(t.Context(), key, "1767225600000000 0 0 6 0 0 1000\n").Err() },
			"half an entry": func() error { return client.RPush(t.Context(), key, "1767225600000000 0 0 6 0 0 1000\nabc").Err() },
		}
		for name, set := range values {
			require.NoError(t, client.Del(t.Context(), key).Err())
			require.NoError(t, set())
			r, err := lim.Allow(t.Context(), "key")
			require.ErrorIs(t, err, ratelimit.ErrStore, "%s: %s", algorithm, name)
			require.Zero(t, r)
			if !strings.HasPrefix(name, "a hash") && !strings.Contains(err.Error(), "WRONGTYPE") {
				require.ErrorContains(t, err, "the value of the key is not a")
			}
			_, err = lim.Peek(t.Context(), "key")
			require.ErrorIs(t, err, ratelimit.ErrStore, "%s: %s", algorithm, name)
			require.ErrorIs(t, lim.Refund(t.Context(), "key", charged, 1), ratelimit.ErrStore, "%s: %s", algorithm, name)
			require.EqualValues(t, 1, client.Exists(t.Context(), key).Val(), "%s: %s is left as it is", algorithm, name)
			require.NoError(t, lim.Reset(t.Context(), "key"))
			require.True(t, allowN(t, lim, 1).Allowed)
		}
	}
}

func TestALogThatHasEndedStartsAgainWithOneBlock(t *testing.T) {
	c := newClock()
	client := redistest.Mini(t).Client(t) // which does not expire it first
	lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMinute(1000))
	for range 300 {
		allowN(t, lim, 1)
	}
	c.Advance(365 * 24 * time.Hour)
	require.Equal(t, 999, allowN(t, lim, 1).Remaining)
	require.EqualValues(t, 1, client.LLen(t.Context(), onlyKey(t, client, "*")).Val())
}

// The server's clock has gone back since the first block was filled. That is
// noted in the last block, which a refund removes.
func TestARefundOfTheLastBlockKeepsTheTimeOfTheOthers(t *testing.T) {
	mini := redistest.Mini(t)
	client := mini.Client(t)
	lim := newLimiter(t, "sliding_log", onRedis(t, client), ratelimit.PerMinute(100))
	for range 64 {
		allowN(t, lim, 1)
	}
	back := start.Add(-time.Hour)
	mini.SetTime(back)
	last := allowN(t, lim, 1)
	require.Equal(t, 35, last.Remaining)
	mini.SetTime(back.Add(30 * time.Second))
	require.NoError(t, lim.Refund(t.Context(), "key", last, 1))
	require.EqualValues(t, 1, client.LLen(t.Context(), onlyKey(t, client, "*")).Val())
	require.Equal(t, 35, allowN(t, lim, 1).Remaining)
	mini.SetTime(back.Add(60 * time.Second))
	require.Equal(t, 98, allowN(t, lim, 1).Remaining, "the 64 have left")
}

// What an admission has cut stays cut, also when that admission is refunded and
// was the last block's.
func TestWhatALogHasCutStaysCut(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	for _, onMemory := range []bool{true, false} {
		c, l := newClock(), ratelimit.PerMinute(100)
		s := onRedis(t, client, redisstore.WithClock(c.Now))
		if onMemory {
			s = memory(t, c)
		}
		lim := newLimiter(t, "sliding_log", s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		for i := range 64 { // a block: half of it at 0 s, half at 25 s
			if i == 32 {
				c.Advance(25 * time.Second)
			}
			allowN(t, lim, 1)
		}
		c.Advance(5 * time.Second)
		first := allowN(t, lim, 1)
		c.Advance(50 * time.Second)
		second := allowN(t, lim, 1) // at 80 s, which cuts the first half
		require.NoError(t, lim.Refund(t.Context(), "key", first, 1))
		require.NoError(t, lim.Refund(t.Context(), "key", second, 1))
		l = ratelimit.PerHour(100)
		peek, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 68, peek.Remaining)
	}
}

func TestALogTakesAtMost12BytesAnEventOnRedis(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, events := range []int{1_000, 10_000} {
		c := newClock()
		lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerDay(events))
		for range events {
			c.Advance(time.Duration(86_400_000_000/events) * time.Microsecond / 2)
			require.True(t, allowN(t, lim, 1).Allowed)
		}
		key := onlyKey(t, client, ":1:sliding_log:*"+fmt.Sprint(events)+"*")
		bytes := client.MemoryUsage(t.Context(), key, 0).Val()
		t.Logf("%d events: %.1f bytes an event", events, float64(bytes)/float64(events))
		require.LessOrEqual(t, bytes, int64(12*events))
	}
}

func TestTheScriptsRunOnACluster(t *testing.T) {
	c := newClock()
	s := onRedis(t, redistest.StartCluster(t, 3, 0).Client(t), redisstore.WithClock(c.Now))
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, s, ratelimit.PerHour(3))
		for i := range 20 { // on all three masters
			key := fmt.Sprint("user:", i)
			for n := range 4 {
				r, err := lim.Allow(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, n < 3, r.Allowed)
				if n == 2 {
					require.NoError(t, lim.Refund(t.Context(), key, r, 1))
					require.True(t, allow(t, lim, key).Allowed)
				}
			}
			require.NoError(t, lim.Reset(t.Context(), key))
			require.True(t, allow(t, lim, key).Allowed)
		}
	}
}

// Each number that enters a stored text or a command is written in full.
func TestScriptsWriteNumbersInFull(t *testing.T) {
	files, err := os.ReadDir("scripts")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile("scripts/" + file.Name())
		require.NoError(t, err)
		code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(string(text), "")
		require.NotContains(t, code, "tostring", file.Name())
		require.NotContains(t, code, "replicate_commands", file.Name())
		require.True(t, strings.HasPrefix(strings.TrimSpace(string(text)), "--"), "%s has a header", file.Name())
	}
}

// One decision is one command on one key.
func TestADecisionIsOneCommand(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerSecond(1000))
		allowN(t, lim, 1) // loads the script
		require.NoError(t, client.ConfigResetStat(t.Context()).Err())
		for range 100 {
			allowN(t, lim, 1)
		}
		stats, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		require.Contains(t, stats, "cmdstat_evalsha:calls=100,", algorithm)
		require.NotContains(t, stats, "cmdstat_eval:", algorithm)
	}
}
