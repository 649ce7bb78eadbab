package suite_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/v1.txt, and cases of testdata/layout that are new")

const apiFile = "docs/v1.txt"

// What users compile against is written down, name by name. A change of it is seen in a review.
func TestTheAPIIsWrittenDown(t *testing.T) {
	effort.OneGoroutine(t)
	var now []string
	modules := map[string]builtModule{}
	for _, dir := range importable(t) {
		now = append(now, apiOf(t, dir, packageIn(t, dir, modules))...)
	}
	slices.Sort(now)
	require.Greater(t, len(now), 500)
	if *update {
		require.NoError(t, os.WriteFile(apiFile, []byte(strings.Join(now, "\n")+"\n"), 0o644))
	}
	text, err := os.ReadFile(apiFile)
	require.NoError(t, err)
	written := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.True(t, slices.IsSorted(written))
	for _, line := range written {
		if _, found := slices.BinarySearch(now, line); !found {
			t.Errorf("gone or changed: %s", line)
		}
	}
	for _, line := range now {
		if _, found := slices.BinarySearch(written, line); !found {
			t.Errorf("not in %s: %s", apiFile, line)
		}
	}
	if t.Failed() {
		t.Log("If that is what you want: go test -C internal/suite -run TheAPIIsWrittenDown -update")
	}
}

// importable are the folders of all packages that users can import, in each module.
func importable(t *testing.T) (dirs []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name := d.Name()
		if slices.Contains([]string{"internal", "testdata", "examples", "docs", "tools", "benchmarks"}, name) || path != "." && name[0] == '.' {
			return filepath.SkipDir
		}
		if p, err := build.ImportDir(path, 0); err == nil && !p.IsCommand() && len(p.GoFiles) > 0 {
			dirs = append(dirs, path)
		}
		return nil
	}))
	return dirs
}

// builtModule is the compiled packages of a module.
type builtModule struct {
	paths map[string]string // by folder
	types.Importer
}

// packageIn returns the package in dir as it was compiled. It keeps dir's module in modules.
func packageIn(t *testing.T, dir string, modules map[string]builtModule) *types.Package {
	t.Helper()
	full, err := filepath.Abs(dir)
	require.NoError(t, err)
	root := full
	for _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil; _, err = os.Stat(filepath.Join(root, "go.mod")) {
		root = filepath.Dir(root)
	}
	m, found := modules[root]
	if !found {
		list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}", "./...")
		list.Dir, list.Stderr = root, os.Stderr
		text, err := list.Output()
		require.NoError(t, err)
		m.paths = map[string]string{}
		exports := map[string]string{}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSpace(line), "\t")
			exports[f[0]], m.paths[f[2]] = f[1], f[0]
		}
		m.Importer = importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
		modules[root] = m
	}
	p, err := m.Import(m.paths[full])
	require.NoError(t, err, dir)
	return p
}

// promoted adds the methods that an exported type has from what it embeds, but for those in known.
func (a *api) promoted(of *types.Package, name string, known []*doc.Func) {
	typ := of.Scope().Lookup(name).Type()
	if types.IsInterface(typ) {
		return
	}
	byValue := types.NewMethodSet(typ)
	for m := range types.NewMethodSet(types.NewPointer(typ)).Methods() {
		f := m.Obj().(*types.Func)
		if !f.Exported() || slices.ContainsFunc(known, func(k *doc.Func) bool { return k.Name == f.Name() }) {
			continue
		}
		s := f.Signature()
		results := ""
		if n := s.Results().Len(); n > 0 {
			if results = " " + tuple(of, s.Results(), false); n > 1 {
				results = " (" + tuple(of, s.Results(), false) + ")"
			}
		}
		recv := "*" + name
		if byValue.Lookup(f.Pkg(), f.Name()) != nil {
			recv = name
		}
		a.add("func (%s) %s(%s)%s", recv, f.Name(), tuple(of, s.Params(), s.Variadic()), results)
	}
}

