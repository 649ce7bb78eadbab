package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// testOf is a test of a judge, how long it takes alone, and what it reaches.
type testOf struct {
	name    string
	took    time.Duration
	skipped bool
	reached map[string][]block // by file
}

// block is statements that a profile of coverage counts together, from one line and column to
// another.
type block struct{ from, to [2]int }

func (b block) has(at [2]int) bool {
	return slices.Compare(b.from[:], at[:]) <= 0 && slices.Compare(at[:], b.to[:]) <= 0
}

// bench is the tests of a judge that pass without a mutant, and what they reach.
type bench struct {
	tests  []testOf
	blocks map[string][]block // all, reached or not
}

// suspects are the tests that can notice m, the fastest first. They reach its block. Where
// profiles have no block, as in the cases of a switch, they reach its function. With
// RATELIMIT_FULL=1 nobody knows what those reach that skip without it.
func (b *bench) suspects(m *mutant, full bool) []testOf {
	var of []block
	for _, block := range b.blocks[m.file] {
		if block.has(m.start) {
			of = append(of, block)
		}
	}
	if len(of) == 0 {
		for _, block := range b.blocks[m.file] {
			if m.within.has(block.from) {
				of = append(of, block)
			}
		}
	}
	var tests []testOf
	for _, t := range b.tests {
		if full && t.skipped || !t.skipped && (filepath.Ext(m.file) == ".lua" || m.function == "") || slices.ContainsFunc(t.reached[m.file], func(b block) bool { return slices.Contains(of, b) }) {
			tests = append(tests, t)
		}
	}
	slices.SortStableFunc(tests, func(a, b testOf) int { return int(a.took - b.took) })
	return tests
}

// benchOf runs each test of the judge alone, once, and looks what it reaches in these packages.
func (s *suite) benchOf(ctx context.Context, j judge, broken []string) (*bench, error) {
	begin := time.Now()
	bin := filepath.Join(s.dir, "cover+"+strings.ReplaceAll(j.pkg, "/", "+"))
	args := []string{"test", "-c", "-vet=off", "-o", bin}
	if len(broken) > 0 {
		var patterns []string
		for _, p := range broken {
			patterns = append(patterns, path.Join(modulePath, p))
		}
		args = append(args, "-cover", "-covermode=atomic", "-coverpkg="+strings.Join(patterns, ","))
	}
	if out, err := s.goCommand(ctx, j, args...); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	list := s.command(ctx, j, bin, "-test.list", j.pattern)
	out, err := list.Output()
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	b := &bench{blocks: make(map[string][]block)}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(name, "Benchmark") {
			continue
		}
		profile := filepath.Join(s.dir, "profile")
		args := []string{"-test.v", "-test.run", "^" + name + "$", "-test.timeout", "5m"}
		if len(broken) > 0 {
			args = append(args, "-test.coverprofile", profile)
		}
		start := time.Now()
		out, err := s.command(ctx, j, bin, args...).CombinedOutput()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t := testOf{name: name, took: time.Since(start), skipped: bytes.Contains(out, []byte("\n--- SKIP: "+name+" "))}
		if err != nil {
			s.leaveOut(j, name, out)
			continue
		}
		if len(broken) > 0 {
			if err := b.read(profile, &t); err != nil {
				return nil, err
			}
		}
		b.tests = append(b.tests, t)
	}
	fmt.Fprintf(os.Stderr, "%s: %d tests, in %v\n", j.pkg, len(b.tests), time.Since(begin).Round(time.Second))
	return b, nil
}

// read reads what t has reached from its profile.
func (b *bench) read(profile string, t *testOf) error {
	text, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	first := len(b.tests) == 0
	t.reached = make(map[string][]block)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		path, rest, ok := strings.Cut(lines.Text(), ".go:")
		if !ok {
			continue
		}
		file := strings.TrimPrefix(path+".go", modulePath+"/")
		var p block
		var statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &p.from[0], &p.from[1], &p.to[0], &p.to[1], &statements, &count); err != nil {
			return err
		}
		if first {
			b.blocks[file] = append(b.blocks[file], p)
		}
		if count > 0 {
			t.reached[file] = append(t.reached[file], p)
		}
	}
	return lines.Err()
}

const modulePath = "github.com/ratelimit-go/ratelimit"

// command runs a test binary of the judge where go test would.
func (s *suite) command(ctx context.Context, j judge, bin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = filepath.Join(root, filepath.FromSlash(j.pkg))
	cmd.Env = append(os.Environ(), "RATELIMIT_REQUIRE_REDIS=1", "RATELIMIT_REQUIRE_POSTGRES=1", "GOWORK=off")
	cmd.WaitDelay = time.Second
	return cmd
}

// goCommand runs the go command in the package of the judge, which may be of another module.
func (s *suite) goCommand(ctx context.Context, j judge, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, filepath.FromSlash(j.pkg))
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}
