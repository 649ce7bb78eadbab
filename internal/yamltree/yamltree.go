// Package yamltree reads YAML text as a tree of nodes and collects the errors in it, each with its
// line and column. Packages config and serve define what the nodes mean.
package yamltree

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

const (
	maxErrors = 20 // the most errors that are returned
	maxQuoted = 48 // bytes of a text that an error quotes
)

// Dialect describes how texts of one kind are written.
type Dialect struct {
	Noun     string // what errors call a text, such as "file"
	MaxDepth int    // of nesting
	// Loose texts are read as programs read YAML 1.1: any scalar is a text, yes and 0x10 have their
	// meanings, a mapping may be empty, and anchors, aliases, tags and merge keys are read.
	// Otherwise, everything that can hide the meaning is an error.
	Loose     bool
	MaxValues int               // the most values in a loose text, counting aliases each time
	Absent    map[string]string // fields that are not supported, and why
}

// Error is an error at one place.
type Error struct {
	File   string
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
}

// Reader reads one text.
type Reader struct {
	*Dialect
	File   string // "" if the text has no name
	Errors []*Error

	values int // read so far
}

// Field is one field of a mapping.
type Field struct{ Key, Value *yaml.Node }

// Fail records an error at n.
func (r *Reader) Fail(n *yaml.Node, format string, args ...any) {
	r.FailAt(n.Line, n.Column, fmt.Errorf(format, args...))
}

// FailAt records an error at a line and column.
func (r *Reader) FailAt(line, column int, err error) {
	r.Errors = append(r.Errors, &Error{r.File, max(line, 1), max(column, 1), err})
}

// Sorted returns the errors in the order of the text.
func (r *Reader) Sorted() []*Error {
	slices.SortStableFunc(r.Errors, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return r.Errors
}

// Join joins the first errors, each converted by as for users. It returns nil if there are none.
func Join(errs []*Error, as func(*Error) error) error {
	if more := len(errs) - maxErrors; more > 0 {
		errs = errs[:maxErrors+1]
		last := errs[maxErrors]
		last.Err = fmt.Errorf("%d more errors follow, the first of them: %w", more, last.Err)
	}
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = as(e)
	}
	return errors.Join(all...)
}

// Document returns the root of the text's one document, or nil if the text cannot be read.
func (r *Reader) Document(text []byte) *yaml.Node {
	if r.unreadable(text) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(r.MaxDepth))))
	if err != nil {
		r.FailAt(1, 1, err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil || len(first.Content) == 0 {
		r.failSyntax(text, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		r.Fail(&second, "a second document begins, but a %s must have only one", r.Noun)
	case !errors.Is(err, io.EOF):
		r.failSyntax(text, err)
	}
	if !r.Loose {
		r.refuseReferences(first.Content[0])
	}
	if len(r.Errors) > 0 {
		return nil
	}
	return first.Content[0]
}

// unreadable reports the first character that YAML does not allow, with its place, which the
// library does not report. It also reports the first %TAG, because the library's time for tags
// grows with the square of their number.
func (r *Reader) unreadable(text []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			r.FailAt(line, column, fmt.Errorf("byte %#02x is not UTF-8", text[i]))
			return true
		case c < ' ' && c != '\t' && c != '\n' && c != '\r', c == '\uFFFE', c == '\uFFFF':
			r.FailAt(line, column, fmt.Errorf("character %U is not allowed", c))
			return true
		case column == 1 && bytes.HasPrefix(text[i:], []byte("%TAG")):
			r.FailAt(line, column, errors.New("directive %TAG: tags are not supported"))
			return true
		case c == '\n' || c == '\r' && !bytes.HasPrefix(text[i+1:], []byte("\n")), c == '\u0085', c == '\u2028', c == '\u2029':
			line, column = line+1, 1
		case c == '\uFEFF' && i == 0:
		default:
			column++
		}
		i += size
	}
	return false
}

// failSyntax records an error of the YAML library.
func (r *Reader) failSyntax(text []byte, err error) {
	var at *yaml.LoadError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		r.FailAt(1, 1, fmt.Errorf("the %s is empty", r.Noun))
	case !errors.As(err, &at):
		r.FailAt(1, 1, err)
	case isTab(text, at.Mark.Index):
		r.FailAt(at.Mark.Line, at.Mark.Column, errors.New("a tab: indent YAML with spaces"))
	default:
		r.FailAt(at.Mark.Line, at.Mark.Column, errors.New(strings.TrimPrefix(at.ContextMsg+": "+at.Message, ": ")))
	}
}

// isTab reports whether character i of text is a tab, not counting a byte order mark.
func isTab(text []byte, i int) bool {
	characters := []rune(strings.TrimPrefix(string(text), "\uFEFF"))
	return i < len(characters) && characters[i] == '\t'
}

