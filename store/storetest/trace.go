package storetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// traceLen is the most calls of a random trace.
const traceLen = 60

// horizon is the end of time for traces, Unix µs: the end of 2199.
var horizon = time.Date(2199, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro()

// lastDebt is the last instant of a Charge in traces, Unix µs. A debt may take 100 years
// to drain, and Lua counts to 2^53 µs, which is in 2255.
var lastDebt = time.Date(2155, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// firstBack is the earliest instant to which the clock is set back, Unix µs, and lastBack the last of
// a trace in which it is.
var (
	firstBack = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	lastBack  = horizon - century
)

// op is one call of a trace. It is complete in itself, so a trace without some of its ops
// is still a trace.
type op struct {
	id    int
	kind  string // "AllowN", "AllowUpTo", "AllowWithin", "Charge", "Peek", "Refund" or "Reset"
	at    int64  // the reading of the clock, Unix µs
	n     int
	d     time.Duration // AllowWithin
	of    int           // Refund: the id of the op whose Result is refunded
	all   bool          // AllowN, AllowWithin: with another limit, as one of an All
	limit ratelimit.Limit
}

func (o op) String() string {
	text := fmt.Sprintf("#%-2d %+d µs  %-10v  %s", o.id, o.at-epoch.UnixMicro(), o.limit, o.kind)
	switch o.kind {
	case "AllowN", "AllowUpTo", "Charge":
		text += fmt.Sprintf("(%d)", o.n)
	case "AllowWithin":
		text += fmt.Sprintf("(%d, %v)", o.n, o.d)
	case "Refund":
		text += fmt.Sprintf("(#%d, %d)", o.of, o.n)
	}
	if o.all {
		text += " of an All"
	}
	return text
}

// errUnspecified ends a trace if its next answer depends on when a store drops state that
// it may drop.
var errUnspecified = errors.New("unspecified")

// player plays a trace on a store, on the reference store and on the model.
type player struct {
	newModel  func() model
	model     model
	clock     *clock
	limit     ratelimit.Limit // what WithLimitFunc returns
	lim       ratelimit.Limiter
	wide      ratelimit.Limiter // of the same store, with room for everything
	reference ratelimit.Limiter // nil if Results are not compared
	setBack   bool              // the clock can be set back
	together  bool              // the store decides on several keys at once

	now     int64 // the last reading of the clock
	latest  int64 // the latest one, or of a clock that can be set back that since the state was written
	results map[int]ratelimit.Result
	charges map[int]charge
	ids     []int // of admissions
}

func newPlayer(t testing.TB, s *suite, a algorithm, base ratelimit.Limit) *player {
	t.Helper()
	b := s.bench(t)
	p := &player{
		newModel: a.newModel,
		model:    a.newModel(),
		clock:    b.clock,
		setBack:  s.setBack,
		together: b.store.Together("key", "key"),
		results:  map[int]ratelimit.Result{},
		charges:  map[int]charge{},
	}
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return p.limit, nil })
	p.lim = b.limiter(a.name, base, limits)
	p.wide = b.limiter("fixed_window", ratelimit.PerDay(math.MaxInt32), ratelimit.WithName("wide"))
	if !s.alone && !s.setBack { // the reference store re-anchors nothing
		b.store = newReference(b.read)
		p.reference = b.limiter(a.name, base, limits)
	}
	return p
}

// unspecified reports whether o comes late, when the state that it needs may have been
// dropped.
func (p *player) unspecified(o op) bool {
	if o.limit.Rate == 0 {
		return false
	}
	m, now := p.at(o)
	return now < p.latest && p.model.ended(p.latest) && !m.fresh(integers(o.limit), now)
}

// at is the key as o finds it, and the time that o counts as. A Refund moves no state.
func (p *player) at(o op) (model, int64) {
	m := p.model
	if p.setBack && o.kind != "Refund" {
		m = m.anchored(o.at)
	}
	return m, m.seen(o.at)
}

