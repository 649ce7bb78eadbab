package suite_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// prepared keeps the rule of the last limiter that was made on it.
type prepared struct {
	store.Store
	rule *store.Rule
}

func (p *prepared) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	p.rule = rule
	return nil
}

// ways are the two of a script: with its plain case, and without. The third is the plain case
// alone, which replies nothing if the general script has to go on.
type ways struct{ whole, general, plain *redis.Script }

func waysOf(t *testing.T, algorithm string) ways {
	t.Helper()
	p := new(prepared)
	newLimiter(t, algorithm, p, ratelimit.PerHour(1))
	plain, general, found := strings.Cut(p.rule.Script, "\n-- Shared by all scripts")
	require.True(t, found)
	return ways{redis.NewScript(p.rule.Script), redis.NewScript("-- " + general), redis.NewScript(plain)}
}

// twoKeys are one key by each way of a script. They must never differ.
type twoKeys struct {
	ways
	client *redis.Client
	rng    *rand.Rand
	rate   int64
	period int64
	now    int64

	plain, takes int
	refundable   []any // of the last admission
}

func (k *twoKeys) keys() (whole, general string) { return "{plain}whole", "{plain}general" }

// TestThePlainCaseDecidesAndWritesAsTheGeneralScript is the proof that the two tellings of a
// take are one: both run on equal states, which include some that no rule has written.
func TestThePlainCaseDecidesAndWritesAsTheGeneralScript(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range algorithms {
		for i, l := range []ratelimit.Limit{
			ratelimit.PerMinute(5), ratelimit.PerHour(200), {Rate: 999_983, Period: 24 * 3600e9}, {Rate: 2_147_483_647, Period: 365 * 24 * 3600e9},
		} {
			t.Run(fmt.Sprint(algorithm, " ", l), func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				k := &twoKeys{
					ways: waysOf(t, algorithm), client: client, rng: rand.New(rand.NewPCG(uint64(i), 7)),
					rate: int64(l.Rate), period: l.Period.Microseconds(), now: 1_700_000_000_000_000,
				}
				require.NoError(t, k.whole.Load(t.Context(), client).Err())
				require.NoError(t, k.general.Load(t.Context(), client).Err())
				for range effort.Of(30, 100, 1200) {
					k.step(t, algorithm)
				}
				require.Greater(t, k.plain, k.takes/20)
			})
		}
	}
}

// step is one call on both keys.
func (k *twoKeys) step(t *testing.T, algorithm string) {
	t.Helper()
	k.now += k.pause()
	if far := int64(7e15); k.rng.IntN(200) == 0 || k.now > far { // from there on no time is one
		k.now = min(k.now, far-k.rng.Int64N(far/2))
		whole, general := k.keys()
		require.NoError(t, k.client.Del(t.Context(), whole, general).Err())
	}
	if algorithm != "sliding_log" && k.rng.IntN(3) == 0 {
		k.plant(t)
	}
	args := []any{"take", k.rate, k.period, k.rate, k.events()}
	switch k.rng.IntN(20) {
	case 0:
		args[0] = "upto"
	case 1:
		args[1], args[3] = 1+k.rate/2, 1+k.rate/2
	case 2:
		args[2] = k.period / 2
	case 3:
		if k.refundable != nil && k.rng.IntN(10) == 0 { // for long a log has no plain case then
			args = append([]any{"refund", k.rate, k.period, k.rate, 1 + k.rng.Int64N(3)}, k.refundable...)
		}
	}
	args = append(args, k.now-k.late())
	k.run(t, args)
}

// pause is a time that leaves some of the spend, mostly.
func (k *twoKeys) pause() int64 {
	switch k.rng.IntN(8) {
	case 0:
		return 0
	case 1:
		if k.rng.IntN(10) == 0 {
			return k.rng.Int64N(2 * k.period)
		}
	}
	return k.rng.Int64N(1 + 2*k.period/min(k.rate, 100))
}

