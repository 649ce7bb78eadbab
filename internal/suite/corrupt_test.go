package suite_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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

// planted is a value that no script may have written, as commands that put it into the
// place of a state.
type planted struct {
	name string
	put  func(p redis.Pipeliner, key string)
}

func text(name, value string) planted {
	return planted{name, func(p redis.Pipeliner, key string) { p.Set(context.Background(), key, value, time.Minute) }}
}

// list is a log of these blocks.
func list(name string, blocks ...string) planted {
	return planted{name, func(p redis.Pipeliner, key string) {
		for _, b := range blocks {
			p.RPush(context.Background(), key, b)
		}
		p.PExpire(context.Background(), key, time.Minute)
	}}
}

// extremes are doubles that no state has, or hardly any.
var extremes = []float64{
	math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 6, 12, 999, 1000, 1 << 24, 1<<31 - 1, 1 << 31, 1 << 32,
	1<<48 - 1, 1 << 48, 1<<49 - 1, 1 << 50, 1 << 52, 1<<53 - 1, 1 << 53, -(1 << 48), -(1 << 53), 1e300, -1e300, math.MaxFloat64, 5e-324,
	315_360_000_000_000, 1_767_225_600_000_000, -1_767_225_600_000_000, 7.2e15, -7.2e15,
}

// withNumber is value with number i of those that it begins with replaced.
func withNumber(value string, i int, x float64) string {
	b := []byte(value)
	binary.BigEndian.PutUint64(b[8*i:], math.Float64bits(x))
	return string(b)
}

// corruptions are what can stand in the place of a state: values of every length, real
// ones with a bit flipped, with extreme numbers, and of other types. put makes one of the
// values that reals has, of which the last is changed, or of which all are.
func corruptions(reals [][]string, numbers int, put func(name string, blocks ...string) planted) []planted {
	var all []planted
	rng := rand.New(rand.NewPCG(1, 1))
	for length := range 65 {
		random := make([]byte, length)
		for i := range random {
			random[i] = byte(rng.Uint32())
		}
		for _, value := range []string{strings.Repeat("\x00", length), strings.Repeat("7", length), string(random)} {
			all = append(all, put(fmt.Sprintf("%d bytes %q", length, value), value), text(fmt.Sprintf("text of %d bytes %q", length, value), value))
		}
	}
	for _, real := range reals {
		for at, block := range real {
			with := func(name, changed string) {
				blocks := append([]string(nil), real...)
				blocks[at] = changed
				all = append(all, put(fmt.Sprintf("block %d of %d: %s", at, len(real), name), blocks...))
			}
			for bit := range min(8*len(block), 8*(8*numbers+24)) {
				flipped := []byte(block)
				flipped[bit/8] ^= 1 << (bit % 8)
				with(fmt.Sprintf("bit %d", bit), string(flipped))
			}
			for range 60 { // anywhere
				changed := []byte(block)
				for range 1 + rng.IntN(4) {
					changed[rng.IntN(len(changed))] = byte(rng.Uint32())
				}
				with("random bytes", string(changed))
			}
			with("shorter", block[:len(block)-1])
			with("longer", block+"x")
			for i := range numbers {
				for _, x := range extremes {
					if 8*i+8 <= len(block) {
						with(fmt.Sprintf("number %d is %g", i, x), withNumber(block, i, x))
					}
				}
			}
			for range 200 { // two extremes at once
				i, j := rng.IntN(numbers), rng.IntN(numbers)
				if max(8*i, 8*j)+8 <= len(block) {
					x, y := extremes[rng.IntN(len(extremes))], extremes[rng.IntN(len(extremes))]
					with(fmt.Sprintf("numbers %d and %d are %g and %g", i, j, x, y), withNumber(withNumber(block, i, x), j, y))
				}
			}
		}
	}
	for range 6 { // by each call: what would last for ever
		all = append(all, put("a time to come", packed(7.2e15, 1, 315_360_000_000_000, 1<<31-1, 1<<49-1)))
	}
	return append(all,
		planted{"a hash", func(p redis.Pipeliner, key string) { p.HSet(context.Background(), key, "f", "v") }},
		planted{"a set", func(p redis.Pipeliner, key string) { p.SAdd(context.Background(), key, "m") }},
		planted{"a sorted set", func(p redis.Pipeliner, key string) { p.ZAdd(context.Background(), key, redis.Z{Member: "m"}) }},
		planted{"a stream", func(p redis.Pipeliner, key string) {
			p.XAdd(context.Background(), &redis.XAddArgs{Stream: key, Values: []string{"f", "v"}})
		}},
		planted{"a list", func(p redis.Pipeliner, key string) { p.RPush(context.Background(), key, "x") }},
		planted{"an empty text", func(p redis.Pipeliner, key string) { p.Set(context.Background(), key, "", 0) }},
	)
}

