package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/ratelimit-go/ratelimit"
)

const (
	maxText   = 1 << 20 // bytes
	maxSigns  = 1 << 16 // bytes of signs
	maxDepth  = 16      // of nesting; a valid text has 4
	maxErrors = 20
	maxQuoted = 48  // bytes of a text that an error repeats
	maxName   = 256 // bytes
	maxLimits = 16  // as many as an All takes
	maxCount  = 1<<31 - 1

	defaultLife = time.Minute // of a slot
)

// The fields that there are. schema.json says of each what it may be.
var (
	limiterFields = []string{"algorithm", "limit", "limits", "tiers", "in_flight", "life", "ban", "store", "on_failure", "instances"}
	banFields     = []string{"denials", "for", "most"}
	storeFields   = []string{"deny_cache", "coalescing", "lease"}
	failures      = []failure{failOpen, failClosed, failLocal, failError}
)

// signs are the bytes that structure a text: each node, directive and comment needs one. A
// node can take the library 4 KiB.
const signs = ",:-?[{#%&*!"

// parser reads one text, and collects what is wrong with it.
type parser struct {
	specs []*spec
	errs  []*Error
}

// fail notes what is wrong at n.
func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.failAt(n.Line, n.Column, fmt.Errorf(format, args...))
}

func (p *parser) failAt(line, column int, err error) {
	p.errs = append(p.errs, &Error{max(line, 1), max(column, 1), err})
}

