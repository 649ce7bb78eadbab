package main

import (
	"context"
	"fmt"
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
	description: "A limit of 60 a minute. Each row is an algorithm and each column a traffic: twice the limit around the edge of two " +
		"windows, twice the limit all the time, and a burst of one and a half times the limit each minute. The blue area shows the events " +
		"that are admitted in each 5 seconds; those of the leaky bucket when their turn comes. The grey area on it shows those that are denied.",
	height: 600,
	draw:   drawAlgorithms,
}

// traffic is the times of events.
type traffic struct {
	name  string
	times []time.Duration
}

func traffics() []traffic {
	const s = time.Second
	return []traffic{
		{"around a window's edge", evenly(120, 50*s, 70*s)},
		{"2 × the limit, all the time", evenly(360, 0, 180*s)},
		{"a burst each minute", slices.Concat(evenly(90, 25*s, 40*s), evenly(90, 85*s, 100*s), evenly(90, 145*s, 160*s))},
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
			admitted, denied, err := simulate(name.algorithm, ratelimit.PerMinute(60), t.times)
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], chart(name.typ, admitted, denied, x))
		}
	}
	c = key(c, entry{text: "limit: 60 a minute"}, entry{"admitted in 5 s", []*plotter.Line{filled(nil, blue)}},
		entry{"denied", []*plotter.Line{filled(nil, edge)}}, entry{"edge of a window", []*plotter.Line{dashed(0, 0, 0, 0, dark)}})
	const head = 30
	for i, plot := range grid(draw.Crop(c, 0, 0, 0, -head), rows)[0] {
		c.FillText(style(draw.XCenter), vg.Point{X: plot.Center().X, Y: c.Max.Y - head/2}, columns[i].name)
	}
	return nil
}

// chart shows what an algorithm admits, and on it what it denies.
func chart(typ string, admitted, denied []time.Duration, x axis) panel {
	const bin = 5 * time.Second
	end := time.Duration(x.max) * time.Minute
	all := len(admitted) + len(denied)
	p := newPanel(fmt.Sprintf("%s: %d of %d", typ, len(admitted), all), x, axis{max: 30, step: 15})
	p.Add(filled(steps(tally(slices.Concat(admitted, denied), bin, end), bin.Minutes()), edge),
		filled(steps(tally(admitted, bin, end), bin.Minutes()), blue))
	for minute := 1; minute <= x.max; minute++ {
		p.Add(dashed(float64(minute), 0, float64(minute), 30, dark))
	}
	return p
}

// simulate asks a limiter about an event at each of the times. It returns when those that
// are admitted leave, and when the others are denied.
func simulate(algorithm string, limit ratelimit.Limit, times []time.Duration) (left, denied []time.Duration, err error) {
	var c clock
	mem, err := c.memory()
	if err != nil {
		return nil, nil, err
	}
	limiter, err := ratelimit.New(algorithm, mem, limit)
	if err != nil {
		return nil, nil, err
	}
	for _, c.now = range times {
		r, err := limiter.Allow(context.Background(), "key")
		if err != nil {
			return nil, nil, err
		}
		if r.Allowed {
			left = append(left, c.now+r.Delay)
		} else {
			denied = append(denied, c.now)
		}
	}
	return left, denied, nil
}
