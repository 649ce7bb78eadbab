package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
)

// print prints the report.
func (r *replay) print(w io.Writer) error {
	denied := r.deniedMost()
	top := denied
	if r.top >= 0 {
		top = denied[:min(r.top, len(denied))]
	}
	switch r.out {
	case "json":
		return r.printJSON(w, len(denied), top)
	case "csv":
		return r.printCSV(w, top)
	}
	var b strings.Builder
	r.printText(&b, len(denied), top)
	if r.name != "" {
		fmt.Fprintln(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *replay) printText(w io.Writer, keys int, top []string) {
	if r.name != "" {
		fmt.Fprintf(w, "%s: ", printable(r.name))
	}
	fmt.Fprintf(w, "%s, %v", r.algorithm, &r.limits)
	if r.file.Reserved > 0 {
		fmt.Fprintf(w, ", %d reserved", r.file.Reserved)
	}
	fmt.Fprintln(w)
	r.summary(w, len(r.keys), r.uncounted > 0)
	fmt.Fprintf(w, "%9d denied (%.2f %%), of %s\n", r.denied, percent(r.denied, r.Requests), r.several(keys))
	for i, n := range r.byLimit {
		if len(r.limits) > 1 {
			fmt.Fprintf(w, "%9d by %v\n", n, r.limits[i])
		}
	}
	if r.delayed > 0 {
		fmt.Fprintf(w, "%9d delayed, for up to %v\n", r.delayed, r.longest)
	}
	r.remarks(w)
	if r.uncounted > 0 {
		fmt.Fprintf(w, "%9d requests beyond the first %s, without a row\n", r.uncounted, r.several(r.maxKeys))
	}
	if n := r.store.Evicted(); n > 0 {
		fmt.Fprintf(w, "%9d times a %s was forgotten early, because there were more than %d in the store\n", n, r.noun(), maxStored)
	}
	r.printTop(w, top)
}

func (r *replay) printTop(w io.Writer, top []string) {
	if len(top) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%9s", "denied")
	for _, l := range r.limits {
		if len(r.limits) > 1 {
			fmt.Fprintf(w, " %9s", "by "+l.String())
		}
	}
	fmt.Fprintf(w, " %9s  %s\n", "requests", r.noun())
	for _, key := range top {
		t := r.keys[key]
		fmt.Fprintf(w, "%9d", t.denied)
		for i, n := range t.byLimit {
			if len(r.limits) > 1 {
				fmt.Fprintf(w, " %*d", max(9, len("by "+r.limits[i].String())), n)
			}
		}
		fmt.Fprintf(w, " %9d  %s\n", t.requests, printable(key))
	}
}

// deniedKey is a key in the report as JSON.
type deniedKey struct {
	Key      string         `json:"key"`
	Requests int            `json:"requests"`
	Denied   int            `json:"denied"`
	ByLimit  map[string]int `json:"denied_by"`
}

func (r *replay) printJSON(w io.Writer, keys int, top []string) error {
	report := struct {
		Limiter   string `json:"limiter,omitempty"`
		Algorithm string `json:"algorithm"`
		*logs
		Keys       int            `json:"keys"`
		Uncounted  int            `json:"requests_of_further_keys"`
		Forgotten  uint64         `json:"forgotten_early"`
		Denied     int            `json:"denied"`
		ByLimit    map[string]int `json:"denied_by"`
		DeniedKeys int            `json:"denied_keys"`
		Delayed    int            `json:"delayed"`
		Longest    float64        `json:"longest_delay_seconds"`
		Top        []deniedKey    `json:"top"`
	}{
		r.name, r.algorithm, &r.logs, len(r.keys), r.uncounted, r.store.Evicted(), r.denied, r.named(r.byLimit),
		keys, r.delayed, r.longest.Seconds(), []deniedKey{},
	}
	for _, key := range top {
		t := r.keys[key]
		report.Top = append(report.Top, deniedKey{key, t.requests, t.denied, r.named(t.byLimit)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(report)
}

// named returns the counts, by the text of their limit.
func (r *replay) named(counts []int) map[string]int {
	return maps.Collect(func(yield func(string, int) bool) {
		for i, n := range counts {
			if !yield(r.limits[i].String(), n) {
				return
			}
		}
	})
}

func (r *replay) printCSV(w io.Writer, top []string) error {
	out := csv.NewWriter(w)
	row := []string{"key", "requests", "denied"}
	for _, l := range r.limits {
		row = append(row, "denied by "+l.String())
	}
	_ = out.Write(row) // out.Error returns the error
	for _, key := range top {
		t := r.keys[key]
		if strings.IndexAny(key, "=+-@\t\r") == 0 {
			key = "'" + key // a client has chosen it, and a spreadsheet would run it as a formula
		}
		row = append(row[:0], key, strconv.Itoa(t.requests), strconv.Itoa(t.denied))
		for _, n := range t.byLimit {
			row = append(row, strconv.Itoa(n))
		}
		_ = out.Write(row)
	}
	out.Flush()
	return out.Error()
}

func percent(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }

// printable returns the names or keys, separated by commas. Those with characters that a terminal would interpret are
// quoted.
func printable(names ...string) string {
	shown := make([]string, len(names))
	for i, name := range names {
		if shown[i] = name; strconv.Quote(name) != `"`+name+`"` {
			shown[i] = strconv.Quote(name)
		}
	}
	return strings.Join(shown, ", ")
}
