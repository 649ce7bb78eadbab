package suite_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// What the Lua scripts do beyond the decisions, which the conformance suite
// compares: bytes, expiry, the server's own clock, and values that are not ours.

func TestScriptsLeaveTheSameValuesAndExpiryOnRedisAndMiniredis(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
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
				for range effort.Of(15, 60, 150) {
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
func requireSameValues(t *testing.T, server, mini *redis.Client, written time.Time) {
	t.Helper()
	keys, err := server.Keys(t.Context(), redistest.Prefix(t)+"*").Result()
	require.NoError(t, err)
	others, err := mini.Keys(t.Context(), redistest.Prefix(t)+"*").Result()
	require.NoError(t, err)
	require.Equal(t, keys, others)
	for _, key := range keys {
		values := value(t, server, key)
		for i := range values {
			numbers := 5
			if strings.Contains(key, ":sliding_log:") && i == len(values)-1 {
				numbers = 9
			}
			values[i] = withoutStruct(values[i], numbers)
		}
		require.Equal(t, values, value(t, mini, key))
		ttl, whole := server.PTTL(t.Context(), key).Val(), mini.PTTL(t.Context(), key).Val()
		require.LessOrEqual(t, ttl, whole)
		require.GreaterOrEqual(t, ttl, whole-time.Since(written)-time.Millisecond)
	}
}

// value is the state of a key, or the blocks of a log.
func value(t *testing.T, client *redis.Client, key string) []string {
	t.Helper()
	if client.Type(t.Context(), key).Val() == "list" {
		return client.LRange(t.Context(), key, 0, -1).Val()
	}
	return []string{client.Get(t.Context(), key).Val()}
}

// packed is what the scripts keep of numbers on a server: doubles.
func packed(numbers ...float64) string {
	var b []byte
	for _, x := range numbers {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(x))
	}
	return string(b)
}

// unpacked is what they keep in place of packed numbers where there is no struct.
func unpacked(numbers ...float64) string {
	text := ""
	for _, x := range numbers {
		text += fmt.Sprintf(" %.0f", x)
	}
	return text + "\n"
}

// withoutStruct is a value that begins with packed numbers as miniredis would have it.
func withoutStruct(value string, numbers int) string {
	if value == "" { // in a log, in the range of another block
		return ""
	}
	var list []float64
	for i := range numbers {
		list = append(list, math.Float64frombits(binary.BigEndian.Uint64([]byte(value[8*i:]))))
	}
	return unpacked(list...) + value[8*numbers:]
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
			ttl := client.PTTL(t.Context(), onlyKey(t, client, ":2:"+algorithm+":*")).Val()
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
		key := onlyKey(t, client, ":2:"+algorithm+":*")
		require.NoError(t, client.Persist(t.Context(), key).Err())
		require.False(t, allowN(t, lim, 50).Allowed)
		require.Negative(t, client.PTTL(t.Context(), key).Val(), "a denial changes nothing")
		require.True(t, allowN(t, lim, 1).Allowed)
		require.Positive(t, client.PTTL(t.Context(), key).Val())
	}
}

func onlyKey(t *testing.T, client *redis.Client, pattern string) string {
	t.Helper()
	keys, err := client.Keys(t.Context(), redistest.Prefix(t)+pattern).Result()
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
	effort.NeedFull(t)
	alone := func(_ *testing.T, lim, _ ratelimit.Limiter) ratelimit.Limiter { return lim }
	together := func(t *testing.T, lim, wide ratelimit.Limiter) ratelimit.Limiter { return all(t, wide, lim) }
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) { serviceGoesOn(t, algorithm, alone) })
		t.Run(algorithm+" with another", func(t *testing.T) {
			if algorithm != "sliding_log" {
				effort.NeedFull(t)
			}
			serviceGoesOn(t, algorithm, together)
		})
	}
}

// serviceGoesOn asks what of makes of two limiters, of which one is wide.
func serviceGoesOn(t *testing.T, algorithm string, of func(t *testing.T, lim, wide ratelimit.Limiter) ratelimit.Limiter) {
	mini := redistest.Mini(t)
	s := onRedis(t, mini.Client(t))
	lim := of(t, newLimiter(t, algorithm, s, ratelimit.PerMinute(60)), newLimiter(t, algorithm, s, ratelimit.PerDay(10_000)))
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
}

