package suite_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// twin is one key as the Go functions of a rule have it: what its script must do too, on a server.
type twin struct {
	rule    *store.Rule
	number  int // of the rule, among several
	rng     *rand.Rand
	limits  []store.Limit
	now     int64
	exists  bool
	state   store.State
	limit   store.Limit // under which state was counted
	life    string      // ms, as the last write set it
	charges []store.Receipt
	debts   bool // charges past the burst, and refunds of them, at once
	most    bool // the state holds nearly all that one can
	callers bool // the clock of the next call
	still   bool // calls are of one instant, and of one clock
}

// A window of a calendar may be so much longer than its period. The Part of a state that was counted in
// one is its end in s, after partOf1970.
const (
	longer     = 2 * 24 * 3600e6
	partOf1970 = 1 << 41
)

// behind is by how much the server's clock is behind that of a caller who sends his own.
const behind = 1_234_567

// twinCall is a call of a script, and what must come of it.
type twinCall struct {
	fresh bool   // the key does not exist before
	plant string // the value of a fresh key, if it has one
	now   int64  // of the server's clock
	args  []any

	fails  bool   // no window that the caller knows is that of the decision
	reply  []any  // nil of a Refund
	exists bool   // or it may: a log can have events left that do not count
	value  string // not of a log
	life   string
	block  int // of a log that is looked into: the most entries of a block
}

// Random states at the edges of what they say, and a few calls on each: the script of a rule decides
// and writes as its Go functions do, under limits that change and clocks that go back.
func TestTheScriptOfARuleIsTheTwinOfItsFunctions(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		if algorithm == "sliding_log" { // whose functions are of a log
			continue
		}
		t.Run(algorithm, func(t *testing.T) {
			rule := ruleOf(t, algorithm)
			whole := noted(rule.Script)
			require.NoError(t, whole.Load(t.Context(), client).Err())
			w := &twin{rule: rule, rng: anew(5, 6), limits: twinLimits(algorithm)}
			for range effort.Of(8, 20, 100) {
				var calls []twinCall
				for range 60 {
					calls = append(calls, w.plant(anyTime(w.rng)))
					for range 7 {
						calls = append(calls, w.call())
					}
				}
				requireTwin(t, client, whole, calls)
			}
		})
	}
}

// anew makes a random trace, another one for each RATELIMIT_SEED.
func anew(seed, number uint64) *rand.Rand {
	if text := os.Getenv("RATELIMIT_SEED"); text != "" {
		night, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			panic(err)
		}
		seed += night << 8
	}
	return rand.New(rand.NewPCG(seed, number))
}

// twinLimits are what the limits of a trace are taken from.
func twinLimits(algorithm string) (limits []store.Limit) {
	if algorithm == "ban" { // Burst in s, as a Penalty has it
		for _, rate := range []int64{1, 2, 3, 65_535} {
			limits = append(limits, store.Limit{Rate: rate, Period: 100 * 60e6, Burst: 30 * 60}, store.Limit{Rate: rate, Period: 7e6, Burst: 1})
		}
		return append(limits, store.Limit{Rate: 2, Period: 3650 * 24 * 3600e6, Burst: 1}, store.Limit{Rate: 3, Period: 60e6, Burst: 60})
	}
	for _, l := range []store.Limit{
		{Rate: 1, Period: 1000}, {Rate: 3, Period: 1001}, {Rate: 5, Period: 60e6}, {Rate: 7, Period: 660e6}, {Rate: 200, Period: 3600e6}, {Rate: 10, Period: 24 * 3600e6},
		{Rate: 999_983, Period: 24 * 3600e6}, {Rate: math.MaxInt32, Period: 365 * 24 * 3600e6}, {Rate: 1, Period: 3650 * 24 * 3600e6},
	} {
		l.Burst = l.Rate
		limits = append(limits, l)
		if hasBurst(algorithm) && l.Rate < 1e6 {
			limits = append(limits, store.Limit{Rate: l.Rate, Period: l.Period, Burst: 1}, store.Limit{Rate: l.Rate, Period: l.Period, Burst: 3 * l.Rate})
		}
	}
	if algorithm == "fixed_window" {
		for _, c := range []*store.Calendar{
			store.NewCalendar(store.Day, 0, "UTC"), store.NewCalendar(store.Day, 0, "America/Sao_Paulo"), store.NewCalendar(store.Day, 0, "Pacific/Apia"),
			store.NewCalendar(store.Week, 1, "Europe/Berlin"), store.NewCalendar(store.Month, 31, "Asia/Kolkata"),
		} {
			limits = append(limits, c.In(store.Limit{Rate: 3, Burst: 3}), c.In(store.Limit{Rate: 10, Burst: 10}))
		}
		limits = append(limits, store.Limit{Rate: 3, Period: store.Day.Period(), Burst: 3}, store.Limit{Rate: 3, Period: store.Week.Period(), Burst: 3})
	}
	if hasBurst(algorithm) { // two million events in 1 µs
		limits = append(limits, store.Limit{Rate: math.MaxInt32, Period: 1000, Burst: math.MaxInt32})
	}
	return limits
}

func (w *twin) anyLimit() store.Limit { return w.limits[w.rng.IntN(len(w.limits))] }

