package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What a test binary is told by its environment: the number of the mutant that it is to be,
// or a script and the file to read in its place.
const (
	envMutant = "MUTATE_MUTANT"
	envScript = "MUTATE_SCRIPT"
	envText   = "MUTATE_TEXT"
)

// seed is the source file that is added to each package with mutants.
const seed = `package %s

import (
	"os"
	"strconv"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("` + envMutant + `"))

func mutantText(name string) string {
	if name != os.Getenv("` + envScript + `") {
		return ""
	}
	text, err := os.ReadFile(os.Getenv("` + envText + `"))
	if err != nil {
		panic(err)
	}
	return string(text)
}

var _ = mutantText
`

// The function that reads a script. It is told to ask mutantText first.
const readerFile, readerName = "internal/script/script.go", "Files.Text"

// copied is where the copy of a function with a mutant stands, in lines.
type copied struct {
	from, to int
	m        *mutant
}

// plant returns src with the mutants in it: each function begins with a switch by the
// number of the mutant, and calls a copy of itself that has one edit. Therefore, one build serves all mutants,
// whatever their types. A mutant outside of the bodies is not planted.
func plant(file string, src []byte, mutants []*mutant) ([]byte, []copied, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	at := func(pos token.Pos) int { return fset.Position(pos).Offset }
	var edits []edit // insertions into the original, in order
	var copies bytes.Buffer
	var where []copied
	line := 2 + bytes.Count(src, []byte("\n"))
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || fn.Name.Name == "init" || fn.Name.Name == "main" {
			continue
		}
		var cases strings.Builder
		begin, end := at(fn.Body.Lbrace)+1, at(fn.Body.Rbrace)
		names, call := callOf(fn, at)
		if file == readerFile && goName(fn) == readerName {
			fmt.Fprintf(&cases, " if text := mutantText(%s); text != %q { return text };", fn.Type.Params.List[0].Names[0], "")
		}
		some := false
		for _, m := range mutants {
			if m.from < begin || m.to > end || m.fate == invalid {
				continue
			}
			if !some {
				cases.WriteString(" switch mutantOn {")
			}
			some, m.planted = true, true
			fmt.Fprintf(&cases, " case %d: ", m.id)
			fmt.Fprintf(&cases, call, m.id)
			text := slices.Concat([]byte("\n"), src[at(fn.Pos()):at(fn.Name.End())], fmt.Appendf(nil, "_m%d", m.id),
				src[at(fn.Name.End()):m.from], []byte(m.text), src[m.to:at(fn.End())], []byte("\n"))
			lines := bytes.Count(text, []byte("\n"))
			where = append(where, copied{line, line + lines, m})
			line += lines
			copies.Write(text)
		}
		if some {
			cases.WriteString(" };")
		}
		if cases.Len() > 0 {
			edits = append(append(edits, names...), edit{from: begin, to: begin, text: cases.String()})
		}
	}
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(append(out, src[done:e.from]...), e.text...)
		done = e.to
	}
	out = append(append(out, src[done:]...), '\n')
	return append(out, copies.Bytes()...), where, nil
}

