package main

import (
	"fmt"
	"slices"
	"time"
)

// clockOnly decides nothing: it shows what the harness itself adds to a latency.
var clockOnly = contestant{name: "nothing but the clock", open: func(workload) (limiter, error) {
	return limiter{func(string) (bool, error) { return true, nil }, nothing}, nil
}}

// measureLatency writes quantiles of the time of a single decision while keys come and
// go. Every other decision is on a new key, and the rest are on earlier ones. A key that
// is not used is idle after some seconds. The garbage collector runs as it does in a
// service.
func (b *bench) measureLatency(all []contestant) error {
	all = append([]contestant{clockOnly}, all...)
	g := newGrid("Latency of a decision at "+grouped(b.gcKeys)+" keys that come and go, µs", names(all))
	g.printed = twoDecimals
	g.note = fmt.Sprintf("One caller, %s decisions a pass, the least of %d passes.", grouped(b.gcKeys), b.latencyPasses)
	for i, c := range all {
		b.progress("latency: %s", c.name)
		if err := b.latency(g, i, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	b.report(g)
	return nil
}

func (b *bench) latency(g *grid, row int, c contestant) error {
	settle()
	lim, err := c.open(workload{brief, b.gcKeys, b.window})
	if err != nil {
		return err
	}
	defer lim.close()
	if err := fill(lim, 0, b.gcKeys, shortKey); err != nil {
		return err
	}
	ns := make([]uint32, b.gcKeys)
	for p := range b.latencyPasses {
		if err := turnover(lim, b.gcKeys+p*len(ns)/2, ns); err != nil {
			return err
		}
		slices.Sort(ns)
		for _, q := range []struct {
			name string
			part float64
		}{{"p50", 0.5}, {"p99", 0.99}, {"p99.99", 0.9999}} {

			g.least(q.name, row, float64(ns[int(q.part*float64(len(ns)))])/1e3, nil)
		}
	}
	return nil
}

// turnover times len(ns) decisions. Half of them are on new keys, beginning with next.
// Making the keys is not timed.
func turnover(lim limiter, next int, ns []uint32) error {
	known := next
	for i := range ns {
		number := next
		if i%2 == 0 {
			next++
		} else {
			number = next - 1 - (i*7919)%known
		}
		k := key(number, shortKey)
		start := time.Now()
		ok, err := lim.decide(k)
		ns[i] = uint32(min(time.Since(start), time.Second))
		if err := check(ok, err, true); err != nil {
			return err
		}
	}
	return nil
}
