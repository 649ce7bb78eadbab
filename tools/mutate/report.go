package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// report is what is known about the mutants, by file.
type report struct {
	files []fileReport
	stale []string // entries of equivalent.txt without a mutant
}

type fileReport struct {
	name    string
	mutants []*mutant
	leftOut int
}

// add adds the mutants of a file. If line is not 0, it adds only those of that line. If
// limit is not 0, it adds at most that many, at even distances.
func (r *report) add(name string, mutants []*mutant, line, limit int) {
	f := fileReport{name: name}
	for _, m := range mutants {
		if line == 0 || m.line == line {
			f.mutants = append(f.mutants, m)
		}
	}
	if total := len(f.mutants); limit > 0 && limit < total {
		some := make([]*mutant, limit)
		for i := range some {
			some[i] = f.mutants[i*total/limit]
		}
		f.mutants, f.leftOut = some, total-limit
	}
	r.files = append(r.files, f)
}

// pending returns the mutants to run.
func (r *report) pending(all bool) []*mutant {
	var pending []*mutant
	for _, f := range r.files {
		for _, m := range f.mutants {
			if all || !m.listed {
				pending = append(pending, m)
			}
		}
	}
	return pending
}

// failed reports whether there is anything to repair.
func (r *report) failed() bool {
	for _, f := range r.files {
		for _, m := range f.mutants {
			if m.fate == survived || m.fate == killed && m.listed {
				return true
			}
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
			case m.fate == killed && m.listed:
				fmt.Fprintf(out, "in equivalent.txt, but killed by %s: %v\n", m.killer, m)
			}
		}
	}
	for _, entry := range r.stale {
		fmt.Fprintf(out, "in equivalent.txt, but no mutant: %s\n", entry)
	}
	r.table(out)
}

// table counts the fates in each file.
func (r *report) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mutants\tkilled\tsurvived\tequivalent\tinvalid\tleft out\t  file")
	row := func(n [fates]int, leftOut int, name string) {
		total := 0
		for _, n := range n {
			total += n
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t  %s\n",
			total, n[killed], n[survived], n[equivalent], n[invalid], leftOut, name)
	}
	var sum [fates]int
	leftOut := 0
	for _, f := range r.files {
		var n [fates]int
		for _, m := range f.mutants {
			n[m.fate]++
			sum[m.fate]++
		}
		row(n, f.leftOut, f.name)
		leftOut += f.leftOut
	}
	row(sum, leftOut, "total")
	_ = w.Flush()
}
