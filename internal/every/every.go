// Package every visits all states of a small world, for tests.
package every

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// World is a world in a state. All its goroutines are in one synctest bubble.
type World interface {
	// Steps returns everything that can happen next, in an order that depends only on the state.
	Steps() []Step
	// String returns a text that identifies the state.
	String() string
	// Check returns what is wrong with the state.
	Check() error
	// End brings the world to its end, and returns what is wrong then.
	End() error
}

// Step is something that can happen. Do makes it happen, and returns what is wrong meanwhile.
type Step struct {
	Name string
	Do   func() error
}

// State visits once each state that can be reached from the state that begin returns, and returns
// how many there are. The error is that of the first state in which something is wrong, with the steps
// that lead to it. Each path is walked from the beginning, because a goroutine cannot be copied.
func State(t *testing.T, begin func(t *testing.T) World) (states int, err error) {
	v := visitor{begin: begin, visited: map[string]struct{}{}}
	err = v.visit(t, nil)
	return len(v.visited), err
}

type visitor struct {
	begin   func(t *testing.T) World
	visited map[string]struct{}
}

// visit visits the state at the end of a path, which is a list of steps, and all states beyond it.
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

// walk walks a path, looks at the state, and lets the world end.
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
