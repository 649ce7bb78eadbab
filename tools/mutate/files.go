package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// patterns are the files to break, relative to the module. Of the Go files at its root,
// only those with a transition are broken.
var patterns = []string{"*.go", "internal/bucket/*.go", "internal/eventlog/*.go", "internal/exact/*.go", "scripts/*.lua"}

// transition matches only files with a transition or a rule.
var transition = regexp.MustCompile(`\bstore\.(State\b|Rule\{)`)

// filesOf returns the files to break in the module in root.
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
