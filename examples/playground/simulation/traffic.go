package simulation

import (
	"math/rand/v2"
	"slices"
)

// Traffic is requests of one client in the first Periods of the limit, scaled to its rate.
type Traffic struct {
	Name  string
	Title string

	// times returns when there are requests, in Periods since the start. perPeriod is how
	// many the limit allows in each.
	times func(perPeriod float64) []float64
}

// Pasted is the name of the traffic of a log.
const Pasted = "log"

// periods is how long each Traffic is.
const periods = 4

// Traffics are what the page offers. All of them begin with a window.
var Traffics = []Traffic{
	{"edge", "Bursts at a window’s edge", func(n float64) []float64 {
		return slices.Concat(evenly(2*n, 0.8, 1.2), evenly(2*n, 2.8, 3.2))
	}},
	{"bursts", "Two bursts, close", func(n float64) []float64 {
		return slices.Concat(evenly(2*n, 0.4, 0.7), evenly(2*n, 1.2, 1.5))
	}},
	{"steady", "Steady, 2 × the limit", func(n float64) []float64 { return evenly(2*n*periods, 0, periods) }},
	{"random", "At random, 1½ × the limit", func(n float64) []float64 { return poisson(1.5*n, periods) }},
	{"none", "None: only what you send", func(float64) []float64 { return nil }},
}

// evenly returns the times of n requests from one time on, and before another.
func evenly(n, from, to float64) (times []float64) {
	for i := 0.0; i < n; i++ {
		times = append(times, from+float64((to-from)*i/n)) // converted, so that no machine fuses the two
	}
	return times
}

// poisson returns the times of requests that come at random, this many a Period on average.
func poisson(perPeriod, end float64) (times []float64) {
	random := rand.New(rand.NewPCG(1, 2))
	for at := random.ExpFloat64() / perPeriod; at < end; at += random.ExpFloat64() / perPeriod {
		times = append(times, at)
	}
	return times
}
