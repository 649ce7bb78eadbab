// Package release tests what strangers get from a release: it commits the tree to a
// repository of its own, tags it as a release does, and fetches modules from there.
package release

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	root = "github.com/ratelimit-go/ratelimit"
	grpc = "google.golang.org/grpc"
)

// unreleased is the version of root that modules require which are only for the tree.
const unreleased = "v0.0.0"

// Each module for strangers has a program in testdata. That of a command runs it as a tool of
// its module; a command can also be installed. The program is built with three roots: the oldest that the module allows, that
// of the tree, and one whose internal packages have all moved, as in a later release.
func TestStrangersCanUseEachModule(t *testing.T) {
	needLong(t) // it builds gRPC
	r := newRepository(t)
	for dir, oldest := range modules(t) {
		patches := oldest[:strings.LastIndex(oldest, ".")+1]
		now, later := patches+"1000", patches+"1001"
		r.tagOldest(t, oldest)
		r.tag(t, r.tree, now)
		r.tag(t, r.later, later)
		roots := map[string]string{"the oldest root": oldest, "this root": now, "a later root": later}
		released, command := r.tree, strings.HasPrefix(dir, "cmd/")
		if command || dir == "serve" { // a library with a command in it
			r.tag(t, r.tree, path.Join("promlimit", now))
			r.tag(t, r.tree, path.Join("store/pgstore", now))
			released = r.untied(t, dir, now)
			delete(roots, "the oldest root")
		}
		r.tag(t, released, path.Join(dir, now))

		module := path.Join(root, dir)
		if command {
			t.Run("go install "+path.Base(dir), func(t *testing.T) {
				s := place{t.TempDir(), r.strangers}
				s.env = append(s.env, "GOBIN="+s.dir)
				s.run(t, "go", "install", module+"@"+now)
				s.run(t, filepath.Join(s.dir, path.Base(dir)), "help")
			})
		}
		for name, version := range roots {
			if version == unreleased {
				continue
			}
			program := strings.ReplaceAll(strings.Replace(dir, ".", path.Base(root), 1), "/", "-")
			t.Run(program+" with "+name, func(t *testing.T) {
				s := place{t.TempDir(), r.strangers}
				copyFile(t, filepath.Join(s.dir, "main.go"), filepath.Join("testdata", program, "main.go"))
				s.run(t, "go", "mod", "init", "example.com/stranger")
				switch {
				case command:
					s.run(t, "go", "get", "-tool", module+"@"+now)
				case module != root:
					s.run(t, "go", "get", module+"@"+now)
				}
				if version != oldest {
					s.run(t, "go", "get", root+"@"+version)
				}
				s.run(t, "go", "mod", "tidy")
				if got := s.run(t, "go", "list", "-m", "-f", "{{.Version}}", root); got != version {
					t.Fatalf("this is root %s, not %s", got, version)
				}
				s.run(t, "go", "run", ".")
			})
		}
	}
}

