package suite_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// kept of a log is how often it was written to, but for refunds.
func (w *logTwin) kept() (names []string, values []any) {
	lives := ""
	if w.lives > 0 {
		lives = strconv.Itoa(w.lives)
	}
	return []string{" lives", " ms"}, []any{lives, w.life}
}

func (w *logTwin) waits(int64) int64 {
	return w.rng.Int64N(2*w.limits[0].Period) / []int64{1, 2, 10}[w.rng.IntN(3)]
}

func (w *logTwin) callAt(now int64, callers bool) twinCall {
	w.now, w.callers = now, callers
	return w.call(w.rng.IntN(7))
}

func (w *logTwin) ask(other bool) (number int, l store.Limit, n int64) {
	if l = w.limits[0]; other {
		l = w.limits[w.rng.IntN(len(w.limits))]
	}
	return w.number, l, max(1, []int64{1, 1, 2, w.rng.Int64N(l.Rate + 1)}[w.rng.IntN(4)])
}

func (w *logTwin) heard(store.Limit, int64, bool) bool { return true }

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
	client := patient(t)
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
	r, write := w.plan(op, l, now, n, 0, callers)
	if op != "look" {
		write(true)
	}
	if op == "charge" {
		r.X = w.last + w.shift
	}
	return twinReply(r)
}

// plan decides on n events beside reserved ones, and says what there is to write. What is charged past the limit is of
// the time that is written.
func (w *logTwin) plan(op string, l store.Limit, now, n, reserved int64, callers bool) (r store.Reply, write func(charge bool)) {
	log, shift := w.log, w.shift
	moved := !callers && log.End() != math.MinInt64 && w.newest() > now
	if moved {
		shift += now - w.newest()
	}
	if log.End() <= now-shift { // a late call finds it again, unless something is written
		log, shift = w.rule.NewLog(store.State{}), 0
	}
	r = log.Step(l, now-shift, n+reserved)
	if op == "upto" && !r.OK() && n > 1 {
		n = max(1, w.rule.Available(l, r)-reserved)
		r = log.Step(l, now-shift, n+reserved)
	}
	if r.OK() || n+reserved > l.Rate {
		r.X += shift
	}
	return r, func(charge bool) {
		switch {
		case charge && (r.OK() || op == "charge"):
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