// refuseReferences rejects everything that makes a text mean something other than it seems to, or
// grow when it is read. The loader limits the depth.
func (r *Reader) refuseReferences(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.Fail(n, "alias %s: aliases are not supported", Quote("*"+n.Value))
		return
	case n.Anchor != "":
		r.Fail(n, "anchor %s: anchors are not supported", Quote("&"+n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		r.Fail(n, "tag %s: tags are not supported", Quote(n.Tag))
	}
	for _, c := range n.Content {
		r.refuseReferences(c)
	}
}

// Exhausted reports whether reading has stopped because the text has too many values.
func (r *Reader) Exhausted() bool { return r.Loose && r.values > r.MaxValues }

// followed returns n, or what n is an alias of. It returns nil if the text, with its aliases, has
// too many values.
func (r *Reader) followed(n *yaml.Node) *yaml.Node {
	if r.values++; r.Exhausted() {
		if r.values == r.MaxValues+1 {
			r.Fail(n, "the %s has more than %d values", r.Noun, r.MaxValues)
		}
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// Fields returns the fields of the mapping n. Unknown fields are errors, unless known is empty.
// Errors begin with in. If n is not a mapping, the error contains want.
func (r *Reader) Fields(n *yaml.Node, in, want string, known ...string) map[string]Field {
	fields := map[string]Field{}
	for _, f := range r.Pairs(n, in, want) {
		name := f.Key.Value
		switch why := r.Absent[name]; {
		case len(known) == 0 || slices.Contains(known, name):
			fields[name] = f
		case why != "":
			r.Fail(f.Key, "%s%s: %s", in, name, why)
		default:
			r.Fail(f.Key, "%sunknown field %s: want %s", in, Quote(name), strings.Join(known, ", "))
		}
	}
	return fields
}

// Pairs returns the fields of the mapping n in their order, including merged ones, and without
// those whose key is invalid.
func (r *Reader) Pairs(n *yaml.Node, in, want string) []Field { return r.pairs(n, in, want, 0) }

func (r *Reader) pairs(n *yaml.Node, in, want string, depth int) []Field {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 && !r.Loose {
		r.Fail(n, "%s%s: want %s", in, Describe(n), want)
		return nil
	}
	var own, merged []Field
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], r.followed(n.Content[i+1])
		if value == nil {
			return nil
		}
		merges := key.Kind == yaml.ScalarNode && key.Tag == "!!merge"
		switch line, twice := lines[key.Value]; {
		case merges && r.Loose:
			merged = append(merged, r.merged(value, in, want, depth)...)
		case merges:
			r.Fail(key, "%s%s: merge keys are not supported", in, Quote(key.Value))
		case !r.isName(key):
			r.Fail(key, "%s%s: want a name", in, Describe(key))
		case twice:
			r.Fail(key, "%s%s is already set in line %d", in, Quote(key.Value), line)
		default:
			lines[key.Value] = key.Line
			own = append(own, Field{key, value})
		}
	}
	for _, f := range merged {
		if _, twice := lines[f.Key.Value]; !twice {
			lines[f.Key.Value] = f.Key.Line
			own = append(own, f)
		}
	}
	return own
}

// isName reports whether n can be the key of a field. Something that YAML 1.1 reads as a number
// would become a different name there.
func (r *Reader) isName(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.Tag == "!!str" || !r.Loose && n.Tag != "!!null")
}

// merged returns the fields of a value of <<, a mapping or a list of mappings.
func (r *Reader) merged(n *yaml.Node, in, want string, depth int) (all []Field) {
	if depth > r.MaxDepth {
		r.Fail(n, "%smerge keys are nested too deeply", in)
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return r.pairs(n, in, want, depth+1)
	}
	for _, item := range r.Items(n) {
		all = append(all, r.pairs(item, in, want, depth+1)...)
	}
	return all
}

// Items returns the items of the list n.
func (r *Reader) Items(n *yaml.Node) (items []*yaml.Node) {
	for _, item := range n.Content {
		if item = r.followed(item); item != nil {
			items = append(items, item)
		}
	}
	return items
}

// Text returns the text of n. It fails if n is not a text.
func (r *Reader) Text(n *yaml.Node, in, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && !r.Loose {
		r.Fail(n, "%s%s: want %s", in, Describe(n), want)
		return "", false
	}
	return n.Value, true
}

// Flag returns the boolean n.
func (r *Reader) Flag(n *yaml.Node, in string) bool {
	readable := n.Tag == "!!bool"
	if r.Loose {
		readable = n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0
	}
	if n.Kind == yaml.ScalarNode && readable {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return true
		case "false", "no", "off", "n":
			return false
		}
	}
	r.Fail(n, "%s%s: want true or false", in, Describe(n))
	return false
}

// Number returns the number n, from 1 to 2^31-1, or 0 if n is not such a number.
func (r *Reader) Number(n *yaml.Node, in string) int {
	base := 10
	if r.Loose {
		base = 0
	}
	count, err := strconv.ParseInt(n.Value, base, 32)
	plain := r.Loose || strconv.FormatInt(count, 10) == n.Value // other readers take 010 for 8
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || count < 1 || !plain {
		r.Fail(n, "%s%s: want a number from 1 to %d", in, Describe(n), math.MaxInt32)
		return 0
	}
	return int(count)
}

// Describe describes a node that should be something else.
func Describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode && len(n.Content) == 0:
		return "an empty mapping"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list of " + strconv.Itoa(len(n.Content))
	case n.Tag == "!!null":
		return "nothing"
	}
	return Quote(n.Value)
}

// Quote returns s as a Go string, cut short if it is long.
func Quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "..."
	}
	return strconv.Quote(s)
}