// play calls o and returns what is wrong with its answer.
func (p *player) play(o op) error {
	if p.unspecified(o) && o.kind != "Reset" {
		return errUnspecified
	}
	p.clock.set(o.at)
	p.now, p.latest = o.at, max(p.latest, o.at)
	p.limit = o.limit
	r, err := p.call(o)
	if err != nil {
		return err
	}
	if err := p.judge(o, r); err != nil {
		return fmt.Errorf("%w\n%+v", err, r)
	}
	if p.reference != nil {
		want, err := call(p.reference, o, p.results[o.of])
		if err != nil {
			return fmt.Errorf("the reference store: %w", err)
		}
		if r != want {
			return fmt.Errorf("a Result differs from the reference store's:\n%#v\n%#v", r, want)
		}
	}
	p.results[o.id] = r
	return nil
}

// call calls o on the store under test.
func (p *player) call(o op) (ratelimit.Result, error) {
	if !o.all || !p.together {
		return call(p.lim, o, p.results[o.of])
	}
	ctx := context.Background()
	if err := p.wide.Reset(ctx, "key"); err != nil {
		return ratelimit.Result{}, err
	}
	return callWith(ctx, p.lim, p.wide, o)
}

// callWith calls o on an All of lim and wide, and returns the part of lim.
func callWith(ctx context.Context, lim, wide ratelimit.Limiter, o op) (r ratelimit.Result, err error) {
	if w, ok := lim.(*watch); ok {
		return w.charged("key", func() (ratelimit.Result, error) {
			return callWith(ctx, w.Limiter, wide.(*watch).Limiter, o)
		})
	}
	all, err := ratelimit.NewAll(lim, wide)
	if err != nil {
		return r, err
	}
	if o.kind == "AllowWithin" {
		r, err = all.AllowWithin(ctx, "key", o.n, o.d)
	} else {
		r, err = all.AllowN(ctx, "key", o.n)
	}
	if err != nil {
		return r, err
	}
	return r.Parts()[0].Result, nil
}

// judge compares r with the model.
func (p *player) judge(o op, r ratelimit.Result) error {
	if o.limit.Rate == 0 && o.kind != "Reset" {
		if want := (ratelimit.Result{RetryAfter: ratelimit.Never}); r != want && o.kind != "Refund" {
			return fmt.Errorf("a rate of 0 denies with Never, and knows nothing else")
		}
		return nil
	}
	m, now := p.at(o)
	if m.ended(now) {
		m, now = p.newModel(), o.at
	}
	l, moved := integers(o.limit), p.moves(o, r)
	switch o.kind {
	case "AllowN", "AllowUpTo", "AllowWithin":
		if moved {
			p.model = m
		}
		q := question{n: int64(o.n), within: o.kind == "AllowWithin", d: min(max(o.d, 0).Microseconds(), century)}
		if o.kind == "AllowUpTo" {
			q.n = max(1, room(m, l, now, q.n))
		}
		err := judge(m, l, o.at, q, r)
		if err == nil && r.Allowed {
			p.model = m
			p.keep(o, charge{now, now + r.ResetAfter.Microseconds(), q.n, l})
		}
		return err
	case "Charge":
		charged, err := judgeCharge(m, l, o.at, int64(o.n), r)
		if err == nil && charged > 0 {
			p.keep(o, charge{now, now + r.ResetAfter.Microseconds(), charged, l})
		}
		p.model = m
		return err
	case "Peek":
		return judge(m, l, o.at, question{n: 1, peek: true}, r)
	case "Refund":
		c := p.charges[o.of]
		m.refund(l, now, c, min(int64(o.n), c.n))
	case "Reset":
		p.model = p.newModel()
	}
	return nil
}

// moves reports whether o finds a state of the future. If the state is written, readings count from
// now on.
func (p *player) moves(o op, r ratelimit.Result) bool {
	moved := p.setBack && p.model.seen(o.at) > o.at
	if p.setBack && o.kind != "Peek" && o.kind != "Refund" && (moved || r.Allowed) {
		p.latest = o.at
	}
	return moved
}

// keep remembers a charge, for a Refund.
func (p *player) keep(o op, c charge) {
	p.charges[o.id] = c
	p.ids = append(p.ids, o.id)
}

