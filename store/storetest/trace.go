package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// traceLen is the largest number of calls in a random trace.
const traceLen = 60

// horizon is the end of time for traces, in Unix µs, which is the end of 2199.
var horizon = time.Date(2199, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro()

// lastDebt is the last instant of a Charge in traces, in Unix µs. A debt may take 100 years to
// drain, and Lua can count to 2^53 µs, which is in 2255.
var lastDebt = time.Date(2155, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// firstBack is the earliest instant to which the clock is set back, in Unix µs, and lastBack is the
// last one of a trace in which it is.
var (
	firstBack = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	lastBack  = horizon - century
)

// op is a call in a trace. Each op is complete, so a trace without some of its ops is still a
// trace.
type op struct {
	id    int
	kind  string // "AllowN", "AllowUpTo", "AllowWithin", "Charge", "Peek", "Refund" or "Reset"
	at    int64  // the reading of the clock, Unix µs
	n     int
	d     time.Duration // AllowWithin
	of    int           // Refund: the id of the op whose Result is refunded
	all   bool          // AllowN, AllowWithin: with another limit, as one of an All
	limit ratelimit.Limit

	reserved int // by the limiter that is asked, one of several with the same name
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
	if o.reserved > 0 {
		text += fmt.Sprintf(", %d reserved", o.reserved)
	}
	return text
}

// errUnspecified ends a trace if its next answer depends on when a store drops state that it may
// drop.
var errUnspecified = errors.New("unspecified")

// player plays a trace on a store, on the reference store and on the model.
type player struct {
	newModel  func() model
	model     model
	clock     *clock
	limit     ratelimit.Limit // what WithLimitFunc returns
	lim       func(reserved int) ratelimit.Limiter
	wide      ratelimit.Limiter                    // a limiter on the same store, with room for everything
	reference func(reserved int) ratelimit.Limiter // nil if Results are not compared
	setBack   bool                                 // the clock can be set back
	together  bool                                 // the store decides on several keys at once

	now     int64 // the last reading of the clock
	latest  int64 // the latest one, or if the clock can be set back, the latest since the state was written
	results map[int]ratelimit.Result
	charges map[int]charge
	ids     []int // the ids of admissions
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
	of := func(b bench) func(reserved int) ratelimit.Limiter {
		lim := b.limiter(a.name, base, limits)
		return func(reserved int) ratelimit.Limiter {
			if reserved == 0 {
				return lim
			}
			return b.like(lim, a.name, base, limits, ratelimit.WithReserved(reserved))
		}
	}
	p.lim = of(*b)
	p.wide = b.limiter("fixed_window", ratelimit.PerDay(math.MaxInt32), ratelimit.WithName("wide"))
	if !s.alone && !s.setBack { // the reference store does not re-anchor
		b.store = newReference(b.read)
		p.reference = of(*b)
	}
	return p
}

// unspecified reports whether o comes late, when the state that it needs may have been dropped.
func (p *player) unspecified(o op) bool {
	if o.limit.Rate == 0 {
		return false
	}
	m, now := p.at(o)
	return now < p.latest && p.model.ended(p.latest) && !m.fresh(integers(o.limit), now)
}

// at returns the key as o finds it, and the time that o counts as. A Refund does not move the
// state.
func (p *player) at(o op) (model, int64) {
	m := p.model
	if p.setBack && o.kind != "Refund" {
		m = m.anchored(o.at)
	}
	return m, m.seen(o.at)
}

// play calls o and returns what is wrong with its result.
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
		want, err := call(p.reference(o.reserved), o, p.results[o.of])
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
		return call(p.lim(o.reserved), o, p.results[o.of])
	}
	ctx := context.Background()
	if err := p.wide.Reset(ctx, "key"); err != nil {
		return ratelimit.Result{}, err
	}
	return callWith(ctx, p.lim(o.reserved), p.wide, o)
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
			return fmt.Errorf("a rate of 0 must deny with RetryAfter Never, and with 0 in all other fields")
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
		q := question{n: int64(o.n), within: o.kind == "AllowWithin", d: min(max(o.d, 0).Microseconds(), century), reserved: int64(o.reserved)}
		if o.kind == "AllowUpTo" {
			q.n = max(1, room(m, l, now, q.n, q.reserved))
		}
		err := judge(m, l, o.at, q, r)
		if err == nil && r.Allowed {
			p.model = m
			p.keep(o, charge{now, now + r.ResetAfter.Microseconds(), q.n, l, o.reserved})
		}
		return err
	case "Charge":
		charged, err := judgeCharge(m, l, o.at, int64(o.n), int64(o.reserved), r)
		if err == nil && charged > 0 {
			p.keep(o, charge{now, now + r.ResetAfter.Microseconds(), charged, l, o.reserved})
		}
		p.model = m
		return err
	case "Peek":
		return judge(m, l, o.at, question{n: 1, peek: true, reserved: int64(o.reserved)}, r)
	case "Refund":
		c := p.charges[o.of]
		m.refund(l, now, c, min(int64(o.n), c.n))
	case "Reset":
		p.model = p.newModel()
	}
	return nil
}

// moves reports whether o finds a state from the future. If that state is written, later readings
// are compared with it.
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

// upTo has the methods that the built-in algorithms have in addition to Limiter.
type upTo interface {
	AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error)
}

// call calls o. charged is the Result that it refunds. It ignores the error of a refund of a denied
// Result.
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