// near is x, or one of the next numbers.
func (w *twin) near(x int64) int64 { return x - 1 + w.rng.Int64N(3) }

// anyTime is one in 30 years, or before 1970.
func anyTime(rng *rand.Rand) int64 {
	now := 1_700_000_000_000_000 + rng.Int64N(1e15)
	if rng.IntN(8) == 0 {
		now -= 2_000_000_000_000_000
	}
	return now
}

// plant puts in a state that a rule may have written at now or a little earlier.
func (w *twin) plant(now int64) twinCall {
	l := w.anyLimit()
	w.now = now
	s := store.State{At: w.now, Period: l.Period}
	w.most = false
	if w.rng.IntN(4) == 0 {
		s.At, _ = l.Window(s.At)
	}
	amount := func(most int64) int64 {
		return min(most, max(0, []int64{1, w.near(most), w.near(most / 2), w.rng.Int64N(most + 1)}[w.rng.IntN(4)]))
	}
	switch w.rule.Name {
	case "ban":
		denials := w.rng.Int64N(l.Rate)
		bans := w.rng.Int64N(5)
		if w.rng.IntN(10) == 0 {
			bans = 40
		}
		if denials == 0 {
			bans++
		}
		s.Whole, s.Part = bans<<16|denials, 1+w.rng.Int64N(l.Period)
	case "token_bucket", "leaky_bucket":
		s.Whole = amount(l.Burst)
		if s.Whole < l.Burst {
			s.Part = amount(l.Period - 1)
		}
		if w.rng.IntN(4) == 0 {
			s.Whole, s.Part = bucket.Overdrawn+min(bucket.Most(l), l.Burst+amount(2*l.Rate)), amount(l.Period-1)
			if w.rng.IntN(3) == 0 {
				s.Whole, s.Part, w.most = bucket.Overdrawn+bucket.Most(l)-w.rng.Int64N(3), w.rng.Int64N(3), true
			}
		}
	default:
		s.Whole = 1 + amount(l.Rate)
		if w.rng.IntN(10) == 0 {
			s.Whole = math.MaxInt32
		}
		if l.Calendar() != nil {
			_, end := l.Window(s.At)
			s.Part = end/1e6 + partOf1970
			if w.rng.IntN(8) == 0 { // the longest window that there may be, or the rest of one
				s.At = (s.Part - partOf1970 - []int64{1, (l.Period + longer) / 1e6}[w.rng.IntN(2)]) * 1e6
				w.now = max(w.now, s.At)
			}
		}
		if w.rule.Name == "sliding_window" && w.rng.IntN(2) == 0 {
			s.Part = amount(l.Rate + 1)
			if s.Part > 0 && w.rng.IntN(3) == 0 { // all of this window was given back
				s.Whole = 0
			}
		}
	}
	if s.Whole == 0 && s.Part == 0 {
		s.Whole = 1
	}
	w.exists, w.state, w.limit, w.life, w.charges = true, s, l, "", nil
	w.debts = w.rule.Burst && w.rng.IntN(3) == 0
	w.charged(l, s, amount(min(l.Rate, 5))+1)
	value := w.value()
	return twinCall{fresh: true, plant: value, now: w.now, args: callArgs("peek", l, w.now, 1), reply: w.take("peek", l, w.now, 1, true), exists: true, value: value}
}

func (w *twin) charged(l store.Limit, s store.State, n int64) {
	w.charges = append(w.charges, store.NewReceipt(l, s.At, w.rule.TTL(s, l), n))
}

// value is what a server has of the state.
func (w *twin) value() string {
	if !w.exists {
		return ""
	}
	s := w.state
	return packed(float64(s.At), float64(w.limit.Rate), float64(w.limit.Period), float64(s.Whole), float64(s.Part))
}

// callArgs are the arguments of a call. The caller's clock matters for calendars.
func callArgs(op string, l store.Limit, clock, n int64, more ...any) []any {
	var period any = l.Period
	if c := l.Calendar(); c != nil {
		edges := c.Edges(clock)
		period = strings.Trim(fmt.Sprint(append([]int64{l.Period}, edges[:]...)), "[]")
	}
	return append([]any{op, l.Rate, period, l.Burst, n}, more...)
}

// unheard says that no window of l's calendar that a caller with this clock knows has at.
func unheard(l store.Limit, clock, at int64) bool {
	edges := l.Calendar().Edges(clock)
	return at < edges[0]*1e6 || at >= edges[5]*1e6
}

