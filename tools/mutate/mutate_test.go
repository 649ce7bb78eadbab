package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutatedLines returns the lines of all mutants of a source, each as "function: line".
func mutatedLines(t *testing.T, file, src string) []string {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, file), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	mutants, err := mutantsOf(root, file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range mutants {
		lines = append(lines, strings.TrimPrefix(m.entry(), file))
	}
	return lines
}

func requireEqual(t *testing.T, want, got any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("want\n%#v\ngot\n%#v", want, got)
	}
}

func TestGoIsBrokenOneTokenAtATime(t *testing.T) {
	requireEqual(t, []string{
		": const size = 65 // < 64 entries",
		" NewState: func NewState() *state { return &state{/* n: 1 */} }",
		" NewState: func NewState() *state { return &state{n: 2} }",
		" step: if a >= min(b, 0x10) && !ok {",
		" step: if a > max(b, 0x10) && !ok {",
		" step: if a > min(b, 17) && !ok {",
		" step: if a > min(b, 0x10) || !ok {",
		" step: if a > min(b, 0x10) && ok {",
		" step: /* a++ */ // not a--",
		" step: a-- // not a--",
		" step: /* b = f(a, `<`, '+') */",
		" step: /* log(b) */",
		" state.cut: /* s.n -= s.n*2 */",
		" state.cut: s.n += s.n*2",
		" state.cut: s.n -= s.n/2",
		" state.cut: s.n -= s.n*3",
		" state.cut: return state{/* n: 0, */ ok: true}",
		" state.cut: return state{n: 1, ok: true}",
		" state.cut: return state{n: 0, /* ok: true */}",
		" state.cut: return state{n: 0, ok: false}",
	}, mutatedLines(t, "a.go", `package a

import "strings" // 1 + 1

const size = 64 // < 64 entries

func NewState() *state { return &state{n: 1} }

func step(a, b int) {
	x := "a < b"
	if a > min(b, 0x10) && !ok {
		a++ // not a--
		b = f(a,
			`+"`<`"+`, '+')
	}
	log(b)
	select {
	case <-done():
	}
}

func (s *state) cut() state {
	s.n -= s.n*2
	return state{n: 0, ok: true}
}
`))
}

func TestLuaIsBrokenOneTokenAtATime(t *testing.T) {
	requireEqual(t, []string{
		": local SPAN = 3 ^ 48 -- < 1",
		": local SPAN = 2 ^ 49 -- < 1",
		" step: if a <= -1 and not b then",
		" step: if a < -2 and not b then",
		" step: if a < -1 or not b then",
		" step: if a < -1 and b then",
		" step: --[[ a, t[1].b = math.min(a, 'a + b'), \"it\\\"s >= 1\" ]]",
		" step: a, t[2].b = math.min(a, 'a + b'), \"it\\\"s >= 1\"",
		" step: a, t[1].b = math.max(a, 'a + b'), \"it\\\"s >= 1\"",
		" step: --[[ redis.call('SET', a .. b, 'PX') ]]",
		" step: return f(a)[2] - 1 == c or t.min",
		" step: return f(a)[1] + 1 == c or t.min",
		" step: return f(a)[1] - 2 == c or t.min",
		" step: return f(a)[1] - 1 ~= c or t.min",
		" step: return f(a)[1] - 1 == c and t.min",
		" each: --[[ later() ]]",
		" each: return a * 2",
		" each: return a % 3",
		": --[[ each() ]]",
	}, mutatedLines(t, "a.lua", `
local SPAN = 2 ^ 48 -- < 1
--[[ 1 + 1
     == 2 ]]
function step(a, b)
  if a < -1 and not b then
    a, t[1].b = math.min(a, 'a + b'), "it\"s >= 1"
    redis.call('SET',
      a .. b, 'PX')
  end
  return f(a)[1] - 1 == c or t.min
end

local function each()
  run(function()
    later()
  end)
  return a % 2
end
each()
`))
}

