package main

import (
	"fmt"
	"image/color"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"github.com/ratelimit-go/ratelimit"
)

var worst = picture{
	file:  "worst.svg",
	title: "What three algorithms have admitted within the last minute",
	description: "Random traffic in bursts, under a limit of 100 a minute. Each curve shows how many events an algorithm has " +
		"admitted within the last minute. The sliding log never goes beyond the limit, which is a dashed line. The sliding window " +
		"sometimes does, and the fixed window more often and further.",
	height: 340,
	draw:   drawWorst,
}

func drawWorst(c draw.Canvas) error {
	const rate, end = 100, 12 * time.Minute
	times := bursts(rand.New(rand.NewPCG(1, 2)), end)
	p := newPanel("", axis{max: int(end.Minutes()), step: 1, label: "minutes"},
		axis{max: 220, step: 50, label: "admitted in the last minute"})
	var entries []entry
	for i, colour := range []color.Color{vermilion, blue, green} {
		admitted, _, err := simulate(names[i].algorithm, ratelimit.PerMinute(rate), times)
		if err != nil {
			return err
		}
		counts := within(admitted, time.Minute, time.Second, end)
		line := outlined(steps(counts, time.Second.Minutes()), colour, 2*pixel)
		p.Add(line)
		entries = append(entries, entry{fmt.Sprintf("%s: up to %d", names[i].typ, slices.Max(counts)), []*plotter.Line{line}})
	}
	limit := dashed(0, rate, end.Minutes(), rate, dark)
	p.Add(limit)
	grid(key(c, append(entries, entry{"limit: 100", []*plotter.Line{limit}})...), [][]panel{{p}})
	return nil
}

// bursts returns the times of events that come in bursts of random length, at random
// distances.
func bursts(rng *rand.Rand, end time.Duration) (times []time.Duration) {
	seconds := func(mean float64) time.Duration {
		return time.Duration(rng.ExpFloat64() * mean * float64(time.Second))
	}
	for at := seconds(20); at < end; {
		until := min(at+seconds(10), end)
		times = append(times, poisson(rng, 12, at, until)...)
		at = until + seconds(20)
	}
	return times
}

// within returns, for each bin of time, the most events that fell into one period which
// ended in it.
func within(times []time.Duration, period, bin, end time.Duration) []int {
	counts := make([]int, end/bin)
	for i := range counts {
		from, to := time.Duration(i)*bin, time.Duration(i+1)*bin
		ends := []time.Duration{from}
		for _, at := range times {
			if from < at && at < to {
				ends = append(ends, at)
			}
		}
		for _, at := range ends { // a count can grow at an event alone
			n := 0
			for _, t := range times {
				if at-period < t && t <= at {
					n++
				}
			}
			counts[i] = max(counts[i], n)
		}
	}
	return counts
}