func TestSeveralLimitsReadTheServersClockToTheMicrosecond(t *testing.T) {
	mini := redistest.Mini(t)
	s := onRedis(t, mini.Client(t))
	lim := all(t, newLimiter(t, "token_bucket", s, ratelimit.PerSecond(1)), newLimiter(t, "token_bucket", s, ratelimit.PerDay(100)))
	for _, at := range []time.Duration{250 * time.Millisecond, 1250 * time.Millisecond, 2250 * time.Millisecond} {
		mini.SetTime(start.Add(at - time.Microsecond))
		if at > time.Second {
			require.Equal(t, time.Microsecond, allowN(t, lim, 1).RetryAfter)
		}
		mini.SetTime(start.Add(at))
		require.True(t, allowN(t, lim, 1).Allowed, at)
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
			require.NoError(t, client.Persist(t.Context(), key).Err())
			require.False(t, allowN(t, lim, 1).Allowed)
			require.Equal(t, before, value(t, client, key), "a denial changes nothing")
			require.Negative(t, client.PTTL(t.Context(), key).Val(), "and is not written")

			mini.SetTime(start.Add(-time.Hour))
			_, err := lim.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, before, value(t, client, key), "a Peek changes nothing")
			r := allowN(t, lim, 1)
			require.False(t, r.Allowed)
			require.LessOrEqual(t, r.ResetAfter, 2*time.Minute)
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
	t.Parallel()
	effort.OneGoroutine(t)
	for _, algorithm := range algorithms {
		client := redistest.Shared(t).Client(t)
		slow, fast := newClock(), newClock()
		fast.Advance(3 * time.Minute)
		limit := ratelimit.PerHour(100) // keys expire in real time
		a := newLimiter(t, algorithm, onRedis(t, client, redisstore.WithClock(slow.Now)), limit)
		b := newLimiter(t, algorithm, onRedis(t, client, redisstore.WithClock(fast.Now)), limit)
		n := 0
		for range 200 { // one hour
			n += admitted(t, a, 2) + admitted(t, b, 2)
			slow.Advance(18 * time.Second)
			fast.Advance(18 * time.Second)
		}
		require.LessOrEqual(t, n, 100+105+1, algorithm)
		require.GreaterOrEqual(t, n, 100, algorithm)
	}
}

func TestValuesThatAreNotOursAreErrors(t *testing.T) {
	requireErrorsOfForeignValues(t, redistest.Shared(t).Client(t), packed)
	requireErrorsOfForeignValues(t, redistest.Mini(t).Client(t), unpacked)
}