// call is any call on the state, at a time that is near the edge of something.
func (w *twin) call() twinCall {
	l := w.limit
	if w.rng.IntN(3) == 0 {
		l = w.anyLimit()
	}
	level := w.state.Whole &^ bucket.Overdrawn
	if w.debts {
		l = w.limit
	}
	if w.rule.Burst && w.rng.IntN(6) == 0 {
		l = w.limit
		l.Burst = max(1, min(w.near(level), math.MaxInt32))
	}
	most := w.most && w.rng.IntN(2) == 0
	if !most && !w.still {
		w.now += w.pause(l)
	}
	w.now = min(w.now, 5e15) // what is owed for 100 years ends within time
	room := max(1, l.Rate-w.state.Whole)
	n := max(1, []int64{1, w.near(l.Burst), w.near(room), w.near(l.Burst - w.state.Whole), 1 + w.rng.Int64N(5), 1 + w.rng.Int64N(l.Rate)}[w.rng.IntN(6)])
	if !w.still {
		w.callers = w.rng.IntN(2) == 0
	}
	callers := w.callers
	c := twinCall{now: w.now}
	clock := w.now
	if w.rng.IntN(4) == 0 {
		clock += w.rng.Int64N(6*l.Period) - 3*l.Period
	}
	ops := []string{"take", "take", "peek", "upto", "charge", "refund", "within"}
	op := ops[w.rng.IntN(len(ops))]
	if w.debts {
		op = []string{"take", "charge", "refund", "refund"}[w.rng.IntN(4)]
		n = 1 + w.rng.Int64N(min(l.Burst, 5))
	}
	if most {
		op, l, n = "within", w.limit, max(1, w.near(bucket.Most(w.limit)-level))
	}
	if op == "within" && !w.rule.Burst && w.rule.Name != "ban" || op == "charge" && w.rule.Name == "ban" {
		op = "take"
	}
	if _, at, moved := w.read(w.now, callers); l.Calendar() != nil && op != "refund" && unheard(l, clock, at) {
		_, end := l.Window(at)
		switch own := w.exists && w.state.At == at && !moved && w.state.Part > 0 && w.state.Period == l.Period; {
		case !own:
			args := callArgs(op, l, clock, n)
			if op == "charge" {
				args = append(args, math.MaxInt32)
			}
			if callers {
				args = append(args, w.now)
			}
			return twinCall{now: w.now, fails: true, args: args, exists: w.exists, value: w.value(), life: w.life}
		case end != at+w.rule.TTL(w.state, w.limit): // the script takes the state's
			return w.call()
		}
	}
	switch op {
	case "refund":
		if len(w.charges) == 0 {
			return w.call()
		}
		r := w.charges[w.rng.IntN(len(w.charges))]
		if w.rng.IntN(3) == 0 {
			r.N = n
		}
		over := 0
		if r.Overdrawn {
			over = 1
		}
		c.args = callArgs(op, l, clock, r.N, r.At, r.Due, r.Rate, r.Period, over)
		if l.Calendar() != nil && unheard(l, clock, r.Due-1) { // nor where it began
			l = store.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst}
		}
		w.refund(l, w.now, r)
	case "charge":
		most := int64(math.MaxInt32)
		if w.rule.Burst {
			most = bucket.Most(l)
		}
		c.args = callArgs(op, l, clock, n, most)
		c.reply = w.overdraw(l, w.now, n, most, callers)
	case "within":
		before := 1 + []int64{0, w.rng.Int64N(2 * l.Period), w.near(l.Period), l.Period / l.Rate, 100 * 365 * 24 * 3600e6}[w.rng.IntN(5)]
		if most {
			before = 100*365*24*3600e6 + 1
		}
		if w.rule.Name == "ban" { // Within is at most as long
			before = min(before, 3650*24*3600e6+1)
		}
		c.args = callArgs(op, l, clock, n, before)
		c.reply = w.take(op, l.TurnBefore(before), w.now, n, callers)
	default:
		c.args = callArgs(op, l, clock, n)
		c.reply = w.take(op, l, w.now, n, callers)
	}
	if callers {
		c.args, c.now = append(c.args, w.now), w.now-behind
	}
	c.exists, c.value, c.life = w.exists, w.value(), w.life
	return c
}

// pause is how much later the next call comes, or earlier.
func (w *twin) pause(l store.Limit) int64 {
	if w.debts && w.rng.IntN(3) > 0 {
		return 0
	}
	left := int64(0)
	if w.exists {
		left = max(0, w.state.At+w.rule.TTL(w.state, w.limit)-w.now)
	}
	switch w.rng.IntN(10) {
	case 0:
		return w.near(left)
	case 1:
		return left / 2
	case 2:
		_, end := l.Window(w.now)
		return w.near(end - w.now)
	case 3:
		return w.rng.Int64N(2 * l.Period)
	case 4:
		return w.near(max(0, w.state.At+w.state.Part-w.now)) // of a ban
	case 5:
		return -w.rng.Int64N(2 * l.Period)
	case 6:
		return w.near(l.Period / l.Rate)
	case 7, 8: // until an event fits again
		if over := w.state.Whole&^bucket.Overdrawn - w.limit.Burst; w.rule.Burst && over >= 0 {
			return w.near(max(0, w.state.At+bucket.DrainTime(over+1, w.state.Part, w.limit)-w.now))
		}
	}
	return w.near(0)
}

// read is the state as a call at now finds it. A state of the future stays where it is under a
// caller's clock, and moves to now under the server's. One that has ended by its own limit is as none;
// windows and bans see that for themselves.
func (w *twin) read(now int64, callers bool) (s store.State, at int64, moved bool) {
	s = w.state
	if w.exists && s.At > now {
		if callers {
			now = s.At
		} else {
			s.At, moved = now, true
			if w.rule.Name == "fixed_window" && s.Part > 0 { // so that the state stays sound
				s.Part = min(s.Part, int64(math.Floor(float64(now+s.Period+longer)/1e6))+partOf1970)
			}
		}
	}
	if !w.exists || w.rule.Burst && now-s.At >= w.rule.TTL(s, w.limit) {
		return store.State{}, now, moved
	}
	return s, now, moved
}

