package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fate is the outcome of a mutant.
type fate int

const (
	untested fate = iota
	killed
	timedOut // killed by the timeout
	survived
	equivalent // survived, as equivalent.txt says
	invalid    // does not compile
	fates
)

func (f fate) String() string {
	return [fates]string{"untested", "killed", "timed out", "survived", "equivalent", "invalid"}[f]
}

// edit replaces the bytes from from up to to of a source with a text.
type edit struct {
	from, to int
	text     string
	function string // the function that contains it; "" outside of all
	scope    [2]int // of that function
}

// mutant is a source file with one edit.
type mutant struct {
	edit
	file     string // relative to the module
	line     int    // of the edit, from 1
	original string // the line, or the lines of a longer statement joined
	mutated  string
	listed   bool   // in equivalent.txt
	start    [2]int // of the edit: line and column in bytes, from 1
	within   block  // the function

	id      int  // in a build with several
	planted bool // in that build
	fate    fate
	killer  string // the test that failed
}

// entry is the mutant's entry in equivalent.txt. Changes elsewhere in the file do not
// change it.
func (m *mutant) entry() string {
	if m.function == "" {
		return m.file + ": " + m.mutated
	}
	return m.file + " " + m.function + ": " + m.mutated
}

// alone reports whether m needs a build of its own.
func (m *mutant) alone() bool { return filepath.Ext(m.file) == ".go" && !m.planted }

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d %s\n\t- %s\n\t+ %s", m.file, m.line, m.function, m.original, m.mutated)
}

// apply returns src with the edit.
func (e edit) apply(src []byte) []byte {
	return slices.Concat(src[:e.from], []byte(e.text), src[e.to:])
}

// mutantsOf returns the mutants of a file of the module in root, in order.
func mutantsOf(root, file string) ([]*mutant, error) {
	src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	find := goEdits
	if filepath.Ext(file) == ".lua" {
		find = luaEdits
	}
	edits, err := find(src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return a.from - b.from })
	var mutants []*mutant
	for _, e := range edits {
		from := bytes.LastIndexByte(src[:e.from], '\n') + 1
		to := len(src)
		if n := bytes.IndexByte(src[e.to:], '\n'); n >= 0 {
			to = e.to + n
		}
		inLine := edit{from: e.from - from, to: e.to - from, text: e.text}
		position := func(offset int) [2]int {
			return [2]int{1 + bytes.Count(src[:offset], []byte("\n")), offset - bytes.LastIndexByte(src[:offset], '\n')}
		}
		mutants = append(mutants, &mutant{
			edit:     e,
			file:     file,
			line:     position(e.from)[0],
			start:    position(e.from),
			within:   block{position(e.scope[0]), position(e.scope[1])},
			original: oneLine(src[from:to]),
			mutated:  oneLine(inLine.apply(src[from:to])),
		})
	}
	return mutants, nil
}

// oneLine is text without its indentation and line breaks.
func oneLine(text []byte) string { return strings.Join(strings.Fields(string(text)), " ") }