func TestTextThatIsNotLuaIsRefused(t *testing.T) {
	if _, err := luaEdits([]byte("a = 1\nb = 'open\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Fatal(err)
	}
}

func TestTheFilesOfAGroupAreFound(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a.go", "a_test.go", "sub/a.go", "scripts/a.lua", "scripts/d.lua", "sub/b.go", "sub/b_test.go"} {
		write(t, root, name, "")
	}
	g := group{files: []string{"*.go", "sub/b*.go", "scripts/*.lua"}}
	files, err := g.filesOf(root)
	if err != nil {
		t.Fatal(err)
	}
	requireEqual(t, []string{"a.go", "sub/b.go", "scripts/a.lua", "scripts/d.lua"}, files)
	requireEqual(t, []string{".", "sub"}, packages(files))
	if _, err := g.filesOf(t.TempDir()); err == nil {
		t.Fatal("a directory without the files is taken")
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	name = filepath.Join(root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Each kind of function can be one of its mutants: the build has all of them but those that do
// not compile, and is the original without a number.
func TestAMutantIsPlantedIntoEachKindOfFunction(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write(t, root, "go.mod", "module m\n\ngo 1.26\n")
	write(t, root, "internal/script/script.go", `package script

type Files struct{}

func (f Files) Text(name string) string { return "original " + name }
`)
	write(t, root, "a.go", `package main

import "fmt"

type pair[A, B any] struct{ n int }

func (pair[A, B]) one(int, string) int { return 1 }

func (p *pair[A, B]) add(n ...int) { for _, n := range n { p.n += n } }

func biggest[A ~int](a, b A, _ bool) A { return max(a, b) }

func unused() { n := 1; n++; m := n; _ = m }

func text() string { return "a" + "b" }

func main() {
	p := pair[int, bool]{}
	p.add(3, 4)
	unused()
	fmt.Println(p.one(0, ""), p.n, biggest(2, 5, true), text())
}
`)
	var mutants []*mutant
	files := []string{"a.go", "internal/script/script.go"}
	for _, file := range files {
		all, err := mutantsOf(root, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.id = len(mutants) + 1; m.function != "main" {
				mutants = append(mutants, m)
			}
		}
	}
	overlay, err := sow(t.Context(), root, dir, files, mutants)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", bin, ".")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	says := func(m *mutant) string {
		cmd := exec.CommandContext(t.Context(), bin)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envMutant, m.id))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	requireEqual(t, "1 7 5 ab", says(&mutant{}))
	got := make(map[string]string)
	for _, m := range mutants {
		name := strings.TrimPrefix(m.entry(), m.file)
		switch {
		case !m.planted:
			t.Errorf("not planted: %s", name)
		case m.fate == invalid:
			got[name] = "invalid"
		case m.file == "a.go":
			got[name] = says(m)
		}
	}
	requireEqual(t, map[string]string{
		" pair.one: func (pair[A, B]) one(int, string) int { return 2 }":                           "2 7 5 ab",
		" pair.add: func (p *pair[A, B]) add(n ...int) { for _, n := range n { p.n -= n } }":       "1 -7 5 ab",
		" pair.add: func (p *pair[A, B]) add(n ...int) { for _, n := range n { /* p.n += n */ } }": "invalid",
		" biggest: func biggest[A ~int](a, b A, _ bool) A { return min(a, b) }":                    "1 7 2 ab",
		" unused: func unused() { n := 2; n++; m := n; _ = m }":                                    "1 7 5 ab",
		" unused: func unused() { n := 1; n--; m := n; _ = m }":                                    "1 7 5 ab",
		" unused: func unused() { n := 1; /* n++ */; m := n; _ = m }":                              "1 7 5 ab",
		" unused: func unused() { n := 1; n++; m := n; /* _ = m */ }":                              "invalid",
		` text: func text() string { return "a" - "b" }`:                                           "invalid",
		` Files.Text: func (f Files) Text(name string) string { return "original " - name }`:       "invalid",
	}, got)
}

// The module's script reader has the form that is looked for.
func TestAMutantOfAScriptIsReadFromAFile(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, readerFile))
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := plant(readerFile, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), `if text := mutantText(name); text != "" { return text }`) {
		t.Fatalf("%s has no %s", readerFile, readerName)
	}
}

