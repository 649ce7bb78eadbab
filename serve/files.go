package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const maxText = 8 << 20 // bytes of a file

// File is a YAML text, and its name in errors.
type File struct {
	Name string
	Text []byte
}

// ReadFiles reads files. For a directory, it reads all files in it that end in .yaml or .yml, in
// the order of their names. Anything that is not a regular file, such as a named pipe, is an error,
// because it cannot be read again.
func ReadFiles(paths ...string) ([]File, error) {
	var files []File
	for _, path := range paths {
		names := []string{path}
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			names, err = inDirectory(path)
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := readFile(name)
			if err != nil {
				return nil, err
			}
			files = append(files, File{name, text})
		}
	}
	return files, nil
}

func inDirectory(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	if len(names) == 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no .yaml or .yml file")}
	}
	return names, nil
}

// readFile reads no more than the parser accepts.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name) // does not block, as opening a pipe would
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("want a regular file, not %v", info.Mode())}
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxText+1))
}
