package adaptive_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
)

// In these tests, the loop is closed: in a model of a server, the load depends on what the limit
// admits, which depends on the load. The demand is above all limits. The models have only the band
// in common with the code.

const (
	low, high         = 0.6, 0.8
	lowest, highest   = 100., 10000. // the range of limits, events in an interval
	readings, settled = 300, 200     // readings of a run, and readings before its tail
)

// server is a model: the load of an interval in which rate events are admitted.
type server func(rate float64) float64

// processor has a load in proportion to the rate lag intervals ago, with noise of the given
// standard deviation.
func processor(capacity float64, lag int, noise float64) func(*rand.Rand) server {
	return func(rng *rand.Rand) server {
		rates := make([]float64, lag+1)
		return func(rate float64) float64 {
			rates = append(rates[1:], rate)
			return min(1, max(0, rates[0]/capacity+noise*rng.NormFloat64()))
		}
	}
}

// failing is a processor that loses half its capacity midway.
func failing(capacity, noise float64) func(*rand.Rand) server {
	return func(rng *rand.Rand) server {
		whole, half := processor(capacity, 0, noise)(rng), processor(capacity/2, 0, noise)(rng)
		n := 0
		return func(rate float64) float64 {
			if n++; n <= readings/2 {
				return whole(rate)
			}
			return half(rate)
		}
	}
}

// queue has the load of a service with a queue: the requests in flight, most of which are a
// backlog. The backlog grows while more requests come in than go out, until it is three times as
// long as it should be.
func queue(capacity, wanted, noise float64) func(*rand.Rand) server {
	return func(rng *rand.Rand) server {
		backlog := 0.
		return func(rate float64) float64 {
			came := rate * (1 + noise*rng.NormFloat64())
			backlog = min(max(0, backlog+came-capacity), 3*wanted)
			use := min(0.99, came/capacity)
			return (backlog + 4*use + use*use/(1-use)) / wanted
		}
	}
}

// law computes the next rate from a load.
type law func(load, rate float64) float64

// shipped is the law of package adaptive. It runs in a bubble of synctest.
func shipped(t *testing.T) law { return between(t, lowest, highest) }

// between is the law of package adaptive in another range.
func between(t *testing.T, floor, ceiling int) law {
	load := 0.
	l, err := adaptive.New(ratelimit.PerSecond(floor), ratelimit.PerSecond(ceiling), func() float64 { return load })
	require.NoError(t, err)
	return func(now, _ float64) float64 {
		load = now
		time.Sleep(interval)
		return float64(l.Current().Rate)
	}
}

// smoothed returns an exponential moving average of loads, in which the newest load has the given
// weight.
func smoothed(part float64, next law) law {
	mean := math.NaN()
	return func(load, rate float64) float64 {
		if math.IsNaN(mean) {
			mean = load
		}
		mean += part * (load - mean)
		return next(mean, rate)
	}
}

// additive grows by a part of the range, and shrinks to a part of the rate.
func additive(grow, shrink float64) law {
	return func(load, rate float64) float64 {
		switch {
		case load > high:
			rate *= shrink
		case load < low:
			rate += grow * (highest - lowest)
		}
		return rate
	}
}

// multiplicative grows and shrinks by parts of the rate.
func multiplicative(grow, shrink float64) law {
	return func(load, rate float64) float64 {
		switch {
		case load > high:
			rate *= shrink
		case load < low:
			rate *= grow
		}
		return rate
	}
}

// proportional jumps to the rate at which the load would be in the middle of the band.
func proportional(load, rate float64) float64 {
	if load < low || load > high {
		rate *= min(1.25, max(0.5, (low+high)/2/max(load, 0.01)))
	}
	return rate
}

// mapped has no band: a load of x is a limit at 1-x of the range, averaged.
func mapped(part float64) law {
	return func(load, rate float64) float64 {
		return rate + part*(highest-(highest-lowest)*min(1, load)-rate)
	}
}

// run describes what a law does with a server.
type run struct {
	turns    float64 // changes of direction in the tail
	spread   float64 // largest rate of the tail, divided by the smallest
	overload float64 // share of readings above 0.95
	load     float64 // the last
}

