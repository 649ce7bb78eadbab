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
	client := redistest.Start(t).Client(t)
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
	return twinCall{fresh: true, plant: value, now: w.now, args: callArgs("look", l, w.now, 1), reply: w.take("look", l, w.now, 1, true), exists: true, value: value}
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
		c.reply = w.take(op, l, w.now, n, callers)
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
	r, write := w.plan(op, l, now, n, callers)
	if op != "look" && op != "gate" {
		write()
	}
	return twinReply(r)
}

// plan decides on n events, and says what there is to write.
func (w *twin) plan(op string, l store.Limit, now, n int64, callers bool) (r store.Reply, write func()) {
	s, at, moved := w.read(now, callers)
	next, r := w.rule.Step(s, l, at, n)
	switch {
	case r.OK():
	case op == "upto" && n > 1:
		n = max(1, w.rule.Available(l, r))
		next, r = w.rule.Step(s, l, at, n)
	case op == "charge":
		r.X, next = next.At, w.rule.Overdrawn(next, l, mostOf(w.rule, l))
	}
	return r, func() {
		if r.OK() || op == "charge" {
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

// Some calls, each a group of its own, decide and write as they do one after the other. Two keys of three are in
// the same state, and are asked alike: these calls are one run, in which there may be one that fails.
func TestTheScriptOfABatchIsTheTwinOfItsCalls(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		rule := ruleOf(t, algorithm)
		_, general := halves(t, rule.Script([]*store.Rule{rule}))
		scripts := []*redis.Script{noted(rule.Script([]*store.Rule{rule})), noted(general)}
		for _, script := range scripts {
			require.NoError(t, script.Load(t.Context(), client).Err())
		}
		require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
		rng := anew(9, 10)
		for range effort.Of(50, 100, 1000) {
			now, seed, mates := anyTime(rng), rng.Uint64(), []called{}
			for i := range 3 {
				own := rand.New(rand.NewPCG(seed, uint64(i/2)))
				require.NoError(t, client.Del(t.Context(), mateKey(i), mateKey(i)+" ms", mateKey(i)+" lives").Err())
				if algorithm == "sliding_log" {
					mates = append(mates, &logTwin{rule: rule, rng: own, limits: []store.Limit{{Rate: 5, Period: 1_234_567}, {Rate: 70, Period: 2e6}}, still: true, now: now, log: rule.NewLog(store.State{})})
					continue
				}
				w := &twin{rule: rule, rng: own, limits: twinLimits(algorithm), still: true}
				plantKey(t, client, mateKey(i), w, now)
				mates, now = append(mates, w), max(now, w.now)
			}
			for range 4 {
				wait := int64(0)
				for _, w := range mates {
					wait = w.waits(now)
				}
				now = min(now+wait, 5e15)
				requireBatch(t, client, scripts[rng.IntN(2)], mates, rng, now, rng.IntN(2) == 0)
			}
		}
	}
}

// mate is one of several twins.
type mate interface {
	// kept are what stands behind the key in the names of what a server has of a twin, and what that is.
	kept() (names []string, values []any)
}

func (w *twin) kept() (names []string, values []any) {
	return []string{"", " ms"}, []any{w.value(), w.life}
}

// kept of a log is how often it was written to, but for refunds.
func (w *logTwin) kept() (names []string, values []any) {
	lives := ""
	if w.lives > 0 {
		lives = strconv.Itoa(w.lives)
	}
	return []string{" lives", " ms"}, []any{lives, w.life}
}

// called is a twin that is called at times that are not its own.
type called interface {
	mate
	waits(now int64) int64 // how much later the next call comes
	callAt(now int64, callers bool) twinCall
}

func (w *twin) waits(now int64) int64 {
	w.now = now
	return w.pause(w.limit)
}

func (w *twin) callAt(now int64, callers bool) twinCall {
	w.now, w.callers = now, callers
	return w.call()
}

func (w *logTwin) waits(int64) int64 {
	return w.rng.Int64N(2*w.limits[0].Period) / []int64{1, 2, 10}[w.rng.IntN(3)]
}

func (w *logTwin) callAt(now int64, callers bool) twinCall {
	w.now, w.callers = now, callers
	return w.call(w.rng.IntN(7))
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

// notOurs is what a script of groups says of foreignKey, if rule is asked for it.
func notOurs(rule *store.Rule) string {
	if rule.NewLog != nil {
		return "WRONGTYPE Operation against a key holding the wrong kind of value"
	}
	return "ratelimit: the value of the key is not a state"
}

// failed are the replies to a group of so many requests that failed.
func failed(text string, size int) []any {
	return append([]any{text}, slices.Repeat([]any{int64(0)}, 4*size-1)...)
}

// requireBatch makes a few calls of the twins at once.
func requireBatch(t *testing.T, client *redis.Client, script *redis.Script, mates []called, rng *rand.Rand, now int64, callers bool) {
	t.Helper()
	clock, server := []any{}, now
	if callers {
		clock, server = []any{now}, now-behind
	}
	runs, keys, want := [][]any{}, []string{}, []any{}
	for range 1 + rng.IntN(5) {
		run := [][]int{{0, 1}, {0, -1, 1}, {2}, {2}}[rng.IntN(4)]
		var of []any
		for _, i := range run {
			if i < 0 {
				rule := ruleOfMate(mates[0])
				keys, want = append(keys, foreignKey), append(want, failed(notOurs(rule), 1)...)
				continue
			}
			c := mates[i].callAt(now, callers)
			of = c.args
			switch keys = append(keys, mateKey(i)); {
			case c.fails:
				want = append(want, failed("ratelimit: the clocks of server and caller differ by more than two windows", 1)...)
			case c.reply == nil:
				want = append(want, int64(0), int64(0), int64(0), int64(0))
			default:
				want = append(want, c.reply...)
			}
		}
		runs = append(runs, runOf(len(run), questionOf(of).request(1)))
	}
	args := groupsOf(clock, runs...)
	given := append([]any{"none"}, args[1:]...)
	require.Empty(t, script.EvalSha(t.Context(), client, keys, given...).Val(), "a batch that was given up")
	kept := make(map[string]mate)
	for i, w := range mates {
		kept[mateKey(i)] = w
	}
	fails := ""
	if text, ok := want[0].(string); ok && len(keys) == 1 {
		fails = text
	}
	requireKeys(t, client, script, kept, server, keys, args, want, fails)
}

func ruleOfMate(w mate) *store.Rule {
	if log, ok := w.(*logTwin); ok {
		return log.rule
	}
	return w.(*twin).rule
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

// Groups of several keys, each of any rule: all that are asked for events are charged as the Go functions do, or
// none. Beside them are shadows, looks, gates, and what is charged whether it fits or not. Groups of which one key
// is not ours leave all as it is, and the others go on.
func TestTheScriptOfSeveralKeysIsTheTwinOfTheirFunctions(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	var rules []*store.Rule
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"} {
		rules = append(rules, ruleOf(t, algorithm))
	}
	require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
	rng := anew(7, 8)
	for _, rules := range [][]*store.Rule{rules[:4], rules, rules[4:]} {
		_, general := halves(t, rules[0].Script(rules))
		scripts := []*redis.Script{noted(rules[0].Script(rules)), noted(general)}
		for _, script := range scripts {
			require.NoError(t, script.Load(t.Context(), client).Err())
		}
		for range effort.Of(80, 300, 2000) {
			now := anyTime(rng)
			var sets [2][]member
			for i := range 1 + rng.IntN(4) {
				number := rng.IntN(len(rules))
				for of := range sets {
					key := memberKey(of, i)
					require.NoError(t, client.Del(t.Context(), key, key+" ms", key+" lives").Err())
					if rule := rules[number]; rule.NewLog != nil {
						limits := []store.Limit{{Rate: 5, Period: 60e6}, {Rate: 3, Period: 1_234_567}, {Rate: 70, Period: 3600e6}}
						sets[of] = append(sets[of], &logTwin{rule: rule, number: number + 1, rng: rng, limits: limits, log: rule.NewLog(store.State{})})
					} else {
						w := &twin{rule: rule, number: number + 1, rng: rng, limits: twinLimits(rule.Name)}
						plantKey(t, client, key, w, now)
						sets[of], now = append(sets[of], w), max(now, w.now)
					}
				}
			}
			for range 7 {
				now = min(now+sets[rng.IntN(2)][rng.IntN(len(sets[0]))].waits(now), 5e15)
				requireGroups(t, client, scripts[rng.IntN(2)], sets, rng, now)
			}
		}
	}
}

// member is one of a group.
type member interface {
	mate
	waits(now int64) int64
	ask(other bool) (number int, l store.Limit, n int64) // any limit, if other
	heard(l store.Limit, now int64, callers bool) bool   // or no window that the caller knows is that of the decision
	plan(op string, l store.Limit, now, n int64, callers bool) (r store.Reply, write func())
}

func memberKey(set, i int) string { return mateKey(10*set + i) }

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

func (w *logTwin) ask(other bool) (number int, l store.Limit, n int64) {
	if l = w.limits[0]; other {
		l = w.limits[w.rng.IntN(len(w.limits))]
	}
	return w.number, l, max(1, []int64{1, 1, 2, w.rng.Int64N(l.Rate + 1)}[w.rng.IntN(4)])
}

func (w *logTwin) heard(store.Limit, int64, bool) bool { return true }

// requireGroups asks for a few groups of two sets of twins at once.
func requireGroups(t *testing.T, client *redis.Client, script *redis.Script, sets [2][]member, rng *rand.Rand, now int64) {
	t.Helper()
	callers, plain, size := rng.IntN(2) == 0, rng.IntN(3) > 0, len(sets[0])
	runs, keys, want, fails := [][]any{}, []string{}, []any{}, ""
	for range 1 + rng.IntN(3) {
		ops, limits, ns, requests := make([]string, size), make([]store.Limit, size), make([]int64, size), make([][]any, size)
		for i, w := range sets[0] {
			number, l, n := w.ask(!plain && rng.IntN(4) == 0)
			if !w.heard(l, now, callers) || !sets[1][i].heard(l, now, callers) {
				l = twinLimits("fixed_window")[0]
			}
			op := "take"
			if !plain {
				op = []string{"take", "take", "take", "shadow", "look", "gate", "upto", "charge"}[rng.IntN(8)]
			}
			if _, ok := w.(*logTwin); ok && op == "charge" { // it tells the time of one only as it is written
				op = "take"
			}
			q := questionOf(callArgs("take", l, now, n))
			switch q.what = op; {
			case op == "charge":
				q.what += fmt.Sprint(" ", mostOf(ruleOfMate(w), l))
			case op != "upto" && rng.IntN(10) == 0:
				l = l.TurnBefore(1 + rng.Int64N(2*l.Period))
				q.what += fmt.Sprint(" ", l.Before())
			}
			ops[i], limits[i], ns[i], requests[i] = op, l, n, q.request(number)
		}
		run := [][]int{{0}, {1}, {0, 1}, {0, -1, 1}, {-1}}[rng.IntN(5)]
		runs = append(runs, runOf(len(run), requests...))
		for _, of := range run {
			if of < 0 {
				bad := rng.IntN(size)
				for i := range size {
					if i == bad {
						keys = append(keys, foreignKey)
					} else {
						keys = append(keys, memberKey(0, i))
					}
				}
				fails = notOurs(ruleOfMate(sets[0][bad]))
				want = append(want, failed(fails, size)...)
				continue
			}
			all, writes := true, []func(all bool){}
			for i, w := range sets[of] {
				op := ops[i]
				r, write := w.plan(op, limits[i], now, ns[i], callers)
				keys, want = append(keys, memberKey(of, i)), append(want, twinReply(r)...)
				switch op {
				case "take", "gate", "upto":
					all = all && r.OK()
				}
				if op != "look" && op != "gate" {
					writes = append(writes, func(all bool) {
						if all || !r.OK() && op != "charge" {
							write()
						}
					})
				}
			}
			for _, write := range writes {
				write(all)
			}
		}
	}
	clock, server := []any{}, now
	if callers {
		clock, server = []any{now}, now-behind
	}
	if len(keys) > size {
		fails = ""
	}
	kept := make(map[string]mate)
	for of, set := range sets {
		for i, w := range set {
			kept[memberKey(of, i)] = w
		}
	}
	requireKeys(t, client, script, kept, server, keys, groupsOf(clock, runs...), want, fails)
}

// requireKeys asks a script, and wants these replies, or an error if it fails. And it wants all keys as the twins
// have them.
func requireKeys(t *testing.T, client *redis.Client, script *redis.Script, mates map[string]mate, server int64, keys []string, args, want []any, fails string) {
	t.Helper()
	ctx := t.Context()
	var reply *redis.Cmd
	values := make(map[string]*redis.SliceCmd)
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, timeKey, server, 0)
		reply = p.EvalSha(ctx, script.Hash(), keys, args...)
		for key, w := range mates {
			names, _ := w.kept()
			values[key] = p.MGet(ctx, key+names[0], key+names[1])
		}
		return nil
	})
	if fails != "" {
		require.ErrorContains(t, err, fails, "%v", args)
	} else {
		require.NoError(t, err, "%v", args)
		require.Equal(t, want, reply.Val(), "%v", args)
	}
	for key, w := range mates {
		kept := values[key].Val()
		for i := range kept {
			if kept[i] == nil {
				kept[i] = ""
			}
		}
		_, own := w.kept()
		require.Equal(t, own, kept, "%s of %v", key, args)
	}
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
	lives   int  // how often it was written to, but for refunds
	number  int  // of the rule, among several
	still   bool // calls are of one instant,
	callers bool // and of one clock
}

