package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
)

// crowds are numbers of callers of one key, beside one and as many as there are processors.
var crowds = []int{8, 64}

// timeCell is one column of the tables of times.
type timeCell struct {
	keys, callers int
}

func (c timeCell) String() string {
	how := fmt.Sprintf("%d callers", c.callers)
	switch c.callers {
	case 1:
		how = "serial"
	case runtime.GOMAXPROCS(0):
		how = "parallel"
	}
	if c.keys == 1 {
		return "1 key " + how
	}
	return grouped(c.keys) + " keys " + how
}

// measureTimes writes ns per decision, and our ratios to the fastest peer.
func (b *bench) measureTimes(all []contestant) error {
	for _, out := range []outcome{allowed, denied} {
		what := map[outcome]string{allowed: "every call admitted", denied: "every call denied"}[out]
		times := newGrid("In memory, "+what+", ns per decision", names(all))
		times.printed = whole
		for _, keys := range b.keys {
			if err := b.measureKeys(all, workload{outcome: out, keys: keys}, times); err != nil {
				return err
			}
		}
		times.moveLast("allocations")
		b.report(times, ratios("In memory, "+what+", ns, ours / fastest peer", times, isOurs(all), isPeer(all)))
	}
	return nil
}

// measureKeys measures the cells of one number of keys, all contestants open.
func (b *bench) measureKeys(all []contestant, w workload, times *grid) error {
	b.progress("%s, of keys: %s", times.title, grouped(w.keys))
	keys := shuffled(w.keys)
	open, err := openAll(all, w)
	if err != nil {
		return err
	}
	defer closeAll(open)

	n := b.batch
	if w.keys >= manyKeys {
		n = min(w.keys, b.manyBatch)
	}
	return withoutGC(func() error {
		serial := func(lim limiter, from int) error { return pass(lim, keys, from, n, w.outcome == allowed) }
		b.rounds(all, open, times, timeCell{w.keys, 1}.String(), n, n, serial)
		b.processorRounds(all, open, times, timeCell{w.keys, 1}.String()+", processor", n, serial)
		several := []int{runtime.GOMAXPROCS(0)}
		if w.keys == 1 {
			several = append(several, crowds...)
		}
		for _, callers := range several {
			b.rounds(all, open, times, timeCell{w.keys, callers}.String(), n, n/callers, func(lim limiter, from int) error {
				return passes(lim, keys, from, n, callers, w.outcome == allowed)
			})
		}
		if w.keys != b.allocKeys {
			return nil
		}
		for i, lim := range open {
			allocs, err := allocated(lim, keys, w.outcome == allowed)
			times.set("allocations", i, allocs, err)
		}
		return nil
	})
}

// rounds runs a batch of n decisions of each contestant, in rotated order, once a round.
// It keeps the least ns per decision. Each batch begins step keys after the end of the
// same contestant's last one.
func (b *bench) rounds(all []contestant, open []limiter, g *grid, cell string, n, step int, batch func(limiter, int) error) {
	for round := range b.roundCount {
		for i := range all {
			i = (i + round) % len(all)
			ns, err := timed(n, func() error { return batch(open[i], round*step) })
			g.least(cell, i, ns, err)
		}
	}
}

// processorRounds is rounds for the time of the processor that a caller takes, without the time
// in which others have it. It is for machines with other work to do.
func (b *bench) processorRounds(all []contestant, open []limiter, g *grid, cell string, n int, batch func(limiter, int) error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for round := range b.roundCount {
		for i := range all {
			i = (i + round) % len(all)
			start, known := threadTime()
			err := batch(open[i], round*n)
			end, _ := threadTime()
			if known {
				g.least(cell, i, float64((end-start).Nanoseconds())/float64(n), err)
			}
		}
	}
}

// openAll opens the contestants, and shows each of them all keys once.
func openAll(all []contestant, w workload) ([]limiter, error) {
	var open []limiter
	for _, c := range all {
		lim, err := c.open(w)
		if err == nil {
			open = append(open, lim)
			err = fill(lim, 0, w.keys, shortKey)
		}
		if err != nil {
			closeAll(open)
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return open, nil
}

func closeAll(open []limiter) {
	for _, lim := range open {
		lim.close()
	}
}

// ratios has a row for each of ours: its figures divided by the least of the peers.
func ratios(title string, g *grid, ours, peer func(row int) bool) *grid {
	r := newGrid(title, nil)
	r.printed = twoDecimals
	fastest := make([]string, len(g.columns)) // by column
	for row, name := range g.rows {
		if !ours(row) {
			continue
		}
		r.rows = append(r.rows, name)
		for c, column := range g.columns {
			if column == "allocations" {
				continue
			}
			least, name := leastOf(g, c, peer)
			fastest[c] = column + ": " + name
			r.set(column, len(r.rows)-1, g.cells[c][row]/least, nil)
		}
	}
	r.note = "The fastest peers:\n\n* " + strings.Join(trimEmpty(fastest), "\n* ")
	return r
}

func leastOf(g *grid, column int, peer func(row int) bool) (float64, string) {
	least, name := math.NaN(), ""
	for row, x := range g.cells[column] {
		if peer(row) && !math.IsNaN(x) && !math.IsInf(x, 1) && !(x >= least) {
			least, name = x, g.rows[row]
		}
	}
	return least, name
}

func trimEmpty(texts []string) []string {
	var full []string
	for _, t := range texts {
		if t != "" {
			full = append(full, t)
		}
	}
	return full
}

func names(all []contestant) []string {
	var list []string
	for _, c := range all {
		list = append(list, c.name)
	}
	return list
}

func isOurs(all []contestant) func(int) bool {
	return func(i int) bool { return all[i].ours }
}

func isPeer(all []contestant) func(int) bool {
	return func(i int) bool { return !all[i].ours }
}
