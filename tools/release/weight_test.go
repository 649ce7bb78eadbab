package release

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// What a stranger downloads of the root module is no more than this: bytes of its zip. Tests, data and tools that are
// not needed to build or test a package belong into a folder with a go.mod, which the zip leaves out.
const mostBytes = 1_600_000

// largest is how large a program with a limiter may be, beside one that is as good without it, both without
// symbols: one in memory beside that of another library, an HTTP server beside a bare one.
const largest = 1.25

const peer = "github.com/sethvargo/go-limiter@v0.7.1"

func TestDownloadsAreSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("commits the tree")
	}
	const version = "v0.1.1000"
	r := newRepository(t)
	r.tag(t, r.tree, version)
	s := place{t.TempDir(), r.strangers}
	var downloaded struct{ Zip string }
	if err := json.Unmarshal([]byte(s.run(t, "go", "mod", "download", "-json", root+"@"+version)), &downloaded); err != nil {
		t.Fatal(err)
	}
	size := sizeOf(t, downloaded.Zip)
	t.Logf("the root's zip has %d bytes", size)
	if size > mostBytes {
		t.Errorf("more than %d", mostBytes)
	}
}

func TestProgramsOfStrangersAreSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	const version = "v0.1.1000"
	r := newRepository(t)
	r.tag(t, r.tree, version)
	s := place{t.TempDir(), r.strangers}
	programs := map[string]string{
		"memory": "ratelimit", "go-limiter": filepath.Join("weight", "go-limiter"),
		"limited": filepath.Join("weight", "limited"), "bare": filepath.Join("weight", "bare"),
	}
	for name, from := range programs {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		copyFile(t, filepath.Join(s.dir, name, "main.go"), filepath.Join("testdata", from, "main.go"))
	}
	s.run(t, "go", "mod", "init", "example.com/stranger")
	s.run(t, "go", "get", root+"@"+version, peer)
	s.run(t, "go", "mod", "tidy")
	out := t.TempDir()
	s.run(t, "go", "build", "-ldflags=-s -w", "-o", out+string(filepath.Separator), "./...")
	for name, beside := range map[string]string{"memory": "go-limiter", "limited": "bare"} {
		size, other := sizeOf(t, filepath.Join(out, name)), sizeOf(t, filepath.Join(out, beside))
		ratio := float64(size) / float64(other)
		t.Logf("%s: %d bytes, %.3f of %s", name, size, ratio, beside)
		if ratio > largest {
			t.Errorf("%s is more than %v of %s", name, largest, beside)
		}
	}
}

func sizeOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
