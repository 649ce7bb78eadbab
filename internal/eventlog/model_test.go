package eventlog

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// plainList implements the contract of a Log without blocks and running counts.
type plainList struct {
	entries        []plainEntry // oldest first; of none nothing is left
	cutoff, period int64
}

type plainEntry struct{ at, n int64 }

func (p *plainList) newest() int64 { return p.entries[len(p.entries)-1].at }

// dead returns the latest time that does not count.
func (p *plainList) dead(now, period int64) int64 { return max(now-period, p.cutoff) }

func (p *plainList) since(t int64) (sum int64) {
	for _, e := range p.entries {
		if e.at > t {
			sum += e.n
		}
	}
	return sum
}

func (p *plainList) step(l store.Limit, now, n int64) store.Reply {
	r := store.Reply{Outcome: store.AdmittedIf(n <= l.Rate), X: now}
	if p.end() == math.MinInt64 {
		return r
	}
	r.X = max(now, p.newest())
	dead := p.dead(r.X, l.Period)
	if p.newest() <= dead || p.newest()+p.period <= r.X {
		return r
	}
	r.Y, r.Z = p.since(dead), p.newest()+l.Period-r.X
	r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate)
	if need := r.Y + n - l.Rate; need > 0 && n <= l.Rate {
		i := slices.IndexFunc(p.entries, func(e plainEntry) bool { return e.at > dead })
		for need -= p.entries[i].n; need > 0; need -= p.entries[i].n {
			i++
		}
		r.X = p.entries[i].at + l.Period - r.X
	}
	return r
}

func (p *plainList) add(l store.Limit, now, n int64) (end int64) {
	if p.end() == math.MinInt64 {
		p.entries, p.cutoff = nil, now-l.Period
	} else {
		now = max(now, p.newest())
		p.cutoff = p.dead(now, l.Period)
		if p.newest()+p.period <= now {
			p.cutoff = max(p.newest(), p.cutoff)
		}
	}
	p.entries, p.period = append(p.entries, plainEntry{now, n}), l.Period
	return now + l.Period
}

func (p *plainList) refund(l store.Limit, now int64, c store.Receipt) {
	if p.end() == math.MinInt64 {
		return
	}
	now = max(now, p.newest())
	if c.At <= p.dead(now, l.Period) || p.end() <= now {
		return
	}
	most := blockLen
	for i := len(p.entries) - 1; i >= 0 && c.N > 0 && most > 0; i-- {
		if e := &p.entries[i]; e.at == c.At {
			back := min(e.n, c.N)
			e.n, c.N, most = e.n-back, c.N-back, most-1
		}
	}
	p.entries = slices.DeleteFunc(p.entries, func(e plainEntry) bool { return e.n == 0 })
}

func (p *plainList) end() int64 {
	if len(p.entries) == 0 || p.newest() <= p.cutoff {
		return math.MinInt64
	}
	return p.newest() + p.period
}

func (p *plainList) used(now int64) int64 { return p.since(p.dead(now, p.period)) }

// A log answers as a plain list does, whatever the calls: many entries at one instant, or with very
// many events each, at the edges of a period, with clocks that go back, with changing limits, and
// with refunds of events that are charged, were refunded already, are dead, or never existed.
func TestALogAnswersAsAPlainListDoes(t *testing.T) {
	type answers struct {
		r         store.Reply
		used, end int64
	}
	for seed := range uint64(effort.Of(40, 400)) {
		rng := rand.New(rand.NewPCG(seed, 31))
		period := int64(8) << rng.IntN(5) // few instants, so that all the edges are met
		most := []int64{1, 1, 3, math.MaxInt32 / 40}[seed%4]
		size := most * []int64{3, 15}[rng.IntN(2)] // up to 4 blocks, or 20
		limits := []store.Limit{{Rate: min(math.MaxInt32, 60*size), Period: period}}
		if seed%3 == 0 {
			limits = append(limits, store.Limit{Rate: min(math.MaxInt32, 40*size), Period: 2 * period}, store.Limit{Rate: min(math.MaxInt32, 30*size), Period: period / 2})
		}
		g, p, l, now := new(Log), new(plainList), limits[0], rng.Int64N(3)*10-10
		refunds, quiet := rng.IntN(3), 1+rng.IntN(40)
		for i := range 2_500 {
			if rng.IntN(60) == 0 {
				l = limits[rng.IntN(len(limits))]
			}
			switch rng.IntN(3 * quiet) {
			case 0, 1:
				now++
			case 2:
				now += rng.Int64N(period)
			case 3:
				now -= rng.Int64N(3 + rng.Int64N(2)*rng.Int64N(2)*period)
			}
			reading, n := now-rng.Int64N(2)*rng.Int64N(3), 1+rng.Int64N(most)
			want, wantEnd := p.step(l, reading, n), int64(0)
			got := answers{g.Step(l, reading, n), g.Used(reading), g.End()}
			if want := (answers{want, p.used(reading), p.end()}); got != want { // require would take longer than the log
				t.Fatalf("seed %d, call %d: %+v, want %+v", seed, i, got, want)
			}
			r, end := g.Take(l, reading, n)
			switch {
			case want.OK():
				wantEnd = p.add(l, reading, n)
			case rng.IntN(4) == 0: // as a charge that does not ask
				p.add(l, reading, n)
				g.Add(l, reading, n)
			}
			if r != want || end != wantEnd {
				t.Fatalf("seed %d, call %d: %+v until %d, want %+v until %d", seed, i, r, end, want, wantEnd)
			}
			by := limits[rng.IntN(len(limits))] // refunds may come under another limit
			for range refunds * rng.IntN(2) * (1 + rng.IntN(2)*rng.IntN(20)) {
				c := store.Receipt{At: now - rng.Int64N(period+3), N: 1 + rng.Int64N(1+rng.Int64N(100)*most)}
				if len(p.entries) > 0 && rng.IntN(2) == 0 {
					c.At = p.newest()
				}
				p.refund(by, reading, c)
				g.Refund(by, reading, c)
			}
			if i%50 == 0 {
				requireBlocks(t, g)
			}
		}
	}
}