// callOf is how a function calls the copy of it with a number, as a format, and the edits that
// give names to the parameters without one.
func callOf(fn *ast.FuncDecl, at func(token.Pos) int) (names []edit, call string) {
	unnamed := 0
	name := func(f *ast.Field) []string {
		if len(f.Names) == 0 {
			unnamed++
			n := fmt.Sprintf("mutantArg%d", unnamed)
			names = append(names, edit{from: at(f.Type.Pos()), to: at(f.Type.Pos()), text: n + " "})
			return []string{n}
		}
		var all []string
		for _, ident := range f.Names {
			n := ident.Name
			if n == "_" {
				unnamed++
				n = fmt.Sprintf("mutantArg%d", unnamed)
				names = append(names, edit{from: at(ident.Pos()), to: at(ident.End()), text: n})
			}
			all = append(all, n)
		}
		return all
	}
	var b strings.Builder
	if fn.Type.Results.NumFields() > 0 {
		b.WriteString("return ")
	}
	if fn.Recv != nil {
		b.WriteString(name(fn.Recv.List[0])[0] + ".")
	}
	b.WriteString(fn.Name.Name + "_m%d")
	if fn.Type.TypeParams != nil {
		var types []string
		for _, f := range fn.Type.TypeParams.List {
			for _, ident := range f.Names {
				types = append(types, ident.Name)
			}
		}
		b.WriteString("[" + strings.Join(types, ", ") + "]")
	}
	var args []string
	for _, f := range fn.Type.Params.List {
		args = append(args, name(f)...)
		if _, ok := f.Type.(*ast.Ellipsis); ok {
			args[len(args)-1] += "..."
		}
	}
	b.WriteString("(" + strings.Join(args, ", ") + ");")
	if fn.Type.Results.NumFields() == 0 {
		b.WriteString(" return;")
	}
	return names, b.String()
}

// overlay is a file for the -overlay of the go command, and what it replaces.
type overlay struct {
	dir     string // where the replacements are
	Replace map[string]string
}

// put lets the go command read text where it would read the file of the module.
func (o *overlay) put(root, file string, text []byte) error {
	path, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return err
	}
	to := filepath.Join(o.dir, strings.ReplaceAll(file, "/", "+"))
	if o.Replace == nil {
		o.Replace = make(map[string]string)
	}
	o.Replace[path] = to
	return os.WriteFile(to, text, 0o600)
}

func (o *overlay) write() (path string, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	path = filepath.Join(o.dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):`)

// sow plants the mutants into the module in root, and returns the overlay that does. Those that
// do not compile become invalid.
func sow(ctx context.Context, root, dir string, files []string, mutants []*mutant) (string, error) {
	if !slices.Contains(files, readerFile) {
		files = append(slices.Clone(files), readerFile)
	}
	for {
		o := overlay{dir: dir}
		where := make(map[string][]copied)
		for _, file := range files {
			if filepath.Ext(file) != ".go" {
				continue
			}
			src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			if err != nil {
				return "", err
			}
			var here []*mutant
			for _, m := range mutants {
				if m.file == file {
					here = append(here, m)
				}
			}
			text, copies, err := plant(file, src, here)
			if err != nil {
				return "", fmt.Errorf("%s: %w", file, err)
			}
			where[file] = copies
			name := regexp.MustCompile(`(?m)^package (\w+)`).FindSubmatch(src)[1]
			err = o.put(root, file, text)
			if err == nil {
				err = o.put(root, filepath.ToSlash(filepath.Join(filepath.Dir(file), "zz_mutant.go")), fmt.Appendf(nil, seed, name))
			}
			if err != nil {
				return "", err
			}
		}
		path, err := o.write()
		if err != nil {
			return "", err
		}
		var out []byte
		for _, p := range packages(files) {
			cmd := exec.CommandContext(ctx, "go", "build", eachError, "-overlay", path)
			cmd.Dir = filepath.Join(root, filepath.FromSlash(p)) // which may be in a module of its own
			said, failed := cmd.CombinedOutput()
			if failed != nil {
				out, err = append(out, said...), failed
			}
		}
		if err == nil {
			return path, nil
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		found := false
		for _, match := range compileError.FindAllSubmatch(out, -1) {
			line, _ := strconv.Atoi(string(match[2]))
			file := strings.ReplaceAll(filepath.Base(string(match[1])), "+", "/") // of the overlay
			for _, c := range where[file] {
				if c.from <= line && line <= c.to && c.m.fate != invalid {
					c.m.fate, found = invalid, true
				}
			}
		}
		if !found {
			return "", fmt.Errorf("the mutants do not build: %w\n%s", err, out)
		}
	}
}

// eachError lets the compiler report each error, not only the first ten.
const eachError = "-gcflags=./...=-e"