func loop(l law, s server) (r run) {
	rate, way := highest, 0.
	least, most := math.Inf(1), 0.
	for n := range readings {
		r.load = s(rate)
		if r.load > 0.95 {
			r.overload++
		}
		next := min(highest, max(lowest, l(r.load, rate)))
		if n >= settled {
			if (next-rate)*way < 0 {
				r.turns++
			}
			least, most = min(least, next), max(most, next)
		}
		if next != rate {
			way = next - rate
		}
		rate = next
	}
	r.spread = most / least
	return r
}

// mean returns the mean of several runs. The mean of the spread is geometric.
func mean(law func() law, model func(*rand.Rand) server) (m run) {
	const runs = 10
	for seed := range uint64(runs) {
		r := loop(law(), model(rand.New(rand.NewPCG(seed, 2))))
		m.turns += r.turns / runs
		m.spread += math.Log(r.spread) / runs
		m.overload += r.overload / runs
	}
	m.spread = math.Exp(m.spread)
	return m
}

func TestInAClosedLoopItComesToRestInTheBand(t *testing.T) {
	for name, model := range map[string]func(*rand.Rand) server{
		"a fifth of the ceiling":                    processor(2000, 0, 0),
		"a twentieth":                               processor(500, 0, 0),
		"just below the ceiling":                    processor(12000, 0, 0),
		"a lag of an interval":                      processor(2000, 1, 0),
		"a lag of three":                            processor(2000, 3, 0),
		"half of the capacity is lost":              failing(2000, 0),
		"a queue":                                   queue(2000, 10, 0),
		"a queue with a steep end":                  queue(2000, 20, 0),
		"a processor, and noise of a fiftieth":      processor(2000, 0, 0.02),
		"half is lost, and noise of a fiftieth":     failing(2000, 0.02),
		"a lag of an interval, noise of a fiftieth": processor(2000, 1, 0.02),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := loop(shipped(t), model(rand.New(rand.NewPCG(1, 2))))
				require.LessOrEqual(t, r.turns, 1.)
				require.LessOrEqual(t, r.spread, 1/0.8+0.001, "a step at most")
				require.GreaterOrEqual(t, r.load, low-0.06)
				require.LessOrEqual(t, r.load, high+0.06)
				require.LessOrEqual(t, r.overload, 40., "readings in overload, from the ceiling on")
			})
		})
	}
}

func TestWithNoiseInTheLoopItMovesNoFurtherThanStated(t *testing.T) {
	tests := []struct {
		name          string
		model         func(*rand.Rand) server
		turns, spread float64 // in 100 readings
	}{
		{"a twentieth", processor(2000, 0, 0.05), 0.5, 1.05},
		{"a tenth, and a lag of an interval", processor(2000, 1, 0.1), 4, 1.35},
		{"a noisy queue with a steep end", queue(2000, 50, 0.05), 20, 1.40},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mean(func() law { return shipped(t) }, tt.model)
				t.Logf("turns %.1f, spread %.2f", m.turns, m.spread)
				require.LessOrEqual(t, m.turns, tt.turns)
				require.LessOrEqual(t, m.spread, tt.spread)
			})
		})
	}
}

// phase is a time in which a server has one capacity, and the results of that time.
type phase struct {
	good  float64 // events answered in time, per second
	least float64 // the smallest rate, divided by the capacity
	back  float64 // seconds until the rate stays within a third of the capacity
}

