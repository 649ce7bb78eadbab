package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// luaOps are the operators that are replaced, with their replacements. luaNames are the
// same for words, and luaMath for fields of math.
var (
	luaOps = map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
		"+": "-", "-": "+", "*": "/", "/": "*", "%": "*",
	}
	luaNames = map[string]string{"and": "or", "or": "and", "not": "", "true": "false", "false": "true"}
	luaMath  = map[string]string{"min": "max", "max": "min", "ceil": "floor", "floor": "ceil"}
)

// luaLexeme is one lexeme of Lua 5.1: space or comment, word, number, string, operator.
var luaLexeme = regexp.MustCompile(`\A(?:` + strings.Join([]string{
	`(\s+|--\[\[(?s:.*?)\]\]|--.*)`,
	`([A-Za-z_]\w*)`,
	`(0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)`,
	`('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\[\[(?s:.*?)\]\])`,
	`(\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])`,
}, "|") + `)`)

type luaKind int

const (
	luaWord luaKind = 2 + iota // the groups of luaLexeme after the first
	luaNumber
	luaString
	luaOp
)

type luaToken struct {
	kind luaKind
	text string
	at   int // offset
}

func (t luaToken) end() int { return t.at + len(t.text) }

// luaTokens are the tokens of src, without space and comments.
func luaTokens(src []byte) ([]luaToken, error) {
	var tokens []luaToken
	for at := 0; at < len(src); {
		m := luaLexeme.FindSubmatch(src[at:])
		if m == nil {
			return nil, fmt.Errorf("line %d: not a token of Lua", 1+bytes.Count(src[:at], []byte("\n")))
		}
		for kind := luaWord; kind <= luaOp; kind++ {
			if m[kind] != nil {
				tokens = append(tokens, luaToken{kind, string(m[0]), at})
			}
		}
		at += len(m[0])
	}
	return tokens, nil
}

// luaEdits breaks Lua so that it is still Lua. Redis would refuse anything else, and any
// test would notice.
func luaEdits(src []byte) ([]edit, error) {
	tokens, err := luaTokens(src)
	if err != nil {
		return nil, err
	}
	var edits []edit
	function := ""
	for i, t := range tokens {
		if name, ok := luaFunction(src, tokens, i); ok {
			function = name
		}
		replace := func(text string) {
			edits = append(edits, edit{from: t.at, to: t.end(), text: text, function: function})
		}
		switch {
		case t.kind == luaNumber:
			if v, err := strconv.ParseInt(t.text, 0, 64); err == nil {
				replace(strconv.FormatInt(v+1, 10))
			}
		case t.kind == luaOp && luaOps[t.text] != "" && i > 0 && endsOperand(tokens[i-1]):
			replace(luaOps[t.text])
		case t.kind == luaWord && i > 1 && tokens[i-1].text == "." && tokens[i-2].text == "math" && luaMath[t.text] != "":
			replace(luaMath[t.text])
		case t.kind == luaWord:
			if text, ok := luaNames[t.text]; ok {
				replace(text)
			}
		}
		if last := luaStatement(src, tokens, i); last > 0 {
			end := tokens[last].end()
			edits = append(edits, edit{from: t.at, to: end, text: "--[[ " + string(src[t.at:end]) + " ]]", function: function})
		}
	}
	return edits, nil
}

// luaFunction reports whether token i begins or ends a function of the script, and which
// function the script is in from there on. A function of the script begins at the start
// of a line.
func luaFunction(src []byte, tokens []luaToken, i int) (name string, ok bool) {
	t := tokens[i]
	if t.at > 0 && src[t.at-1] != '\n' {
		return "", false
	}
	if t.text == "local" && tokens[i+1].text == "function" {
		return tokens[i+2].text, true
	}
	if t.text == "function" {
		return tokens[i+1].text, true
	}
	return "", t.text == "end"
}

// endsOperand reports whether an operator after t has t, or what t ends, to its left.
func endsOperand(t luaToken) bool {
	switch t.kind {
	case luaOp:
		return strings.Contains(")]}", t.text)
	case luaWord:
		return !luaKeyword[t.text] || t.text == "true" || t.text == "false" || t.text == "nil" || t.text == "end"
	}
	return true
}

// luaKeyword are the words that begin no call or assignment.
var luaKeyword = map[string]bool{
	"and": true, "break": true, "do": true, "else": true, "elseif": true, "end": true, "false": true, "for": true,
	"function": true, "if": true, "in": true, "local": true, "nil": true, "not": true, "or": true, "repeat": true,
	"return": true, "then": true, "true": true, "until": true, "while": true,
}

// luaStatement returns the last token of the call or assignment on the lines from token i
// on. It returns 0 if there is none, or if it contains a function.
func luaStatement(src []byte, tokens []luaToken, i int) (last int) {
	newLine := func(i int) bool {
		return i == 0 || i == len(tokens) || bytes.ContainsRune(src[tokens[i-1].end():tokens[i].at], '\n')
	}
	continues := func(i int) bool { // whether the expression with token i-1 continues over the end of the line
		return tokens[i-1].kind == luaOp && !endsOperand(tokens[i-1]) ||
			i < len(tokens) && (tokens[i].kind == luaOp || tokens[i].text == "and" || tokens[i].text == "or")
	}
	if tokens[i].kind != luaWord || luaKeyword[tokens[i].text] || !newLine(i) || i > 0 && continues(i) {
		return 0
	}
	if i > 0 && slices.Contains([]string{"and", "or", "not", "return", "in"}, tokens[i-1].text) {
		return 0
	}
	depth := 0
	for j := i; j < len(tokens); j++ {
		switch tokens[j].text {
		case "function":
			return 0
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth == 0 && newLine(j+1) && !continues(j+1) {
			return j
		}
	}
	return 0
}
