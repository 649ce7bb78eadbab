package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// suite is the tests, and how to run them.
type suite struct {
	steps   []step
	quick   bool // the tests of likely run first
	short   bool
	timeout time.Duration
	verbose bool

	mu      sync.Mutex
	killers map[string][]test // by mutated file, the latest first
	flaky   []test
	done    int // mutants
}

// step is a go test of all tests in some packages that match a pattern.
type step struct {
	pattern  string
	packages []string
}

// everything is the tests that a broken algorithm can fail. The other tests of the stores
// are about clients, tables and time, and some of them need an idle machine.
var everything = []step{
	{"", []string{".", "./internal/suite", "./internal/bucket", "./internal/eventlog", "./internal/exact"}},
	{"Conformance|TestABatch|TestBatchesAdmit|TestAValueThatIsNotOurs", []string{"./store/..."}},
}

// test is a test or a subtest.
type test struct{ pkg, name string }

// exactly is a step of these tests.
func exactly(tests ...test) step {
	var s step
	var patterns []string
	for _, t := range tests {
		parts := strings.Split(t.name, "/")
		for i, part := range parts {
			parts[i] = "^" + regexp.QuoteMeta(part) + "$"
		}
		patterns = append(patterns, strings.Join(parts, "/"))
		if !slices.Contains(s.packages, t.pkg) {
			s.packages = append(s.packages, t.pkg)
		}
	}
	s.pattern = strings.Join(patterns, "|")
	return s
}

// likely are tests that kill most mutants of a file with -short in a second or two, by
// the file's extension. Without them the check is only slower.
var likely = map[string]test{
	".go":  {"./store/memstore", "TestConformance"},
	".lua": {"./store/redisstore", "TestConformanceOnRedis"},
}

const (
	maxKillers   = 3 // of a file
	quickTimeout = 30 * time.Second
)