// drops models an unbounded queue in front of a server whose capacity changes each minute. The law
// begins at twice the first capacity. The load is the number of events in flight, divided by the
// number there should be. An answer that takes more than a second is too late.
func drops(l law, wanted, noise float64, rng *rand.Rand, capacities ...float64) (phases []phase) {
	const steps = 50 // in an interval
	rate, backlog := 2*capacities[0], 0.
	for _, capacity := range capacities {
		p := phase{least: math.Inf(1)}
		for n := 1; n <= 120; n++ {
			came := rate * interval.Seconds() / steps * (1 + noise*rng.NormFloat64())
			can := capacity * interval.Seconds() / steps
			for range steps {
				backlog = max(0, backlog+came-can)
				if backlog < capacity {
					p.good += min(came, can) / 60
				}
			}
			use := min(0.99, came/can)
			rate = max(10, l((backlog+20*use+use*use/(1-use))/wanted, rate))
			p.least = min(p.least, rate/capacity)
			if rate < capacity*2/3 || rate > capacity*4/3 {
				p.back = float64(n) * interval.Seconds()
			}
		}
		phases = append(phases, p)
	}
	return phases
}

func TestAfterADropItStaysNearTheCapacity(t *testing.T) {
	tests := []struct {
		wanted, noise float64
		good          [3]float64 // the least allowed, for the capacities 1000, 400 and 1000
	}{
		// Without noise, a single step can change a phase.
		{50, 0, [3]float64{750, 280, 800}},
		{100, 0, [3]float64{750, 260, 800}},
		{200, 0, [3]float64{750, 240, 800}},
		// These values were reached with steps down while the load was falling.
		{50, 0.05, [3]float64{681, 259, 772}},
		{100, 0.05, [3]float64{691, 257, 799}},
		{200, 0.05, [3]float64{710, 249, 835}},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			const runs = 20
			var mean [3]phase
			for seed := range uint64(runs) {
				for i, p := range drops(between(t, 10, 2000), tt.wanted, tt.noise, rand.New(rand.NewPCG(seed, 2)), 1000, 400, 1000) {
					mean[i].good += p.good / runs
					mean[i].least += p.least / runs
					mean[i].back += p.back / runs
				}
			}
			for i, p := range mean {
				t.Logf("%v wanted, noise %v: %3.0f/s in time, least %.2f, back in %4.1f s", tt.wanted, tt.noise, p.good, p.least, p.back)
				require.GreaterOrEqual(t, p.good, tt.good[i])
				require.LessOrEqual(t, p.back, 15., "seconds")
				if i < 2 { // the last phase begins below
					require.GreaterOrEqual(t, p.least, 2./3)
				}
			}
		})
	}
}

func TestTheLawIsSteadierThanOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		laws := []struct {
			name string
			law  func() law
		}{
			{"this package", func() law { return shipped(t) }},
			{"its steps at each reading", func() law { return multiplicative(1.05, 0.8) }},
			{"steps of 5 and 10 %, average of 0.3", func() law { return smoothed(0.3, multiplicative(1.05, 0.9)) }},
			{"AIMD, 5 % of the range, 0.7", func() law { return additive(0.05, 0.7) }},
			{"AIMD, 1 % of the range, 0.9", func() law { return additive(0.01, 0.9) }},
			{"the same, average of 0.3", func() law { return smoothed(0.3, additive(0.01, 0.9)) }},
			{"proportional", func() law { return proportional }},
			{"no band, average of 0.2", func() law { return mapped(0.2) }},
		}
		models := []func(*rand.Rand) server{
			processor(2000, 0, 0), processor(2000, 1, 0), processor(2000, 3, 0), processor(2000, 0, 0.05),
			processor(500, 1, 0.1), failing(2000, 0.05), queue(2000, 10, 0.02), queue(2000, 50, 0.05),
		}
		var first run
		for i, l := range laws {
			var all run
			for _, model := range models {
				m := mean(l.law, model)
				all.turns += m.turns / float64(len(models))
				all.spread += math.Log(m.spread) / float64(len(models))
				all.overload += m.overload / float64(len(models))
			}
			all.spread = math.Exp(all.spread)
			t.Logf("%-36s turns in 100 readings %4.1f, spread %.2f, readings in overload %3.0f of %d",
				l.name, all.turns, all.spread, all.overload, readings)
			if i == 0 {
				first = all
				continue
			}
			require.Less(t, first.turns, all.turns, l.name)
			if i > 2 { // an average is as narrow, but see the spikes
				require.Less(t, first.spread, all.spread, l.name)
			}
		}
	})
}