// requireErrorsOfForeignValues puts values that no script has written into the place
// of a state; numbers is how client's server keeps numbers.
func requireErrorsOfForeignValues(t *testing.T, client *redis.Client, numbers func(...float64) string) {
	t.Helper()
	const now = 1767225600000000
	for _, algorithm := range algorithms {
		lim := newLimiter(t, algorithm, onRedis(t, client), ratelimit.PerMinute(60))
		charged := allowN(t, lim, 1)
		key := onlyKey(t, client, ":2:"+algorithm+":*")
		values := map[string]func() error{"a hash": func() error { return client.HSet(t.Context(), key, "f", "v").Err() }}
		for name, text := range map[string]string{
			"empty": "", "a word": "tokens=3", "a number": "17", "40 bytes": strings.Repeat("forty...", 5),
			"text in place of packed numbers": "1767225600000000 60 60000000 1 0",
			"four numbers":                    numbers(now, 60, 6e7, 1), "six numbers": numbers(now, 60, 6e7, 1, 0, 0),
			"no rate": numbers(now, 0, 6e7, 1, 0), "no period": numbers(now, 60, 0, 1, 0),
			"a negative spend": numbers(now, 60, 6e7, -1, 0), "a negative part": numbers(now, 60, 6e7, 1, -1),
			"a sum of 2^53": numbers(1<<53-60-6e7-1, 60, 6e7, 1, 0), "a time of 2^53": numbers(1<<53, 60, 6e7, 1, 0),
			"a rate of 2^53": numbers(now, 1<<53, 6e7, 1, 0), "a period of 2^53": numbers(now, 60, 1<<53, 1, 0),
			"a spend of 2^53": numbers(now, 60, 6e7, 1<<53, 0), "a part of 2^53": numbers(now, 60, 6e7, 1, 1<<53),
		} {
			values[name] = func() error { return client.Set(t.Context(), key, text, 0).Err() }
		}
		if numbers(1) == packed(1) {
			for name, text := range map[string]string{
				"half an event": packed(now, 60, 6e7, 1.5, 0), "half a rate": packed(now, 60.5, 6e7, 1, 0), "no time": packed(math.NaN(), 60, 6e7, 1, 0),
				"no end": packed(now, 60, 6e7, math.Inf(1), 0),
			} {
				values[name] = func() error { return client.Set(t.Context(), key, text, 0).Err() }
			}
		}
		for name, block := range map[string]string{
			"a list": "1", "an empty log": numbers(now, 0, 0, 6, 0, 1, 0, 0, 1000), "half an entry": numbers(now, 0, 0, 6, 0, 1, 0, 0, 1000) + "abc",
			"entries of 7 bytes": numbers(now, 0, 0, 7, 0, 1, 0, 0, 1000) + "1234567", "a log without a period": numbers(now, 0, 0, 6, 0, 1, 0, 0, 0) + "123456",
			"a log of no number": numbers(now, 0, 0, 6, 0, 0, 0, 0, 1000) + "123456", "no last block": numbers(now, 0, 0, 6, 0) + "123456",
		} {
			values[name] = func() error { return client.RPush(t.Context(), key, block).Err() }
		}
		if numbers(1) == packed(1) { // beside the first and the last of what each number can be, and halves of two
			state, wrong := []float64{now, 60, 6e7, 1, 0}, [][]float64{
				{-farthest, farthest, now + 0.5}, {0, 1 << 31}, {999, 3650*24*3600e6 + 1}, {-1, 1 << 32}, {-1, 1 << 49},
			}
			put := func(value string) error { return client.Set(t.Context(), key, value, 0).Err() }
			if algorithm == "fixed_window" { // the end of a window of a calendar: not after its admission, and too late
				const ended, longest = now/1e6 + 1<<41, 60 + 2*24*3600
				wrong[4] = append(wrong[4], ended-1, ended, ended+longest+1)
			}
			if algorithm == "sliding_log" {
				state, wrong = []float64{now, 0, 0, 6, 0, 1, 0, now - 6e7, 6e7}, [][]float64{
					{-farthest, farthest, now + 0.5}, {-1, 1 << 48, 0.5}, {-1, 1 << 48, 0.5}, {5, 7, 0.5}, {-1, 1 << 48, 0.5},
					{0, 1 << 48, 1.5}, {-farthest, farthest, 0.5}, {-2 * farthest, farthest, 0.5}, {999, 3650*24*3600e6 + 1, 6e7 + 0.5},
				}
				put = func(value string) error {
					return client.RPush(t.Context(), key, value+"\x00\x00\x00\x00\x00\x01").Err()
				}
			}
			for i, numbers := range wrong {
				for _, x := range numbers {
					values[fmt.Sprintf("number %d is %v", i, x)] = func() error { return put(withNumber(packed(state...), i, x)) }
				}
				if i > 0 && algorithm != "sliding_log" {
					values[fmt.Sprintf("halves in %d and before", i)] = func() error {
						return put(withNumber(withNumber(packed(state...), i, state[i]+0.5), i-1, state[i-1]+0.5))
					}
				}
			}
		}
		for name, set := range values {
			require.NoError(t, client.Del(t.Context(), key).Err())
			require.NoError(t, set())
			r, err := lim.Allow(t.Context(), "key")
			require.Error(t, err, "%s: %s", algorithm, name)
			class := store.ErrCorrupt
			if strings.HasPrefix(err.Error(), "ratelimit: store failed: ERR Error compiling script") { // miniredis, of a type
				require.ErrorContains(t, err, "WRONGTYPE")
				class = store.ErrStore
			}
			require.ErrorIs(t, err, class, "%s: %s", algorithm, name)
			require.Zero(t, r)
			_, err = lim.Peek(t.Context(), "key")
			require.ErrorIs(t, err, class, "%s: %s", algorithm, name)
			require.ErrorIs(t, lim.Refund(t.Context(), "key", charged, 1), class, "%s: %s", algorithm, name)
			require.EqualValues(t, 1, client.Exists(t.Context(), key).Val(), "%s: %s is left as it is", algorithm, name)
			require.NoError(t, lim.Reset(t.Context(), "key"))
			require.True(t, allowN(t, lim, 1).Allowed)
		}
	}
}