func (w *twin) take(op string, l store.Limit, now, n int64, callers bool) []any {
	r, write := w.plan(l, now, n, callers)
	if op == "upto" && !r.OK() && n > 1 {
		n = max(1, w.rule.Available(l, r))
		r, write = w.plan(l, now, n, callers)
	}
	if op != "peek" {
		write()
	}
	return twinReply(r)
}

// plan decides on n events, and says what there is to write.
func (w *twin) plan(l store.Limit, now, n int64, callers bool) (r store.Reply, write func()) {
	s, at, moved := w.read(now, callers)
	next, r := w.rule.Step(s, l, at, n)
	return r, func() {
		if r.OK() {
			w.write(l, next)
			w.charged(l, next, n)
		} else if moved {
			w.write(w.limit, s)
		}
	}
}

func (w *twin) overdraw(l store.Limit, now, n, most int64, callers bool) []any {
	s, at, _ := w.read(now, callers)
	next, r := w.rule.Step(s, l, at, n)
	if !r.OK() {
		r.X, next = next.At, w.rule.Overdrawn(next, l, most)
	}
	w.write(l, next)
	w.charged(l, next, n)
	return twinReply(r)
}

func (w *twin) refund(l store.Limit, now int64, c store.Receipt) {
	s, at, _ := w.read(now, true)
	if !w.exists || at-w.state.At >= w.rule.TTL(w.state, w.limit) {
		return
	}
	w.state = w.rule.Refund(s, l, at, c)
	w.exists = w.state.Whole > 0 || w.state.Part > 0
}

// write keeps a state for as long as it matters.
func (w *twin) write(l store.Limit, s store.State) {
	w.exists, w.state, w.limit = true, s, l.TurnBefore(0)
	w.life = lifeOf(min(w.rule.TTL(s, l), farthest))
}

// lifeOf is in ms, and no shorter than so many µs.
func lifeOf(us int64) string { return strconv.FormatInt((us+999)/1000, 10) }

func twinReply(r store.Reply) []any {
	ok := int64(0)
	if r.OK() {
		ok = 1
	}
	return []any{ok, r.X, r.Y, r.Z}
}

// A charge of 29 January was due on 28 February, with the window in which all was spent since. Refunds see
// that by clocks to which that window is the first or the last that they know, and in a batch each of them.
func TestTheScriptOfARefundKnowsTheWindowsAroundAClock(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	rule := ruleOf(t, "fixed_window")
	script, batch := noted(rule.Script), noted(rule.BatchScript(rule))
	require.NoError(t, script.Load(t.Context(), client).Err())
	require.NoError(t, batch.Load(t.Context(), client).Err())
	l := store.NewCalendar(store.Month, 31, "UTC").In(store.Limit{Rate: 10, Burst: 10})
	at := func(day string) int64 { return instant(t, day+" 00:00").UnixMicro() }
	due := at("2026-02-28")
	w := &twin{exists: true, limit: l, state: store.State{At: at("2026-02-01"), Period: l.Period, Whole: 10, Part: due/1e6 + partOf1970}}
	now, keys, mates := at("2026-02-02"), []string{}, []*twin{w, w, w}
	for i := range mates {
		keys = append(keys, mateKey(i))
		require.NoError(t, client.Set(t.Context(), mateKey(i), w.value(), 0).Err())
	}
	for _, clock := range []string{"2025-12-10", "2026-02-02", "2026-04-01"} {
		args := callArgs("refund", l, at(clock), 5, at("2026-01-29"), due, 10, l.Period, 0)
		nothing := slices.Repeat([]any{int64(0)}, 4)
		requireKeys(t, client, script, mates[:1], now, keys[:1], args, nothing)
		requireKeys(t, client, batch, mates, now, keys, append([]any{"batch", "", len(mates)}, args...), slices.Repeat(nothing, len(mates)))
	}
}

// A batch of any calls decides and writes as they do one after the other. Two keys of three are in the same
// state, and are asked alike: these calls are one run, in which there may be one that fails.
func TestTheScriptOfABatchIsTheTwinOfItsCalls(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		if algorithm == "sliding_log" {
			continue
		}
		rule := ruleOf(t, algorithm)
		script := noted(rule.BatchScript(rule))
		require.NoError(t, script.Load(t.Context(), client).Err())
		require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
		rng := anew(9, 10)
		for range effort.Of(50, 100, 1000) {
			now, seed, mates := anyTime(rng), rng.Uint64(), []*twin{}
			for i := range 3 {
				w := &twin{rule: rule, rng: rand.New(rand.NewPCG(seed, uint64(i/2))), limits: twinLimits(algorithm), still: true}
				plantKey(t, client, mateKey(i), w, now)
				mates, now = append(mates, w), max(now, w.now)
			}
			for range 4 {
				wait := int64(0)
				for _, w := range mates {
					w.now = now
					wait = w.pause(w.limit)
				}
				now = min(now+wait, 5e15)
				requireBatch(t, client, script, mates, now, rng.IntN(2) == 0)
			}
		}
	}
}

// mateKey is the key of the i-th of several twins.
func mateKey(i int) string { return fmt.Sprint("{script}", i) }

