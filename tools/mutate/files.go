package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// patterns are of the files that are broken, relative to the module. Of the Go files
// at its root only those are that have a transition.
var patterns = []string{"*.go", "internal/eventlog/*.go", "internal/exact/*.go", "scripts/*.lua"}

// transition is what only files with a transition or a rule have.
var transition = regexp.MustCompile(`\bstore\.(State\b|Rule\{)`)

// filesOf are the files that are broken of the module in root.
func filesOf(root string) ([]string, error) {
	var files []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if strings.HasSuffix(path, "_test.go") || pattern == "*.go" && !transition.Match(src) {
				continue
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			files = append(files, filepath.ToSlash(file))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no algorithm in %s: mutate runs in its own directory", root)
	}
	return files, nil
}
