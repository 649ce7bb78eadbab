package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/andybalholm/brotli"
)

//go:embed page
var page embed.FS

// build writes the site into dir: the page, the library as WebAssembly, and the script of
// Go's distribution that runs it. The three are of one toolchain, the one on the PATH.
func build(ctx context.Context, dir string) error {
	files, err := fs.Sub(page, "page")
	if err != nil {
		return err
	}
	if err := copyFiles(dir, files); err != nil {
		return err
	}
	wasm, err := filepath.Abs(filepath.Join(dir, "ratelimit.wasm"))
	if err != nil {
		return err
	}
	const source = "github.com/ratelimit-go/ratelimit/examples/playground/wasm"
	if _, err := goCommand(ctx, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", wasm, source); err != nil {
		return err
	}
	root, err := goCommand(ctx, "env", "GOROOT")
	if err != nil {
		return err
	}
	script, err := os.ReadFile(filepath.Join(root, "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "wasm_exec.js"), script, 0o644)
}

// copyFiles is os.CopyFS, but replaces the files of an earlier site.
func copyFiles(dir string, files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, content, 0o644)
	})
}

// goCommand runs the toolchain for browsers, and returns what it prints.
func goCommand(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// compress writes a .br and a .gz beside each file in dir, for servers that send those.
func compress(dir string) error {
	return filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(name, ".br") || strings.HasSuffix(name, ".gz") {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var br, gz bytes.Buffer
		zip, err := gzip.NewWriterLevel(&gz, gzip.BestCompression)
		if err != nil {
			return err
		}
		for _, w := range []io.WriteCloser{brotli.NewWriterLevel(&br, brotli.BestCompression), zip} {
			if _, err := w.Write(content); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		if err := os.WriteFile(name+".br", br.Bytes(), 0o644); err != nil {
			return err
		}
		return os.WriteFile(name+".gz", gz.Bytes(), 0o644)
	})
}