// plantKey puts a state of w into key, of now or a little earlier.
func plantKey(t *testing.T, client *redis.Client, key string, w *twin, now int64) {
	t.Helper()
	require.NoError(t, client.Set(t.Context(), key, w.plant(now).plant, 0).Err())
	require.NoError(t, client.Del(t.Context(), key+" ms").Err())
}

// foreignKey has a value that no script has written.
const foreignKey = "{script}foreign"

// requireBatch makes a few calls of the twins at once.
func requireBatch(t *testing.T, client *redis.Client, script *redis.Script, mates []*twin, now int64, callers bool) {
	t.Helper()
	args, keys, want := []any{"batch", ""}, []string{}, []any{}
	server := now
	if callers {
		args[1], server = now, now-behind
	}
	for range 1 + mates[2].rng.IntN(5) {
		run := [][]int{{0, 1}, {0, -1, 1}, {2}, {2}}[mates[2].rng.IntN(4)]
		var of []any
		for _, i := range run {
			if i < 0 {
				keys, want = append(keys, foreignKey), append(want, "ratelimit: the value of the key is not a state", int64(0), int64(0), int64(0))
				continue
			}
			w := mates[i]
			w.now, w.callers = now, callers
			c := w.call()
			if of = c.args; callers {
				of = of[:len(of)-1]
			}
			switch keys = append(keys, mateKey(i)); {
			case c.fails:
				want = append(want, "ratelimit: the clocks of server and caller differ by more than two windows", int64(0), int64(0), int64(0))
			case c.reply == nil:
				want = append(want, int64(0), int64(0), int64(0), int64(0))
			default:
				want = append(want, c.reply...)
			}
		}
		args = append(append(args, len(run)), of...)
	}
	given := append([]any{"peek"}, args[1:]...)
	require.Empty(t, script.EvalSha(t.Context(), client, keys, given...).Val(), "a batch that was given up")
	requireKeys(t, client, script, mates, server, keys, args, want)
}

// ruleOf is that of an algorithm, or of bans.
func ruleOf(t *testing.T, algorithm string) *store.Rule {
	t.Helper()
	p := new(prepared)
	if algorithm == "ban" {
		_, err := ratelimit.NewBan(inMemory(t, "fixed_window", ratelimit.PerHour(1)), p, ratelimit.Penalty{Denials: 1, Within: time.Second, For: time.Second})
		require.NoError(t, err)
	} else {
		newLimiter(t, algorithm, p, ratelimit.PerHour(1))
	}
	return p.rule
}

// Several keys, each of any rule: all that are asked for events are charged as the Go functions do, or none.
// Beside them are shadows (-n), looks (0) and gates (0.5). All may be in the plain case, unless the script is
// also one of logs.
func TestTheScriptOfSeveralKeysIsTheTwinOfTheirFunctions(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	var rules []*store.Rule
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"} {
		rules = append(rules, ruleOf(t, algorithm))
	}
	rng := anew(7, 8)
	for _, rules := range [][]*store.Rule{rules[:4], rules} {
		script := noted(rules[0].JointScript(rules))
		require.NoError(t, script.Load(t.Context(), client).Err())
		for range effort.Of(150, 300, 2000) {
			now, mates := anyTime(rng), []*twin{}
			for i := range 1 + rng.IntN(4) {
				rule := rng.IntN(4)
				w := &twin{rule: rules[rule], number: rule + 1, rng: rng, limits: twinLimits(rules[rule].Name)}
				plantKey(t, client, mateKey(i), w, now)
				mates, now = append(mates, w), max(now, w.now)
			}
			for range 7 {
				one := mates[rng.IntN(len(mates))]
				one.now = now
				now = min(now+one.pause(one.limit), 5e15)
				requireTogether(t, client, script, mates, now)
			}
		}
	}
}

// requireTogether makes one call on the keys of several twins.
func requireTogether(t *testing.T, client *redis.Client, script *redis.Script, mates []*twin, now int64) {
	t.Helper()
	rng := mates[0].rng
	op, callers, all, plain := []string{"take", "take", "take", "within", "peek"}[rng.IntN(5)], rng.IntN(2) == 0, true, rng.IntN(3) > 0
	args, befores, keys, want := []any{op}, []any{}, []string{}, []any{}
	var writes []func()
	for i, w := range mates {
		l := w.limit
		if !plain && rng.IntN(4) == 0 {
			l = w.anyLimit()
		}
		if _, at, _ := w.read(now, callers); l.Calendar() != nil && unheard(l, now, at) {
			l = w.limits[0]
		}
		n := max(1, []int64{1, 1 + rng.Int64N(l.Rate), w.near(l.Rate - w.state.Whole), w.near(l.Burst - w.state.Whole)}[rng.IntN(4)])
		what := any(n)
		if !plain {
			what = []any{n, n, n, -n, 0, 0.5}[rng.IntN(6)]
		}
		if what == any(0) || what == any(0.5) {
			n = 1
		}
		args = append(args, append([]any{w.number}, append(callArgs(op, l, now, n)[1:4], what)...)...)
		before := int64(0)
		if op == "within" && rng.IntN(3) > 0 {
			before = 1 + rng.Int64N(2*l.Period)
		}
		befores = append(befores, before)
		r, write := w.plan(l.TurnBefore(before), now, n, callers)
		want, keys = append(want, twinReply(r)...), append(keys, mateKey(i))
		switch what {
		case any(0):
		case any(0.5):
			all = all && r.OK()
		default:
			writes = append(writes, func() {
				if all || !r.OK() {
					write()
				}
			})
			all = all && (r.OK() || what == any(-n))
		}
	}
	switch op {
	case "within":
		args = append(args, befores...)
	case "peek":
		writes = nil
	}
	server := now
	if callers {
		args, server = append(args, now), now-behind
	}
	for _, write := range writes {
		write()
	}
	requireKeys(t, client, script, mates, server, keys, args, want)
}

