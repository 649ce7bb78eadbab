package suite_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
)

// block is what stands between two fences of a document.
type block struct {
	page, language, text string
	line                 int
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// program reports whether b is a whole one.
func (b block) program() bool {
	return b.language == "go" && strings.HasPrefix(b.text, "package main\n")
}

// pages are the documents of the root's module.
func pages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return append(pages, "docs/llms.txt", "README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "examples/README.md", "benchmarks/README.md", "grpclimit/README.md", "promlimit/README.md", "otellimit/README.md", "store/pgstore/README.md")
}

var fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range fence.FindAllSubmatchIndex(text, -1) {
		all = append(all, block{page, string(text[m[2]:m[3]]), string(text[m[4]:m[5]]), 1 + bytes.Count(text[:m[4]], []byte("\n"))})
	}
	return all
}

// TestDocumentsShowWhatCompiles: each block of Go is a program, which is built, or an excerpt
// of one, or of a file that is compiled with the tests. A line of three dots leaves some out.
func TestDocumentsShowWhatCompiles(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	var compiled strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			compiled.WriteString(unindented(string(text)))
		}
		return err
	}))
	var programs []block
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			if b.program() {
				programs = append(programs, b)
				compiled.WriteString(unindented(b.text))
			}
		}
	}
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			if b.language != "go" {
				continue
			}
			for _, lines := range strings.Split(b.text, "...\n") {
				if !strings.Contains(compiled.String(), unindented(lines)) {
					t.Errorf("%v: these lines stand in no file that compiles:\n%s", b, lines)
				}
			}
		}
	}
	if testing.Short() || !effort.Full() {
		return // building them takes many seconds
	}
	for _, b := range programs {
		b.build(t, strings.NewReplacer())
	}
}

// TestThePatchOfREADMEMakesAProgram: README begins with a program, and says which lines put it on
// Redis. They are all that there are to change.
func TestThePatchOfREADMEMakesAProgram(t *testing.T) {
	t.Parallel()
	effort.NeedFull(t)
	if testing.Short() {
		t.Skip("builds a program")
	}
	all := blocks(t, "README.md")
	program := all[slices.IndexFunc(all, block.program)]
	patch := all[slices.IndexFunc(all, func(b block) bool { return strings.Contains(b.text, "redis.NewClient(") })].text
	inMain := strings.LastIndex(patch, "...\n")
	for line, by := range map[string]string{
		`\t".*/store/memstore"`:        strings.ReplaceAll(patch[:inMain], "...\n", ""),
		`\tstore := .*\n\tlimit := .*`: strings.TrimPrefix(patch[inMain:], "...\n"),
	} {
		program.text = regexp.MustCompile(`(?m)^`+line+`\n`).ReplaceAllLiteralString(program.text, by)
	}
	require.NotContains(t, program.text, "memstore.New")
	program.build(t, strings.NewReplacer())
}

// unindented is text without the blanks at the ends of its lines, and without empty lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// build compiles the program with other addresses.
func (b block) build(t *testing.T, addresses *strings.Replacer) (path string) {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, []byte(addresses.Replace(b.text)), 0o600))
	root, err := os.Getwd()
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "examples", "program", "main.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	out, err := exec.Command("go", "build", "-o", path, "-overlay", filepath.Join(dir, "overlay.json"), "./examples/program").CombinedOutput()
	require.NoError(t, err, "%v: %s", b, out)
	return path
}

// TestDocumentsPrintWhatTheySay runs each program that is followed by a console, and the
// commands of the console.
func TestDocumentsPrintWhatTheySay(t *testing.T) {
	t.Parallel()
	effort.NeedFull(t)
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	for _, page := range pages(t) {
		var program block
		for _, b := range blocks(t, page) {
			switch {
			case b.program():
				program = b
			case b.language == "console":
				t.Run(b.String(), func(t *testing.T) {
					if _, err := exec.LookPath("curl"); err != nil && strings.Contains(b.text, "curl") {
						t.Skip("there is no curl")
					}
					playConsole(t, program, b.text)
				})
			}
		}
	}
}

// playConsole does what a console shows, with addresses of its own in place of 8080 and 8081. "go
// run ." is the program, and with "&" a server; "go run ./examples/…" is that of the repository.
func playConsole(t *testing.T, program block, console string) {
	address := freeAddress(t)
	addresses := []string{"localhost:8080", address, "localhost:8081", freeAddress(t)}
	if strings.Contains(program.text, "localhost:6379") {
		addresses = append(addresses, "localhost:6379", redistest.Start(t).Addr())
	}
	other := strings.NewReplacer(addresses...)
	dir, path := t.TempDir(), ""
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for _, step := range strings.Split("\n"+console, "\n$ ")[1:] {
		line, want, _ := strings.Cut(step, "\n")
		if strings.HasPrefix(line, "go run .") && path == "" && !strings.HasPrefix(line, "go run ./") {
			path = program.build(t, other)
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+path)
		if cmd.Dir = dir; line == "go run . &" {
			startServer(t, cmd, address)
			continue
		}
		if strings.HasPrefix(line, "go run ./") {
			cmd.Dir = ""
		} else if line == "go run ." {
			line = path
		}
		cmd.Args[2] = other.Replace(line)
		got, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, got)
		require.Regexp(t, pattern(want), unindented(strings.ReplaceAll(string(got), "\r", "")), line)
	}
}

// startServer starts a server, which ends with the test.
func startServer(t *testing.T, cmd *exec.Cmd, address string) {
	t.Helper()
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
}

// pattern matches want, in which … is any text.
func pattern(want string) string {
	return "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(unindented(want)), "…", ".*") + "$"
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	header = regexp.MustCompile(`(?m)^#+ (.*)$`)
	word   = regexp.MustCompile(`[^\p{L}\p{N} -]`)
)

// TestDocumentsLinkToWhatIsThere: files and headings.
func TestDocumentsLinkToWhatIsThere(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(fence.ReplaceAll(text, nil)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, heading, _ := strings.Cut(m[1], "#")
			if path = filepath.Join(filepath.Dir(page), path); strings.HasPrefix(m[1], "#") {
				path = page
			}
			target, err := os.ReadFile(path)
			if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
				err = nil
			}
			require.NoError(t, err, "%s: %s", page, m[1])
			if heading != "" {
				require.Contains(t, anchors(string(target)), heading, "%s: %s", page, m[1])
			}
		}
	}
}

// anchors are those that GitHub makes of headings.
func anchors(text string) (all []string) {
	for _, m := range header.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(word.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
