package suite_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tables of "Where things are" name files that exist, and where they divide a folder, they leave
// none of its files out.
func TestTheMapOfTheCodeNamesWhatIsThere(t *testing.T) {
	text, err := os.ReadFile(".github/CONTRIBUTING.md")
	require.NoError(t, err)
	_, tables, _ := strings.Cut(string(text), "\n## Where things are\n")
	tables, _, _ = strings.Cut(tables, "\n### The nouns\n")
	require.NotEmpty(t, tables)

	named := map[string][]string{} // by folder
	folder, quoted := "", regexp.MustCompile("`([^` ]+)`")
	for line := range strings.Lines(tables) {
		if of, ok := strings.CutPrefix(line, "The files of `"); ok {
			folder, _, _ = strings.Cut(of, "`")
			named[folder] = []string{}
			continue
		}
		if !strings.HasPrefix(line, "|") {
			if strings.TrimSpace(line) != "" {
				folder = ""
			}
			continue
		}
		dir := folder // of the short names of this row
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			name := m[1]
			if !strings.Contains(name, "/") && path.Ext(name) == "" || strings.ContainsAny(name, "<*") {
				continue // a word
			}
			at := path.Join(dir, name)
			if _, err := os.Stat(at); err != nil {
				at = name
			}
			if _, err := os.Stat(at); err != nil {
				t.Errorf("%s: %q is nowhere", strings.TrimSpace(line), name)
			}
			if path.Ext(at) == "" {
				dir = path.Clean(at)
				continue
			}
			dir = path.Dir(at)
			named[dir] = append(named[dir], path.Base(at))
		}
	}
	for dir, names := range named {
		files, err := filepath.Glob(path.Join(dir, "*.go"))
		require.NoError(t, err)
		var missing []string
		for _, file := range files {
			if name := path.Base(file); !strings.HasSuffix(name, "_test.go") && name != "doc.go" && !slices.Contains(names, name) {
				missing = append(missing, file)
			}
		}
		if len(missing) < len(names) { // otherwise the folder is named as a whole, and some of its files
			require.Empty(t, missing, "these are in no row")
		}
	}
}