// Whatever stands in the place of a state, a call answers a Result that makes sense or
// ErrCorrupt. Anything else would count as a failure of the store, and five of these
// keep everybody from it where a breaker is.
func TestAnyStoredValueIsAResultOrErrCorrupt(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Shared(t).Client(t)
	c := newClock()
	clocks := map[string][]redisstore.Option{"the server's clock": nil, "the caller's clock": {redisstore.WithClock(c.Now)}}
	for name, opts := range clocks {
		for _, algorithm := range algorithms {
			t.Run(algorithm+", "+name, func(t *testing.T) {
				t.Parallel()
				reals, charged := realValues(t, client, algorithm, onRedis(t, client, opts...), ratelimit.PerHour(200))
				numbers, put := 5, func(name string, blocks ...string) planted { return text(name, blocks[0]) }
				if algorithm == "sliding_log" {
					numbers, put = 9, list
				}
				all := corruptions(reals, numbers, put)
				for i, l := range []ratelimit.Limit{ratelimit.PerMinute(60), {Rate: 1, Period: 10 * 365 * 24 * time.Hour}} {
					// The other clock, and the other limit, try the same values by other calls.
					requireResultOrCorrupt(t, client, algorithm, l, opts, all, charged, i+3*len(opts))
				}
			})
		}
	}
}

// A state of a calendar also has the end of its window, which is another number to be damaged.
func TestAnyStoredCalendarIsAResultOrErrCorrupt(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Shared(t).Client(t)
	c := newClock()
	clocks := map[string][]redisstore.Option{"the server's clock": nil, "the caller's clock": {redisstore.WithClock(c.Now)}}
	put := func(name string, blocks ...string) planted { return text(name, blocks[0]) }
	for name, opts := range clocks {
		for unit, l := range map[string]ratelimit.Limit{"day": ratelimit.PerDay(200), "month": ratelimit.PerMonth(200)} {
			t.Run(unit+", "+name, func(t *testing.T) {
				t.Parallel()
				l := l.In(zone(t, "Asia/Kolkata"))
				reals, charged := realValues(t, client, "fixed_window", onRedis(t, client, opts...), l)
				all := corruptions(reals, 5, put)
				for i, l := range []ratelimit.Limit{l, l.In(time.UTC), ratelimit.PerMinute(60)} {
					for first := range effort.Of(1, 2, 6) {
						requireResultOrCorrupt(t, client, "fixed_window", l, opts, all, charged, 100*i+first)
					}
				}
			})
		}
	}
}

// requireResultOrCorrupt makes one call of l on each of the values, in turn of each kind,
// the first of which has the number first.
func requireResultOrCorrupt(t *testing.T, client *redis.Client, algorithm string, l ratelimit.Limit, opts []redisstore.Option,
	values []planted, charged ratelimit.Result, first int,
) {
	t.Helper()
	ctx, prefix := t.Context(), fmt.Sprint(redistest.Prefix(t), " of ", first)
	s := onRedis(t, client, append([]redisstore.Option{redisstore.WithPrefix(prefix)}, opts...)...)
	lim := newLimiter(t, algorithm, s, l).(charger)
	allowN(t, lim, 1)
	key := onlyKey(t, client, fmt.Sprint(" of ", first, ":*"))
	both := all(t, newLimiter(t, algorithm, s, l), newLimiter(t, algorithm, s, ratelimit.PerDay(1e6), ratelimit.WithName("wide")))
	calls := []func() (ratelimit.Result, error){
		func() (ratelimit.Result, error) { return lim.AllowN(ctx, "key", 1) },
		func() (ratelimit.Result, error) { return lim.Charge(ctx, "key", 61) },
		func() (ratelimit.Result, error) { return lim.Peek(ctx, "key") },
		func() (ratelimit.Result, error) { return both.AllowN(ctx, "key", 1) },
		func() (ratelimit.Result, error) { _, r, err := lim.AllowUpTo(ctx, "key", 50); return r, err },
		func() (ratelimit.Result, error) { return charged, lim.Refund(ctx, "key", charged, 1) },
	}
	corrupt := 0
	every := effort.Of(5, 3, 1) // in a plain run each fifth value, of each kind
	for i, v := range values {
		if i%every > 0 {
			continue
		}
		pipe := client.Pipeline()
		pipe.Del(ctx, key)
		v.put(pipe, key)
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		op := (first + i + i/len(calls)) % len(calls)
		r, err := calls[op]()
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("call %d of %v on %s: %v", op, l, v.name, err)
		}
		if err == nil && nonsense(r) != "" {
			t.Errorf("call %d of %v on %s: %s: %+v", op, l, v.name, nonsense(r), r)
		}
		if err != nil {
			corrupt++
		}
	}
	require.Greater(t, corrupt, len(values)/every/5)
	require.Less(t, corrupt, len(values)/every*9/10, "real values, and such as differ from them by a few events")
}