// err returns all that is wrong, in the order of the text.
func (p *parser) err() error {
	slices.SortStableFunc(p.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if more := len(p.errs) - maxErrors; more > 0 {
		p.errs = p.errs[:maxErrors+1]
		last := p.errs[maxErrors]
		last.Err = fmt.Errorf("%d more errors from here on, the first: %w", more, last.Err)
	}
	errs := make([]error, len(p.errs))
	for i, e := range p.errs {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// document returns the root of the text's one document, or nil if the text cannot be read.
func (p *parser) document(text []byte) *yaml.Node {
	if len(text) > maxText {
		p.failAt(1, 1, fmt.Errorf("the text has %d bytes, over %d", len(text), maxText))
		return nil
	}
	if p.crowded(text) || p.unreadable(text) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		p.failAt(1, 1, err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil || len(first.Content) == 0 {
		p.failSyntax(text, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		p.fail(&second, "a second document begins: a text has one")
	case !errors.Is(err, io.EOF):
		p.failSyntax(text, err)
	}
	p.refuseReferences(first.Content[0])
	if len(p.errs) > 0 {
		return nil
	}
	return first.Content[0]
}

// crowded notes a text with more signs than any real one. It would be refused later too,
// after seconds and gigabytes.
func (p *parser) crowded(text []byte) bool {
	n := 0
	for _, c := range text {
		if strings.IndexByte(signs, c) >= 0 {
			n++
		}
	}
	if n > maxSigns {
		p.failAt(1, 1, fmt.Errorf("the text has %d of the signs %s, over %d", n, signs, maxSigns))
	}
	return n > maxSigns
}

// unreadable notes the first character that YAML does not allow, and where it is, which the
// library does not say. It also notes the first %TAG. The time that the library takes for
// these grows with the square of their number.
func (p *parser) unreadable(text []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			p.failAt(line, column, fmt.Errorf("byte %#02x is not UTF-8", text[i]))
			return true
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == '\uFFFE', r == '\uFFFF':
			p.failAt(line, column, fmt.Errorf("character %U is not allowed", r))
			return true
		case column == 1 && bytes.HasPrefix(text[i:], []byte("%TAG")):
			p.failAt(line, column, errors.New("directive %TAG: tags are not read"))
			return true
		case r == '\n' || r == '\r' && !bytes.HasPrefix(text[i+1:], []byte("\n")), r == '\u0085', r == '\u2028', r == '\u2029':
			line, column = line+1, 1
		case r == '\uFEFF' && i == 0:
		default:
			column++
		}
		i += size
	}
	return false
}

// failSyntax notes an error of the library about text.
func (p *parser) failSyntax(text []byte, err error) {
	var at *yaml.LoadError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		p.failAt(1, 1, errors.New("the text is empty"))
	case !errors.As(err, &at):
		p.failAt(1, 1, err)
	case isTab(text, at.Mark.Index):
		p.failAt(at.Mark.Line, at.Mark.Column, errors.New("a tab: YAML is indented by spaces"))
	case at.ContextMsg != "":
		p.failAt(at.Mark.Line, at.Mark.Column, fmt.Errorf("%s: %s", at.ContextMsg, at.Message))
	default:
		p.failAt(at.Mark.Line, at.Mark.Column, errors.New(at.Message))
	}
}

// isTab reports whether the character i of text is a tab. The byte order mark does not
// count.
func isTab(text []byte, i int) bool {
	characters := []rune(strings.TrimPrefix(string(text), "\uFEFF"))
	return i < len(characters) && characters[i] == '\t'
}

// refuseReferences notes what makes a text mean something else than it seems to, or grow
// when it is read. The loader bounds the depth.
func (p *parser) refuseReferences(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		p.fail(n, "alias %s: aliases are not read", quote("*"+n.Value))
		return
	case n.Anchor != "":
		p.fail(n, "anchor %s: anchors are not read", quote("&"+n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		p.fail(n, "tag %s: tags are not read", quote(n.Tag))
	}
	for _, c := range n.Content {
		p.refuseReferences(c)
	}
}

// pair is a key of a mapping and its value.
type pair struct{ key, value *yaml.Node }

// pairs returns those of the mapping n, without those whose key is wrong. Errors begin with
// what.
func (p *parser) pairs(n *yaml.Node, what, want string) []pair {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		p.fail(n, "%s%s: want %s", what, describe(n), want)
		return nil
	}
	var pairs []pair
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		line, twice := lines[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!null":
			p.fail(key, "%s%s: want a name", what, describe(key))
		case key.Tag == "!!merge":
			p.fail(key, "%s%s: merge keys are not read", what, quote(key.Value))
		case twice:
			p.fail(key, "%s%s is already in line %d", what, quote(key.Value), line)
		default:
			lines[key.Value] = key.Line
			pairs = append(pairs, pair{key, n.Content[i+1]})
		}
	}
	return pairs
}

// fields returns the pairs of the mapping n whose keys are known.
func (p *parser) fields(n *yaml.Node, what, want string, known ...string) map[string]pair {
	fields := map[string]pair{}
	for _, f := range p.pairs(n, what, want) {
		if !slices.Contains(known, f.key.Value) {
			p.fail(f.key, "%sunknown field %s: want %s", what, quote(f.key.Value), strings.Join(known, ", "))
			continue
		}
		fields[f.key.Value] = f
	}
	return fields
}

// limiters reads the whole text.
func (p *parser) limiters(root *yaml.Node) {
	fields := p.fields(root, "", "a mapping with the field limiters", "limiters")
	limiters, found := fields["limiters"]
	if !found {
		if len(p.errs) == 0 {
			p.fail(root, "no limiters")
		}
		return
	}
	for _, l := range p.pairs(limiters.value, "limiters: ", "a limiter for each name") {
		p.limiter(l.key, l.value)
	}
}

// limiter reads one limiter.
func (p *parser) limiter(name, n *yaml.Node) {
	what := "limiter " + quote(name.Value) + ": "
	s := &spec{line: name.Line, column: name.Column, name: name.Value, onFailure: failError}
	p.specs = append(p.specs, s)
	p.name(name, what)
	before := len(p.errs)
	fields := p.fields(n, what, "a mapping with the fields algorithm and limit, or in_flight", limiterFields...)
	if len(fields) == 0 && len(p.errs) > before {
		return
	}
	read := reader{p, s, what, name, fields}
	if read.slots(); !read.slotsAlone() {
		read.algorithm()
		read.limits()
		read.tiers()
	}
	read.ban()
	read.store(len(p.errs) == before)
	read.onFailure(len(p.errs) == before)
}

func (p *parser) name(n *yaml.Node, what string) {
	if len(n.Value) > maxName {
		p.fail(n, "%sthe name has %d bytes, over %d", what, len(n.Value), maxName)
	}
	if n.Value == "" || strings.ContainsAny(n.Value, "{}") {
		p.fail(n, "%s%w: a name is not empty and has no braces", what, ratelimit.ErrInvalidOption)
	}
}

// reader reads the fields of one limiter.
type reader struct {
	*parser
	spec   *spec
	what   string // begins errors
	name   *yaml.Node
	fields map[string]pair
}

// text returns the text of a field, if it is one.
func (r *reader) text(n *yaml.Node, field, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		r.fail(n, "%s%s: %s: want %s", r.what, field, describe(n), want)
		return "", false
	}
	return n.Value, true
}

