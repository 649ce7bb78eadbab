package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

const activeKeys = 1000 // keys that stay in use when the others have gone idle

// measureFootprint writes what keys cost in memory. Each contestant is measured alone: no
// other is open, and the harness holds no key.
func (b *bench) measureFootprint(all []contestant) error {
	g, empty := newGrid("Memory", names(all)), collections()
	g.note = fmt.Sprintf("Bytes per key include the key; the worst of %s keys. The collection of an empty process takes %s ms (least) and %s ms (median).",
		joined(b.footprintKeys), twoDecimals(empty[0]), twoDecimals(empty[len(empty)/2]))
	for i, c := range all {
		b.progress("footprint: %s", c.name)
		if err := b.footprint(g, i, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		left, err := b.idle(c)
		g.set("left after idling, % of peak", i, left, err)
	}
	b.report(g)
	return nil
}

// footprint fills contestant c with each number of keys of each length.
func (b *bench) footprint(g *grid, row int, c contestant) error {
	for _, length := range []int{shortKey, longKey} {
		worst := 0.0
		for _, n := range b.footprintKeys {
			bytes, err := b.bytesPerKey(g, row, c, n, length)
			if err != nil {
				return err
			}
			worst = max(worst, bytes)
		}
		g.set(fmt.Sprintf("bytes per key of %d bytes", length), row, worst, nil)
	}
	return nil
}

func (b *bench) bytesPerKey(g *grid, row int, c contestant, n, length int) (float64, error) {
	settle()
	before := heap()
	lim, err := c.open(workload{outcome: allowed, keys: n})
	if err != nil {
		return 0, err
	}
	defer lim.close()
	if err := fill(lim, 0, n, length); err != nil {
		return 0, err
	}
	bytes := (heap() - before) / float64(n)
	if n == b.gcKeys && length == shortKey {
		ms := collections()
		g.set("forced GC, ms, least", row, ms[0], nil)
		g.set("forced GC, ms, median", row, ms[len(ms)/2], nil)
	}
	runtime.KeepAlive(lim)
	return bytes, nil
}

// collections is how long each of five forced collections takes, in ms, the shortest
// first.
func collections() []float64 {
	var ms []float64
	for range 5 {
		start := time.Now()
		runtime.GC()
		ms = append(ms, time.Since(start).Seconds()*1e3)
	}
	slices.Sort(ms)
	return ms
}

// idle is the heap that is left when keys have gone idle, in percent of its peak. Before
// it is measured, a thousand of the keys are used again, in as many decisions as there
// were keys.
func (b *bench) idle(c contestant) (float64, error) {
	settle()
	before := heap()
	lim, err := c.open(workload{brief, b.gcKeys, b.window})
	if err != nil {
		return 0, err
	}
	defer lim.close()
	// Begin at the start of a window, so that no key goes idle before all are there.
	time.Sleep(time.Until(time.Now().Truncate(b.window).Add(b.window)))
	if err := fill(lim, 0, b.gcKeys, shortKey); err != nil {
		return 0, err
	}
	peak := heap() - before
	if c.forgets {
		time.Sleep(4 * b.window) // keys that ended within the last 2 s may still be held
	}
	keys := shuffled(min(activeKeys, b.gcKeys))
	if err := pass(lim, keys, 0, b.gcKeys, true); err != nil {
		return 0, err
	}
	settle()
	left := heap() - before
	runtime.KeepAlive(lim)
	return 100 * left / peak, nil
}

// measureMany writes how ours do with ten times as many keys.
func (b *bench) measureMany(all []contestant) error {
	few, many := b.gcKeys, 10*b.gcKeys
	var ours []contestant
	for _, c := range all {
		if c.ours {
			ours = append(ours, c)
		}
	}
	g := newGrid(grouped(many)+" keys, ours", names(ours))
	for i, c := range ours {
		b.progress("%s keys: %s", grouped(many), c.name)
		if err := b.many(g, i, c, few, many); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	b.report(g)
	return nil
}

func (b *bench) many(g *grid, row int, c contestant, few, many int) error {
	settle()
	lim, err := c.open(workload{outcome: allowed, keys: many})
	if err != nil {
		return err
	}
	defer lim.close()
	var ns [2]float64
	for i, n := range []int{few, many} {
		if err := fill(lim, i*few, n, shortKey); err != nil {
			return err
		}
		if ns[i], err = b.sampled(lim, n, few); err != nil {
			return err
		}
		g.set("ns at "+grouped(n), row, math.Round(ns[i]), nil)
	}
	settle()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	g.set("ratio", row, ns[1]/ns[0], nil)
	g.set("heap in use, MB", row, math.Round(float64(m.HeapInuse)/1e6), nil)
	runtime.KeepAlive(lim)
	return nil
}

// sampled is the ns of a decision on keys drawn from n. It is the least of batches that
// share no keys, so that each batch finds the caches as a service would.
func (b *bench) sampled(lim limiter, n, keys int) (float64, error) {
	const stride = 7_368_787 // a prime: all keys are different
	list, first := make([]string, keys), rand.IntN(n)
	for i := range list {
		list[i] = key((first+i*stride)%n, shortKey)
	}
	batch, least := min(b.manyBatch, keys), math.Inf(1)
	err := withoutGC(func() error {
		for from := 0; from+batch <= keys; from += batch {
			ns, err := timed(batch, func() error { return pass(lim, list, from, batch, true) })
			if err != nil {
				return err
			}
			least = min(least, ns)
		}
		return nil
	})
	return least, err
}
