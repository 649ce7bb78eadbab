package copies_test

import (
	"errors"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/ratelimit-go/ratelimit"
	header = "// Code generated from %s by go generate ./internal/copies; DO NOT EDIT.\n\n"
)

var update = flag.Bool("update", false, "write the copies instead of comparing them")

func TestModulesHaveTheirCopies(t *testing.T) {
	for original, modules := range map[string][]string{
		"internal/clientip/clientip.go":                  {"serve"},
		"internal/yamltree/yamltree.go":                  {"serve"},
		"store/pgstore/internal/pgtest/pgtest.go":        {"internal/suite", "cmd/ratelimit"},
		"store/pgstore/internal/pgtest/process_linux.go": {"internal/suite", "cmd/ratelimit"},
		"store/pgstore/internal/pgtest/process_other.go": {"internal/suite", "cmd/ratelimit"},
	} {
		text, err := os.ReadFile(filepath.Join(root, original))
		if errors.Is(err, fs.ErrNotExist) {
			continue // that module is not beside this one
		}
		require.NoError(t, err)
		_, name, _ := strings.Cut("/"+original, "/internal/")
		for _, module := range modules {
			want, copied := fmt.Sprintf(header, path.Dir(original))+string(text), filepath.Join(root, module, "internal", name)
			if *update {
				require.NoError(t, os.WriteFile(copied, []byte(want), 0o644))
			}
			got, err := os.ReadFile(copied)
			if errors.Is(err, fs.ErrNotExist) {
				continue // as above
			}
			require.NoError(t, err)
			require.Equal(t, want, string(got), "run go generate ./internal/copies")
		}
	}
}

// A newer root and an older module did not compile together when one imported the other's
// internal packages. Tests of modules that are never released may: they have this root.
func TestOtherModulesImportNothingInternalOfThisOne(t *testing.T) {
	for _, dir := range modules(t) {
		own, err := filepath.Rel(root, dir)
		require.NoError(t, err)
		unreleased := own == "benchmarks" || own == filepath.Join("internal", "suite") || strings.HasPrefix(filepath.ToSlash(own), "examples/")
		err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || unreleased && strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				require.NoError(t, err)
				internal := strings.HasPrefix(imported, module+"/") && strings.Contains(imported, "/internal/")
				require.False(t, internal && !strings.HasPrefix(imported, module+"/"+filepath.ToSlash(own)+"/"), "%s imports %s", path, imported)
			}
			return nil
		})
		require.NoError(t, err)
	}
}

// modules returns the directories of the other modules of this repository.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "go.mod" && filepath.Dir(path) != filepath.Clean(root) {
			dirs = append(dirs, filepath.Dir(path))
		}
		return err
	})
	require.NoError(t, err)
	return dirs
}