// Products are divided in pieces where they are above 2^52: by all ways through
// muldiv, as some random triples take each.
func TestTheScriptsDivideProductsExactly(t *testing.T) {
	rule := ruleOf(t, "fixed_window")
	_, common := halves(t, rule.Script([]*store.Rule{rule}))
	common, _, found := strings.Cut(common, "\nlocal rules")
	require.True(t, found)
	script := common + `
local replies = {}
for i = 2, #ARGV, 3 do
  replies[#replies + 1] = format('%.0f %.0f', muldiv(ARGV[i] + 0, ARGV[i + 1] + 0, ARGV[i + 2] + 0))
end
return replies`
	rng := rand.New(rand.NewPCG(1, 2))
	below := func(bits int) uint64 { return rng.Uint64N(1 << (1 + rng.IntN(bits))) }
	args, want := []any{"no operation"}, []any{}
	for len(want) < 5000 {
		a, b, c := below(53), below(53), 1+below(49)
		hi, lo := bits.Mul64(a, b)
		if hi >= c {
			continue
		}
		if q, r := bits.Div64(hi, lo, c); q < 1<<53 {
			args, want = append(args, a, b, c), append(want, fmt.Sprint(q, " ", r))
		}
	}
	for _, client := range []*redis.Client{redistest.Shared(t).Client(t), redistest.Mini(t).Client(t)} {
		got, err := client.Eval(t.Context(), script, nil, args...).Slice()
		require.NoError(t, err)
		for i := range want {
			require.Equal(t, want[i], got[i], "%v", args[1+3*i:4+3*i])
		}
	}
}

func TestALogThatHasEndedStartsAgainWithOneBlock(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
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
	require.EqualValues(t, 2, client.LLen(t.Context(), onlyKey(t, client, "*")).Val(), "a block is 64 entries")
	mini.SetTime(back.Add(30 * time.Second))
	require.NoError(t, lim.Refund(t.Context(), "key", last, 1))
	require.EqualValues(t, 1, client.LLen(t.Context(), onlyKey(t, client, "*")).Val())
	require.Equal(t, 35, allowN(t, lim, 1).Remaining)
	mini.SetTime(back.Add(60 * time.Second))
	require.Equal(t, 98, allowN(t, lim, 1).Remaining, "the 64 have left")
}

// What an admission has cut stays cut, also when that admission is refunded and
// was the last block's.
func TestEventsCutFromALogStayCut(t *testing.T) {
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

// Events that two admissions have cut are left in the last of three blocks, and those after them are given back.
func TestALogOfWhichOnlyTheCutIsLeftIsNone(t *testing.T) {
	onEachServer(t, func(t *testing.T, s store.Store, c *clock) {
		l := ratelimit.PerMinute(100)
		lim := newLimiter(t, "sliding_log", s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		require.Equal(t, 65, admitted(t, lim, 65)) // two blocks
		allowN(t, lim, 2)                          // in another one
		c.Advance(time.Microsecond)
		first := allowN(t, lim, 2)
		c.Advance(time.Minute - time.Microsecond)
		second := allowN(t, lim, 1) // just after all but first
		l = ratelimit.PerHour(100)
		third := allowN(t, lim, 1)
		require.NoError(t, lim.Refund(t.Context(), "key", first, 2))
		require.NoError(t, lim.Refund(t.Context(), "key", second, 1))
		require.NoError(t, lim.Refund(t.Context(), "key", third, 1))
		require.Equal(t, 100, peek(t, lim, "key").Remaining)
		require.Zero(t, peek(t, lim, "key").ResetAfter)
	})
}

// After the server's clock has gone back, times are stored an hour late.
func TestALogWhoseTimeHasMovedIsReadByAllAlike(t *testing.T) {
	mini, l := redistest.Mini(t), ratelimit.PerMinute(60)
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return l, nil })
	c, back := newClock(), start.Add(-time.Hour)
	servers := newLimiter(t, "sliding_log", onRedis(t, mini.Client(t)), l, limits)
	callers := newLimiter(t, "sliding_log", onRedis(t, mini.Client(t), redisstore.WithClock(c.Now)), l, limits)
	mini.SetTime(start)
	allowN(t, servers, 60)
	mini.SetTime(back)
	require.False(t, allowN(t, servers, 1).Allowed)

	c.Advance(-time.Hour - 10*time.Second) // a late reading
	require.False(t, allowN(t, callers, 1).Allowed)
	l = ratelimit.PerHour(60) // the events were counted for a minute, and have ended
	mini.SetTime(back.Add(time.Minute))
	require.True(t, allowN(t, servers, 60).Allowed)
}