// upTo has what the five types have besides Limiter.
type upTo interface {
	AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error)
}

// call calls o; charged is the Result that it refunds. It ignores the error of a refund of a
// denied Result.
func call(lim ratelimit.Limiter, o op, charged ratelimit.Result) (ratelimit.Result, error) {
	ctx := context.Background()
	switch o.kind {
	case "AllowN":
		return lim.AllowN(ctx, "key", o.n)
	case "AllowUpTo":
		_, r, err := lim.(upTo).AllowUpTo(ctx, "key", o.n)
		return r, err
	case "Charge":
		return lim.(ratelimit.Charger).Charge(ctx, "key", o.n)
	case "AllowWithin":
		return ratelimit.AllowWithin(ctx, lim, "key", o.n, o.d)
	case "Peek":
		return lim.Peek(ctx, "key")
	case "Refund":
		err := lim.Refund(ctx, "key", charged, o.n)
		if !charged.Allowed && errors.Is(err, ratelimit.ErrInvalidN) {
			err = nil
		}
		return ratelimit.Result{}, err
	case "Reset":
		return ratelimit.Result{}, lim.Reset(ctx, "key")
	}
	return ratelimit.Result{}, fmt.Errorf("no op %q", o.kind)
}

// replay plays ops from the start, and returns how many succeeded.
func replay(t testing.TB, s *suite, a algorithm, base ratelimit.Limit, ops []op) (int, error) {
	t.Helper()
	p := newPlayer(t, s, a, base)
	for i, o := range ops {
		switch err := p.play(o); {
		case errors.Is(err, errUnspecified):
			return i, nil
		case err != nil:
			return i, err
		}
	}
	return len(ops), nil
}

// shrink drops ops from a failing trace for as long as it still fails.
func shrink(t testing.TB, s *suite, a algorithm, base ratelimit.Limit, ops []op, err error) ([]op, error) {
	t.Helper()
	for i := len(ops) - 1; i >= 0; i-- {
		fewer := append(append([]op(nil), ops[:i]...), ops[i+1:]...)
		if played, e := replay(t, s, a, base, fewer); e != nil {
			ops, err = fewer[:played+1], e
			i = min(i, len(ops))
		}
	}
	return ops, err
}

// tracesAgree plays traces of one limit each.
func tracesAgree(t testing.TB, s *suite, a algorithm) { playTraces(t, s, a, false) }

// changingTracesAgree plays traces in which the limit changes and flaps.
func changingTracesAgree(t testing.TB, s *suite, a algorithm) { playTraces(t, s, a, true) }

func playTraces(t testing.TB, s *suite, a algorithm, change bool) {
	for seed := range uint64(s.traces) {
		s.part(t, func(t testing.TB, s *suite) { playTrace(t, s, a, seed, change) })
	}
}

func playTrace(t testing.TB, s *suite, a algorithm, seed uint64, change bool) {
	g := newGenerator(s, a, seed, change)
	p := newPlayer(t, s, a, g.base)
	var ops []op
	for len(ops) < traceLen {
		o := g.next(p)
		ops = append(ops, o)
		err := p.play(o)
		if err == nil {
			continue
		}
		played := len(ops)
		ops, err = shrink(t, s, a, g.base, ops, err)
		t.Fatalf("seed %d, %s of %v, %d calls shrunk to %d:\n%s\n%v",
			seed, a.name, g.base, played, len(ops), lines(ops), err)
	}
}

func lines(ops []op) string {
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

// generator makes up traces, each from its seed.
type generator struct {
	*rand.Rand
	base   ratelimit.Limit
	limits []ratelimit.Limit // what WithLimitFunc returns, one after the other
	limit  ratelimit.Limit
	last   ratelimit.Result
	nextID int

	late, setBack bool  // readings that come late, or that set the clock back
	backwards     int64 // by how many µs they may still do so
}

func newGenerator(s *suite, a algorithm, seed uint64, change bool) *generator {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, a.name, change)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, h.Sum64())), late: !s.setBack, setBack: s.setBack, backwards: century}
	pool := s.limits(a)
	g.base = pool[g.IntN(len(pool))]
	g.limit, g.limits = g.base, []ratelimit.Limit{g.base}
	for change && len(g.limits) < 4 {
		if l := g.variant(pool); s.valid(a, l) {
			g.limits = append(g.limits, l)
		}
	}
	return g
}

