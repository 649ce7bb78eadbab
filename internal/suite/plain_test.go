package suite_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/exact"
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

// timeKey has the time of the server, in Unix µs, as noted scripts read it.
const timeKey = "{script}now"

// noted is a script whose keys do not expire. It sets the key with " ms" behind to how long they would
// live. With " lives" behind it counts how often, and with " writes" what else is written of a log. It reads
// the server's time from timeKey, and counts that with " reads" behind. So nothing depends on how fast it runs.
func noted(script string) *redis.Script {
	return redis.NewScript(`
local server = redis
local redis = {}
function redis.call(name, key, ...)
  local value, option, ms = ...
  if name == 'TIME' then
    server.call('INCR', '` + timeKey + ` reads')
    local now = server.call('GET', '` + timeKey + `')
    return { string.format('%.0f', math.floor(now / 1000000)), string.format('%.0f', now % 1000000) }
  elseif name == 'SET' then
    if option == 'PX' then
      server.call('SET', key .. ' ms', ms)
    end
    return server.call('SET', key, value)
  elseif name == 'PEXPIRE' then
    server.call('INCR', key .. ' lives')
    return server.call('SET', key .. ' ms', value)
  elseif name ~= 'GET' and name ~= 'LINDEX' and name ~= 'LLEN' then
    server.call('INCR', key .. ' writes')
  end
  return server.call(name, key, ...)
end
function redis.pcall(name, ...)
  local fine, reply = pcall(redis.call, name, ...)
  if fine then
    return reply
  end
  return { err = reply }
end
` + script)
}

// oneKey is a key by each way that calls come to a server. They must never differ.
type oneKey struct {
	ways      []way
	plain     *redis.Script // without the general script
	algorithm string
	client    *redis.Client
	rng       *rand.Rand
	rate      int64
	period    int64
	now       int64

	plains, takes int
	reserved      int   // plains that reserve events
	ours          bool  // the state is of takes under the limit, or there is none
	written       int64 // the latest of them
	refundable    []any // of the last admission
}

// scratchKey is one on which the plain case replies alone.
const scratchKey = "{script}scratch"

// TestThePlainCaseDecidesAndWritesAsTheGeneralScript is the proof that the two tellings of a
// take are one: both run on equal states, which include some that no rule has written. And a take
// under the limit of the state is in the plain case, or it would cost twice the time. All that holds of
// one that is alone in its script, and of groups.
func TestThePlainCaseDecidesAndWritesAsTheGeneralScript(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := patient(t)
	for of, algorithm := range algorithms {
		for i, l := range []ratelimit.Limit{
			{Rate: 5, Period: 60_000_001e3}, ratelimit.PerHour(200), {Rate: 999_983, Period: 24 * 3600e9}, {Rate: 2_147_483_647, Period: 365 * 24 * 3600e9},
		} {
			t.Run(fmt.Sprint(algorithm, " ", l), func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				rule := ruleOf(t, algorithm)
				plain, _ := halves(t, rule.Script([]*store.Rule{rule}))
				k := &oneKey{
					ways: some(waysOf(t, rule, besides(t, algorithm)), i+of), plain: noted(plain), algorithm: algorithm, client: client, rng: rand.New(rand.NewPCG(uint64(i), 7)),
					rate: int64(l.Rate), period: l.Period.Microseconds(), now: 1_700_000_000_000_001,
				}
				loadWays(t, client, k.ways)
				require.NoError(t, k.plain.Load(t.Context(), client).Err())
				if algorithm == "sliding_log" {
					k.logs(t)
				} else {
					k.states(t)
				}
				k.plains, k.takes, k.reserved = 0, 0, 0
				for range effort.Of(100, 300, 1200) {
					k.step(t)
				}
				require.Greater(t, k.plains, k.takes/20)
				require.Greater(t, k.reserved, k.takes/200)
			})
		}
	}
}