// late is by how much the caller's clock is behind.
func (k *twoKeys) late() int64 {
	if k.rng.IntN(10) == 0 {
		return k.rng.Int64N(k.period)
	}
	return 0
}

func (k *twoKeys) events() int64 {
	if k.rng.IntN(50) > 0 {
		return 1
	}
	return 1 + k.rng.Int64N(1+k.rate/4) // a log of single events has a new block then
}

// plant makes both keys a state of five numbers, near the edges of what is one.
func (k *twoKeys) plant(t *testing.T) {
	t.Helper()
	pick := func(values ...float64) float64 { return values[k.rng.IntN(len(values))] }
	rate, period, now := float64(k.rate), float64(k.period), float64(k.now)
	start := now - math.Mod(now, period)
	state := packed(
		pick(now, now, now-1, now+1, now-period, start, start-1, start-period, start-period-1, now-3*period, now-0.5, -8e15),
		pick(append(slices.Repeat([]float64{rate}, 20), rate+1, 0)...),
		pick(append(slices.Repeat([]float64{period}, 20), 2*period, 0)...),
		pick(0, 1, rate/2, rate-1, rate, rate+1, math.Floor(rate/2), math.Floor(rate/3), 1<<31, 1<<31+rate, 1<<32-1, 1<<32, -1, math.NaN()),
		pick(0, 0, 0, 1, rate, period-1, period, math.Floor(period/2), 1<<49-1, 1<<49, 0.5, -1),
	)
	if k.rng.IntN(20) == 0 {
		state = state[:k.rng.IntN(len(state))]
	}
	whole, general := k.keys()
	for _, key := range []string{whole, general} {
		require.NoError(t, k.client.Set(t.Context(), key, state, 0).Err())
	}
}

// run requires that both ways reply alike and leave alike values.
func (k *twoKeys) run(t *testing.T, args []any) {
	t.Helper()
	whole, general := k.keys()
	ctx := t.Context()
	if args[0] == "take" {
		k.takes++
		if k.isPlain(ctx, whole, args) {
			k.plain++
		}
	}
	reply, expires, err := k.ask(ctx, k.whole, whole, args)
	other, otherExpires, otherErr := k.ask(ctx, k.general, general, args)
	require.Equal(t, other, reply, "%v", args)
	if otherErr != nil {
		require.ErrorContains(t, err, "ratelimit: the value of the key is not a ")
		require.ErrorContains(t, otherErr, "ratelimit: the value of the key is not a ")
		require.NoError(t, k.client.Del(ctx, whole, general).Err())
		return
	}
	require.NoError(t, err)
	require.Equal(t, value(t, k.client, general), value(t, k.client, whole), "%v", args)
	require.InDelta(t, otherExpires, expires, float64(time.Second), "%v", args)
	if args[0] == "take" && reply[0] == 1 {
		k.refundable = []any{reply[1], reply[1] + k.period, args[1], args[2], 0}
	}
}

// ask runs a script, and tells when the key expires. Then the key no longer does: a state of one
// event may have lived for 8 ms, and the server's clock would decide which of two keys is there.
func (k *twoKeys) ask(ctx context.Context, s *redis.Script, key string, args []any) (reply []int64, expires time.Duration, err error) {
	var asked *redis.Cmd
	var ttl *redis.DurationCmd
	_, _ = k.client.TxPipelined(ctx, func(p redis.Pipeliner) error { // errors are of the commands
		asked, ttl = p.EvalSha(ctx, s.Hash(), []string{key}, args...), p.PTTL(ctx, key)
		p.Persist(ctx, key)
		return nil
	})
	reply, err = asked.Int64Slice()
	return reply, ttl.Val(), err
}

// isPlain reports whether the plain case replies. What it writes is taken back.
func (k *twoKeys) isPlain(ctx context.Context, key string, args []any) bool {
	const scratch = "{plain}scratch"
	k.client.Copy(ctx, key, scratch, 0, true)
	defer k.client.Del(ctx, scratch)
	return k.ways.plain.Run(ctx, k.client, []string{scratch}, args...).Err() == nil
}
