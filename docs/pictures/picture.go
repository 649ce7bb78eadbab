package main

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The colours are those of Okabe and Ito, which the colour-blind can tell apart. Each has a
// contrast of at least 3:1 with the ground and with the shade.
var (
	ground    = color.White
	shade     = color.RGBA{0xF2, 0xF2, 0xF2, 0xFF}
	edge      = color.RGBA{0x85, 0x85, 0x85, 0xFF}
	dark      = color.Black
	blue      = color.RGBA{0x00, 0x72, 0xB2, 0xFF}
	green     = color.RGBA{0x00, 0x9E, 0x73, 0xFF}
	vermilion = color.RGBA{0xD5, 0x5E, 0x00, 0xFF}
)

const (
	width  = 700 // pixels
	margin = 10
	pixel  = vg.Length(1)
)

// sans has the widths of Arial and Helvetica.
var sans = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 12.5}

// picture is a file that shows something.
type picture struct {
	file, title, description string
	height                   vg.Length // pixels
	draw                     func(c draw.Canvas) error
}

// svg returns p as a file. It has a ground of its own, so that it can be read on a dark page.
func (p picture) svg() ([]byte, error) {
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, p.height))
	c := draw.New(canvas)
	c.SetColor(ground)
	c.Fill(c.Path())
	if err := p.draw(draw.Crop(c, margin, -margin, margin, -margin)); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	_, drawing, _ := strings.Cut(b.String(), "<svg ")
	_, drawing, _ = strings.Cut(drawing, ">\n") // its own head counts in points, and has no title
	drawing = strings.ReplaceAll(drawing, "font-family:Liberation Sans;font-variant:normal;font-weight:normal;font-style:normal",
		"font-family:'Liberation Sans',Arial,Helvetica,sans-serif")
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%g" viewBox="0 0 %[1]d %[2]g" role="img" aria-labelledby="title desc">
<title id="title">%s</title>
<desc id="desc">%s</desc>
%s`, width, p.height, html.EscapeString(p.title), html.EscapeString(p.description), drawing), nil
}

// style is that of text outside of plots.
func style(x draw.XAlignment) text.Style {
	return text.Style{Color: dark, Font: sans, XAlign: x, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}
}

// panel is a plot with a title, which begins where the plot does.
type panel struct {
	*plot.Plot
	title string
}

// newPanel returns an empty panel with these axes.
func newPanel(title string, x, y axis) panel {
	p := plot.New()
	p.BackgroundColor = nil
	x.apply(&p.X)
	y.apply(&p.Y)
	for _, s := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		s.Font, s.Color = sans, dark
	}
	return panel{p, title}
}

// axis goes from 0 to max, with a tick at each multiple of step.
type axis struct {
	max, step int
	label     string // of the axis
	bare      bool   // leaves out the numbers
}

func (a axis) apply(to *plot.Axis) {
	to.Min, to.Max, to.Label.Text = 0, float64(a.max), a.label
	to.Padding, to.Tick.Length, to.Color, to.Tick.Color = 0, 4, dark, dark
	var ticks plot.ConstantTicks
	for v := 0; v <= a.max; v += a.step {
		tick := plot.Tick{Value: float64(v)}
		if !a.bare {
			tick.Label = fmt.Sprint(v)
		}
		ticks = append(ticks, tick)
	}
	to.Tick.Marker = ticks
}

// outlined is a curve, and filled what is below one.
func outlined(points plotter.XYs, c color.Color, width vg.Length) *plotter.Line {
	return &plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: c, Width: width}}
}

func filled(points plotter.XYs, c color.Color) *plotter.Line {
	return &plotter.Line{XYs: points, FillColor: c}
}

// dashed is a straight line.
func dashed(x0, y0, x1, y1 float64, c color.Color) *plotter.Line {
	l := outlined(plotter.XYs{{X: x0, Y: y0}, {X: x1, Y: y1}}, c, pixel)
	l.Dashes = []vg.Length{4, 3}
	return l
}

// steps is the outline of bars that are this wide, from 0 to the last one.
func steps(heights []int, wide float64) plotter.XYs {
	points, y := plotter.XYs{{}}, 0.0
	for i, h := range heights {
		if float64(h) != y {
			x := float64(i) * wide
			points = append(points, plotter.XY{X: x, Y: y}, plotter.XY{X: x, Y: float64(h)})
			y = float64(h)
		}
	}
	return append(points, plotter.XY{X: float64(len(heights)) * wide, Y: y})
}

// entry is what the key says of lines that look like these.
type entry struct {
	text  string
	lines []*plotter.Line
}

// key draws the entries side by side at the top of c, and returns what is below them.
func key(c draw.Canvas, entries ...entry) draw.Canvas {
	const thumb, space, gap, height = 22, 6, 24, 16
	below := draw.Crop(c, 0, 0, 0, -height)
	sty := style(draw.XLeft)
	for _, e := range entries {
		for _, line := range e.lines {
			box := c
			box.Rectangle = vg.Rectangle{Min: vg.Point{X: c.Min.X, Y: c.Max.Y - 14}, Max: vg.Point{X: c.Min.X + thumb, Y: c.Max.Y - 2}}
			line.Thumbnail(&box)
			c.Min.X += thumb + space
		}
		c.FillText(sty, vg.Point{X: c.Min.X, Y: c.Max.Y - height/2}, e.text)
		c.Min.X += sty.Width(e.text) + gap
	}
	return below
}

// grid draws panels in rows, with equal sizes, and returns where their plots are.
func grid(c draw.Canvas, panels [][]panel) [][]draw.Canvas {
	const title = 24 // pixels above each plot
	plots := make([][]*plot.Plot, len(panels))
	for i, row := range panels {
		for _, p := range row {
			plots[i] = append(plots[i], p.Plot)
		}
	}
	canvases := plot.Align(plots, draw.Tiles{Rows: len(panels), Cols: len(panels[0]), PadX: 10, PadY: title, PadTop: title}, c)
	for i, row := range panels {
		for j, p := range row {
			p.Draw(canvases[i][j])
			canvases[i][j] = p.DataCanvas(canvases[i][j])
			c.FillText(style(draw.XLeft), vg.Point{X: canvases[i][j].Min.X, Y: canvases[i][j].Max.Y + title/2}, p.title)
		}
	}
	return canvases
}
