package storetest

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// generator generates traces, each from its seed.
type generator struct {
	*rand.Rand
	base   ratelimit.Limit
	limits []ratelimit.Limit // what WithLimitFunc returns, in this order
	limit  ratelimit.Limit
	last   ratelimit.Result
	nextID int

	late, setBack bool  // whether readings come late, or set the clock back
	backwards     int64 // by how many µs readings may still go back
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

// next generates the next op, from what p has seen.
func (g *generator) next(p *player) op {
	g.nextID++
	o := op{id: g.nextID, limit: g.nextLimit(), at: g.time(p), n: 1}
	if g.setBack && g.IntN(8) == 0 {
		o.at = g.back(o.at)
	}
	g.last = p.results[g.nextID-1]
	o.reserved = g.reserved(o.limit)
	switch x := g.IntN(100); {
	case x < 3:
		o.kind = "Reset"
	case x < 15:
		o.kind = "Peek"
	case x < 33 && len(p.ids) > 0:
		o.kind = "Refund"
		o.of = p.ids[len(p.ids)-1-g.IntN(min(len(p.ids), 1+g.IntN(8)))]
		o.n, o.reserved = number(g.part(p.charges[o.of].n)), p.charges[o.of].reserved
		if p.charges[o.of].due > 1<<53 { // see lastDebt
			o.kind = "Peek"
		}
	case x < 43 && o.at < lastDebt:
		o.kind = "Charge"
		if o.n = number(g.cost(integers(o.limit).burst)); g.IntN(20) == 0 { // more than a state can hold
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
		o.kind, o.all = "Reset", false
	}
	return o
}

// reserved returns how many events the limiter that is asked leaves to others: often none, otherwise a cost.
func (g *generator) reserved(l ratelimit.Limit) int {
	if g.IntN(3) > 0 {
		return 0
	}
	return int(min(g.cost(integers(l).burst), most))
}

func (g *generator) nextLimit() ratelimit.Limit {
	if g.IntN(4) == 0 {
		g.limit = g.limits[g.IntN(len(g.limits))]
	}
	return g.limit
}

// part returns how many of n events to refund: some, all, or more.
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

// cost returns a number from 1 to 2 above the capacity. Often it is just what is left, or one more.
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

// number returns n, or the largest int if int has 32 bits.
func number(n int64) int { return int(min(n, math.MaxInt)) }

// patience returns how long events may wait. Often it is just enough or just too short, and rarely
// whole µs.
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

// back returns the time to which the clock is set back from now, by a little or by many Periods. A log
// may keep times that are later by all of that, and a server has no times after 2199.
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

// time returns the next reading. Often it is the same, or the exact edge of something, and
// sometimes it is years later.
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

// step returns how much later than now the next reading may be.
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

// limits returns the limits of a that the store can be tried with.
func (s *suite) limits(a algorithm) (valid []ratelimit.Limit) {
	for _, l := range a.limits {
		if s.valid(a, l) {
			valid = append(valid, l)
		}
	}
	return valid
}

// someLimits returns those of [suite.limits], or an even selection of them if the suite runs few
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
