package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// suite runs the tests of a group's judges on its mutants.
type suite struct {
	group   *group
	verbose bool

	dir     string   // for what is built
	broken  []string // packages
	overlay string   // with the mutants planted

	mu       sync.Mutex
	benches  map[judge]func() (*bench, error)
	binaries map[judge]func() (string, error) // with the mutants planted
	flaky    map[string][]string              // tests that are left out, by package
	strikes  map[string]int                   // of a test that has failed and then passed
	killers  map[string][]string              // by mutated function and package, the latest first
	done     int                              // mutants
}

// A run of tests may take this long: some tests wait without end if the code is broken.
const (
	leastTimeout = 10 * time.Second
	mostTimeout  = time.Minute
	fullTimeout  = 3 * time.Minute // with RATELIMIT_FULL=1
)

// try sets the fate of the mutants of the group, jobs at a time.
func (s *suite) try(ctx context.Context, mutants []*mutant, files []string, jobs int) (err error) {
	if s.dir, err = os.MkdirTemp("", "mutate"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	s.broken = packages(files)
	s.benches, s.binaries = make(map[judge]func() (*bench, error)), make(map[judge]func() (string, error))
	s.flaky, s.strikes, s.killers = make(map[string][]string), make(map[string]int), make(map[string][]string)
	for i, m := range mutants {
		m.id = i + 1
	}
	if s.overlay, err = sow(ctx, root, s.dir, files, mutants); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, j := range s.group.judges {
		s.benches[j] = sync.OnceValues(func() (*bench, error) { return s.benchOf(ctx, j, s.broken) })
		s.binaries[j] = sync.OnceValues(func() (string, error) { return s.plantedOf(ctx, j) })
	}
	queue := make(chan *mutant, len(mutants))
	for _, alone := range []bool{false, true} { // those that need a build of their own come last
		for _, m := range mutants {
			if m.fate != invalid && m.alone() == alone {
				queue <- m
			}
		}
	}
	close(queue)
	total := len(queue)
	var workers sync.WaitGroup
	for range max(1, min(jobs, total)) {
		workers.Go(func() {
			for m := range queue {
				start := time.Now()
				if err := s.tryOne(ctx, m); err != nil {
					cancel(err)
					return
				}
				s.mu.Lock()
				s.done++
				if s.verbose || m.fate == survived {
					fmt.Fprintf(os.Stderr, "%d/%d %v in %v by %s: %v\n", s.done, total, m.fate, time.Since(start).Round(100*time.Millisecond), m.killer, m)
				}
				s.mu.Unlock()
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// build builds the tests of j with an overlay. The test binary has no path if they do not compile.
func (s *suite) build(ctx context.Context, j judge, overlay, name string) (string, error) {
	bin := filepath.Join(s.dir, name+"+"+strings.ReplaceAll(j.pkg, "/", "+"))
	out, err := s.goCommand(ctx, j, "test", "-c", "-vet=off", eachError, "-overlay", overlay, "-o", bin)
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
}

// plantedOf builds the tests of j with all mutants. Tests that then fail without any are left out:
// the switches allocate where the original does not.
func (s *suite) plantedOf(ctx context.Context, j judge) (string, error) {
	bin, err := s.build(ctx, j, s.overlay, "planted")
	for err == nil {
		args := []string{"-test.run", j.pattern}
		if skip := s.skipped(j); skip != "" {
			args = append(args, "-test.skip", skip)
		}
		out, failed := s.command(ctx, j, bin, args...).CombinedOutput()
		matches := failedTest.FindAllSubmatch(out, -1)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case failed == nil:
			return bin, nil
		case len(matches) == 0:
			return "", fmt.Errorf("%s fails without a mutant:\n%s", j.pkg, out)
		}
		for _, match := range matches {
			s.leaveOut(j, string(match[1]), out)
		}
	}
	return "", err
}

// skipped is a pattern of the tests of j that are left out.
func (s *suite) skipped(j judge) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flaky[j.pkg]) == 0 {
		return ""
	}
	return "^(" + strings.Join(s.flaky[j.pkg], "|") + ")$"
}

// tryOne sets the fate of m.
func (s *suite) tryOne(ctx context.Context, m *mutant) error {
	alone := m.alone()
	env, replaced := []string{envMutant + "=" + fmt.Sprint(m.id)}, ""
	if !m.planted {
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp(s.dir, "alone")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if alone {
			o := overlay{dir: dir}
			if err := o.put(root, m.file, m.apply(src)); err != nil {
				return err
			}
			if replaced, err = o.write(); err != nil {
				return err
			}
		} else {
			text := filepath.Join(dir, "text")
			if err := os.WriteFile(text, m.apply(src), 0o600); err != nil {
				return err
			}
			name := strings.TrimSuffix(filepath.Base(m.file), ".lua")
			env = []string{envScript + "=" + name, envText + "=" + text}
		}
	}
	for _, full := range []bool{false, true} {
		for _, j := range s.group.judges {
			if full && !j.full {
				continue
			}
			b, err := s.benches[j]()
			if err != nil {
				return err
			}
			tests := b.suspects(m, full)
			if len(tests) == 0 {
				continue
			}
			bin := ""
			if alone {
				bin, err = s.build(ctx, j, replaced, fmt.Sprint("alone", m.id))
				if err != nil && ctx.Err() == nil {
					m.fate = invalid
					return nil
				}
			} else {
				bin, err = s.binaries[j]()
			}
			if err != nil {
				return err
			}
			if m.fate, m.killer, err = s.hunt(ctx, j, bin, env, m, tests, full); err != nil || m.fate != survived {
				return err
			}
			if alone {
				_ = os.Remove(bin)
			}
		}
	}
	m.fate = survived
	if m.listed {
		m.fate = equivalent
	}
	return nil
}

// hunt runs tests until one fails, first those that have killed a mutant of the function before,
// then the fast ones.
func (s *suite) hunt(ctx context.Context, j judge, bin string, env []string, m *mutant, tests []testOf, full bool) (fate, string, error) {
	of := j.pkg + " " + m.file + " " + m.function
	s.mu.Lock()
	killers := slices.Clone(s.killers[of])
	s.mu.Unlock()
	slices.SortStableFunc(tests, func(a, b testOf) int {
		return index(killers, a.name) - index(killers, b.name)
	})
	for budget := 500 * time.Millisecond; len(tests) > 0; budget = time.Hour {
		var some []string
		sum := time.Duration(0)
		for len(tests) > 0 && (len(some) == 0 || sum+tests[0].took < budget) {
			some, sum, tests = append(some, tests[0].name), sum+tests[0].took, tests[1:]
		}
		r, killer, err := s.run(ctx, j, bin, env, some, sum, full)
		if err != nil {
			return r, killer, err
		}
		if r == survived {
			continue
		}
		s.mu.Lock()
		s.killers[of] = append([]string{killer}, slices.DeleteFunc(s.killers[of], func(k string) bool { return k == killer })...)
		s.mu.Unlock()
		return r, j.pkg + " " + killer, nil
	}
	return survived, "", nil
}

func index(names []string, name string) int {
	if i := slices.Index(names, name); i >= 0 {
		return i
	}
	return len(names)
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// again is how often a test that has failed is run once more, and strikes for how many mutants it may
// pass each time then. Some mutants make a test fail in some of its runs.
const again, strikes = 5, 3

// run runs some tests of j. A test that fails is run again. If it passes each time it has no say
// on this mutant, and none on later ones if that was the third. Therefore, a busy machine kills no mutant.
func (s *suite) run(ctx context.Context, j judge, bin string, env, tests []string, took time.Duration, full bool) (fate, string, error) {
	timeout := min(leastTimeout+5*took, mostTimeout)
	if full {
		timeout = fullTimeout
	}
	for {
		s.mu.Lock()
		tests = slices.DeleteFunc(tests, func(t string) bool { return slices.Contains(s.flaky[j.pkg], t) })
		s.mu.Unlock()
		if len(tests) == 0 {
			return survived, "", nil
		}
		once := func(tests []string) (fate, string, []byte, error) {
			cmd := s.command(ctx, j, bin, "-test.run", "^("+strings.Join(tests, "|")+")$", "-test.failfast", "-test.timeout", timeout.String())
			cmd.Env = append(cmd.Env, env...)
			if full {
				cmd.Env = append(cmd.Env, "RATELIMIT_FULL=1")
			}
			var said output
			cmd.Stdout, cmd.Stderr = &said, &said
			err := cmd.Run()
			out := said.text()
			var exit *exec.ExitError
			switch {
			case ctx.Err() != nil:
				return untested, "", nil, context.Cause(ctx)
			case err == nil:
				return survived, "", nil, nil
			case !errors.As(err, &exit):
				return untested, "", nil, err
			}
			return judged(out)
		}
		r, killer, out, err := once(tests)
		if err != nil || r != killed {
			return r, killer, err
		}
		rerun := []string{killer}
		if killer == "" { // it is not known which of them it was
			rerun = tests
		}
		for range again {
			if r, _, _, err = once(rerun); err != nil || r != survived {
				return r, killer, err
			}
		}
		if killer == "" {
			return survived, "", nil
		}
		tests = slices.DeleteFunc(tests, func(t string) bool { return t == killer })
		s.mu.Lock()
		s.strikes[killer]++
		often := s.strikes[killer] >= strikes
		s.mu.Unlock()
		if often {
			s.leaveOut(j, killer, out)
		}
	}
}

// mostOutput, in bytes, is kept of the beginning of what a test says, and about as much of the end: a
// mutant may write without end.
const mostOutput = 1 << 20

// output is what a test says, without the middle.
type output struct{ head, tail []byte }

func (o *output) Write(b []byte) (int, error) {
	n := min(len(b), mostOutput-len(o.head))
	o.head, o.tail = append(o.head, b[:n]...), append(o.tail, b[n:]...)
	if len(o.tail) > 2*mostOutput {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-mostOutput:]...)
	}
	return len(b), nil
}

func (o *output) text() []byte { return append(o.head, o.tail...) }

// judged is the fate that the output of failed tests tells, and which of them failed.
func judged(out []byte) (fate, string, []byte, error) {
	killer := ""
	if match := failedTest.FindSubmatch(out); match != nil {
		killer = string(match[1])
	}
	if bytes.Contains(out, []byte("panic: test timed out after")) {
		if match := regexp.MustCompile(`(?m)^\s+(\w+) \(\d`).FindSubmatch(out); match != nil {
			killer = string(match[1])
		}
		return timedOut, killer, out, nil
	}
	return killed, killer, out, nil
}

// leaveOut leaves a test out from now on.
func (s *suite) leaveOut(j judge, test string, out []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.flaky[j.pkg], test) {
		s.flaky[j.pkg] = append(s.flaky[j.pkg], test)
		fmt.Fprintf(os.Stderr, "left out from now on: %s %s\n%s", j.pkg, test, out)
	}
}
