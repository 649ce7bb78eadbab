package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
)

// goTokens are the tokens that are replaced, with their replacements.
var goTokens = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*",
	token.LAND: "||", token.LOR: "&&", token.OR: "&", token.SHL: ">>", token.SHR: "<<",
	token.INC: "--", token.DEC: "++", token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=",
}

var goNames = map[string]string{"true": "false", "false": "true"}

var goCalls = map[string]string{"min": "max", "max": "min"}

// goEdits breaks Go: everything except the imports.
func goEdits(src []byte) ([]edit, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var edits []edit
	function, scope := "", [2]int{}
	replace := func(pos token.Pos, old, text string) {
		from := fset.Position(pos).Offset
		edits = append(edits, edit{from, from + len(old), text, function, scope})
	}
	swap := func(pos token.Pos, tok token.Token) {
		if text, ok := goTokens[tok]; ok {
			replace(pos, tok.String(), text)
		}
	}
	cases := make(map[ast.Node]bool) // of selects, which are no statements without what they wait for
	remove := func(n ast.Node) {
		if cases[n] {
			return
		}
		from, to := fset.Position(n.Pos()).Offset, fset.Position(n.End()).Offset
		if _, ok := n.(*ast.KeyValueExpr); ok && src[to] == ',' {
			to++
		}
		text := string(src[from:to])
		replace(n.Pos(), text, "/* "+text+" */")
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			swap(n.OpPos, n.Op)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				replace(n.OpPos, "!", "")
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
				replace(n.Pos(), n.Value, strconv.FormatInt(v+1, 10))
			}
		case *ast.Ident:
			if text, ok := goNames[n.Name]; ok {
				replace(n.Pos(), n.Name, text)
			}
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && goCalls[name.Name] != "" {
				replace(name.Pos(), name.Name, goCalls[name.Name])
			}
		case *ast.IncDecStmt:
			swap(n.TokPos, n.Tok)
			remove(n)
		case *ast.AssignStmt:
			swap(n.TokPos, n.Tok)
			if n.Tok != token.DEFINE {
				remove(n)
			}
		case *ast.CommClause:
			cases[n.Comm] = true
		case *ast.ExprStmt, *ast.KeyValueExpr:
			remove(n)
		}
		return true
	}
	for _, decl := range f.Decls {
		function, scope = "", [2]int{}
		if fn, ok := decl.(*ast.FuncDecl); ok {
			function, scope = goName(fn), [2]int{fset.Position(fn.Pos()).Offset, fset.Position(fn.End()).Offset}
		}
		ast.Inspect(decl, visit)
	}
	return edits, nil
}

// goName is a function's name, or type.name of a method.
func goName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	recv := fn.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		recv = star.X
	}
	switch generic := recv.(type) {
	case *ast.IndexExpr:
		recv = generic.X
	case *ast.IndexListExpr:
		recv = generic.X
	}
	return fmt.Sprint(recv) + "." + fn.Name.Name
}