// requireKeys makes a call on some keys of the twins, and wants these replies, and all keys as the twins have them.
func requireKeys(t *testing.T, client *redis.Client, script *redis.Script, mates []*twin, server int64, keys []string, args, want []any) {
	t.Helper()
	ctx := t.Context()
	var reply *redis.Cmd
	values := make([]*redis.SliceCmd, len(mates))
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, timeKey, server, 0)
		reply = p.EvalSha(ctx, script.Hash(), keys, args...)
		for i := range mates {
			values[i] = p.MGet(ctx, mateKey(i), mateKey(i)+" ms")
		}
		return nil
	})
	require.NoError(t, err, "%v", args)
	require.Equal(t, want, reply.Val(), "%v", args)
	for i, w := range mates {
		kept := values[i].Val()
		for j := range kept {
			if kept[j] == nil {
				kept[j] = ""
			}
		}
		require.Equal(t, []any{w.value(), w.life}, kept, "key %d of %v", i, args)
	}
}

// requireTwin makes the calls on a server, all in one trip.
func requireTwin(t *testing.T, client *redis.Client, script *redis.Script, calls []twinCall) {
	t.Helper()
	ctx := context.Background()
	const key = "{script}twin"
	replies, exist := make([]*redis.Cmd, len(calls)), make([]*redis.IntCmd, len(calls))
	values, lives := make([]*redis.StringCmd, len(calls)), make([]*redis.StringCmd, len(calls))
	lists, writes := make([]*redis.StringSliceCmd, len(calls)), make([]*redis.SliceCmd, len(calls))
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error { // errors are of the commands
		for i, c := range calls {
			if c.fresh {
				p.Del(ctx, key, key+" ms")
			}
			if c.plant != "" {
				p.Set(ctx, key, c.plant, 0)
			}
			p.Set(ctx, timeKey, c.now, 0)
			replies[i] = p.EvalSha(ctx, script.Hash(), []string{key}, c.args...)
			exist[i], values[i], lives[i] = p.Exists(ctx, key), p.Get(ctx, key), p.Get(ctx, key+" ms")
			if c.block > 0 {
				lists[i], writes[i] = p.LRange(ctx, key, 0, -1), p.MGet(ctx, key+" lives", key+" writes")
			}
		}
		return nil
	})
	for i, c := range calls {
		reply, err := replies[i].Slice()
		if c.fails {
			require.ErrorContains(t, err, "clocks of server and caller differ", "call %d: %v", i, c.args)
		} else {
			require.NoError(t, err, "call %d: %v", i, c.args)
		}
		if c.reply != nil {
			require.Equal(t, c.reply, reply, "call %d: %v", i, c.args)
		}
		require.True(t, exist[i].Val() == 1 || !c.exists, "call %d: %v", i, c.args)
		require.Equal(t, c.value, values[i].Val(), "call %d: %v", i, c.args)
		require.Equal(t, c.life, lives[i].Val(), "call %d: %v", i, c.args)
		if c.block > 0 && i > 0 {
			was, is := lists[i-1].Val(), lists[i].Val()
			if slices.Equal(was, is) {
				require.Equal(t, writes[i-1].Val(), writes[i].Val(), "call %d writes what is there: %v", i, c.args)
			} else {
				lived := writes[i-1].Val()[0] != writes[i].Val()[0]
				require.Equal(t, c.args[0] != "refund", lived, "call %d: %v", i, c.args)
				requireBlocks(t, c, was, is)
			}
		}
	}
}

// logBlock is a block of a log on a server.
type logBlock struct {
	head  []float64
	times []int64
}

// blocksOf are the blocks of a list, nil for those that are in the range of an earlier one, and the number
// of the first.
func blocksOf(t *testing.T, list []string) (blocks []*logBlock, first int) {
	t.Helper()
	for i, text := range list {
		if text == "" {
			blocks = append(blocks, nil)
			continue
		}
		b, numbers := new(logBlock), 5
		if i == len(list)-1 {
			numbers = 9
		}
		for n := range numbers {
			b.head = append(b.head, math.Float64frombits(binary.BigEndian.Uint64([]byte(text[8*n:]))))
		}
		for at := 8 * numbers; at < len(text); at += int(b.head[3]) {
			b.times = append(b.times, int64(b.head[0])+int64(binary.BigEndian.Uint64([]byte("\x00\x00"+text[at:at+6]))))
		}
		blocks = append(blocks, b)
	}
	if len(list) > 0 {
		first = int(blocks[len(list)-1].head[5])
	}
	return blocks, first
}

