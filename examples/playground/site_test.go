package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
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
	if args := os.Getenv("PLAYGROUND"); args != "" {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
		return
	}
	code := m.Run()
	if made != "" {
		_ = os.RemoveAll(made)
	}
	os.Exit(code)
}

// program runs the program itself, with a folder for its temporary files.
func program(t *testing.T, temporary, args string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "PLAYGROUND="+args, "TMPDIR="+temporary)
	return cmd
}

func TestTheEndLeavesNoFolder(t *testing.T) {
	temporary := t.TempDir()
	cmd := program(t, temporary, "-listen 127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n') // the address
	require.NoError(t, err)
	require.NotEmpty(t, entries(t, temporary))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	require.Empty(t, entries(t, temporary))
}

func entries(t *testing.T, dir string) []fs.DirEntry {
	t.Helper()
	found, err := os.ReadDir(dir)
	require.NoError(t, err)
	return found
}

func TestAFolderWithoutOutIsRefused(t *testing.T) {
	out, err := program(t, t.TempDir(), "site").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `no argument "site": -out names the folder of a site`)
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