func TestARefundOfWhatHasLeftALogChangesNothing(t *testing.T) {
	for _, back := range []time.Duration{0, -time.Hour} { // of the server's clock
		mini, l := redistest.Mini(t), ratelimit.PerMinute(60)
		client := mini.Client(t)
		lim := newLimiter(t, "sliding_log", onRedis(t, client), l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		at := func(d time.Duration) { mini.SetTime(start.Add(back + d)) }
		mini.SetTime(start)
		allowN(t, lim, 1)
		at(0)
		require.False(t, allowN(t, lim, 60).Allowed)
		first := allowN(t, lim, 5)
		at(30 * time.Second)
		second := allowN(t, lim, 5)

		key := onlyKey(t, client, "*")
		before := value(t, client, key)
		at(time.Minute)
		require.NoError(t, lim.Refund(t.Context(), "key", first, 5))
		require.Equal(t, before, value(t, client, key))
		l = ratelimit.PerHour(60) // counted for a minute, the log has ended all the same
		at(90 * time.Second)
		require.NoError(t, lim.Refund(t.Context(), "key", second, 5))
		require.Equal(t, before, value(t, client, key))
	}
}

// Entry by entry where it is one block, and else by whole blocks.
func TestALogForgetsWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	for _, n := range []int{1, 2} {
		c, client := newClock(), redistest.Mini(t).Client(t)
		lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMinute(100))
		require.Equal(t, 40, admitted(t, lim, 40))
		c.Advance(30 * time.Second)
		require.Equal(t, 10, admitted(t, lim, 10))
		c.Advance(31 * time.Second)
		allowN(t, lim, n)
		var bytes []int // of entries
		for _, block := range value(t, client, onlyKey(t, client, "*")) {
			_, entries, _ := strings.Cut(block, "\n")
			bytes = append(bytes, len(entries))
		}
		if n == 1 {
			require.Equal(t, []int{11 * 6}, bytes)
		} else { // which a block of single events cannot take
			require.Equal(t, []int{10 * 6, 12}, bytes)
		}
	}

	c, client := newClock(), redistest.Start(t).Client(t)
	lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMinute(100))
	for range 500 {
		allowN(t, lim, 1)
		require.LessOrEqual(t, client.LLen(t.Context(), onlyKey(t, client, "*")).Val(), int64(3), "100 events, blocks of 64")
		c.Advance(600 * time.Millisecond)
	}
}

// Where a block is out of order, its times would tell a wait that is none, or longer than the period.
func TestALogWhoseBlocksAreOutOfOrderIsCorrupt(t *testing.T) {
	c, client := newClock(), redistest.Shared(t).Client(t)
	lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerMinute(4))
	allowN(t, lim, 1)
	key, now := onlyKey(t, client, ":2:sliding_log:*"), float64(c.Now().UnixMicro())
	for _, wait := range []float64{0, 1, 60e6, 60e6 + 1} {
		require.NoError(t, client.Del(t.Context(), key).Err())
		for _, head := range [][]float64{
			{now - 30, 0, 0, 6, 0}, {now - 20, 1, 0, 6, 0}, {now - 60e6 + wait, 2, 0, 6, 0}, {now, 3, 0, 6, 0, 1, 0, now - 60e6, 60e6},
		} {
			require.NoError(t, client.RPush(t.Context(), key, packed(head...)+"\x00\x00\x00\x00\x00\x00").Err())
		}
		r, err := lim.AllowN(t.Context(), "key", 3)
		if wait < 1 || wait > 60e6 {
			require.ErrorIs(t, err, store.ErrCorrupt)
		} else {
			require.NoError(t, err)
			require.Equal(t, time.Duration(wait)*time.Microsecond, r.RetryAfter)
		}
	}
}