// requireBlocks checks what a call has made of the blocks of a log. Empty ones are joined, and the call has
// forgotten the first one if nothing of it counts, with what is in its range.
func requireBlocks(t *testing.T, c twinCall, was, is []string) {
	t.Helper()
	blocks, first := blocksOf(t, is)
	spans := make(map[int]int) // of empty blocks, by their numbers
	for i := 0; i < len(blocks); i++ {
		b, n := blocks[i], first+i
		if b == nil { // left of a range that was forgotten in part
			require.Empty(t, spans, "%v", c.args)
			continue
		}
		require.LessOrEqual(t, len(b.times), c.block, "%v", c.args)
		require.IsNonDecreasing(t, append([]int64{math.MinInt64}, b.times...), "%v", c.args)
		if i == len(blocks)-1 || len(b.times) > 0 {
			require.NotEmpty(t, b.times, "%v", c.args)
			spans[n] = 0
			continue
		}
		spans[n] = 1
		for i+1 < len(blocks) && blocks[i+1] == nil {
			i, spans[n] = i+1, spans[n]+1
		}
		span := spans[n]
		require.Zero(t, span&(span-1)+n%span, "%v: block %d is %d", c.args, n, span)
		left, there := spans[n-span]
		require.False(t, there && n%(2*span) > 0 && left == span, "%v: blocks %d and %d are not joined", c.args, n-span, n)
	}

	before, old := blocksOf(t, was)
	if len(is) == 0 || first == old || len(was) == 0 || c.args[0] == "refund" {
		require.True(t, len(is) == 0 || first == old || len(was) == 0, "%v", c.args)
	} else if first > 1 { // it did not begin again
		n := 1
		for n < len(before)-1 && n < c.block && before[n] == nil {
			n++
		}
		require.Equal(t, old+n, first, "%v", c.args)
	}
}

// logTwin is one log as its Go type has it.
type logTwin struct {
	rule    *store.Rule
	rng     *rand.Rand
	log     store.Log
	limits  []store.Limit
	block   int // the most entries of a block of the script, if not as many as of the type
	now     int64
	shift   int64 // the server's clock is so much later than the log's, which goes on where that goes back
	period  int64 // of the last event
	last    int64 // when events were logged the last time, by the log's clock,
	same    int   // and how many calls did so at that instant
	exists  bool
	life    string
	charges []store.Receipt
}

