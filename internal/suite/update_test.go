package suite_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// While a fleet is updated, processes of two builds call the same keys: of this tree, and of
// RATELIMIT_REVISION or else the last release. They are admitted no more and no less than one build,
// and hold no slot too many. Before the first release the other build is that of the last commit.
func TestAnUpdateOfAFleetKeepsCounts(t *testing.T) {
	t.Parallel()
	effort.NeedFull(t)
	effort.OneGoroutine(t)
	const suite, program = "internal/suite", "./testdata/update"
	addr, dir := redistest.Start(t).Addr(), t.TempDir()
	before := filepath.Join(dir, "before")
	unpack(t, revision(t), before)
	source, err := os.ReadFile(filepath.Join(suite, program, "main.go"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(before, suite, program), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(before, suite, program, "main.go"), source, 0o600))
	builds := []string{filepath.Join(dir, "old"), filepath.Join(dir, "new")}
	for i, tree := range []string{before, "."} {
		output(t, filepath.Join(tree, suite), "go", "build", "-trimpath", "-buildvcs=false", "-o", builds[i], program)
	}

	type process struct {
		Admitted, Left map[string]int
		Banned         bool
		Held           int64
	}
	var ran, then [2]process // then they only look
	run := func(ps *[2]process, calls string) {
		var both sync.WaitGroup
		for i, build := range builds {
			both.Go(func() { assertJSON(t, output(t, ".", build, addr, calls), &ps[i]) })
		}
		both.Wait()
	}
	run(&ran, "300")
	run(&then, "0")
	for _, algorithm := range algorithms {
		admitted := []int{ran[0].Admitted[algorithm], ran[1].Admitted[algorithm]}
		require.Positive(t, admitted[0], algorithm)
		require.Positive(t, admitted[1], algorithm)
		for _, p := range then {
			require.Equal(t, 2_000, admitted[0]+admitted[1]+p.Left[algorithm], "%s: %v were admitted, %d are left", algorithm, admitted, p.Left[algorithm])
		}
	}
	for i := range then {
		require.Positive(t, ran[i].Held)
		require.LessOrEqual(t, ran[i].Held, int64(3), "slots that were held at once")
		require.True(t, then[i].Banned, "three denials that each has seen are six")
	}
}

// revision is what this tree is judged beside.
func revision(t *testing.T) string {
	t.Helper()
	if r := os.Getenv("RATELIMIT_REVISION"); r != "" {
		return r
	}
	git := func(args ...string) string {
		out, _ := exec.CommandContext(t.Context(), "git", args...).Output()
		return strings.TrimSpace(string(out))
	}
	parent := git("rev-parse", "--verify", "-q", "HEAD^")
	if parent == "" {
		t.Skip("there is no history")
	}
	if tag := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", parent); tag != "" {
		return tag
	}
	return parent
}

// unpack puts the tree of a revision into dir.
func unpack(t *testing.T, revision, dir string) {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o700))
	archive := filepath.Join(t.TempDir(), "tree.tar")
	output(t, ".", "git", "archive", "-o", archive, revision)
	output(t, dir, "tar", "-xf", archive)
}

// output is what a command prints. It fails t, and can do so on any goroutine.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %v\n%s%s", cmd, err, out, stderr.Bytes())
	}
	return string(out)
}

func assertJSON(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Errorf("%q: %v", text, err)
	}
}
