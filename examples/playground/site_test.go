package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/stretchr/testify/require"
)

var made string // the folder of the site, once a test has asked for it

// folder builds the site once, for all tests.
var folder = sync.OnceValues(func() (dir string, err error) {
	if made, err = os.MkdirTemp("", "playground"); err != nil {
		return "", err
	}
	return made, export(context.Background(), made)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if made != "" {
		_ = os.RemoveAll(made)
	}
	os.Exit(code)
}

func TestTheLibraryIsSmall(t *testing.T) {
	dir, err := folder()
	require.NoError(t, err)
	for name, most := range map[string]int64{"ratelimit.wasm": 4_300_000, "ratelimit.wasm.br": 900_000, "ratelimit.wasm.gz": 1_225_000} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Positive(t, info.Size(), name)
		require.LessOrEqual(t, info.Size(), most, name)
	}
}

func TestCompressedFilesHaveTheSameContent(t *testing.T) {
	dir, err := folder()
	require.NoError(t, err)
	files := 0
	require.NoError(t, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(name, ".br") || strings.HasSuffix(name, ".gz") {
			return err
		}
		files++
		want := read(t, name)
		br, err := io.ReadAll(brotli.NewReader(bytes.NewReader(read(t, name+".br"))))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, br), name)
		zip, err := gzip.NewReader(bytes.NewReader(read(t, name+".gz")))
		require.NoError(t, err)
		gz, err := io.ReadAll(zip)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, gz), name)
		return nil
	}))
	require.Equal(t, 12, files)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	return content
}

func TestASiteReplacesAnEarlierOne(t *testing.T) {
	dir := t.TempDir()
	earlier := filepath.Join(dir, "index.html")
	require.NoError(t, os.WriteFile(earlier, []byte("earlier"), 0o600))
	require.NoError(t, build(t.Context(), dir))
	require.Contains(t, string(read(t, earlier)), "<!doctype html>")
}