// slots reads how many are in flight at once, and how long a slot outlives its process.
func (r *reader) slots() {
	life, hasLife := r.fields["life"]
	f, found := r.fields["in_flight"]
	if !found {
		if hasLife {
			r.fail(life.key, "%slife: want in_flight beside it", r.what)
		}
		return
	}
	r.spec.slots, r.spec.life = r.number(f.value, "in_flight"), defaultLife
	if hasLife {
		r.life(life.value)
	}
	for _, other := range []struct{ field, why string }{
		{"store", "has no effect beside in_flight: each slot is the store's"},
		{"ban", "want none beside in_flight: who finds no slot has done nothing wrong"},
	} {
		if f, found := r.fields[other.field]; found {
			r.fail(f.key, "%s%s: %s", r.what, other.field, other.why)
		}
	}
}

// life reads how long a slot lives.
func (r *reader) life(n *yaml.Node) {
	r.spec.life = r.duration("life", "30s", false)
	if r.spec.life <= 0 {
		return
	}
	if err := checkLife(r.spec.life); err != nil {
		r.fail(n, "%slife: %w", r.what, err)
	}
}

// slotsAlone is whether in_flight is the only limit. Then nothing counts rates.
func (r *reader) slotsAlone() bool {
	if _, found := r.fields["in_flight"]; !found {
		return false
	}
	for _, field := range []string{"limit", "limits"} {
		if _, found := r.fields[field]; found {
			return false
		}
	}
	for _, field := range []string{"algorithm", "tiers"} {
		if f, found := r.fields[field]; found {
			r.fail(f.key, "%s%s: want a limit beside it", r.what, field)
		}
	}
	return true
}

func (r *reader) algorithm() {
	f, found := r.fields["algorithm"]
	if !found {
		r.fail(r.name, "%sno algorithm", r.what)
		return
	}
	name, ok := r.text(f.value, "algorithm", "its name")
	if !ok {
		return
	}
	if err := ratelimit.PerSecond(1).ValidateFor(name); err != nil {
		r.fail(f.value, "%salgorithm: %w", r.what, shortened(err, name))
		return
	}
	r.spec.algorithm = name
}

// limit reads a limit, and checks it with the algorithm if that is known.
func (r *reader) limit(n *yaml.Node, field string) (l ratelimit.Limit, ok bool) {
	text, ok := r.text(n, field, "a limit such as 100/m")
	if !ok {
		return l, false
	}
	l, err := ratelimit.ParseLimit(text)
	if err == nil && r.spec.algorithm != "" {
		err = r.spec.check(l)
	}
	if err != nil {
		r.fail(n, "%s%s: %w", r.what, field, err)
	}
	return l, err == nil
}

func (r *reader) limits() {
	one, hasOne := r.fields["limit"]
	several, hasSeveral := r.fields["limits"]
	switch {
	case hasOne && hasSeveral:
		r.fail(later(one.key, several.key), "%slimit and limits: want one of them", r.what)
	case hasOne:
		if l, ok := r.limit(one.value, "limit"); ok {
			r.spec.limits = []ratelimit.Limit{l}
		}
	case hasSeveral:
		r.spec.several = true
		r.list(several.value)
	default:
		r.fail(r.name, "%sno limit", r.what)
	}
}

