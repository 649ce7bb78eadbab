package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
)

// report is what is known about the mutants, by file.
type report struct {
	files []fileReport
	stale []string // entries of equivalent.txt without a mutant
}

type fileReport struct {
	group   string
	name    string
	mutants []*mutant
	leftOut int
}

// add adds the mutants of a file. If there are lines, it adds only those of them. If
// limit is not 0, it adds at most that many, chosen at random by the seed.
func (r *report) add(group, name string, mutants []*mutant, lines []int, limit int, seed uint64) {
	f := fileReport{group: group, name: name}
	for _, m := range mutants {
		if lines == nil || slices.Contains(lines, m.line) {
			f.mutants = append(f.mutants, m)
		}
	}
	if total := len(f.mutants); limit > 0 && limit < total {
		some := rand.New(rand.NewPCG(seed, 0)).Perm(total)[:limit]
		slices.Sort(some)
		for i, at := range some {
			f.mutants[i] = f.mutants[at]
		}
		f.mutants, f.leftOut = f.mutants[:limit], total-limit
	}
	r.files = append(r.files, f)
}

// pending returns the mutants of a group to run, and their files.
func (r *report) pending(group string, all bool) (pending []*mutant, files []string) {
	for _, f := range r.files {
		if f.group != group {
			continue
		}
		files = append(files, f.name)
		for _, m := range f.mutants {
			if all || !m.listed {
				pending = append(pending, m)
			}
		}
	}
	return pending, files
}

// failed reports whether there is anything to repair: more than so many percent of a group's
// mutants survive, or equivalent.txt is wrong.
func (r *report) failed(percent int) bool {
	tried, open := make(map[string]int), make(map[string]int)
	for _, f := range r.files {
		for _, m := range f.mutants {
			switch {
			case dead(m) && m.listed:
				return true
			case dead(m):
				tried[f.group]++
			case m.fate == survived:
				tried[f.group]++
				open[f.group]++
			}
		}
	}
	for group, n := range open {
		if 100*n > percent*tried[group] {
			return true
		}
	}
	return len(r.stale) > 0
}

func (r *report) list(out io.Writer) {
	for _, f := range r.files {
		for _, m := range f.mutants {
			fmt.Fprintln(out, m)
		}
	}
	r.table(out)
}

func (r *report) print(out io.Writer) {
	for _, f := range r.files {
		for _, m := range f.mutants {
			switch {
			case m.fate == survived:
				fmt.Fprintf(out, "survived: %v\n", m)
			case dead(m) && m.listed:
				fmt.Fprintf(out, "in equivalent.txt, but killed by %s: %v\n", m.killer, m)
			}
		}
	}
	for _, entry := range r.stale {
		fmt.Fprintf(out, "in equivalent.txt, but no mutant: %s\n", entry)
	}
	r.table(out)
}

func dead(m *mutant) bool { return m.fate == killed || m.fate == timedOut }

// table counts the fates in each file, in each group, and in all.
func (r *report) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mutants\tkilled\ttimed out\tsurvived\tequivalent\tinvalid\tnot run\t  file")
	row := func(name string, of func(*fileReport) bool) {
		var n [fates]int
		total := 0
		for _, f := range r.files {
			if !of(&f) {
				continue
			}
			n[untested] += f.leftOut
			total += f.leftOut + len(f.mutants)
			for _, m := range f.mutants {
				n[m.fate]++
			}
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t  %s\n",
			total, n[killed], n[timedOut], n[survived], n[equivalent], n[invalid], n[untested], name)
	}
	for i, f := range r.files {
		row(f.name, func(of *fileReport) bool { return of.name == f.name })
		if i+1 == len(r.files) || r.files[i+1].group != f.group {
			row("= "+f.group, func(of *fileReport) bool { return of.group == f.group })
		}
	}
	row("= total", func(*fileReport) bool { return true })
	_ = w.Flush()
}
