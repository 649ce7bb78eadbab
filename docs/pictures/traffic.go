package main

import (
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// clock is what stores take for the time: a full minute, and what has passed since.
type clock struct{ now time.Duration }

func (c *clock) time() time.Time {
	return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(c.now)
}

func (c *clock) memory() (*memstore.Store, error) { return memstore.New(memstore.WithClock(c.time)) }

// evenly returns the times of n events from one time on, and before another.
func evenly(n int, from, to time.Duration) (times []time.Duration) {
	for i := range n {
		times = append(times, from+(to-from)*time.Duration(i)/time.Duration(n))
	}
	return times
}

// poisson returns the times of events that come at random, this many a second on average.
func poisson(rng *rand.Rand, perSecond float64, from, to time.Duration) (times []time.Duration) {
	for at := from; ; {
		if at += time.Duration(rng.ExpFloat64() / perSecond * float64(time.Second)); at >= to {
			return times
		}
		times = append(times, at)
	}
}

// tally counts the events in each bin of this length, up to an end.
func tally(times []time.Duration, bin, end time.Duration) []int {
	counts := make([]int, end/bin)
	for _, at := range times {
		if at < end {
			counts[at/bin]++
		}
	}
	return counts
}