// The module of the root has gRPC for package grpclimit. For programs that do not import that package,
// go.mod, go.sum, the vendor folder and the binary are the same to the byte as if it were not there.
func TestOnlyProgramsThatImportGRPCGetIt(t *testing.T) {
	if testing.Short() {
		t.Skip("builds four programs")
	}
	r := newRepository(t)
	roots := [2]string{t.TempDir(), t.TempDir()} // with the package, and without it
	for _, dir := range roots {
		place{dir, r.git}.run(t, "git", "checkout", "-q", "-f", r.tree)
	}
	without := place{dir: roots[1], env: []string{"GOWORK=off"}}
	if err := os.RemoveAll(filepath.Join(without.dir, "grpclimit")); err != nil {
		t.Fatal(err)
	}
	for _, m := range requirements(t, without, "go.mod") {
		if m.Indirect { // its version may have been raised for gRPC
			without.run(t, "go", "mod", "edit", "-droprequire="+m.Path)
		}
	}
	without.run(t, "go", "mod", "tidy")

	for _, program := range []string{"ratelimit", "http-redis"} {
		t.Run(program, func(t *testing.T) {
			with, without := gets(t, roots[0], program), gets(t, roots[1], program)
			if got, want := slices.Sorted(maps.Keys(with)), slices.Sorted(maps.Keys(without)); !slices.Equal(got, want) {
				t.Errorf("there are these files, and without gRPC others:\n%v\n%v", got, want)
			}
			if bytes.Contains(slices.Concat(with["go.mod"], with["go.sum"], with["vendor/modules.txt"]), []byte(grpc)) {
				t.Error("it has gRPC")
			}
			for name, content := range with {
				if !bytes.Equal(content, without[name]) {
					t.Errorf("%s is another one because of gRPC", name)
				}
			}
		})
	}
	t.Run("grpclimit", func(t *testing.T) {
		if with := gets(t, roots[0], "grpclimit"); !bytes.Contains(with["go.mod"], []byte(grpc)) {
			t.Errorf("this is its go.mod:\n%s", with["go.mod"])
		}
	})
}

// gets returns the files of a stranger's module, with its vendor folder and its binary, by name. It has
// a program of testdata, which it runs if that needs no server, and the root in dir.
func gets(t *testing.T, dir, program string) map[string][]byte {
	s := place{t.TempDir(), []string{"GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false"}}
	if err := os.Symlink(dir, filepath.Join(s.dir, "root")); err != nil { // so that the path is the same
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(s.dir, "main.go"), filepath.Join("testdata", program, "main.go"))
	s.run(t, "go", "mod", "init", "example.com/stranger")
	s.run(t, "go", "mod", "edit", "-require="+root+"@v0.1.0", "-replace="+root+"=./root")
	s.run(t, "go", "mod", "tidy")
	s.run(t, "go", "build", "-o", "binary", ".")
	s.run(t, "go", "mod", "vendor")
	s.run(t, filepath.Join(s.dir, "binary"))
	if err := os.Remove(filepath.Join(s.dir, "root")); err != nil {
		t.Fatal(err)
	}
	return contents(t, s.dir)
}

// needLong skips what fails only if the scripts of a release change.
func needLong(t *testing.T) {
	t.Helper()
	if os.Getenv("RATELIMIT_LONG") != "1" {
		t.Skip("RATELIMIT_LONG=1 runs it")
	}
}

// README begins with a program and what fetches its imports. A stranger does that, in this order,
// in an empty folder.
func TestTheBeginningOfREADMEWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("fetches modules")
	}
	readme, err := os.ReadFile(here.dir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRepository(t)
	r.tag(t, r.tree, "v0.1.1000")
	text := string(readme)
	if said, ok := follow(t, r, text); !ok {
		t.Fatal(said)
	}
	// Without the modules it does not compile.
	if said, ok := follow(t, r, strings.Replace(text, "go mod tidy", "true", 1)); ok || !strings.Contains(said, "go get") {
		t.Errorf("nothing in place of go mod tidy: %t, %s", ok, said)
	}
}

var fence = regexp.MustCompile("(?ms)^```(go|sh|console)\n(.*?)^```$")

