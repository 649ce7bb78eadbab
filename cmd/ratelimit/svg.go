package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Sizes in pixels. Each panel is a chart.
const (
	svgWidth   = 700
	svgLeft    = 52            // left of a panel, for its numbers
	svgRight   = svgWidth - 40 // leaves room for half of a time
	svgHead    = 48            // above the panels
	svgTitle   = 26            // above each panel
	svgPanel   = 110
	svgFoot    = 26
	svgPalette = `<style>
svg { --ground: #fff; --ink: #000; --line: #d9d9d9; --denied: #d55e00 }
@media (prefers-color-scheme: dark) { svg { --ground: #0d1117; --ink: #e6edf3; --line: #3d444d; --denied: #f0883e } }
text { font: 12.5px Arial, Helvetica, sans-serif; fill: var(--ink) }
.ground { fill: var(--ground) } .line { stroke: var(--line) } .denied { fill: var(--denied) }
.offered { fill: var(--line); stroke: var(--ink) } .end { text-anchor: end } .middle { text-anchor: middle }
</style>
<rect class="ground" width="100%" height="100%"/>
`
)

// svg writes a picture of the offered and the denied requests over time. The titles are the titles
// of the rows of denied requests.
func (c *chart) svg(w io.Writer, title string, titles []string) error {
	height := svgHead + len(titles)*(svgTitle+svgPanel) + svgFoot
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-labelledby="title desc">
<title id="title">%s</title>
<desc id="desc">The requests that are offered and those that are denied over time: %s.</desc>
%s`, svgWidth, height, title, strings.Join(titles, "; "), svgPalette)
	fmt.Fprintf(&b, `<text x="%d" y="18">%s</text>
<path class="offered" d="M%d 40v-10h22v10"/><text x="%d" y="40">offered in %s</text>
<rect class="denied" x="%d" y="30" width="22" height="10"/><text x="%d" y="40">denied</text>
`, svgLeft, title, svgLeft, svgLeft+28, periodText(time.Duration(c.wide)*time.Microsecond), svgLeft+150, svgLeft+178)
	for i, title := range titles {
		bottom := svgHead + (i+1)*(svgTitle+svgPanel)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", svgLeft, bottom-svgPanel-8, title)
		c.panel(&b, bottom, c.rows[1+i], i == len(titles)-1)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// panel draws the requests, and the denied ones among them.
func (c *chart) panel(b *strings.Builder, bottom int, denied row, last bool) {
	most := 1
	if len(denied) > 0 {
		most = slices.Max(c.rows[0])
	}
	y := func(n int) float64 { return float64(bottom) - svgPanel*float64(n)/float64(most) }
	step := countStep(most)
	for n := 0; n <= most; n += step {
		fmt.Fprintf(b, `<path class="line" d="M%d %.1fH%d"/><text class="end" x="%d" y="%.1f">%d</text>`+"\n",
			svgLeft, y(n), svgRight, svgLeft-6, y(n)+4, n)
	}
	fmt.Fprintf(b, `<path class="offered" d="%s"/><path class="denied" d="%s"/>`+"\n", c.outline(c.rows[0], y), c.outline(denied, y))
	c.times(b, bottom, last)
}

// outline returns the outline of the bars, which are side by side.
func (c *chart) outline(r row, y func(int) float64) string {
	var d strings.Builder
	fmt.Fprintf(&d, "M%d %.1f", svgLeft, y(0))
	height := 0
	for bar, n := range append(slices.Clone(r), 0) {
		if n != height {
			fmt.Fprintf(&d, "H%.1fV%.1f", c.x(c.first+int64(bar)*c.wide), y(n))
			height = n
		}
	}
	return d.String()
}

// x returns the horizontal position of a time.
func (c *chart) x(at int64) float64 {
	return svgLeft + (svgRight-svgLeft)*float64(at-c.first)/float64(c.wide*int64(max(1, len(c.rows[0]))))
}

// times draws the ticks of the time axis, with labels if this is the last panel.
func (c *chart) times(b *strings.Builder, bottom int, numbers bool) {
	step, span := c.wide, c.wide*int64(len(c.rows[0]))
	for span/step > 6 {
		step = wider(step)
	}
	for at := floor(c.first+step-1, step); at <= c.first+span && span > 0; at += step {
		fmt.Fprintf(b, `<path class="line" d="M%.1f %dv5"/>`, c.x(at), bottom)
		if numbers {
			fmt.Fprintf(b, `<text class="middle" x="%.1f" y="%d">%s</text>`, c.x(at), bottom+18, clockText(at, step, span))
		}
		b.WriteByte('\n')
	}
}

// clockText returns the text of a time, as exact as the ticks need it.
func clockText(at, step, span int64) string {
	layout, day := "15:04", 24*time.Hour.Microseconds()
	switch {
	case step >= day:
		layout = "2006-01-02"
	case span > day:
		layout = "01-02 15:04"
	case step < time.Minute.Microseconds():
		layout = "15:04:05"
	}
	return time.UnixMicro(at).UTC().Format(layout)
}