// list reads limits that must all admit.
func (r *reader) list(n *yaml.Node) {
	most := maxLimits
	if _, banned := r.fields["ban"]; banned || r.spec.slots > 0 { // which are one more
		most--
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > most {
		r.fail(n, "%slimits: %s: want a list of 1 to %d limits", r.what, describe(n), most)
		return
	}
	for _, item := range n.Content {
		l, ok := r.limit(item, "limits")
		switch {
		case !ok:
		case slices.Contains(r.spec.periods(), period(l)):
			r.fail(item, "%slimits: %s: another of them has the same period, and so the same count", r.what, quote(item.Value))
		default:
			r.spec.limits = append(r.spec.limits, l)
		}
	}
}

func (r *reader) tiers() {
	f, found := r.fields["tiers"]
	if !found {
		return
	}
	if r.spec.several {
		r.fail(f.key, "%stiers: want limit beside them, not limits", r.what)
	}
	r.spec.tiers = map[string]ratelimit.Limit{}
	for _, tier := range r.pairs(f.value, r.what+"tiers: ", "a limit for each tier") {
		if l, ok := r.limit(tier.value, "tier "+quote(tier.key.Value)); ok {
			r.spec.tiers[tier.key.Value] = l
		}
	}
}

// ban reads for what a key is banned, and for how long.
func (r *reader) ban() {
	f, found := r.fields["ban"]
	if !found {
		return
	}
	before, what := len(r.errs), r.what+"ban: "
	fields := r.parser.fields(f.value, what, "a mapping with denials and for", banFields...)
	in := reader{r.parser, r.spec, what, f.key, fields}
	p := ratelimit.Penalty{For: in.duration("for", "15m", true), Most: in.duration("most", "24h", false)}
	p.Denials, p.Within = in.denials()
	if len(r.errs) > before {
		return
	}
	if err := p.Validate(); err != nil {
		r.fail(f.key, "%s%w", what, err)
		return
	}
	r.spec.ban = &p
	if store, found := r.fields["store"]; found {
		r.fail(store.key, "%sstore: has no effect beside a ban, which asks the store each time", r.what)
	}
}

// denials reads how many in which time.
func (r *reader) denials() (n int, within time.Duration) {
	const want = "a number and a time, such as 3/10m"
	f, found := r.fields["denials"]
	if !found {
		r.fail(r.name, "%swant denials, such as 3/10m", r.what)
		return 0, 0
	}
	text, ok := r.text(f.value, "denials", want)
	if !ok {
		return 0, 0
	}
	l, err := ratelimit.ParseLimit(text)
	if err != nil || l != (ratelimit.Limit{Rate: l.Rate, Period: l.Period}) {
		r.fail(f.value, "%sdenials: %s: want %s", r.what, quote(text), want)
	}
	return l.Rate, l.Period
}

// duration reads a field that is a time, 0 if there is none.
func (r *reader) duration(field, example string, wanted bool) time.Duration {
	f, found := r.fields[field]
	if !found {
		if wanted {
			r.fail(r.name, "%swant %s, such as %s", r.what, field, example)
		}
		return 0
	}
	want := "a time, such as " + example
	text, ok := r.text(f.value, field, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		r.fail(f.value, "%s%s: %s: want %s", r.what, field, quote(text), want)
	}
	return d
}

// store reads what stands before the store. If good is true the limiter has no errors so far.
func (r *reader) store(good bool) {
	f, found := r.fields["store"]
	if !found {
		return
	}
	before, what := len(r.errs), r.what+"store: "
	fields := r.parser.fields(f.value, what, "a mapping with deny_cache, coalescing or lease", storeFields...)
	in := reader{r.parser, r.spec, what, f.key, fields}
	in.spec.front = front{denyCache: in.flag("deny_cache"), coalescing: in.flag("coalescing")}
	in.lease(good && len(r.errs) == before)
}

// lease reads lease. If good is true the limiter has no errors so far, so that the life can be
// tried.
func (r *reader) lease(good bool) {
	f, found := r.fields["lease"]
	if !found {
		return
	}
	const want = "how long a lease lives, such as 50ms"
	text, ok := r.text(f.value, "lease", want)
	if !ok {
		return
	}
	life, err := time.ParseDuration(text)
	switch {
	case err != nil:
		r.fail(f.value, "%slease: %s: want %s", r.what, quote(text), want)
	case r.spec.several:
		r.fail(f.key, "%slease: want limit beside it, not limits", r.what)
	case r.spec.front != front{}:
		r.fail(f.key, "%slease: want no deny_cache and no coalescing beside it: a lease does both", r.what)
	case good:
		r.spec.front.lease = life
		if err := r.spec.checkLease(); err != nil {
			r.fail(f.value, "%slease: %w", r.what, err)
		}
	}
}

// flag reads a field that is true or false, and has no use with several limits.
func (r *reader) flag(field string) bool {
	f, found := r.fields[field]
	if !found {
		return false
	}
	if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!bool" {
		r.fail(f.value, "%s%s: %s: want true or false", r.what, field, describe(f.value))
		return false
	}
	on := strings.EqualFold(f.value.Value, "true")
	if on && r.spec.several {
		r.fail(f.key, "%s%s: has no effect on several limits", r.what, field)
	}
	return on
}