// try sets the fate of the mutants, jobs at a time. Each is tried in a copy of the module
// in root.
func (s *suite) try(ctx context.Context, root string, mutants []*mutant, jobs int) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s.killers = make(map[string][]test)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	queue := make(chan *mutant, len(mutants))
	for _, m := range mutants {
		queue <- m
	}
	close(queue)
	var workers sync.WaitGroup
	for i := range max(1, min(jobs, len(mutants))) {
		workers.Go(func() {
			module := filepath.Join(dir, fmt.Sprint(i))
			if err := s.work(ctx, root, module, queue, len(mutants)); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// work copies the module and makes sure that the suite passes there. Then it tries
// mutants of the queue until it is empty.
func (s *suite) work(ctx context.Context, root, module string, queue <-chan *mutant, total int) error {
	if err := copyModule(module, root); err != nil {
		return err
	}
	start := time.Now()
	r, err := s.whole(ctx, module)
	if err != nil {
		return err
	}
	if r.fate != survived {
		return fmt.Errorf("the suite fails without a mutant:\n%s", r.output)
	}
	fmt.Fprintf(os.Stderr, "the suite passes without a mutant, in %v\n", time.Since(start).Round(time.Second))
	for m := range queue {
		start := time.Now()
		if err := s.tryOne(ctx, module, m); err != nil {
			return err
		}
		s.mu.Lock()
		s.done++
		if s.verbose || m.fate == survived {
			fmt.Fprintf(os.Stderr, "%d/%d %v in %v %s: %v\n",
				s.done, total, m.fate, time.Since(start).Round(100*time.Millisecond), m.killer, m)
		}
		s.mu.Unlock()
	}
	return nil
}

// tryOne sets the fate of m in a copy of the module, and restores the copy.
func (s *suite) tryOne(ctx context.Context, module string, m *mutant) error {
	path := filepath.Join(module, filepath.FromSlash(m.file))
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, m.apply(src), 0o600); err != nil {
		return err
	}
	r, err := s.hunt(ctx, module, m.file)
	if err := errors.Join(err, os.WriteFile(path, src, 0o600)); err != nil {
		return err
	}
	m.fate, m.killer = r.fate, r.killer.name
	if m.fate == survived && m.listed {
		m.fate = equivalent
	}
	return nil
}

// hunt runs the tests that are likely to fail, or that have just failed for another
// mutant of the file. Then it runs the suite.
func (s *suite) hunt(ctx context.Context, module, file string) (result, error) {
	if s.quick {
		s.mu.Lock()
		tests := append(slices.Clone(s.killers[file]), likely[filepath.Ext(file)])
		s.mu.Unlock()
		if r, err := s.run(ctx, module, exactly(tests...), true, min(quickTimeout, s.timeout)); err != nil || r.fate != survived {
			return r, err
		}
	}
	r, err := s.whole(ctx, module)
	if r.fate == killed && r.killer.name != "" {
		s.mu.Lock()
		killers := slices.Insert(s.killers[file], 0, r.killer)
		s.killers[file] = killers[:min(len(killers), maxKillers)]
		s.mu.Unlock()
	}
	return r, err
}

// whole runs the suite. It runs a test that fails again alone. If the test then passes it
// is flaky, and the suite goes on without it. So a busy machine does not kill a mutant.
func (s *suite) whole(ctx context.Context, module string) (result, error) {
	for i := 0; i < len(s.steps); {
		r, err := s.run(ctx, module, s.steps[i], s.short, s.timeout)
		if err != nil || r.fate != survived && r.killer.name == "" {
			return r, err
		}
		if r.fate == survived {
			i++
			continue
		}
		again, err := s.run(ctx, module, exactly(r.killer), s.short, s.timeout)
		if err != nil || again.fate != survived {
			return r, err
		}
		s.mu.Lock()
		if !slices.Contains(s.flaky, r.killer) {
			s.flaky = append(s.flaky, r.killer)
			fmt.Fprintf(os.Stderr, "flaky, and left out from now on: %s\n%s", r.killer.name, r.output)
		}
		s.mu.Unlock()
	}
	return result{fate: survived}, nil
}

// result is how the suite ended; survived means that it passed.
type result struct {
	fate   fate
	killer test // the one that failed; zero if it is not known
	output string
}

// run runs the tests of a step until one fails.
func (s *suite) run(ctx context.Context, module string, tests step, short bool, timeout time.Duration) (result, error) {
	args := []string{"test", "-json", "-failfast", "-vet=off", "-timeout", timeout.String(), "-run", tests.pattern}
	if short {
		args = append(args, "-short")
	}
	s.mu.Lock()
	if len(s.flaky) > 0 {
		args = append(args, "-skip", exactly(s.flaky...).pattern)
	}
	s.mu.Unlock()
	args = append(args, tests.packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "RATELIMIT_REQUIRE_REDIS=1", "RATELIMIT_FULL=1", "GOWORK=off")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return result{}, context.Cause(ctx)
	}
	if err == nil {
		return result{fate: survived}, nil
	}
	r := judge(out)
	if r.fate == untested {
		return r, fmt.Errorf("go test: %w: %s", err, stderr.Bytes())
	}
	return r, nil
}

// judge reads the output of a go test -json that failed. Of several failed tests it takes
// the innermost that failed first.
func judge(out []byte) result {
	var r result
	texts := make(map[test]string)
	for line := range bytes.Lines(out) {
		var event struct{ Action, Package, Test, Output, FailedBuild string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		t := test{event.Package, event.Test}
		texts[t] += event.Output
		switch {
		case event.FailedBuild != "":
			r = result{fate: invalid, killer: test{pkg: event.Package}}
		case event.Action == "fail" && r.fate == untested:
			r = result{fate: killed, killer: t}
		}
	}
	r.output = texts[r.killer]
	return r
}

// copyModule copies the module in root, without its history.
func copyModule(to, root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.Name() == ".git" && d.IsDir():
			return fs.SkipDir
		case d.Name() == ".git": // a file, not a directory, in a worktree
			return nil
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}