// tuple is types without the names of parameters, as they are written in the package of.
func tuple(of *types.Package, list *types.Tuple, variadic bool) string {
	var texts []string
	for i := range list.Len() {
		text := types.TypeString(list.At(i).Type(), func(p *types.Package) string {
			if p == of {
				return ""
			}
			return p.Name()
		})
		if variadic && i == list.Len()-1 {
			text = "..." + strings.TrimPrefix(text, "[]")
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// apiOf returns a line for each exported name of a package, field and method.
func apiOf(t *testing.T, dir string, compiled *types.Package) (lines []string) {
	t.Helper()
	p, err := build.ImportDir(dir, 0)
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	d, err := doc.NewFromFiles(fset, files, dir)
	require.NoError(t, err)
	a := api{fset: fset, name: filepath.ToSlash(dir)}
	if dir == "." {
		a.name = p.Name
	}
	a.values(d.Consts)
	a.values(d.Vars)
	a.funcs(d.Funcs)
	for _, typ := range d.Types {
		a.spec(typ.Decl.Specs[0].(*ast.TypeSpec))
		a.values(typ.Consts)
		a.values(typ.Vars)
		a.funcs(typ.Funcs)
		a.funcs(typ.Methods)
		a.promoted(compiled, typ.Name, typ.Methods)
	}
	return a.lines
}

// api collects the lines of a package.
type api struct {
	fset  *token.FileSet
	name  string
	lines []string
}

func (a *api) add(format string, args ...any) {
	a.lines = append(a.lines, a.name+": "+fmt.Sprintf(format, args...))
}

// text is a node in one line. Of a function type it is the signature.
func (a *api) text(node any) string {
	if f, ok := node.(*ast.FuncType); ok {
		return "func" + a.signature(f)
	}
	var b strings.Builder
	if err := printer.Fprint(&b, a.fset, node); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// values adds constants and variables. A constant has its value, or none if it goes on from the one
// before it, as with iota.
func (a *api) values(groups []*doc.Value) {
	for _, group := range groups {
		for _, spec := range group.Decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				if !name.IsExported() {
					continue
				}
				line := fmt.Sprint(group.Decl.Tok, " ", name)
				if v.Type != nil {
					line += " " + a.text(v.Type)
				}
				if group.Decl.Tok == token.CONST && i < len(v.Values) {
					line += " = " + a.text(v.Values[i])
				}
				a.add("%s", line)
			}
		}
	}
}

func (a *api) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		name := f.Name
		if f.Recv != "" {
			name = "(" + f.Recv + ") " + name
		}
		a.add("func %s%s%s", name, a.typeParams(f.Decl.Type.TypeParams), a.signature(f.Decl.Type))
	}
}

func (a *api) typeParams(fields *ast.FieldList) string {
	if fields == nil {
		return ""
	}
	var params []string
	for _, f := range fields.List {
		for _, name := range f.Names {
			params = append(params, name.Name+" "+a.text(f.Type))
		}
	}
	return "[" + strings.Join(params, ", ") + "]"
}

// signature is that of a function. The names of parameters are no part of it.
func (a *api) signature(f *ast.FuncType) string {
	results := ""
	if f.Results != nil {
		if results = " " + a.types(f.Results); f.Results.NumFields() > 1 {
			results = " (" + a.types(f.Results) + ")"
		}
	}
	return "(" + a.types(f.Params) + ")" + results
}

func (a *api) types(fields *ast.FieldList) string {
	var types []string
	for _, f := range fields.List {
		for range max(1, len(f.Names)) {
			types = append(types, a.text(f.Type))
		}
	}
	return strings.Join(types, ", ")
}

// spec adds a type, and its fields or methods.
func (a *api) spec(s *ast.TypeSpec) {
	name := s.Name.Name + a.typeParams(s.TypeParams)
	switch typ := s.Type.(type) {
	case *ast.StructType:
		a.add("type %s struct", name)
		a.fields(name, typ.Fields, typ.Incomplete)
	case *ast.InterfaceType:
		a.add("type %s interface", name)
		a.fields(name, typ.Methods, typ.Incomplete)
	default:
		if s.Assign.IsValid() {
			name += " ="
		}
		a.add("type %s %s", name, a.text(typ))
	}
}

func (a *api) fields(of string, fields *ast.FieldList, more bool) {
	for _, f := range fields.List {
		if len(f.Names) == 0 {
			a.add("type %s: %s", of, a.text(f.Type))
		}
		for _, name := range f.Names {
			a.add("type %s: %s %s", of, name, a.text(f.Type))
		}
	}
	if more {
		a.add("type %s: and what is not exported", of)
	}
}
