package suite_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// While a fleet is updated, processes of two builds call the same keys: of this tree, and of
// RATELIMIT_REVISION or else the last release. They are admitted no more and no less than one build, on leases too,
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
		Began, Ended   time.Time
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
	for _, name := range append([]string{"lease of fixed_window", "lease of sliding_window"}, algorithms...) {
		admitted := []int{ran[0].Admitted[name], ran[1].Admitted[name]}
		require.Positive(t, admitted[0], name)
		require.Positive(t, admitted[1], name)
		for _, p := range then {
			require.Equal(t, 2_000, admitted[0]+admitted[1]+p.Left[name], "%s: %v were admitted, %d are left", name, admitted, p.Left[name])
		}
	}
	began, ended := ran[0].Began, ran[0].Ended
	if ran[1].Began.Before(began) {
		began = ran[1].Began
	}
	if ran[1].Ended.After(ended) {
		ended = ran[1].Ended
	}
	const rate = 50 // a second, of a bucket and of a log
	for name, most := range map[string]float64{
		"lease of token_bucket": rate + rate*ended.Sub(began).Seconds(),
		"lease of sliding_log":  rate + rate*math.Floor(ended.Sub(began).Seconds()),
	} {
		admitted := ran[0].Admitted[name] + ran[1].Admitted[name]
		t.Logf("%s: %d admitted of at most %.0f", name, admitted, most)
		require.Positive(t, admitted, name)
		require.LessOrEqual(t, float64(admitted), most, name)
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