// variant returns a limit near the base, or any other.
func (g *generator) variant(pool []ratelimit.Limit) ratelimit.Limit {
	l := g.base
	some := func(n int) int {
		near := []int{n / 2, n - 1, n + 1, 2 * n, 1, 2, 3, 10, 1000}
		return near[g.IntN(len(near))]
	}
	switch g.IntN(6) {
	case 0:
		return pool[g.IntN(len(pool))]
	case 1, 2:
		l.Rate = some(l.Rate)
	case 3:
		l.Burst = some(max(l.Burst, l.Rate))
	case 4:
		near := []time.Duration{l.Period / 2, l.Period - 1000, l.Period + 1000, 2 * l.Period, 7 * l.Period, l.Period / 10}
		l.Period = near[g.IntN(len(near))].Truncate(time.Microsecond)
	case 5:
		l.Period = pool[g.IntN(len(pool))].Period
	}
	return l
}

// next makes up the next op, from what p has seen.
func (g *generator) next(p *player) op {
	g.nextID++
	o := op{id: g.nextID, limit: g.nextLimit(), at: g.time(p), n: 1}
	if g.setBack && g.IntN(8) == 0 {
		o.at = g.back(o.at)
	}
	g.last = p.results[g.nextID-1]
	switch x := g.IntN(100); {
	case x < 3:
		o.kind = "Reset"
	case x < 15:
		o.kind = "Peek"
	case x < 33 && len(p.ids) > 0:
		o.kind = "Refund"
		o.of = p.ids[len(p.ids)-1-g.IntN(min(len(p.ids), 1+g.IntN(8)))]
		o.n = number(g.part(p.charges[o.of].n))
		if p.charges[o.of].due > 1<<53 { // see lastDebt
			o.kind = "Peek"
		}
	case x < 43 && o.at < lastDebt:
		o.kind = "Charge"
		if o.n = number(g.cost(integers(o.limit).burst)); g.IntN(20) == 0 { // more than a state holds
			o.n = most - g.IntN(2)
		}
	default:
		o.kind = "AllowN"
		switch g.IntN(8) {
		case 0:
			o.kind = "AllowUpTo"
		case 1, 2, 3:
			o.kind, o.d = "AllowWithin", g.patience()
		}
		o.all = o.kind != "AllowUpTo" && g.IntN(4) == 0
		o.n = number(g.cost(integers(o.limit).burst))
	}
	if late := o.at - g.Int64N(1+min(o.limit.Period.Microseconds()*2, o.at/2)); g.late && g.IntN(20) == 0 {
		early := o
		early.at = late
		if !p.unspecified(early) {
			return early
		}
	}
	if p.unspecified(o) {
		o.kind = "Reset"
	}
	return o
}

func (g *generator) nextLimit() ratelimit.Limit {
	if g.IntN(4) == 0 {
		g.limit = g.limits[g.IntN(len(g.limits))]
	}
	return g.limit
}

// part is how many of n events to refund: some, all, or more.
func (g *generator) part(n int64) int64 {
	switch g.IntN(4) {
	case 0:
		return 1
	case 1:
		return n + 1
	case 2:
		return 1 + g.Int64N(n)
	}
	return n
}

// cost is from 1 to 2 above the capacity. Often it is just what is left, or one more.
func (g *generator) cost(capacity int64) int64 {
	switch g.IntN(9) {
	case 0, 1, 2:
		return 1
	case 3:
		return 1 + g.Int64N(5)
	case 4:
		return max(1, int64(g.last.Remaining))
	case 5:
		return int64(g.last.Remaining) + 1
	case 6:
		return capacity - 1 + g.Int64N(4) + max(0, 2-capacity)
	case 7:
		return 1 + capacity/(1+g.Int64N(10))
	}
	return 1 + g.Int64N(capacity)
}

// number is n, or the largest int if int has 32 bits.
func number(n int64) int { return int(min(n, math.MaxInt)) }

