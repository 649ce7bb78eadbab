package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed equivalent.txt
var equivalentText string

// equivalents are the entries of equivalent.txt: mutants that behave like the original,
// so no test can kill them.
//
// The file has paragraphs of entries, "file function: mutated line" with single spaces.
// Below the entries of a paragraph stands an indented reason for all of them. Lines that
// begin with # are comments.
type equivalents []string

func parseEquivalents(text string) (equivalents, error) {
	var all equivalents
	open := "" // an entry that has no reason yet
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case trimmed == "":
			if open != "" {
				return nil, fmt.Errorf("equivalent.txt:%d: no reason for %q", i+1, open)
			}
		case trimmed != line && len(all) == 0:
			return nil, fmt.Errorf("equivalent.txt:%d: a reason for nothing", i+1)
		case trimmed != line:
			open = ""
		case !strings.Contains(line, ": "):
			return nil, fmt.Errorf("equivalent.txt:%d: not an entry: %q", i+1, line)
		default:
			all, open = append(all, line), line
		}
	}
	return all, nil
}

// mark marks the mutants of a file that are listed. It returns the entries for the file
// that match no mutant.
func (e equivalents) mark(file string, mutants []*mutant) (stale []string) {
	for _, entry := range e {
		if entryFile(entry) != file {
			continue
		}
		found := false
		for _, m := range mutants {
			if m.entry() == entry {
				m.listed, m.fate, found = true, equivalent, true
			}
		}
		if !found {
			stale = append(stale, entry)
		}
	}
	return stale
}

// astray returns the entries for other files than these.
func (e equivalents) astray(files []string) (stale []string) {
	for _, entry := range e {
		if !slices.Contains(files, entryFile(entry)) {
			stale = append(stale, entry)
		}
	}
	return stale
}

// entryFile is the file of an entry.
func entryFile(entry string) string { return entry[:strings.IndexAny(entry, " :")] }
