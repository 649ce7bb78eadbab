package suite_test

import (
	"context"
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

// twinCall is a call of a script, and what must come of it by each way.
type twinCall struct {
	fresh bool   // the key does not exist before
	plant string // the value of a fresh key, if it has one
	now   int64  // of the server's clock
	args  []any  // as questionOf has them

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
	client := patient(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		if algorithm == "sliding_log" { // whose functions are of a log
			continue
		}
		t.Run(algorithm, func(t *testing.T) {
			rule := ruleOf(t, algorithm)
			ways := waysOf(t, rule, besides(t, algorithm))
			loadWays(t, client, ways)
			w := &twin{rule: rule, rng: anew(5, 6), limits: twinLimits(algorithm)}
			for i := range effort.Of(8, 20, 100) {
				var calls []twinCall
				for range 60 {
					calls = append(calls, w.plant(anyTime(w.rng)))
					for range 7 {
						calls = append(calls, w.call())
					}
				}
				requireTwin(t, client, some(ways, i), calls)
			}
		})
	}
}

// patient returns a client of a server of its own that waits for the server of a busy machine. A client sends what was
// not answered in time once more, and so would charge twice.
func patient(t testing.TB) *redis.Client {
	return redistest.Start(t).Client(t).WithTimeout(time.Minute)
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
			s.Whole, s.Part = bucket.Debt+min(bucket.Most(l), l.Burst+amount(2*l.Rate)), amount(l.Period-1)
			if w.rng.IntN(3) == 0 {
				s.Whole, s.Part, w.most = bucket.Debt+bucket.Most(l)-w.rng.Int64N(3), w.rng.Int64N(3), true
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
	return twinCall{fresh: true, plant: value, now: w.now, args: callArgs("look", l, w.now, 1), reply: w.take("look", l, w.now, 1, 0, true), exists: true, value: value}
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
	level := w.state.Whole &^ bucket.Debt
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
	ops := []string{"take", "take", "look", "shadow", "gate", "upto", "charge", "refund", "within"}
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
		c.args = callArgs(op, l, clock, n, mostOf(w.rule, l))
		c.reply = w.take(op, l, w.now, n, 0, callers)
	case "within":
		before := 1 + []int64{0, w.rng.Int64N(2 * l.Period), w.near(l.Period), l.Period / l.Rate, 100 * 365 * 24 * 3600e6}[w.rng.IntN(5)]
		if most {
			before = 100*365*24*3600e6 + 1
		}
		if w.rule.Name == "ban" { // Within is at most as long
			before = min(before, 3650*24*3600e6+1)
		}
		c.args = callArgs(op, l, clock, n, before)
		c.reply = w.take(op, l.TurnBefore(before), w.now, n, 0, callers)
	default:
		c.args = callArgs(op, l, clock, n)
		reserved := int64(0)
		if w.rng.IntN(4) == 0 {
			reserved = max(1, []int64{w.near(room - n), 1 + w.rng.Int64N(l.Rate)}[w.rng.IntN(2)])
			c.args[4] = fmt.Sprintf("%d+%d", n, reserved)
		}
		c.reply = w.take(op, l, w.now, n, reserved, callers)
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
		if over := w.state.Whole&^bucket.Debt - w.limit.Burst; w.rule.Burst && over >= 0 {
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

func (w *twin) take(op string, l store.Limit, now, n, reserved int64, callers bool) []any {
	r, write := w.plan(op, l, now, n, reserved, callers)
	if op != "look" && (op != "gate" || !r.OK()) {
		write(true)
	}
	return twinReply(r)
}

// plan decides on n events beside reserved ones, and says what there is to write: charged, or not.
func (w *twin) plan(op string, l store.Limit, now, n, reserved int64, callers bool) (r store.Reply, write func(charge bool)) {
	s, at, moved := w.read(now, callers)
	next, r := w.rule.Step(s, l, at, n+reserved)
	switch {
	case r.OK():
		next, _ = w.rule.Step(s, l, at, n)
	case op == "upto" && n > 1:
		n = max(1, w.rule.Available(l, r)-reserved)
		_, r = w.rule.Step(s, l, at, n+reserved)
		next, _ = w.rule.Step(s, l, at, n)
	case op == "charge":
		r.X, next = next.At, w.rule.Overdrawn(next, l, mostOf(w.rule, l))
	}
	return r, func(charge bool) {
		if charge && (r.OK() || op == "charge") {
			w.write(l, next)
			w.charged(l, next, n)
		} else if moved {
			w.write(w.limit, s)
		}
	}
}

// mostOf is the most that a state may hold.
func mostOf(rule *store.Rule, l store.Limit) int64 {
	if rule.Burst {
		return bucket.Most(l)
	}
	return math.MaxInt32
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
	script := noted(rule.Script([]*store.Rule{rule}))
	require.NoError(t, script.Load(t.Context(), client).Err())
	l := store.NewCalendar(store.Month, 31, "UTC").In(store.Limit{Rate: 10, Burst: 10})
	at := func(day string) int64 { return instant(t, day+" 00:00").UnixMicro() }
	due := at("2026-02-28")
	w := &twin{exists: true, limit: l, state: store.State{At: at("2026-02-01"), Period: l.Period, Whole: 10, Part: due/1e6 + partOf1970}}
	now, keys, mates := at("2026-02-02"), []string{}, map[string]mate{mateKey(0): w, mateKey(1): w, mateKey(2): w}
	for i := range len(mates) {
		keys = append(keys, mateKey(i))
		require.NoError(t, client.Set(t.Context(), mateKey(i), w.value(), 0).Err())
	}
	for _, clock := range []string{"2025-12-10", "2026-02-02", "2026-04-01"} {
		q := questionOf(callArgs("refund", l, at(clock), 5, at("2026-01-29"), due, 10, l.Period, 0))
		nothing := slices.Repeat([]any{int64(0)}, 4)
		requireKeys(t, client, script, map[string]mate{keys[0]: w}, now, keys[:1], q.alone(), nothing, "")
		requireKeys(t, client, script, mates, now, keys, groupsOf(nil, runOf(len(mates), q.request(1))), slices.Repeat(nothing, len(mates)), "")
	}
}

func (w *twin) kept() (names []string, values []any) {
	return []string{"", " ms"}, []any{w.value(), w.life}
}

func (w *twin) waits(now int64) int64 {
	w.now = now
	return w.pause(w.limit)
}

func (w *twin) callAt(now int64, callers bool) twinCall {
	w.now, w.callers = now, callers
	return w.call()
}

func (w *twin) ask(other bool) (number int, l store.Limit, n int64) {
	if l = w.limit; other {
		l = w.anyLimit()
	}
	return w.number, l, max(1, []int64{1, 1 + w.rng.Int64N(l.Rate), w.near(l.Rate - w.state.Whole), w.near(l.Burst - w.state.Whole)}[w.rng.IntN(4)])
}

func (w *twin) heard(l store.Limit, now int64, callers bool) bool {
	_, at, _ := w.read(now, callers)
	return l.Calendar() == nil || !unheard(l, now, at)
}

// requireTwin makes the calls on a server by all these ways, many in one trip.
func requireTwin(t *testing.T, client *redis.Client, ways []way, calls []twinCall) {
	t.Helper()
	ctx := context.Background()
	type outcome struct {
		answer      *asked
		exists      *redis.IntCmd
		value, life *redis.StringCmd
		list        *redis.StringSliceCmd
		writes      *redis.SliceCmd
	}
	var outcomes [][]outcome
	for some := range slices.Chunk(calls, 100) {
		_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error { // errors are of the commands
			for _, c := range some {
				p.Set(ctx, timeKey, c.now, 0)
				var of []outcome
				for i, w := range ways {
					key := mateKey(i)
					if c.fresh {
						p.Del(ctx, key, key+" ms")
					}
					if c.plant != "" {
						p.Set(ctx, key, c.plant, 0)
					}
					o := outcome{answer: w.ask(ctx, p, key, c.args), exists: p.Exists(ctx, key), value: p.Get(ctx, key), life: p.Get(ctx, key+" ms")}
					if c.block > 0 {
						o.list, o.writes = p.LRange(ctx, key, 0, -1), p.MGet(ctx, key+" lives", key+" writes")
					}
					of = append(of, o)
				}
				outcomes = append(outcomes, of)
			}
			return nil
		})
	}
	for i, c := range calls {
		for of, o := range outcomes[i] {
			way := ways[of].name
			reply, err := o.answer.reply()
			if c.fails {
				require.ErrorContains(t, err, "clocks of server and caller differ", "call %d, %s: %v", i, way, c.args)
			} else {
				require.NoError(t, err, "call %d, %s: %v", i, way, c.args)
				if c.reply == nil {
					c.reply = slices.Repeat([]any{int64(0)}, 4)
				}
				require.Equal(t, c.reply, reply, "call %d, %s: %v", i, way, c.args)
			}
			require.True(t, o.exists.Val() == 1 || !c.exists, "call %d, %s: %v", i, way, c.args)
			require.Equal(t, c.value, o.value.Val(), "call %d, %s: %v", i, way, c.args)
			require.Equal(t, c.life, o.life.Val(), "call %d, %s: %v", i, way, c.args)
			if c.block > 0 && i > 0 {
				before := outcomes[i-1][of]
				was, is := before.list.Val(), o.list.Val()
				if slices.Equal(was, is) {
					require.Equal(t, before.writes.Val(), o.writes.Val(), "call %d, %s, writes what is there: %v", i, way, c.args)
				} else {
					lived := before.writes.Val()[0] != o.writes.Val()[0]
					require.Equal(t, c.args[0] != "refund", lived, "call %d, %s: %v", i, way, c.args)
					requireBlocks(t, c, was, is)
				}
			}
		}
	}
}