// patience is how long the turn of events may take to come. Often it is just enough or
// just not, and rarely whole µs.
func (g *generator) patience() time.Duration {
	near := time.Duration(g.Int64N(3)-1) * time.Microsecond
	event := g.limit.Period / time.Duration(max(1, g.limit.Rate))
	d := time.Duration(0)
	switch g.IntN(10) {
	case 0:
		return ratelimit.Never
	case 1:
		return -event - 1
	case 2:
		d = near
	case 3, 4:
		d = event*time.Duration(g.IntN(4)) + near
	case 5, 6:
		d = g.last.Delay + near
	case 7:
		d = min(g.last.RetryAfter, ratelimit.Never/2) + near
	case 8:
		d = g.last.ResetAfter/2 + near
	case 9:
		d = time.Duration(g.Int64N(int64(2 * g.limit.Period)))
	}
	return d + time.Duration(g.IntN(1000))
}

// back is where the clock is set back to from now: by little or by many Periods. A log may keep
// times that are later by all of that, and a server knows none after 2199.
func (g *generator) back(now int64) int64 {
	period := g.limit.Period.Microseconds()
	by := 1 + g.Int64N(2*period)
	switch g.IntN(6) {
	case 0:
		by = 1 + g.Int64N(3)
	case 1:
		by = period + g.Int64N(3) - 1
	case 2:
		by = g.Int64N(40 * period)
	}
	by = max(0, min(by, g.backwards, now-firstBack))
	g.backwards -= by
	return now - by
}

// time returns the next reading. Often it is the same or the very edge of something, and
// now and then years later.
func (g *generator) time(p *player) int64 {
	now := max(p.latest, epoch.UnixMicro())
	if p.setBack && p.now > 0 {
		now = p.now
	}
	step, last := g.step(now), horizon
	if g.setBack {
		last = lastBack
	}
	if step < 0 || now+step > last {
		return now
	}
	return now + step
}

// step is how much later than now the next reading may be.
func (g *generator) step(now int64) (step int64) {
	period := g.limit.Period.Microseconds()
	event := 1 + period/int64(max(1, g.limit.Rate))
	near := g.Int64N(3) - 1
	edge := integers(g.limit).windowEnd(now)
	switch g.IntN(20) {
	case 0:
		step = 1 + g.Int64N(3)
	case 1:
		step = g.Int64N(event + 1)
	case 2:
		step = event + near
	case 3, 4:
		step = g.Int64N(period)
	case 5:
		step = period + near
	case 6:
		step = edge - now + near
	case 7:
		step = g.Int64N(3 * period)
	case 8, 9, 10:
		if g.last.RetryAfter != ratelimit.Never {
			step = g.last.RetryAfter.Microseconds() + near
		}
	case 11:
		step = g.last.ResetAfter.Microseconds() + near
	case 12:
		step = g.last.ResetAfter.Microseconds() / 2
	case 13:
		if g.IntN(8) == 0 {
			step = g.Int64N(10 * 365 * 24 * 3600e6)
		}
	case 14: // more than the period of another limit
		step = g.limits[g.IntN(len(g.limits))].Period.Microseconds() + g.Int64N(period)
	}
	return step
}

// limits are the limits of a that the store can be tried with.
func (s *suite) limits(a algorithm) (valid []ratelimit.Limit) {
	for _, l := range a.limits {
		if s.valid(a, l) {
			valid = append(valid, l)
		}
	}
	return valid
}

// someLimits are those of [suite.limits], or an even choice of them if the suite has few
// traces.
func (s *suite) someLimits(a algorithm) []ratelimit.Limit {
	all := s.limits(a)
	most := max(6, s.traces/3)
	if len(all) <= most {
		return all
	}
	var some []ratelimit.Limit
	for i := range most {
		some = append(some, all[i*len(all)/most])
	}
	return some
}

// valid reports whether a accepts l and the store can be tried with it.
func (s *suite) valid(a algorithm, l ratelimit.Limit) bool {
	return l.Rate > 0 && (!s.realTime || l.Period >= time.Minute) && a.takes(l)
}