// Some hundred events are logged, many at one instant. Refunds empty blocks at both ends and in the
// middle, and events leave: the script of the sliding log decides as its Go type does. With blocks of
// four entries there are many to join and to forget.
func TestTheScriptOfTheLogIsTheTwinOfItsType(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	rule := ruleOf(t, "sliding_log")
	_, general, _ := strings.Cut(rule.Script, "\n-- Shared by all scripts")
	whole, small := noted(rule.Script), noted("-- "+strings.Replace(general, "local BLOCK = 64", "local BLOCK = 4", 1))
	for _, script := range []*redis.Script{whole, small} {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	for i, limits := range [][]store.Limit{
		{{Rate: 5, Period: 1_234_567}},
		{{Rate: 3, Period: 1000}},
		{{Rate: 20, Period: 3650 * 24 * 3600e6}}, // an entry has no room for as much as 9 years
		{{Rate: 1500, Period: 10e6}},
		{{Rate: 1500, Period: 10e6}, {Rate: 150, Period: 10e6}, {Rate: 2000, Period: 50e6}, {Rate: 400, Period: 3e6}},
		{{Rate: math.MaxInt32, Period: 3650 * 24 * 3600e6}, {Rate: 100, Period: 1e12}},
		{{Rate: 60, Period: 1000}, {Rate: 40, Period: 2000}},
		{{Rate: 400, Period: 4e6}},
		{{Rate: 401, Period: 4e6}},
	} {
		for seed := range uint64(effort.Of(1, 2, 10)) {
			for _, block := range []int{0, 4} {
				w := &logTwin{rule: rule, rng: anew(seed, uint64(i)), limits: limits, block: block, now: 1_700_000_000_000_000 - int64(i)*400_000_000_000_000, log: rule.NewLog(store.State{})}
				calls := []twinCall{{fresh: true, now: w.now, args: callArgs("peek", limits[0], w.now, 1), reply: []any{int64(1), w.now, int64(0), int64(0)}, block: block}}
				for i := range 16 {
					kind, n := w.rng.IntN(7), 10+w.rng.IntN(90)
					switch limits[0].Rate {
					case 400: // so many empty blocks in one that it leaves in parts
						kind, n = []int{0, 5, 0}[i%3], 120
					case 401: // they are the last before the newest, and then the first
						kind, n = []int{0, 7, 0, 2}[i%4], []int{100, 40, 100, 60}[i%4]
					}
					if limits[0].Rate == 1500 && i < 4 { // 24 blocks, then a hole of ten and many small ones; then the end goes
						kind, n = []int{0, 5, 6, 3}[i], []int{1500, 900, 200, 400}[i]/max(1, 2*block)
					}
					for ; n > 0 && w.now < 6e15; n-- { // near the end of time
						calls = append(calls, w.call(kind))
					}
				}
				script := whole
				if block > 0 {
					script = small
				}
				requireTwin(t, client, script, calls)
			}
		}
	}
}

// call is a call of a kind: one that fills the log, or that gives back what is old or new, or all of
// a stretch, or any (6), or all but the newest from there on (7).
func (w *logTwin) call(kind int) twinCall {
	l := w.limits[0]
	if w.rng.IntN(4) == 0 {
		l = w.limits[w.rng.IntN(len(w.limits))]
	}
	live, planned := w.log.End() != math.MinInt64, l.Rate == 400 || l.Rate == 401
	switch few := min(l.Rate, 300); {
	case (l.Rate == 1500 || planned) && (kind == 0 || kind == 3 || kind == 5):
		w.now += w.rng.Int64N(10_000)
	case w.rng.IntN(200) == 0:
		w.now += w.rng.Int64N(2 * l.Period)
	case live && w.rng.IntN(200) == 0:
		w.now = max(w.now, w.newest()+l.Period-1+w.rng.Int64N(3))
	case w.rng.IntN(3) > 0:
		w.now += w.rng.Int64N(l.Period/few + 1)
	}
	full := live && w.block > 0 && w.same == w.block
	if full { // of more at one instant, the script would give back fewer
		w.now = max(w.now, w.newest()) + 1
	}
	n := int64(1)
	if w.rng.IntN(20) == 0 {
		n += w.rng.Int64N(5)
	}
	callers := live && w.rng.IntN(4) > 0                      // without a log it matters what of one is left that does not count
	if !callers && !planned && !full && w.rng.IntN(20) == 0 { // refunds of what was charged before find nothing then
		w.now -= w.rng.Int64N(l.Period)
	}
	now := w.now
	if callers && !full && w.log.End()+w.shift > now && w.rng.IntN(10) == 0 { // late
		now -= w.rng.Int64N(l.Period)
	}
	op := "take"
	switch x := w.rng.IntN(10); {
	case kind == 7 && len(w.charges) > 1:
		op = "refund"
	case x == 0:
		op, n = "peek", 1+w.rng.Int64N(l.Rate+1)
	case x == 1:
		if op = "upto"; kind == 1 {
			n = 1 + w.rng.Int64N(l.Rate)
		}
	case x == 2 && l.Rate < 1000:
		op = "charge"
	case x > 2 && kind > 1 && len(w.charges) > 0:
		op = "refund"
	}
	c := twinCall{now: now, block: w.block}
	if op == "refund" {
		i := w.rng.IntN(len(w.charges))
		switch kind {
		case 2:
			for i = 0; i < len(w.charges)-1 && w.charges[i].At <= now-l.Period; {
				i++
			}
		case 3:
			i = len(w.charges) - 1
		case 4:
			i = min(i, len(w.charges)/3)
		case 5: // one after the other
			i = len(w.charges) / 4
		case 7:
			i = len(w.charges) - 2
		}
		r := w.charges[i]
		if w.rng.IntN(4) == 0 && kind < 7 {
			r.N = 1 + w.rng.Int64N(r.N+1)
		} else {
			w.charges = append(w.charges[:i], w.charges[i+1:]...)
		}
		c.args = callArgs(op, l, now, r.N, r.At, r.Due, r.Rate, r.Period, 0)
		w.refund(l, now, r)
	} else {
		if c.args = callArgs(op, l, now, n); op == "charge" {
			c.args = append(c.args, math.MaxInt32)
		}
		c.reply = w.take(op, l, now, n, callers)
	}
	if callers {
		c.args, c.now = append(c.args, now), now-behind
	}
	c.exists, c.life = w.exists, w.life
	return c
}

// newest is the time of the last event, by the server's clock.
func (w *logTwin) newest() int64 { return w.log.End() - w.period + w.shift }

func (w *logTwin) take(op string, l store.Limit, now, n int64, callers bool) []any {
	log, shift := w.log, w.shift
	moved := !callers && log.End() != math.MinInt64 && w.newest() > now
	if moved {
		shift += now - w.newest()
	}
	if log.End() <= now-shift { // a late call finds it again, unless something is written
		log, shift = w.rule.NewLog(store.State{}), 0
	}
	r := log.Step(l, now-shift, n)
	if op == "upto" && !r.OK() && n > 1 {
		n = max(1, w.rule.Available(l, r))
		r = log.Step(l, now-shift, n)
	}
	if r.OK() || n > l.Rate {
		r.X += shift
	}
	switch {
	case op == "peek":
	case r.OK() || op == "charge":
		r.X = log.Add(l, now-shift, n) - l.Period + shift
		w.log, w.shift, w.period, w.exists, w.life = log, shift, l.Period, true, lifeOf(l.Period)
		if r.X-shift != w.last {
			w.last, w.same = r.X-shift, 0
		}
		w.same++
		w.charges = append(w.charges, store.NewReceipt(l, r.X, l.Period, n))
	case moved:
		w.shift, w.life = shift, lifeOf(w.period)
	}
	return twinReply(r)
}

func (w *logTwin) refund(l store.Limit, now int64, c store.Receipt) {
	if w.log.End() <= now-w.shift {
		return
	}
	c.At -= w.shift
	w.log.Refund(l, now-w.shift, c)
	w.exists = w.log.End() != math.MinInt64
}
