package serve

import (
	"slices"
	"strings"
)

// wildcards are patterns in which each * stands for any text, even an empty one. The zero value has
// no patterns. They are indexed by the texts before their first * and after their last one, so that
// a lookup checks only patterns that begin and end as the value does.
type wildcards[T any] struct {
	all     []wildcard[T]  // in the order of the file
	lengths []lengths      // of ends, without duplicates
	places  map[ends][]int // indexes into all, ascending
}

type wildcard[T any] struct {
	parts []string // between the stars
	value T
}

type (
	ends    struct{ first, last string }
	lengths struct{ first, last int }
)

// add adds a pattern with at least one *, after all others.
func (w *wildcards[T]) add(pattern string, value T) {
	parts := strings.Split(pattern, "*")
	e := ends{parts[0], parts[len(parts)-1]}
	if n := (lengths{len(e.first), len(e.last)}); !slices.Contains(w.lengths, n) {
		w.lengths = append(w.lengths, n)
	}
	if w.places == nil {
		w.places = map[ends][]int{}
	}
	w.places[e] = append(w.places[e], len(w.all))
	w.all = append(w.all, wildcard[T]{parts, value})
}

// find returns the value of the first pattern that text matches.
func (w *wildcards[T]) find(text string) (value T, ok bool) {
	best := len(w.all)
	for _, n := range w.lengths {
		if n.first+n.last > len(text) {
			continue
		}
		for _, i := range w.places[ends{text[:n.first], text[len(text)-n.last:]}] {
			if i >= best {
				break
			}
			if inOrder(text[n.first:len(text)-n.last], w.all[i].parts) {
				best = i
				break
			}
		}
	}
	if best == len(w.all) {
		return value, false
	}
	return w.all[best].value, true
}

// inOrder reports whether text contains all of parts except the first and the last, one after the
// other.
func inOrder(text string, parts []string) (found bool) {
	for _, part := range parts[1 : len(parts)-1] {
		if _, text, found = strings.Cut(text, part); !found {
			return false
		}
	}
	return true
}
