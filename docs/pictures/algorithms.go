package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/ratelimit-go/ratelimit"
)

// names are those of the types, in the order in which they are shown.
var names = []struct{ algorithm, typ string }{
	{"fixed_window", "FixedWindow"},
	{"sliding_window", "SlidingWindow"},
	{"sliding_log", "SlidingLog"},
	{"token_bucket", "TokenBucket"},
	{"leaky_bucket", "LeakyBucket"},
}

var algorithms = picture{
	file:  "algorithms.svg",
	title: "Five algorithms under three kinds of traffic",
	description: "A limit of 60 a minute. Each row is an algorithm and each column a traffic: two bursts 45 seconds apart, " +
		"random traffic at one and a half times the limit, and a burst around the edge of two windows. A line shows the events " +
		"that are offered in each 5 seconds. The area shows those that are admitted; those of the leaky bucket when their turn comes.",
	height: 600,
	draw:   drawAlgorithms,
}

// traffic is the times of events, and how high the charts of them are.
type traffic struct {
	name  string
	times []time.Duration
	y     axis
}

func traffics() []traffic {
	const s = time.Second
	return []traffic{
		{"two bursts", slices.Concat(evenly(120, 25*s, 45*s), evenly(120, 70*s, 90*s)), axis{max: 40, step: 20}},
		{"at random, 1.5 × the limit", poisson(rand.New(rand.NewPCG(1, 2)), 1.5, 0, 180*s), axis{max: 20, step: 10}},
		{"around a window's edge", evenly(240, 40*s, 80*s), axis{max: 40, step: 20}},
	}
}

func drawAlgorithms(c draw.Canvas) error {
	columns, rows := traffics(), make([][]panel, len(names))
	for i, name := range names {
		x := axis{max: 4, step: 1, bare: true}
		if i == len(names)-1 {
			x.bare, x.label = false, "minutes"
		}
		for _, t := range columns {
			admitted, err := simulate(name.algorithm, ratelimit.PerMinute(60), t.times)
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], t.chart(name.typ, admitted, x))
		}
	}
	c = key(c, entry{text: "limit: 60 a minute"}, entry{"offered in 5 s", []*plotter.Line{outlined(nil, dark, pixel)}},
		entry{"admitted", []*plotter.Line{filled(nil, blue)}}, entry{"edge of a window", []*plotter.Line{dashed(0, 0, 0, 0, edge)}})
	const head = 30
	for i, plot := range grid(draw.Crop(c, 0, 0, 0, -head), rows)[0] {
		c.FillText(style(draw.XCenter), vg.Point{X: plot.Center().X, Y: c.Max.Y - head/2}, columns[i].name)
	}
	return nil
}

// chart shows what an algorithm admits of t.
func (t traffic) chart(typ string, admitted []time.Duration, x axis) panel {
	const bin = 5 * time.Second
	end := time.Duration(x.max) * time.Minute
	p := newPanel(fmt.Sprintf("%s: %d of %d", typ, len(admitted), len(t.times)), x, t.y)
	for minute := 1; minute <= x.max; minute++ {
		p.Add(dashed(float64(minute), 0, float64(minute), float64(t.y.max), edge))
	}
	p.Add(filled(steps(tally(admitted, bin, end), bin.Minutes()), blue),
		outlined(steps(tally(t.times, bin, end), bin.Minutes()), dark, pixel))
	return p
}

// simulate asks a limiter about an event at each of the times. It returns when those that
// are admitted leave.
func simulate(algorithm string, limit ratelimit.Limit, times []time.Duration) (left []time.Duration, err error) {
	var c clock
	mem, err := c.memory()
	if err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(algorithm, mem, limit)
	if err != nil {
		return nil, err
	}
	for _, c.now = range times {
		r, err := limiter.Allow(context.Background(), "key")
		if err != nil {
			return nil, err
		}
		if r.Allowed {
			left = append(left, c.now+r.Delay)
		}
	}
	return left, nil
}