// onFailure reads on_failure and instances. If good is true the limiter has no errors so
// far, so that its shares can be checked.
func (r *reader) onFailure(good bool) {
	if f, found := r.fields["on_failure"]; found {
		const want = "open, closed, local or error"
		text, ok := r.text(f.value, "on_failure", want)
		if ok && !slices.Contains(failures, failure(text)) {
			r.fail(f.value, "%son_failure: %s: want %s", r.what, quote(text), want)
			ok = false
		}
		if !ok {
			return
		}
		r.spec.onFailure = failure(text)
	}
	f, found := r.fields["instances"]
	switch local := r.spec.onFailure == failLocal; {
	case found && !local:
		r.fail(f.key, "%sinstances: want on_failure: local beside it", r.what)
	case found:
		r.instances(f.value, good)
	case local:
		r.fail(r.fields["on_failure"].value, "%son_failure: local: want instances beside it", r.what)
	}
}

func (r *reader) instances(n *yaml.Node, good bool) {
	r.spec.instances = r.number(n, "instances")
	if !good || r.spec.instances == 0 {
		return
	}
	if err := r.spec.checkShares(); err != nil {
		r.fail(n, "%sinstances: %w", r.what, err)
	}
}

// number reads a number of a field, 0 if there is none.
func (r *reader) number(n *yaml.Node, field string) int {
	count, err := strconv.ParseInt(n.Value, 10, 32)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || count < 1 || strconv.FormatInt(count, 10) != n.Value { // 010 is 8 for other readers
		r.fail(n, "%s%s: %s: want a number from 1 to %d", r.what, field, describe(n), maxCount)
		return 0
	}
	return int(count)
}

// later returns the one of two nodes that stands below or behind the other.
func later(a, b *yaml.Node) *yaml.Node {
	if a.Line > b.Line || a.Line == b.Line && a.Column > b.Column {
		return a
	}
	return b
}

// describe says what a node is that should be something else.
func describe(n *yaml.Node) string {
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
	return quote(n.Value)
}

// quote returns s as a Go string, cut short if it is long.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "..."
	}
	return strconv.Quote(s)
}

// shortened returns err with a long text that it repeats cut short.
func shortened(err error, text string) error {
	if len(text) <= maxQuoted {
		return err
	}
	return shortError{strings.ReplaceAll(err.Error(), strconv.Quote(text), quote(text)), err}
}

type shortError struct {
	text string
	err  error
}

func (e shortError) Error() string { return e.text }
func (e shortError) Unwrap() error { return e.err }