// An entry has six bytes of time.
func TestALogKeepsEachByteOfATime(t *testing.T) {
	const most = 10 * 365 * 24 * time.Hour
	for i := range 6 {
		for _, us := range []int64{1<<(8*i+8) - 1, 1 << (8*i + 8)} {
			c := newClock()
			lim := newLimiter(t, "sliding_log", redisServer(t, redisstore.WithClock(c.Now)), ratelimit.Limit{Rate: 10, Period: most},
				ratelimit.WithName(fmt.Sprint(us)))
			for n := 1; n <= 2; n++ { // single events have a plain case
				require.NoError(t, lim.Reset(t.Context(), "key"))
				allowN(t, lim, n)
				c.Advance(time.Duration(us) * time.Microsecond)
				allowN(t, lim, n)
				peek, err := lim.Peek(t.Context(), "key")
				require.NoError(t, err)
				require.Equal(t, 10-2*n, peek.Remaining, "%d µs", us)
				require.Equal(t, most, peek.ResetAfter, "%d µs", us)
			}
		}
	}
}

// In one block, and in two: the last one has that of the charge of two, and 62 or 63 others.
func TestARefundTakesAsManyEntriesOfALogAsABlockHas(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	for _, after := range []int{62, 63, 70} {
		lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(newClock().Now)), ratelimit.PerMinute(1000), ratelimit.WithName(fmt.Sprint(after)))
		charged := allowN(t, lim, 100)
		require.Equal(t, 70, admitted(t, lim, 70))
		allowN(t, lim, 2)
		require.Equal(t, after, admitted(t, lim, after))
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 100)) // the last 64 of that instant
		gone := 64
		if after < 64 {
			gone++
		}
		require.Equal(t, 1000-100-70-2-after+gone, peek(t, lim, "key").Remaining)
	}
}

// With a period of 2^26 µs, the bytes before the entries read as the time of an entry.
func TestARefundOfALogTakesNoEntryThatIsNotThere(t *testing.T) {
	c := newClock()
	lim := newLimiter(t, "sliding_log", redisServer(t, redisstore.WithClock(c.Now)),
		ratelimit.Limit{Rate: 100, Period: 1 << 26 * time.Microsecond})
	charged := allowN(t, lim, 1)
	c.Advance(time.Second)
	require.Equal(t, 70, admitted(t, lim, 70)) // another block
	for range 2 {
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 1))
		peek, err := lim.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 30, peek.Remaining)
	}
}

// Memory and Redis agree while blocks empty, become one and are forgotten, some hundred at
// once and from both ends.
func TestALogOnRedisCountsWhateverIsRefunded(t *testing.T) {
	effort.NeedFull(t)
	c, l := newClock(), ratelimit.PerMinute(12_000)
	client := redistest.Shared(t).Client(t)
	onRedis := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), l)
	inMemory := newLimiter(t, "sliding_log", memory(t, c), l)
	rng := rand.New(rand.NewPCG(1, 1))
	var charged []ratelimit.Result
	take := func(n int) bool {
		r := allowN(t, onRedis, n)
		require.Equal(t, allowN(t, inMemory, n), r)
		if r.Allowed {
			charged = append(charged, r)
		}
		return r.Allowed
	}
	refund := func(i, n int) {
		require.NoError(t, onRedis.Refund(t.Context(), "key", charged[i], n))
		require.NoError(t, inMemory.Refund(t.Context(), "key", charged[i], n))
		if rng.IntN(20) == 0 {
			want, err := inMemory.Peek(t.Context(), "key")
			require.NoError(t, err)
			got, err := onRedis.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, want, got)
			take(12_001 - rng.IntN(min(want.Limit-want.Remaining+1, 1000))) // denied; when would it not be?
		}
	}
	fill := func(n int) {
		for i := range n {
			if i%4 > 0 { // several at one instant
				c.Advance(4 * time.Millisecond)
			}
			take(1)
		}
	}
	fill(9_000)
	for i := range 8_400 { // 130 blocks, but for an event of some
		if i%640 > 0 {
			refund(i, 1)
		}
	}
	fill(200)
	for i := len(charged) - 1; i > 8_700; i-- { // from the newest on
		refund(i, 1)
	}
	charged = charged[8_400:8_700]
	rng.Shuffle(len(charged), func(i, j int) { charged[i], charged[j] = charged[j], charged[i] })
	for i := range charged[:250] {
		refund(i, 1)
	}
	for range 150 { // what is old leaves, 64 numbers at most a call
		c.Advance(time.Duration(rng.IntN(700)) * time.Millisecond)
		take(1 + rng.IntN(3))
		if i := rng.IntN(len(charged)); rng.IntN(2) == 0 {
			refund(i, 1)
		}
	}
	requireLog(t, client, onlyKey(t, client, "*"))
}

