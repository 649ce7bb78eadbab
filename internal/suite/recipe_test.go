package suite_test

import (
	"bytes"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
)

// What follows is "Add an algorithm" of CONTRIBUTING.md, done to a copy of this module for
// a GCRA, which decides as a token bucket does.

const (
	mostTouched = 6 // files beside the two of the algorithm
	inProse     = 2 // of them: README.md and CHANGELOG.md
)

// theAlgorithm and whatIsKnownOfIt are the new files of the copy, and where they are here.
var (
	theAlgorithm    = map[string]string{"gcra.go": "gcra.go.txt", "scripts/gcra.lua": "gcra.lua"}
	whatIsKnownOfIt = map[string]string{"store/storetest/gcra.go": "model.go.txt"}
)

// edits are made to files of the copy.
var edits = []struct{ file, anchor, replacement string }{
	{
		"limiter.go",
		"\t{&leakyBucket, queue.Leaky, func() one { return new(LeakyBucket) }},\n",
		"\t{&leakyBucket, queue.Leaky, func() one { return new(LeakyBucket) }},\n\t{&gcra, queue.Bucket, func() one { return new(GCRA) }},\n",
	},
	{"store/storetest/algorithms.go", "tokenBucket, leakyBucket}\n", "tokenBucket, leakyBucket, gcra}\n"},
}

// TestASixthAlgorithmIsTwoFilesAndFewEdits compiles and tests the copy in a long run alone, for two
// minutes on two cores. Each run sees whether the recipe still fits.
func TestASixthAlgorithmIsTwoFilesAndFewEdits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	copyModule(t, dir)
	touched := map[string]bool{}
	addFiles(t, dir, theAlgorithm)
	addFiles(t, dir, whatIsKnownOfIt)
	for file := range whatIsKnownOfIt {
		touched[file] = true
	}
	for _, e := range edits {
		replace(t, filepath.Join(dir, e.file), e.anchor, e.replacement)
		touched[e.file] = true
	}
	const schema = 1 // go generate ./config
	require.LessOrEqual(t, len(touched)+schema+inProse, mostTouched)

	addFiles(t, dir, map[string]string{"internal/suite/recipe_check_test.go": "recipe_check_test.go.txt"})
	if !effort.Long() {
		return
	}
	goDoes(t, dir, "generate", "./config")
	goDoes(t, dir, "test", "-short", "./...") // no test takes the five for all that there are
	suite := filepath.Join(dir, "internal", "suite")
	goDoes(t, suite, "test", "-short", "./...")
	require.NotContains(t, goDoes(t, suite, "test", "-run", "^TestRecipe", "."), "no tests to run")
	// The five are not among these, and the checks of all on one store are.
	const ofIt = "/(gcra|limit|key)"
	out := goDoes(t, dir, "test", "-v", "-run", "^Test(ReferenceStore$|Conformance)"+ofIt, "./store/...")
	for _, test := range []string{"TestReferenceStore", "TestConformance", "TestConformanceOnRedis"} {
		require.Contains(t, out, "--- PASS: "+test+"/gcra ")
	}
}

// copyModule copies the module to dir without this test, which would copy the copy.
func copyModule(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch to := filepath.Join(dir, path); {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".bin", "site/node_modules", "site/dist"}, path):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular() || path == "internal/suite/recipe_test.go":
			return nil
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(to, data, 0o644)
		}
	}))
}

// addFiles adds files of testdata to the copy in dir. It must not have them.
func addFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for to, from := range files {
		data, err := os.ReadFile(filepath.Join("internal", "suite", "testdata", "recipe", from))
		require.NoError(t, err)
		if strings.HasSuffix(to, ".go") {
			formatted, err := format.Source(data)
			require.NoError(t, err, from)
			require.True(t, bytes.Equal(formatted, data), "gofmt would change %s", from)
		}
		to = filepath.Join(dir, filepath.FromSlash(to))
		require.NoFileExists(t, to)
		require.NoError(t, os.WriteFile(to, data, 0o644))
	}
}

// replace makes an edit.
func replace(t *testing.T, file, anchor, replacement string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(data), anchor),
		"%s has no such line any more, or has it twice: %q\nChange it in edits, and CONTRIBUTING.md if the recipe is another now.", file, anchor)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(data), anchor, replacement, 1)), 0o644))
}

// goDoes runs the go tool in the copy, and returns what it says.
func goDoes(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RATELIMIT_LONG=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %s:\n%s", strings.Join(args, " "), out)
	return string(out)
}