// The module's own files break in at least ten ways each. Mutants of Go are Go. Each
// entry of the list of equivalents is a mutant.
func TestTheModulesFilesBreak(t *testing.T) {
	listed, err := parseEquivalents(equivalentText)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, g := range groups {
		of, err := g.filesOf(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range of {
			if slices.Contains(files, file) {
				t.Errorf("%s is in two groups", file)
			}
		}
		files = append(files, of...)
	}
	if stale := listed.astray(files); len(stale) > 0 {
		t.Errorf("equivalent.txt: no such files: %q", stale)
	}
	for _, file := range files {
		mutants, err := mutantsOf(root, file)
		if err != nil {
			t.Fatal(err)
		}
		if len(mutants) < 10 {
			t.Errorf("%s: only %d mutants", file, len(mutants))
		}
		if stale := listed.mark(file, mutants); len(stale) > 0 {
			t.Errorf("equivalent.txt: no such mutants: %q", stale)
		}
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mutants {
			broken := m.apply(src)
			if slices.Equal(broken, src) {
				t.Errorf("%v: is the original", m)
			}
			if filepath.Ext(file) == ".lua" {
				if _, err := luaTokens(broken); err != nil {
					t.Errorf("%v: %v", m, err)
				}
			}
		}
		if filepath.Ext(file) == ".go" {
			planted, _, err := plant(file, src, mutants)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.ParseFile(token.NewFileSet(), file, planted, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func TestEquivalentsAreEntriesWithAReason(t *testing.T) {
	const text = `# A comment.
a.go step: x := 1
a.go: const size = 65

	Nobody can tell.

b.lua f: y < 1
	Nor here.
`
	_, err := parseEquivalents(text)
	if err == nil {
		t.Fatal("an entry without a reason")
	}
	listed, err := parseEquivalents(strings.Replace(text, "65\n\n", "65\n", 1))
	if err != nil {
		t.Fatal(err)
	}
	requireEqual(t, equivalents{"a.go step: x := 1", "a.go: const size = 65", "b.lua f: y < 1"}, listed)

	mutants := []*mutant{
		{edit: edit{function: "step"}, file: "a.go", mutated: "x := 1"},
		{edit: edit{function: "step"}, file: "a.go", mutated: "const size = 65"},
	}
	requireEqual(t, []string{"a.go: const size = 65"}, listed.mark("a.go", mutants))
	requireEqual(t, []fate{equivalent, untested}, []fate{mutants[0].fate, mutants[1].fate})
	requireEqual(t, []string{"b.lua f: y < 1"}, listed.astray([]string{"a.go"}))

	for _, bad := range []string{"\treason\n", "an entry without a colon\n\treason\n"} {
		if _, err := parseEquivalents(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestASampleIsChosenByTheSeed(t *testing.T) {
	sample := func(of []int, limit int, seed uint64) (lines []int) {
		var all []*mutant
		for line := range 10 {
			all = append(all, &mutant{line: line + 1})
		}
		var rep report
		rep.add("g", "a.go", all, of, limit, seed)
		for _, m := range rep.files[0].mutants {
			lines = append(lines, m.line)
		}
		if of == nil && rep.files[0].leftOut != 10-len(lines) {
			t.Errorf("%d are left out", rep.files[0].leftOut)
		}
		return lines
	}
	one := sample(nil, 3, 1)
	if len(one) != 3 || !slices.IsSorted(one) {
		t.Error(one)
	}
	requireEqual(t, one, sample(nil, 3, 1))
	if slices.Equal(one, sample(nil, 3, 2)) {
		t.Error("another seed chooses the same")
	}
	requireEqual(t, []int{5, 7}, sample([]int{7, 5}, 3, 1))
	requireEqual(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, sample(nil, 0, 1))
}

func TestTheReportNamesWhatIsToBeMended(t *testing.T) {
	var rep report
	rep.add("g", "a.go", []*mutant{
		{file: "a.go", line: 3, edit: edit{function: "f"}, original: "a < b", mutated: "a <= b", fate: survived},
		{fate: killed}, {fate: killed}, {fate: timedOut}, {fate: invalid}, {fate: equivalent, listed: true},
	}, nil, 0, 1)
	var out strings.Builder
	rep.print(&out)
	requireEqual(t, `survived: a.go:3 f
	- a < b
	+ a <= b
  mutants  killed  timed out  survived  equivalent  invalid  not run  file
        6       2          1         1           1        1        0  a.go
        6       2          1         1           1        1        0  = g
        6       2          1         1           1        1        0  = total
`, out.String())

	for name, want := range map[string]struct {
		rep    report
		failed bool
	}{
		"a survivor":                     {rep, true},
		"an entry without a mutant":      {report{stale: []string{"a.go f: x"}}, true},
		"an entry whose mutant is dead":  {report{files: []fileReport{{mutants: []*mutant{{fate: killed, listed: true}}}}}, true},
		"an entry whose mutant survived": {report{files: []fileReport{{mutants: []*mutant{{fate: equivalent, listed: true}}}}}, false},
		"a mutant that does not compile": {report{files: []fileReport{{mutants: []*mutant{{fate: invalid}}}}}, false},
	} {
		if got := want.rep.failed(0); got != want.failed {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A part of each group may be open, and none of what is listed may be wrong.
func TestSomeMayBeOpen(t *testing.T) {
	of := func(group string, fates ...fate) fileReport {
		f := fileReport{group: group}
		for _, fate := range fates {
			f.mutants = append(f.mutants, &mutant{fate: fate})
		}
		return f
	}
	rep := report{files: []fileReport{of("a", killed, killed, timedOut), of("a", survived, invalid, untested), of("b", killed)}}
	requireEqual(t, []bool{true, true, false}, []bool{rep.failed(0), rep.failed(24), rep.failed(25)})
	rep.files = append(rep.files, of("b", survived, survived))
	requireEqual(t, true, rep.failed(50)) // of b two thirds are open
	rep = report{stale: []string{"a.go f: x"}}
	requireEqual(t, true, rep.failed(100))
}

func TestFilesAndLinesCanBeSelected(t *testing.T) {
	for _, tt := range []struct {
		only  string
		lines []int
		ok    bool
	}{
		{"", nil, true},
		{"bucket.go", nil, true},
		{"scripts/bucket.lua,bucket.go:62", []int{62}, true},
		{"bucket.go:62,bucket.go:7", []int{62, 7}, true},
		{"bucket.go:62,bucket.go", nil, true},
		{"scripts/bucket.lua", nil, false},
		{"bucket.go:x", nil, false},
	} {
		lines, ok := selected("bucket.go", tt.only)
		requireEqual(t, tt.ok, ok)
		requireEqual(t, tt.lines, lines)
	}
}

func TestTheOutputOfATestIsJudged(t *testing.T) {
	for out, want := range map[string]string{
		"--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/x (0.00s)\n--- FAIL: TestB (0.01s)\n":                 "killed TestA",
		"panic: test timed out after 20s\n\trunning tests:\n\t\tTestC (19s)\n\t\tTestC/x (19s)\n":           "timed out TestC",
		"fatal error: all goroutines are asleep - deadlock!\n":                                              "killed ",
		"panic: boom [recovered]\n\tpanic: boom\n\ngoroutine 5 [running]:\n--- FAIL: TestD (0.00s)\nFAIL\n": "killed TestD",
	} {
		fate, killer, _, _ := judged([]byte(out))
		if got := fmt.Sprint(fate, " ", killer); got != want {
			t.Errorf("%q: %s, want %s", out, got, want)
		}
	}
}

// A mutant is tried by the tests that reach its block, or else its function, the fastest first.
// What skips in a plain run is tried in the full one.
func TestOutputWithoutEndIsKeptInPart(t *testing.T) {
	var said output
	fmt.Fprintln(&said, "--- FAIL: TestFirst (0.00s)")
	line := bytes.Repeat([]byte("x"), 32<<10)
	for range 100 << 20 / len(line) {
		if n, err := said.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	fmt.Fprintln(&said, "panic: test timed out after 10s")
	text := said.text()
	if len(text) > 4*mostOutput {
		t.Fatal(len(text))
	}
	r, killer, _, err := judged(text)
	requireEqual(t, []any{timedOut, "TestFirst", nil}, []any{r, killer, err})
}

func TestTheTestsThatReachAMutantAreSuspects(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "profile")
	b := bench{blocks: make(map[string][]block)}
	for i, counts := range [][2]int{{1, 0}, {1, 1}, {0, 0}} {
		text := fmt.Sprintf("mode: atomic\n%[1]s/a.go:3.10,5.2 1 %[2]d\n%[1]s/a.go:7.1,9.2 1 %[3]d\n", modulePath, counts[0], counts[1])
		if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		test := testOf{name: fmt.Sprint("Test", i), took: time.Duration(9 - i)}
		if err := b.read(profile, &test); err != nil {
			t.Fatal(err)
		}
		b.tests = append(b.tests, test)
	}
	b.tests = append(b.tests, testOf{name: "TestSkipped", skipped: true})
	scope := block{[2]int{2, 1}, [2]int{10, 1}}
	for _, tt := range []struct {
		m    mutant
		full bool
		want []string
	}{
		{mutant{edit: edit{function: "f"}, file: "a.go", start: [2]int{4, 1}, within: scope}, false, []string{"Test1", "Test0"}},
		{mutant{edit: edit{function: "f"}, file: "a.go", start: [2]int{8, 1}, within: scope}, false, []string{"Test1"}},
		{mutant{edit: edit{function: "f"}, file: "a.go", start: [2]int{6, 1}, within: scope}, false, []string{"Test1", "Test0"}},
		{mutant{edit: edit{function: "f"}, file: "b.go", start: [2]int{4, 1}, within: scope}, false, nil},
		{mutant{file: "a.go", start: [2]int{1, 1}}, false, []string{"Test2", "Test1", "Test0"}},
		{mutant{edit: edit{function: "f"}, file: "a.lua", start: [2]int{1, 1}}, false, []string{"Test2", "Test1", "Test0"}},
		{mutant{edit: edit{function: "f"}, file: "a.go", start: [2]int{8, 1}, within: scope}, true, []string{"TestSkipped", "Test1"}},
	} {
		var got []string
		for _, test := range b.suspects(&tt.m, tt.full) {
			got = append(got, test.name)
		}
		requireEqual(t, tt.want, got)
	}
}

// A mutant that fails a test in some of its runs is killed by it. What passes each time after a
// failure is left out when that was the third.
func TestATestThatFailsInSomeRuns(t *testing.T) {
	dir := t.TempDir()
	bin, runs := filepath.Join(dir, "bin"), filepath.Join(dir, "runs")
	fails := func(at string) {
		script := "#!/bin/sh\necho >> " + runs + "\ncase $(wc -l < " + runs + ") in " + at + ") echo '--- FAIL: TestX (0.00s)'; exit 1;; esac\n"
		if err := os.WriteFile(bin, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(runs)
	}
	s := &suite{flaky: make(map[string][]string), strikes: make(map[string]int)}
	j := judge{pkg: "."}
	try := func() (fate, string) {
		r, killer, err := s.run(t.Context(), j, bin, nil, []string{"TestX"}, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		return r, killer
	}
	fails("1|5")
	if r, killer := try(); r != killed || killer != "TestX" {
		t.Error(r, killer)
	}
	for strike := range strikes {
		if s.skipped(j) != "" {
			t.Error("left out after", strike)
		}
		fails("1")
		if r, _ := try(); r != survived {
			t.Error(strike, r)
		}
	}
	if s.skipped(j) != "^(TestX)$" {
		t.Error("not left out", s.skipped(j))
	}
}