// requireLog checks the blocks of a log on a server.
func requireLog(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	blocks := value(t, client, key)
	for i, b := range blocks {
		head := 40
		if i == len(blocks)-1 {
			head = 72
			require.Greater(t, len(b), head)
		}
		if b != "" {
			require.GreaterOrEqual(t, len(b), head)
			require.LessOrEqual(t, len(b), head+64*12)
		}
	}
}

// A server does nothing else meanwhile.
func TestACallOnALargeLogIsAFewCommands(t *testing.T) {
	effort.NeedFull(t)
	client := redistest.Start(t).Client(t)
	c := newClock()
	lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerDay(12_000))
	var charged []ratelimit.Result
	for range 12_000 { // 188 blocks
		c.Advance(time.Second)
		charged = append(charged, allowN(t, lim, 1))
	}
	commands := func(call func()) (n int) {
		require.NoError(t, client.ConfigResetStat(t.Context()).Err())
		call()
		stats, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for _, calls := range regexp.MustCompile(`cmdstat_[a-z]+:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
			some, err := strconv.Atoi(calls[1])
			require.NoError(t, err)
			n += some
		}
		return n
	}
	require.Less(t, commands(func() { require.False(t, allowN(t, lim, 1).Allowed) }), 30)
	for _, i := range []int{0, 1, 100, 3_000, 4_095, 6_000, 9_000, 11_990, 11_999} {
		n := commands(func() { require.NoError(t, lim.Refund(t.Context(), "key", charged[i], 1)) })
		require.Less(t, n, 40, "a refund of event %d", i)
	}
	require.Less(t, commands(func() { require.True(t, allowN(t, lim, 9).Allowed) }), 40)
	require.Less(t, commands(func() { require.False(t, allowN(t, lim, 5_000).Allowed) }), 60)
}

func TestALogTakesAtMost12BytesAnEventOnRedis(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, events := range []int{1_000, effort.Of(3_000, 10_000)} {
		c := newClock()
		lim := newLimiter(t, "sliding_log", onRedis(t, client, redisstore.WithClock(c.Now)), ratelimit.PerDay(events))
		for range events {
			c.Advance(24 * time.Hour / time.Duration(events) / 2)
			require.True(t, allowN(t, lim, 1).Allowed)
		}
		key := onlyKey(t, client, ":2:sliding_log:*"+fmt.Sprint(events)+"*")
		bytes := client.MemoryUsage(t.Context(), key, 0).Val()
		t.Logf("%d events: %.1f bytes an event", events, float64(bytes)/float64(events))
		require.LessOrEqual(t, bytes, int64(12*events))
	}
}

func TestTheScriptsRunOnACluster(t *testing.T) {
	t.Parallel()
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

// A write is one for each replica, too.
func TestARefundOfWhatIsNoLongerChargedWritesNothing(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, algorithm := range algorithms {
		c, l := newClock(), ratelimit.PerMinute(60)
		lim := newLimiter(t, algorithm, onRedis(t, client, redisstore.WithClock(c.Now)), l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		charged := allowN(t, lim, 5)
		c.Advance(10 * time.Minute)
		for _, l = range []ratelimit.Limit{ratelimit.PerMinute(60), ratelimit.PerHour(60)} {
			allowN(t, lim, 5)
			before := changes(t, client)
			require.NoError(t, lim.Refund(t.Context(), "key", charged, 5))
			require.NoError(t, lim.Refund(t.Context(), "another", charged, 5))
			require.Equal(t, before, changes(t, client), "%s, then %v", algorithm, l)
		}
	}

	c, l := newClock(), ratelimit.PerMonth(10).From(28) // which ends with the next one, and began before it
	lim := following(t, onRedis(t, client, redisstore.WithClock(c.Now)), &l)
	set(c, instant(t, "2026-01-29 00:00"))
	charged := allowN(t, lim, 5)
	l = ratelimit.PerMonth(10).From(31)
	set(c, instant(t, "2026-02-01 00:00"))
	allowN(t, lim, 5)
	before := changes(t, client)
	require.NoError(t, lim.Refund(t.Context(), "key", charged, 5))
	require.Equal(t, before, changes(t, client))
}

// changes is how many a server counts.
func changes(t *testing.T, client *redis.Client) string {
	t.Helper()
	info, err := client.Info(t.Context(), "persistence").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`rdb_changes_since_last_save:\d+`).FindString(info)
	require.NotEmpty(t, found)
	return found
}