// follow does what the blocks of a page say, down to the first console, whose "go run ." must
// compile. It returns whether all works, and else what is said.
func follow(t *testing.T, r *repository, page string) (said string, ok bool) {
	s := place{t.TempDir(), r.strangers}
	for _, block := range fence.FindAllStringSubmatch(page, -1) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", block[2])
		switch block[1] {
		case "go":
			if err := os.WriteFile(filepath.Join(s.dir, "main.go"), []byte(block[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case "console":
			if !strings.HasPrefix(block[2], "$ go run . &\n") {
				t.Fatalf("the first console does not run the program:\n%s", block[2])
			}
			cmd = exec.CommandContext(t.Context(), "go", "vet", ".")
		}
		cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
		if out, err := cmd.CombinedOutput(); err != nil || block[1] == "console" {
			return string(out), err == nil
		}
	}
	t.Fatal("there is no console")
	return "", false
}

// The script of CONTRIBUTING tags a clone of a bare repository and pushes there. Then strangers
// can fetch each module, which the script itself tries, and run the command.
func TestTheScriptReleasesEachModule(t *testing.T) {
	needLong(t)
	const version = "v0.1.1002-rc.1"
	r := newRepository(t)
	for _, oldest := range modules(t) {
		if oldest != unreleased {
			r.tagOldest(t, oldest)
		}
	}
	bare := place{t.TempDir(), r.git}
	bare.run(t, "git", "branch", "-f", "main", r.tree)
	clone := place{filepath.Join(t.TempDir(), "clone"), r.strangers}
	here.run(t, "git", "clone", "-q", "-b", "main", strings.TrimPrefix(r.git[1], "GIT_DIR="), clone.dir)
	script := filepath.Join("tools", "release", "tag")
	refused := func(why string) {
		t.Helper()
		if said := clone.fail(t, script, version); !strings.Contains(said, why) {
			t.Fatalf("it says %q, not %q", said, why)
		}
	}

	refused("CHANGELOG.md has no ## [0.1.1002-rc.1]")
	changes, err := os.OpenFile(filepath.Join(clone.dir, "CHANGELOG.md"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := changes.WriteString("\n## [0.1.1002-rc.1] - 2026-01-02\n"); err != nil {
		t.Fatal(err)
	}
	if err := changes.Close(); err != nil {
		t.Fatal(err)
	}
	refused("not committed")
	clone.run(t, "git", "commit", "-q", "-am", "release")
	clone.run(t, script, version)
	refused("a pushed tag is never moved")

	tags := strings.Fields(bare.run(t, "git", "tag", "--list", "*"+version))
	for dir := range modules(t) {
		if tag := path.Join(dir, version); !slices.Contains(tags, tag) {
			t.Errorf("no tag %s among %v", tag, tags)
		}
	}
	if got, want := bare.run(t, "git", "rev-parse", version+"^{commit}"), clone.run(t, "git", "rev-parse", "main"); got != want {
		t.Errorf("the root is %s, not %s of main", got, want)
	}
	s := place{t.TempDir(), r.strangers}
	s.env = append(s.env, "GOBIN="+s.dir)
	s.run(t, "go", "install", root+"/cmd/ratelimit@"+version)
	s.run(t, filepath.Join(s.dir, "ratelimit"), "help")
}

// The notes of a release are its part of the changelog.
func TestTheNotesOfAReleaseAreItsPartOfTheChangelog(t *testing.T) {
	s := place{dir: t.TempDir()}
	script := filepath.Join("tools", "release", "notes")
	if err := os.MkdirAll(filepath.Join(s.dir, filepath.Dir(script)), 0o700); err != nil {
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(s.dir, script), "notes")
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(s.dir, "CHANGELOG.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("# Changelog\n\n## [Unreleased]\n\nnot yet\n\n## [1.0.0] - 2026-03-04\n\nThe first.\n\n### observe\n\n- a page\n\n" +
		"## [1.0.0-rc.1] - 2026-02-03\n\nFor a try.\n\n## [0.1.0] - 2026-01-02\n")
	for version, want := range map[string]string{
		"v1.0.0": "The first.\n\n### observe\n\n- a page", "v1.0.0-rc.1": "For a try.", "v0.1.0": "",
	} {
		if got := s.run(t, "bash", script, version); got != want {
			t.Errorf("%s: %q, not %q", version, got, want)
		}
	}
	for _, version := range []string{"v1.0.1", "v1.0", "v1x0.0", "Unreleased"} {
		if said := s.fail(t, "bash", script, version); !strings.Contains(said, "CHANGELOG.md has no ## [") {
			t.Errorf("%s: it says %q", version, said)
		}
	}
}

// A command, and the playground's WebAssembly, have the same bytes when they are built in two folders.
// The other command is built by the same script.
func TestBinariesDoNotDependOnTheFolder(t *testing.T) {
	needLong(t)
	r := newRepository(t)
	built := make([]map[string][]byte, 2)
	for i := range built {
		tree := place{filepath.Join(t.TempDir(), strings.Repeat("deep/", 3*i), "tree"), r.git}
		if err := os.MkdirAll(tree.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		tree.run(t, "git", "checkout", "-q", "-f", r.tree)
		out := t.TempDir()
		tree.env = []string{
			"GOWORK=off", "GOFLAGS=", "PLATFORMS=" + runtime.GOOS + "/" + runtime.GOARCH,
			"CGO_ENABLED=" + here.run(t, "go", "env", "CGO_ENABLED"), // so that what others have built is found again
		}
		tree.run(t, filepath.Join("tools", "release", "binaries"), "cmd/ratelimit", out)
		page := place{filepath.Join(tree.dir, "examples", "playground"), []string{"GOWORK=off", "GOFLAGS=", "GOOS=js", "GOARCH=wasm"}}
		page.run(t, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(out, "page.wasm"), "./wasm") // as its site.go
		built[i] = contents(t, out)
	}
	for name, content := range built[0] {
		if !bytes.Equal(content, built[1][name]) {
			t.Errorf("%s is another one in another folder", name)
		}
	}
	binary := "ratelimit-" + runtime.GOOS + "-" + runtime.GOARCH
	if got, want := slices.Sorted(maps.Keys(built[0])), []string{"SHA256SUMS", "page.wasm", binary, binary + ".sbom.txt"}; !slices.Equal(got, want) {
		t.Fatalf("these were built: %v", got)
	}
	if sbom := built[0][binary+".sbom.txt"]; !bytes.Contains(sbom, []byte("dep\tgithub.com/redis/go-redis/v9\tv")) {
		t.Errorf("the SBOM does not say what is in it:\n%s", sbom)
	}
}

// contents are the files in dir and in its folders, by their paths.
func contents(t *testing.T, dir string) map[string][]byte {
	all := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all[name], err = os.ReadFile(filepath.Join(dir, name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// forTheTree matches the files of modules that are not for strangers, whatever they require.
var forTheTree = regexp.MustCompile("^(examples|benchmarks|internal)/")

// modules returns the modules of the tree that are for strangers, by directory, each with
// the oldest root that it allows. Examples are not for them.
func modules(t *testing.T) map[string]string {
	found := map[string]string{".": unreleased}
	for file := range strings.FieldsSeq(here.run(t, "git", "ls-files", "--cached", "--others", "--exclude-standard", "*/go.mod")) {
		for _, m := range requirements(t, here, file) {
			if m.Path == root && m.Version != unreleased && !forTheTree.MatchString(file) {
				found[path.Dir(file)] = m.Version
			}
		}
	}
	return found
}

// requirement is a line of a go.mod.
type requirement struct {
	Path, Version string
	Indirect      bool
}

func requirements(t *testing.T, in place, file string) []requirement {
	var mod struct{ Require []requirement }
	if err := json.Unmarshal([]byte(in.run(t, "go", "mod", "edit", "-json", file)), &mod); err != nil {
		t.Fatal(err)
	}
	return mod.Require
}

// repository is a git repository with two commits.
type repository struct {
	git       []string // the environment of git
	tree      string   // the commit of the tree
	later     string   // the commit of the tree with its internal packages moved
	strangers []string // the environment of strangers, who take it for the repository at GitHub
}

func newRepository(t *testing.T) *repository {
	dir := t.TempDir()
	bare, config := filepath.Join(dir, "git"), filepath.Join(dir, "gitconfig")
	text := "[user]\nname = release\nemail = release@example.com\n[url \"file://" + bare + "\"]\ninsteadOf = https://" + root + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cache, proxies := here.run(t, "go", "env", "GOMODCACHE"), here.run(t, "go", "env", "GOPROXY")
	r := &repository{
		git: []string{"GIT_CONFIG_GLOBAL=" + config, "GIT_DIR=" + bare, "GIT_WORK_TREE=."},
		strangers: []string{
			"GIT_CONFIG_GLOBAL=" + config,
			"GOPATH=" + filepath.Join(dir, "go"),
			"GOMODCACHE=" + filepath.Join(dir, "go", "mod"),
			"GOPROXY=file://" + cache + "/cache/download," + proxies, // the cache already has what the tree needs
			"GOPRIVATE=" + root,
			"GOFLAGS=-modcacherw -trimpath", // so that the cache can be removed, and builds are found again
			"GOWORK=off",
		},
	}
	here.run(t, "git", "init", "-q", "--bare", bare)
	r.tree = r.commit(t, here.dir)

	later := place{filepath.Join(dir, "later"), r.git}
	if err := os.Mkdir(later.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	later.run(t, "git", "checkout", "-q", "-f", r.tree)
	moveInternal(t, later.dir)
	r.later = r.commit(t, later.dir)
	return r
}

// commit commits all files in dir.
func (r *repository) commit(t *testing.T, dir string) string {
	g := place{dir, r.git}
	g.run(t, "git", "add", "-A")
	g.run(t, "git", "commit", "-q", "-m", "release")
	return g.run(t, "git", "rev-parse", "HEAD")
}

func (r *repository) tag(t *testing.T, commit, name string) {
	place{here.dir, r.git}.run(t, "git", "tag", "-f", name, commit)
}

// untied commits the tree as the release of a command does, which depends on the root of its
// own version. For "go install" refuses a module with a replace line.
func (r *repository) untied(t *testing.T, dir, version string) string {
	tree := place{t.TempDir(), r.git}
	tree.run(t, "git", "checkout", "-q", "-f", r.tree)
	module := place{filepath.Join(tree.dir, dir), r.strangers}
	for _, needed := range []string{root, root + "/promlimit", root + "/store/pgstore"} {
		mod, err := os.ReadFile(filepath.Join(module.dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(mod, []byte(needed+" v")) {
			module.run(t, "go", "mod", "edit", "-dropreplace="+needed, "-require="+needed+"@"+version)
		}
	}
	module.run(t, "go", "mod", "tidy")
	return r.commit(t, tree.dir)
}

// tagOldest sets the tag of the oldest root. If that is not released yet, it is the root of
// the tree.
func (r *repository) tagOldest(t *testing.T, name string) {
	if here.run(t, "git", "tag", "--list", name) == "" {
		r.tag(t, r.tree, name)
		return
	}
	from := here.run(t, "git", "rev-parse", "--path-format=absolute", "--git-common-dir")
	place{here.dir, r.git}.run(t, "git", "fetch", "-q", "--no-tags", from, "refs/tags/"+name+":refs/tags/"+name)
}

// moveInternal moves the packages in internal to internal/moved.
func moveInternal(t *testing.T, dir string) {
	internal, aside := filepath.Join(dir, "internal"), filepath.Join(dir, "moved")
	err := os.Rename(internal, aside)
	if err == nil {
		err = os.Mkdir(internal, 0o700)
	}
	if err == nil {
		err = os.Rename(aside, filepath.Join(internal, "moved"))
	}
	if err == nil {
		err = filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" {
				return err
			}
			src, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			src = bytes.ReplaceAll(src, []byte(root+"/internal/"), []byte(root+"/internal/moved/"))
			return os.WriteFile(file, src, 0o600)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, to, from string) {
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// place is a directory for commands, with additions to their environment.
type place struct {
	dir string
	env []string
}

var here = place{dir: filepath.Join("..", "..")}

// fail returns what a command says that must fail.
func (p place) fail(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("%v did not fail:\n%s", cmd, out)
	}
	return string(out)
}

// run returns what the command prints, without surrounding space.
func (p place) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}
