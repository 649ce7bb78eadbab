package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// grid is a table of figures: a row for each contestant, a column for each cell. An
// unknown figure is NaN.
type grid struct {
	title   string
	note    string
	rows    []string
	columns []string
	cells   [][]float64 // by column, then row
	printed func(float64) string
	failed  []string // what went wrong, and where
}

func newGrid(title string, rows []string) *grid {
	return &grid{title: title, rows: rows, printed: short}
}

func (g *grid) column(name string) []float64 {
	for c := range g.columns {
		if g.columns[c] == name {
			for len(g.cells[c]) < len(g.rows) {
				g.cells[c] = append(g.cells[c], math.NaN())
			}
			return g.cells[c]
		}
	}
	g.columns, g.cells = append(g.columns, name), append(g.cells, nil)
	return g.column(name)
}

// moveLast makes a column the last one.
func (g *grid) moveLast(name string) {
	if c := slices.Index(g.columns, name); c >= 0 {
		g.columns = append(slices.Delete(g.columns, c, c+1), name)
		cells := g.cells[c]
		g.cells = append(slices.Delete(g.cells, c, c+1), cells)
	}
}

// set sets a figure. A failed measurement leaves a dash, and its error below the table.
func (g *grid) set(column string, row int, x float64, err error) {
	if err != nil {
		x = math.Inf(1)
		g.failed = append(g.failed, fmt.Sprintf("%s, %s: %v", g.rows[row], column, err))
	}
	g.column(column)[row] = x
}

// least sets a figure if x is less than what is there. A failed figure stays failed.
func (g *grid) least(column string, row int, x float64, err error) {
	old := g.column(column)[row]
	if !math.IsInf(old, 1) && (err != nil || !(x >= old)) {
		g.set(column, row, x, err)
	}
}

// write writes the grid in Markdown.
func (g *grid) write(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n| |", g.title)
	for _, c := range g.columns {
		fmt.Fprintf(w, " %s |", c)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(g.columns)))
	for row, name := range g.rows {
		fmt.Fprintf(w, "| %s |", name)
		for c, column := range g.columns {
			fmt.Fprintf(w, " %s |", g.text(column, g.column(g.columns[c])[row]))
		}
		fmt.Fprintln(w)
	}
	if g.note != "" {
		fmt.Fprintf(w, "\n%s\n", g.note)
	}
	for _, f := range g.failed {
		fmt.Fprintf(w, "\nFailed: %s\n", f)
	}
}

func (g *grid) text(column string, x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "–"
	case strings.Contains(column, "allocations"):
		return short(x)
	case column == "ratio":
		return twoDecimals(x)
	}
	return g.printed(x)
}

func whole(x float64) string { return strconv.FormatFloat(x, 'f', 0, 64) }

func twoDecimals(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// short formats x with one decimal, if that is significant.
func short(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}

// grouped is n in groups of three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