// realValues are what scripts have written, and an admission of them.
func realValues(t *testing.T, client *redis.Client, algorithm string, s store.Store, l ratelimit.Limit) (reals [][]string, charged ratelimit.Result) {
	t.Helper()
	lim := newLimiter(t, algorithm, s, l)
	charged = allowN(t, lim, 2)
	if charged.ResetAfter < 2*time.Second { // at the end of a window
		time.Sleep(charged.ResetAfter)
		charged = allowN(t, lim, 2)
	}
	if algorithm == "sliding_log" { // three blocks of both kinds, one of which was refunded from
		for i := range 66 {
			r := allowN(t, lim, 1)
			if i == 20 {
				charged = r
			}
		}
		require.NoError(t, lim.Refund(t.Context(), "key", charged, 1))
		charged = allowN(t, lim, 3)
	}
	return [][]string{value(t, client, onlyKey(t, client, ":*"))}, charged
}

// charger is what the five types have beside Limiter.
type charger interface {
	ratelimit.Limiter
	Name() string
	AllowUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
	Charge(ctx context.Context, key string, n int) (ratelimit.Result, error)
}

// nonsense is what no Result may say.
func nonsense(r ratelimit.Result) string {
	switch {
	case r.Remaining < 0 || r.Remaining > r.Limit:
		return "Remaining"
	case !r.Allowed && r.RetryAfter <= 0:
		return "RetryAfter of a denial"
	case r.Allowed && r.RetryAfter != 0:
		return "RetryAfter of an admission"
	case r.ResetAfter < 0 || r.Delay < 0:
		return "a time below 0"
	}
	return ""
}

// A limit that is tried out, or only looked at by a shadow, may have a state that is none: the
// limits beside it decide as if it were not asked. Theirs being none is an error, and charges nothing.
func TestAShadowWhoseStateIsCorruptKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	for _, algorithm := range algorithms {
		for _, n := range []int{0, 1} {
			s := onRedis(t, client, redisstore.WithPrefix(fmt.Sprint(redistest.Prefix(t), algorithm, n)))
			var told, tried errorHeard
			limit := newLimiter(t, algorithm, s, ratelimit.PerHour(9), ratelimit.WithName("limit"), ratelimit.WithObserver(&told))
			trial := newLimiter(t, algorithm, s, ratelimit.PerHour(9), ratelimit.WithName("trial"), ratelimit.WithObserver(&tried))
			allowN(t, trial, 1)
			key := onlyKey(t, client, fmt.Sprint(algorithm, n, ":*"))
			require.NoError(t, client.Del(t.Context(), key).Err())
			require.NoError(t, client.Set(t.Context(), key, "garbage", time.Minute).Err())
			ask := func(shadow bool) (ratelimit.Result, error) {
				return ratelimit.Decide(t.Context(),
					ratelimit.Ask{Limiter: trial, Key: "key", N: n, Look: n == 0, Shadow: shadow},
					ratelimit.Ask{Limiter: limit, Key: "key", N: 1})
			}
			r, err := ask(true)
			require.NoError(t, err, algorithm)
			require.True(t, r.Allowed)
			require.Zero(t, r.Parts()[0].Result)
			require.Equal(t, 8, r.Parts()[1].Remaining)
			require.NoError(t, told.error)
			if n > 0 { // observers hear of no looks
				require.ErrorIs(t, tried.error, store.ErrCorrupt)
			}
			_, err = ask(false)
			require.ErrorIs(t, err, store.ErrCorrupt)
			left, err := limit.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 8, left.Remaining)
		}
	}
}

// errorHeard is the error of the last decision.
type errorHeard struct{ error }

func (h *errorHeard) Decided(_ context.Context, _ string, _ int, _ ratelimit.Result, err error, _ time.Duration) {
	h.error = err
}
