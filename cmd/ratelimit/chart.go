package main

import (
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// maxBars is the maximum number of bars in a chart.
const maxBars = 300

// chart counts requests by time. Its bars get wider as the log grows, so that their number is
// bounded.
type chart struct {
	wide  int64 // µs
	first int64 // beginning of the first bar, Unix µs
	rows  []row // all requests, denied requests, and the requests denied by each of several limits
}

// row has a number for each bar.
type row []int

func newChart(limits int) *chart {
	c := &chart{wide: time.Second.Microseconds(), rows: make([]row, 2)}
	if limits > 1 {
		c.rows = make([]row, 2+limits)
	}
	return c
}

// count counts a request. Requests come in the order of their times, in Unix µs.
func (c *chart) count(at int64, result ratelimit.Result) {
	if len(c.rows[0]) == 0 {
		c.first = floor(at, c.wide)
	}
	for (at-c.first)/c.wide >= maxBars {
		c.widen(wider(c.wide))
	}
	bar := int((at - c.first) / c.wide)
	for i := range c.rows {
		c.rows[i].add(bar, 0)
	}
	c.rows[0][bar]++
	if result.Allowed {
		return
	}
	c.rows[1][bar]++
	for i, r := range c.rows[2:] {
		if deniedBy(result, i) {
			r[bar]++
		}
	}
}

// widen moves the counts into wider bars.
func (c *chart) widen(wide int64) {
	first := floor(c.first, wide)
	for i, old := range c.rows {
		c.rows[i] = nil
		for bar, n := range old {
			c.rows[i].add(int((c.first+int64(bar)*c.wide-first)/wide), n)
		}
	}
	c.wide, c.first = wide, first
}

// add adds n to a bar, which may be a new one.
func (r *row) add(bar, n int) {
	for len(*r) <= bar {
		*r = append(*r, 0)
	}
	(*r)[bar] += n
}

// wider returns the next width of bars, in µs. Each width is a multiple of the ones before.
func wider(wide int64) int64 {
	for _, next := range []time.Duration{
		2 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	} {
		if next.Microseconds() > wide {
			return next.Microseconds()
		}
	}
	return 2 * wide
}

// floor returns the last multiple of wide that is not after at, which may be before 1970.
func floor(at, wide int64) int64 { return at - (at%wide+wide)%wide }

// countStep returns the distance between the numbers beside a panel, of which there are at most
// six.
func countStep(most int) int {
	for step := 1; ; step *= 10 {
		for _, times := range []int{1, 2, 5} {
			if most/(step*times) <= 5 {
				return step * times
			}
		}
	}
}