// Some hundred events are logged, many at one instant. Refunds empty blocks at both ends and in the
// middle, and events leave: the script of the sliding log decides as its Go type does. With blocks of
// four entries there are many to join and to forget.
func TestTheScriptOfTheLogIsTheTwinOfItsType(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	rule := ruleOf(t, "sliding_log")
	whole := waysOf(t, rule, besides(t, "sliding_log"))
	_, general := halves(t, rule.Script([]*store.Rule{rule}))
	small := noted(strings.Replace(general, "local BLOCK = 64", "local BLOCK = 4", 1))
	blocks := []way{{"alone", small, 0, false}, {"among groups", small, 1, true}}
	loadWays(t, client, slices.Concat(whole, blocks))
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
				calls := []twinCall{{fresh: true, now: w.now, args: callArgs("look", limits[0], w.now, 1), reply: []any{int64(1), w.now, int64(0), int64(0)}, block: block}}
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
				ways := some(whole, i)
				if block > 0 {
					ways = blocks[i%2:][:1]
				}
				requireTwin(t, client, ways, calls)
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
	case w.still:
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
	callers := live && w.rng.IntN(4) > 0                                  // without a log it matters what of one is left that does not count
	if !callers && !planned && !full && !w.still && w.rng.IntN(20) == 0 { // refunds of what was charged before find nothing then
		w.now -= w.rng.Int64N(l.Period)
	}
	if w.still {
		callers = w.callers
	}
	now := w.now
	if callers && !full && !w.still && w.log.End()+w.shift > now && w.rng.IntN(10) == 0 { // late
		now -= w.rng.Int64N(l.Period)
	}
	op := "take"
	switch x := w.rng.IntN(10); {
	case kind == 7 && len(w.charges) > 1:
		op = "refund"
	case x == 0:
		op, n = "look", 1+w.rng.Int64N(l.Rate+1)
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
	r, write := w.plan(op, l, now, n, callers)
	if op != "look" {
		write()
	}
	if op == "charge" {
		r.X = w.last + w.shift
	}
	return twinReply(r)
}

// plan decides on n events, and says what there is to write. What is charged past the limit is of the time that
// is written.
func (w *logTwin) plan(op string, l store.Limit, now, n int64, callers bool) (r store.Reply, write func()) {
	log, shift := w.log, w.shift
	moved := !callers && log.End() != math.MinInt64 && w.newest() > now
	if moved {
		shift += now - w.newest()
	}
	if log.End() <= now-shift { // a late call finds it again, unless something is written
		log, shift = w.rule.NewLog(store.State{}), 0
	}
	r = log.Step(l, now-shift, n)
	if op == "upto" && !r.OK() && n > 1 {
		n = max(1, w.rule.Available(l, r))
		r = log.Step(l, now-shift, n)
	}
	if r.OK() || n > l.Rate {
		r.X += shift
	}
	return r, func() {
		switch {
		case r.OK() || op == "charge":
			at := log.Add(l, now-shift, n) - l.Period
			w.log, w.shift, w.period, w.exists, w.life = log, shift, l.Period, true, lifeOf(l.Period)
			w.lives++
			if at != w.last {
				w.last, w.same = at, 0
			}
			w.same++
			w.charges = append(w.charges, store.NewReceipt(l, at+shift, l.Period, n))
		case moved:
			w.shift, w.life = shift, lifeOf(w.period)
			w.lives++
		}
	}
}

func (w *logTwin) refund(l store.Limit, now int64, c store.Receipt) {
	if w.log.End() <= now-w.shift {
		return
	}
	c.At -= w.shift
	w.log.Refund(l, now-w.shift, c)
	w.exists = w.log.End() != math.MinInt64
}
