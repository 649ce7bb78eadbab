package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
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

func TestFilesWithATransitionAreFound(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a.go": "var a = algorithm{rule: store.Rule{}}", "b.go": "func b(s store.State)", "c.go": "var s store.Store",
		"a_test.go": "store.State{}", "sub/a.go": "store.State{}", "scripts/a.lua": "", "scripts/d.lua": "",
		"internal/eventlog/log.go": "", "internal/eventlog/log_test.go": "", "internal/other/o.go": "store.State{}",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filesOf(root)
	if err != nil {
		t.Fatal(err)
	}
	requireEqual(t, []string{"a.go", "b.go", "internal/eventlog/log.go", "scripts/a.lua", "scripts/d.lua"}, files)
	if _, err := filesOf(t.TempDir()); err == nil {
		t.Fatal("a directory without algorithms is taken")
	}
}

// The module's own files break in at least ten ways each. Mutants of Go are Go. Each
// entry of the list of equivalents is a mutant.
func TestTheModulesFilesBreak(t *testing.T) {
	listed, err := parseEquivalents(equivalentText)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filesOf(root)
	if err != nil {
		t.Fatal(err)
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
			if filepath.Ext(file) == ".go" {
				if _, err := parser.ParseFile(token.NewFileSet(), file, broken, parser.SkipObjectResolution); err != nil {
					t.Errorf("%v: %v", m, err)
				}
			} else if _, err := luaTokens(broken); err != nil {
				t.Errorf("%v: %v", m, err)
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

func TestASampleIsSpreadOverTheFile(t *testing.T) {
	var all []*mutant
	for line := range 10 {
		all = append(all, &mutant{line: line + 1})
	}
	var rep report
	rep.add("a.go", all, 0, 3)
	rep.add("b.go", all, 7, 3)
	requireEqual(t, []fileReport{
		{name: "a.go", mutants: []*mutant{all[0], all[3], all[6]}, leftOut: 7},
		{name: "b.go", mutants: []*mutant{all[6]}},
	}, rep.files)
}

func TestTheReportNamesWhatIsToBeMended(t *testing.T) {
	var rep report
	rep.add("a.go", []*mutant{
		{file: "a.go", line: 3, edit: edit{function: "f"}, original: "a < b", mutated: "a <= b", fate: survived},
		{fate: killed}, {fate: killed}, {fate: invalid}, {fate: equivalent, listed: true},
	}, 0, 0)
	var out strings.Builder
	rep.print(&out)
	requireEqual(t, `survived: a.go:3 f
	- a < b
	+ a <= b
  mutants  killed  survived  equivalent  invalid  left out  file
        5       2         1           1        1         0  a.go
        5       2         1           1        1         0  total
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
		if got := want.rep.failed(); got != want.failed {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFilesAndLinesCanBeSelected(t *testing.T) {
	for _, tt := range []struct {
		only string
		line int
		ok   bool
	}{
		{"", 0, true},
		{"bucket.go", 0, true},
		{"scripts/bucket.lua,bucket.go:62", 62, true},
		{"scripts/bucket.lua", 0, false},
		{"bucket.go:x", 0, false},
	} {
		line, ok := selected("bucket.go", tt.only)
		requireEqual(t, tt.ok, ok)
		requireEqual(t, tt.line, line)
	}
}

func TestTheOutputOfGoTestIsJudged(t *testing.T) {
	const failing = `
{"Action":"output","Package":"p","Test":"TestA","Output":"fine\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB/x_y","Output":"want 1\n"}
{"Action":"fail","Package":"p","Test":"TestB/x_y"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`
	requireEqual(t, result{killed, test{"p", "TestB/x_y"}, "want 1\n"}, judge([]byte(failing)))
	requireEqual(t, result{fate: killed, killer: test{pkg: "p"}}, judge([]byte(`{"Action":"fail","Package":"p"}`)))
	requireEqual(t, invalid, judge([]byte(failing+`{"Action":"fail","Package":"q","FailedBuild":"q"}`)).fate)
	requireEqual(t, untested, judge([]byte("no such command")).fate)
}

func TestAStepCanBeExactlySomeTests(t *testing.T) {
	requireEqual(t, step{`^TestA$|^TestB$/^a\.b\|c$|^TestC$`, []string{"p", "q"}},
		exactly(test{"p", "TestA"}, test{"q", "TestB/a.b|c"}, test{"p", "TestC"}))
}

func TestACopyHasAllButTheHistory(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{"go.mod", "a/testdata/x", ".ci/y", ".git/z", "a/.git"} {
		if err := os.MkdirAll(filepath.Join(from, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyModule(to, from); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		found, _ := filepath.Glob(filepath.Join(to, pattern))
		for _, name := range found {
			rel, _ := filepath.Rel(to, name)
			names = append(names, filepath.ToSlash(rel))
		}
	}
	requireEqual(t, []string{".ci", "a", "go.mod", ".ci/y", "a/testdata", "a/testdata/x"}, names)
}