// step is one call by all ways.
func (k *oneKey) step(t *testing.T) {
	t.Helper()
	k.now += k.pause()
	if far := int64(7e15); k.rng.IntN(200) == 0 || k.now > far { // from there on no time is one
		k.now = min(k.now, far-k.rng.Int64N(far/2))
		k.forget(t)
	}
	var plant func(p redis.Pipeliner, key string)
	if k.algorithm != "sliding_log" && k.rng.IntN(3) == 0 {
		plant, k.ours = k.anyState(), false
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
	if args[0] != "refund" && k.rng.IntN(4) == 0 {
		args[4] = fmt.Sprintf("%d+%d", args[4], 1+k.rng.Int64N(max(1, k.rate/(1+k.rng.Int64N(9)))))
	}
	k.run(t, k.now-k.late(), k.rng.IntN(4) == 0, args, plant)
}

// pause is a time that leaves some of the spend, mostly.
func (k *oneKey) pause() int64 {
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

// late is by how much the clock is behind.
func (k *oneKey) late() int64 {
	if k.rng.IntN(10) == 0 {
		return k.rng.Int64N(k.period)
	}
	return 0
}

func (k *oneKey) events() int64 {
	if k.rng.IntN(50) > 0 {
		return 1
	}
	return 1 + k.rng.Int64N(1+k.rate/4) // a log of single events has a new block then
}

const farthest = 231 * 365 * 24 * 3600e6 // no time is so long before or after 1970

// numbers are what each of the five numbers of a state may be, near the edges of what is one. The
// first is that of a plain case.
func (k *oneKey) numbers() [][]float64 {
	rate, period, now := float64(k.rate), float64(k.period), float64(k.now)
	start := now - math.Mod(now, period)
	return [][]float64{
		{now, now - 1, now + 1, start, start - 1, start - period, start - period - 1, now - period, now - 3*period, now - 0.5, -8e15, -farthest, -farthest - 1, 1 - farthest},
		{rate, rate + 1, 0},
		{period, 2 * period, 0},
		{math.Floor(rate / 2), 0, 1, rate / 2, rate - 1, rate, rate + 1, math.Floor(rate / 3), 1 << 31, 1<<31 + rate, 1<<32 - 1, 1 << 32, -1, math.NaN()},
		{0, 1, rate, period - 1, period, math.Floor(period / 2), 1<<49 - 1, 1 << 49, 0.5, -1},
	}
}

// anyState puts in a state, of which each number may be near an edge.
func (k *oneKey) anyState() func(p redis.Pipeliner, key string) {
	var state []float64
	for i, values := range k.numbers() {
		if (i == 1 || i == 2) && k.rng.IntN(10) > 0 {
			values = values[:1]
		}
		state = append(state, values[k.rng.IntN(len(values))])
	}
	value := packed(state...)
	if k.rng.IntN(20) == 0 {
		value = value[:k.rng.IntN(len(value))]
	}
	return put(value)
}

func put(value string) func(p redis.Pipeliner, key string) {
	return func(p redis.Pipeliner, key string) { p.Set(context.Background(), key, value, 0) }
}

// states takes what just fits a state, more and less. One number of it is near an edge.
func (k *oneKey) states(t *testing.T) {
	t.Helper()
	numbers := k.numbers()
	var plain []float64
	for _, values := range numbers {
		plain = append(plain, values[0])
	}
	take := func(n float64, value string) (plain bool) {
		if n >= 1 && n <= float64(k.rate) {
			plain = k.run(t, k.now, false, []any{"take", k.rate, k.period, k.rate, int64(n)}, put(value))
		}
		return plain
	}
	for i, values := range numbers {
		for _, x := range values {
			state := slices.Clone(plain)
			state[i] = x
			room := math.Floor(float64(k.rate) - state[3])
			for n := room - 1; n <= room+1; n++ {
				take(n, packed(state...))
			}
			take(1, packed(state...))
		}
	}
	now, rate, period := float64(k.now), plain[1], plain[2]
	take(1, packed(now-0.5, rate, period, 0.5, 0)) // two halves
	take(1, packed(now, rate, period, 0.5, 0.5))
	take(1, packed(now, rate, period, rate, 1)) // more than the burst of today
	if k.rate <= 200 {
		require.True(t, take(1, packed(now, rate, period, rate, 0)), "all is spent")
		require.True(t, take(1, packed(now, rate, period, rate-1, 1)) || !hasBurst(k.algorithm), "all but a part of an event")
	}
	take(1, packed(plain...)+"\x00")
	take(1, packed(append(plain, 0)...))
	take(1, packed(plain...)[:39])
	for _, level := range []float64{0, 1, 2} { // of a bucket that is nearly empty, after products above 2^53
		ago := math.Floor(period / 3)
		spent, _ := exact.MulDiv(int64(ago), k.rate, k.period)
		take(1, packed(now-ago, rate, period, float64(spent)+level, 12_345))
	}
	if k.period == 365*24*3600e6 {
		// The events of the last window weigh 1/period more than a whole number, of which a double
		// of their product knows nothing.
		const prev, left, weight = 1_703_037_751, 10_512_000_012_345, 567_679_252
		was := k.now
		k.now += k.period - k.now%k.period - left + k.period
		take(float64(k.rate-weight-1), packed(float64(k.now-1), rate, period, 1, prev))
		take(float64(k.rate-weight), packed(float64(k.now-1), rate, period, 1, prev))
		k.now = was
	}
	k.forget(t)
}

// logs takes an event of logs of one and of two blocks. One number of the first or of the last block
// is near an edge, or the number of its entries.
func (k *oneKey) logs(t *testing.T) {
	t.Helper()
	now, period := float64(k.now), float64(k.period)
	const run = 1 << 48
	take := func(rate int64, blocks ...string) (plain bool) {
		return k.run(t, k.now, false, []any{"take", rate, k.period, rate, 1}, func(p redis.Pipeliner, key string) {
			p.Del(context.Background(), key)
			for _, b := range blocks {
				p.RPush(context.Background(), key, b)
			}
		})
	}
	edges := func(numbers []float64, of [][]float64, each func(numbers []float64)) {
		each(numbers)
		for i, values := range of {
			for _, x := range values {
				other := slices.Clone(numbers)
				other[i] = x
				each(other)
			}
		}
	}
	head := [][]float64{
		{-farthest, 1 - farthest, farthest, farthest - 1, now - 0.5}, {-1, 1, run - 1, run, 0.5}, {-1, 1, run - 1, run, 0.5}, {7, 12}, {1},
	}
	tail := append(slices.Clone(head),
		[]float64{0, run - 1, run, 0.5}, []float64{1, -1}, []float64{-2 * farthest, 1 - 2*farthest, farthest, now - 3, now - 2, now - 1, 0.5}, []float64{2 * period, 0})
	after := func(from, n int64) (entries string) { // each 1 µs after the one before
		for i := range n {
			entries += string(binary.BigEndian.AppendUint64(nil, uint64(from+i))[2:])
		}
		return entries
	}
	const first = 10 // in two blocks
	for _, n := range []int64{1, 2, 3, 63, 64, 65} {
		base := now - float64(n)
		if n == 1 {
			base = now
		}
		one := []float64{base, 0, 0, 6, 0, 1, 0, now - period, period}
		require.Equal(t, n <= 64, take(n, packed(one...)+after(0, n)))
		require.Equal(t, n < 64, take(n+1, packed(one...)+after(0, n)))
		take(n+1, packed(one...)+after(0, n)+"x")
		for _, rate := range []int64{n/2 + 1, n, n + 1} { // where the older half has left
			half := slices.Clone(one)
			half[7] = now - float64(n) + float64(n/2)
			plain := take(rate, packed(half...)+after(0, n))
			require.True(t, plain || n < 3 || n > 64, "%d of %d", n, rate)
			half[0], half[7] = now-period-float64(n/2), now-2*period
			take(rate, packed(half...)+after(0, n))
		}
	}
	edges([]float64{now - first, 0, 0, 6, 0, 1, 0, now - period, period}, tail, func(numbers []float64) {
		for _, rate := range []int64{1, first, first + 1} {
			take(rate, packed(numbers...)+after(0, first))
		}
	})
	take(first+1, packed(now-1<<48, 0, 0, 6, 0, 1, 0, now-1<<49, period)+after(1<<48-first, first))
	take(first+1, packed(now-1<<48+1, 0, 0, 6, 0, 1, 0, now-1<<49, period)+after(1<<48-first, first))
	for _, n := range []int64{1, 2, 63, 64, 65} {
		start := []float64{now - 100, 65 - float64(n), 0, 6, 0}
		for _, cutoff := range []float64{-101, -100, -99, -100 + float64(n)/2, -102 + float64(n), -101 + float64(n), -100 + float64(n)} {
			last := packed(now-2, 65, 0, 6, 0, 1, 0, now+cutoff, period) + after(0, 2)
			for _, rate := range []int64{1, 2, 3, n, n + 1, n + 2, n + 3} {
				take(rate, packed(start...)+after(0, n), last)
			}
		}
	}
	last := packed(now-2, 64, 0, 6, 0, 1, 0, now-period, period) + after(0, 2)
	for _, rate := range []int64{64, 66, 67} { // of 66 events
		require.True(t, take(rate, packed(now-100, 0, 0, 6, 0)+after(0, 64), last), rate)
	}
	require.True(t, take(3, packed(now-100, 63, 0, 6, 0)+after(0, 1), last), "the first block has one")
	edges([]float64{now - 100, 0, 0, 6, 0}, head, func(numbers []float64) {
		for _, rate := range []int64{64, 66, 67} {
			take(rate, packed(numbers...)+after(0, 64), last)
		}
	})
	edges([]float64{now - 2, 64, 0, 6, 0, 1, 0, now - period, period}, tail, func(numbers []float64) {
		for _, rate := range []int64{64, 66, 67} {
			take(rate, packed(now-100, 0, 0, 6, 0)+after(0, 64), packed(numbers...)+after(0, 2))
		}
	})
	odd := packed(now-2, 66, 0, 6, 0, 1, 0, now-period, period) + after(0, 2)
	require.True(t, take(first+1, packed(now-first, 1, 1, 6, 0, 1, 0, now-period, period)+after(0, first)), "odd counts")
	require.True(t, take(67, packed(now-100, 1, 1, 6, 0)+after(0, 64), odd), "odd counts of the first block")
	halves := func(numbers []float64, put func(head, more string) bool) { // they may cancel each other
		for i := range numbers {
			one := withNumber(packed(numbers...), i, numbers[i]+0.5)
			require.False(t, put(one, "\x00\x00\x00"), "%d and half an entry", i)
			for j := range i {
				require.False(t, put(withNumber(one, j, numbers[j]+0.5), ""), "%d and %d", i, j)
			}
		}
	}
	halves([]float64{now - first, 0, 0, 6, 0, 1, 0, now - period, period}, func(head, more string) bool { return take(first+1, head+more+after(0, first)) })
	halves([]float64{now - 100, 0, 0, 6, 0}, func(head, more string) bool { return take(64, head+more+after(0, 63), last) })
	take(67, packed(now-100, 0, 0, 6, 0)+after(0, 64)+"x", last)
	take(67, packed(now-200, 0, 0, 6, 0)+after(0, 64), packed(now-100, 64, 0, 6, 0)+after(0, 64), packed(now-2, 128, 0, 6, 0, 1, 0, now-period, period)+after(0, 2))
	was := k.now
	for _, at := range []int64{-farthest, 1 - farthest, farthest - 1, farthest, farthest + 1} { // where times end
		for _, late := range []int64{0, 1, 2} {
			k.now = at + late
			base, next, cutoff := float64(at), float64(at+min(late, 1)), max(float64(k.now)-period, 1-2*farthest)
			plain := take(2, packed(base, 0, 0, 6, 0, 1, 0, cutoff, period)+after(0, 1))
			require.Equal(t, at > -farthest && at < farthest, plain)
			take(3, packed(base, 0, 0, 6, 0)+after(0, 1), packed(next, 1, 0, 6, 0, 1, 0, cutoff, period)+after(0, 1))
			take(2, packed(base-1, 0, 0, 6, 0, 1, 0, base, period)+after(late+1, 1))
		}
	}
	k.now = was
	k.forget(t)
}

func (k *oneKey) forget(t *testing.T) {
	t.Helper()
	for i := range k.ways {
		require.NoError(t, k.client.Del(t.Context(), mateKey(i), mateKey(i)+" ms").Err())
	}
	k.ours, k.written = true, math.MinInt64
}

// left is what a call replies and leaves.
type left struct {
	reply []any
	err   error
	life  string // ms
	value []string
}

// run requires that all ways reply alike and leave alike values at now by the caller's clock, or by
// the server's. It tells whether the plain case replies. Before that, plant puts something into their
// keys.
func (k *oneKey) run(t *testing.T, now int64, servers bool, args []any, plant func(p redis.Pipeliner, key string)) (plain bool) {
	t.Helper()
	server := now
	if !servers {
		args, server = append(args, now), now-k.period/3
	}
	alone, grouped, of := k.ask(t.Context(), server, args, plant)
	require.Equal(t, alone, grouped, "in the plain case: %v", args)
	plain = alone
	general := of[1]
	took, ours := args[0] == "take", args[1] == k.rate && args[2] == k.period
	if took {
		k.takes++
	}
	n, all := args[4].(int64)
	if plain {
		if k.plains++; !all {
			k.reserved++
		}
	}
	if all && took && ours && plant == nil && k.ours && now >= k.written && general.err == nil && k.isFew(n, general.reply) {
		require.True(t, plain, "%v", args)
	}
	for i, one := range of {
		if general.err != nil {
			require.ErrorContains(t, one.err, "ratelimit: the value of the key is not a ", "%s: %v", k.ways[i].name, args)
		} else {
			require.NoError(t, one.err, "%s: %v", k.ways[i].name, args)
		}
		require.Equal(t, general.reply, one.reply, "%s: %v", k.ways[i].name, args)
		require.Equal(t, general.value, one.value, "%s: %v", k.ways[i].name, args)
		require.Equal(t, general.life, one.life, "%s: %v", k.ways[i].name, args)
	}
	if general.err != nil {
		k.forget(t)
		return false
	}
	admitted := general.reply[0] == int64(1)
	if k.algorithm == "sliding_log" { // it has no plain case as long as it has another block, or after it was set back
		k.ours = k.ours && (!admitted || ours && took && (n == 1 || !all && strings.HasPrefix(args[4].(string), "1+"))) && (now >= k.written || !servers)
	} else if admitted {
		k.ours = ours && took
	}
	if admitted {
		k.written = general.reply[1].(int64)
		if took {
			k.refundable = []any{k.written, k.written + k.period, args[1], args[2], 0}
		}
	}
	return plain
}

// isFew says that numbers are small enough for the plain case, and that a log has one block.
func (k *oneKey) isFew(n int64, reply []any) bool {
	if k.algorithm == "sliding_log" {
		return k.rate < 64 && n == 1 && reply[2].(int64) > 0
	}
	return k.rate <= 200
}

// ask asks by all ways, and tells whether the plain case replies without the general script: to a call that is
// alone, and to a group.
func (k *oneKey) ask(ctx context.Context, server int64, args []any, plant func(p redis.Pipeliner, key string)) (alone, grouped bool, of []left) {
	var plain [2]*redis.Cmd
	asked, of := make([]*asked, len(k.ways)), make([]left, len(k.ways))
	life, value := make([]*redis.StringCmd, len(k.ways)), make([]*redis.StringCmd, len(k.ways))
	list := make([]*redis.StringSliceCmd, len(k.ways))
	q := questionOf(args)
	_, _ = k.client.Pipelined(ctx, func(p redis.Pipeliner) error { // errors are of the commands
		p.Set(ctx, timeKey, server, 0)
		for i := range k.ways {
			if plant != nil {
				plant(p, mateKey(i))
			}
		}
		for i, args := range [][]any{q.alone(), groupsOf(q.clock, runOf(1, q.request(1)))} {
			p.Copy(ctx, mateKey(0), scratchKey, 0, true)
			plain[i] = p.EvalSha(ctx, k.plain.Hash(), []string{scratchKey}, args...)
			p.Del(ctx, scratchKey)
		}
		for i, w := range k.ways {
			key := mateKey(i)
			asked[i] = w.ask(ctx, p, key, args)
			life[i] = p.Get(ctx, key+" ms")
			if k.algorithm == "sliding_log" {
				list[i] = p.LRange(ctx, key, 0, -1)
			} else {
				value[i] = p.Get(ctx, key)
			}
		}
		return nil
	})
	for i := range of {
		of[i].reply, of[i].err = asked[i].reply()
		of[i].life = life[i].Val()
		if k.algorithm == "sliding_log" {
			of[i].value = list[i].Val()
		} else {
			of[i].value = []string{value[i].Val()}
		}
	}
	return plain[0].Err() == nil, plain[1].Err() == nil, of
}

// Many calls, and keys that are decided together, are in the plain case if each of their takes is. Then
// nothing else of the script runs.
func TestBatchesAndSeveralKeysAreInThePlainCase(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range algorithms {
		rule, other := ruleOf(t, algorithm), besides(t, algorithm)
		logs := rule.NewLog != nil || other.NewLog != nil
		take := func(rate, period, n int) question {
			if logs { // whose plain case is of one event
				n = 1
			}
			return question{"take", []any{rate, period, rate, n}, nil}
		}
		few, many := take(5, 60_000_000, 1), take(7, 60_000_001, 4)
		for name, c := range map[string]struct {
			rules []*store.Rule
			runs  [][]any
		}{
			"a batch":             {[]*store.Rule{rule}, [][]any{runOf(2, few.request(1)), runOf(1, many.request(1))}},
			"several keys":        {[]*store.Rule{rule}, [][]any{runOf(1, few.request(1), few.request(1), many.request(1))}},
			"keys of two rules":   {[]*store.Rule{rule, other}, [][]any{runOf(1, few.request(1), few.request(2), many.request(1))}},
			"a batch of all that": {[]*store.Rule{rule, other}, [][]any{runOf(1, few.request(2)), runOf(2, few.request(1), many.request(2)), runOf(1, many.request(1))}},
		} {
			plain, general := halves(t, rule.Script(c.rules))
			for i, now := range []int64{0, 1, 9_000_000, 9_000_000, 30_000_000, 30_000_001, 200_000_000} {
				now += 1_700_000_000_000_000
				if i == 6 && logs { // a log of which nothing counts is in no plain case, and has expired
					break
				}
				require.NoError(t, client.Set(t.Context(), timeKey, now, 0).Err())
				clock := []any{now, ""}[i%2] // or the server's
				var said, left [2]string
				for of, script := range []string{plain, general} {
					var keys []string
					for _, run := range c.runs {
						for range run[0].(int) * run[1].(int) {
							keys = append(keys, fmt.Sprint("{script}", algorithm, name, of, len(keys)))
						}
					}
					reply, err := noted(script).Run(t.Context(), client, keys, groupsOf([]any{clock}, c.runs...)...).Slice()
					require.NoError(t, err, "%s %s, call %d", algorithm, name, i)
					require.Len(t, reply, 4*len(keys))
					said[of] = fmt.Sprint(reply)
					for _, key := range keys {
						left[of] += fmt.Sprintf("%q %s ", client.Dump(t.Context(), key).Val(), client.Get(t.Context(), key+" ms").Val())
					}
				}
				require.Equal(t, said[1], said[0], "%s %s, call %d", algorithm, name, i)
				require.Equal(t, left[1], left[0], "%s %s, call %d", algorithm, name, i)
			}
		}
	}
}
