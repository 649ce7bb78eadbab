// Package every visits all states of a small world, for tests.
package every

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// World is a world in a state. All its goroutines are in one bubble of time.
type World interface {
	// Steps are all that can come next, in an order that the state decides.
	Steps() []Step
	// String tells one state from another.
	String() string
	// Check returns what is wrong with the state.
	Check() error
	// End lets the world come to its end, and returns what is wrong then.
	End() error
}

// Step is a step. Do returns what is wrong meanwhile.
type Step struct {
	Name string
	Do   func() error
}

// State visits the states that can come of the one that begin returns, each once, and returns how
// many they are. The error is that of the first in which something is wrong, and how it came to
// be. Each path is walked from its begin: a goroutine cannot be copied.
func State(t *testing.T, begin func(t *testing.T) World) (states int, err error) {
	v := visitor{begin: begin, visited: map[string]struct{}{}}
	err = v.visit(t, nil)
	return len(v.visited), err
}

type visitor struct {
	begin   func(t *testing.T) World
	visited map[string]struct{}
}

// visit visits the state at the end of a path, which says which of the steps came, and all
// beyond it.
func (v *visitor) visit(t *testing.T, path []int) error {
	next := 0
	err := v.walk(t, path, func(w World) {
		state := w.String()
		if _, found := v.visited[state]; !found {
			v.visited[state] = struct{}{}
			next = len(w.Steps())
		}
	})
	for i := 0; i < next && err == nil; i++ {
		err = v.visit(t, append(path[:len(path):len(path)], i))
	}
	return err
}

// walk walks a path, looks at what is there, and lets the world end.
func (v *visitor) walk(t *testing.T, path []int, look func(w World)) (err error) {
	synctest.Test(t, func(t *testing.T) {
		w := v.begin(t)
		var names []string
		for _, i := range path {
			s := w.Steps()[i]
			names = append(names, s.Name)
			if wrong := s.Do(); err == nil {
				err = wrong
			}
			synctest.Wait()
		}
		if err == nil {
			err = w.Check()
		}
		if err == nil {
			look(w)
		}
		if wrong := w.End(); err == nil {
			err = wrong
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.Join(names, ", "))
		}
	})
	return err
}
