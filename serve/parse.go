package serve

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimit-go/ratelimit"
)

const (
	maxText    = 8 << 20 // bytes of a file
	maxDepth   = 64      // of its nesting
	maxNodes   = 1 << 18 // that are read, those of aliases each time
	maxErrors  = 20
	maxQuoted  = 48 // bytes of a text that an error repeats
	maxRate    = 1<<31 - 1
	byDefault  = "fixed_window"
	ownSetting = "ratelimit" // in a descriptor's metadata
	overLimit  = "charge_over_limit"
)

// The fields that there are.
var (
	rootFields       = []string{"domain", "descriptors", "on_failure", "instances", "all_or_none", overLimit, "store", "checks"}
	wholeFields      = []string{"on_failure", "instances", "all_or_none", overLimit, "store"} // of a whole domain
	descriptorFields = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"}
	limitFields      = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "limit", overLimit}
	ownFields        = []string{"algorithm", "limit", overLimit}
	storeFields      = []string{"deny_cache", "coalescing", "lease"}
)

// File is a text in YAML, and the name that errors have for it.
type File struct {
	Name string
	Text []byte
}

// ReadFiles reads files, and of directories what ends in .yaml or .yml, in the order of the
// names. Anything that is no regular file, such as a named pipe, is an error: it cannot be read again.
func ReadFiles(paths ...string) ([]File, error) {
	var files []File
	for _, path := range paths {
		names := []string{path}
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			names, err = inDirectory(path)
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := readFile(name)
			if err != nil {
				return nil, err
			}
			files = append(files, File{name, text})
		}
	}
	return files, nil
}

func inDirectory(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	if len(names) == 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no .yaml file")}
	}
	return names, nil
}

// readFile reads no more than the parser takes.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name) // which does not wait, as to open a pipe does
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("want a regular file, not %v", info.Mode())}
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxText+1))
}

// Error says what is wrong at one place of a file.
type Error struct {
	File   string
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
}

// Error returns the place and what is wrong there, such as `limits.yaml:3:12: …`.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Parse reads files in the YAML of github.com/envoyproxy/ratelimit, at least one. Each is one
// domain: see [ParseMerged] for several.
//
// The error lists all that is wrong, or the first 20 places. Each is an [*Error] with line and
// column, in the order of the files, and errors.As finds the first. Unknown fields are errors. So
// are all things that the original refuses.
func Parse(files ...File) (*Rules, error) { return parse(files, false) }

// ParseMerged is [Parse] where files with one domain are one, in their order: of two patterns that
// fit, the first counts. So it is there with MERGE_DOMAIN_CONFIG. Two descriptors with one key and one
// value are an error, also if only their inner ones differ. on_failure, instances, all_or_none and
// store are of the whole domain. One of its files may have each.
func ParseMerged(files ...File) (*Rules, error) { return parse(files, true) }

// parse first reads what is of whole domains: a rule of one file may depend on what a later one says.
func parse(files []File, merge bool) (*Rules, error) {
	rules := &Rules{domains: map[string]*domain{}, checks: map[string]*check{}, merged: merge}
	parsers := make([]*parser, len(files))
	for i, f := range files {
		p := &parser{file: f.Name, to: rules}
		parsers[i] = p
		if root := p.document(f.Text); root != nil {
			p.root(root)
		}
	}
	for _, p := range parsers {
		if p.domain != nil {
			p.domain.next = p.descriptors(p.top["descriptors"], p.domain.next, place{path: p.domain.name})
		}
	}
	var errs []*Error
	for _, p := range parsers {
		if p.domain != nil {
			p.checks(p.top["checks"])
		}
		slices.SortStableFunc(p.errs, func(a, b *Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		errs = append(errs, p.errs...)
	}
	switch {
	case len(errs) > 0:
		return nil, joined(errs)
	case len(files) == 0:
		return nil, fmt.Errorf("%w: no file", ratelimit.ErrInvalidOption)
	}
	for _, name := range slices.Sorted(maps.Keys(rules.domains)) {
		limited := func(r *rule) bool { return r.domain.name == name }
		if !slices.ContainsFunc(rules.rules, limited) {
			rules.notes = append(rules.notes, fmt.Sprintf("%s: domain %s has no rate_limit: it admits everything", rules.domains[name].at, quote(name)))
		}
	}
	return rules, nil
}

// joined is all errors, or the first of them.
func joined(errs []*Error) error {
	if more := len(errs) - maxErrors; more > 0 {
		errs = errs[:maxErrors+1]
		last := errs[maxErrors]
		last.Err = fmt.Errorf("%d more errors from here on, the first: %w", more, last.Err)
	}
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// parser reads one file, and collects what is wrong with it.
type parser struct {
	file   string
	to     *Rules
	domain *domain          // nil if the text cannot be read
	top    map[string]field // of the root
	nodes  int              // read so far
	errs   []*Error
}

// place is where a level of descriptors stands.
type place struct {
	path    string // such as "edge/path=/login"
	depth   int
	byValue bool // one of the descriptors above has value_to_metric
}

func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.failAt(n.Line, n.Column, fmt.Errorf(format, args...))
}

func (p *parser) failAt(line, column int, err error) {
	p.errs = append(p.errs, &Error{p.file, max(line, 1), max(column, 1), err})
}

func (p *parser) note(n *yaml.Node, format string, args ...any) {
	p.to.notes = append(p.to.notes, p.placeOf(n)+": "+fmt.Sprintf(format, args...))
}

// placeOf is the place of n, such as limits.yaml:3:12. It is "" of nil.
func (p *parser) placeOf(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", p.file, n.Line, n.Column)
}

// document returns the root of the text's one document, or nil if the text cannot be read.
func (p *parser) document(text []byte) *yaml.Node {
	if len(text) > maxText {
		p.failAt(1, 1, fmt.Errorf("the file has over %d bytes", maxText))
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		p.failAt(1, 1, err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil || len(first.Content) == 0 {
		p.failSyntax(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		p.fail(&second, "a second document begins: a file has one")
	} else if !errors.Is(err, io.EOF) {
		p.failSyntax(err)
	}
	if len(p.errs) > 0 {
		return nil
	}
	return first.Content[0]
}

func (p *parser) failSyntax(err error) {
	var at *yaml.LoadError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		p.failAt(1, 1, errors.New("the file is empty"))
	case !errors.As(err, &at):
		p.failAt(1, 1, err)
	default:
		p.failAt(at.Mark.Line, at.Mark.Column, errors.New(strings.TrimPrefix(at.ContextMsg+": "+at.Message, ": ")))
	}
}

// followed is n, or what it is an alias of. It is nil where aliases make too much of a file.
func (p *parser) followed(n *yaml.Node) *yaml.Node {
	if p.nodes++; p.nodes > maxNodes {
		if p.nodes == maxNodes+1 {
			p.fail(n, "the file has over %d values", maxNodes)
		}
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// field is one of a mapping: its key and its value.
type field struct{ key, value *yaml.Node }

// fields returns those of the mapping n that have a value. Others than known are errors, unless
// there are none.
func (p *parser) fields(n *yaml.Node, what string, known ...string) map[string]field {
	all := map[string]field{}
	for _, f := range p.pairs(n, what, 0) {
		name := f.key.Value
		if len(known) > 0 && !slices.Contains(known, name) {
			p.unknown(f.key, what, known)
			continue
		}
		if f.value.Tag != "!!null" {
			all[name] = f
		}
	}
	return all
}

// unknown says that there is no such field, or why.
func (p *parser) unknown(key *yaml.Node, what string, known []string) {
	if key.Value == "in_flight" {
		p.fail(key, "%s: in_flight: a proxy never says when a request ends, so its slot would never come back: use package inflight where the work is done", what)
		return
	}
	p.fail(key, "%s: unknown field %s: want %s", what, quote(key.Value), strings.Join(known, ", "))
}

// pairs returns the fields of the mapping n in their order, with those that it merges.
func (p *parser) pairs(n *yaml.Node, what string, depth int) []field {
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%s: %s: want a mapping", what, describe(n))
		return nil
	}
	var own, merged []field
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], p.followed(n.Content[i+1])
		if value == nil {
			return nil
		}
		switch line, twice := lines[key.Value]; {
		case key.Kind == yaml.ScalarNode && key.Tag == "!!merge":
			merged = append(merged, p.merged(value, what, depth)...)
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			p.fail(key, "%s: %s: want a name", what, describe(key))
		case twice:
			p.fail(key, "%s: %s is already in line %d", what, quote(key.Value), line)
		default:
			lines[key.Value] = key.Line
			own = append(own, field{key, value})
		}
	}
	for _, f := range merged {
		if _, twice := lines[f.key.Value]; !twice {
			lines[f.key.Value] = f.key.Line
			own = append(own, f)
		}
	}
	return own
}

// merged are the fields of a value of <<, a mapping or a list of such.
func (p *parser) merged(n *yaml.Node, what string, depth int) (all []field) {
	if depth > maxDepth {
		p.fail(n, "%s: too deep", what)
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return p.pairs(n, what, depth+1)
	}
	for _, item := range n.Content {
		if item = p.followed(item); item != nil {
			all = append(all, p.pairs(item, what, depth+1)...)
		}
	}
	return all
}

// list returns the items of a list.
func (p *parser) list(f field, what string) []*yaml.Node {
	if f.value == nil {
		return nil
	}
	if f.value.Kind != yaml.SequenceNode {
		p.fail(f.value, "%s: %s: want a list", what, describe(f.value))
		return nil
	}
	var items []*yaml.Node
	for _, item := range f.value.Content {
		if item = p.followed(item); item != nil {
			items = append(items, item)
		}
	}
	return items
}

// text is the text of a field, whatever it looks like: 404 and true are texts too. It is "" if
// there is none.
func (p *parser) text(f field, what string) string {
	if f.value == nil {
		return ""
	}
	if f.value.Kind != yaml.ScalarNode {
		p.fail(f.value, "%s: %s: want a text", what, describe(f.value))
		return ""
	}
	return f.value.Value
}

// flag is the value of a field that is true or false. What YAML 1.1 has for them is read too.
func (p *parser) flag(f field, what string) bool {
	if f.value == nil {
		return false
	}
	if f.value.Kind == yaml.ScalarNode && f.value.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		switch strings.ToLower(f.value.Value) {
		case "true", "yes", "on", "y":
			return true
		case "false", "no", "off", "n":
			return false
		}
	}
	p.fail(f.value, "%s: %s: want true or false", what, describe(f.value))
	return false
}

// root reads a file, but for its descriptors and checks.
func (p *parser) root(n *yaml.Node) {
	p.top = p.fields(n, "file", rootFields...)
	p.domain = p.domainOf(n)
	for _, name := range wholeFields {
		f := p.top[name]
		if f.value == nil {
			continue
		}
		if at := p.domain.said[name]; at != "" {
			p.fail(f.key, "%s: domain %s has it already, at %s", name, quote(p.domain.name), at)
		}
		p.domain.said[name] = p.placeOf(f.key)
	}
	p.onFailure(p.top["on_failure"], p.top["instances"])
	if f := p.top["all_or_none"]; f.value != nil {
		p.domain.each = !p.flag(f, "all_or_none")
	}
	if f := p.top[overLimit]; f.value != nil {
		p.domain.overdraws = p.flag(f, overLimit)
	}
	p.store(p.top["store"])
}

// domainOf is the domain of the file with the root n.
func (p *parser) domainOf(n *yaml.Node) *domain {
	name := p.text(p.top["domain"], "domain")
	switch other := p.to.domains[name]; {
	case name == "":
		p.fail(n, "the file has no domain")
	case other != nil && p.to.merged:
		return other
	case other != nil:
		p.fail(p.top["domain"].value, "domain %s is already at %s: a domain is one file, unless domains are merged", quote(name), other.at)
	}
	d := &domain{name: name, at: p.placeOf(p.top["domain"].value), onFailure: failError, said: map[string]string{}}
	p.to.domains[name] = d
	return d
}

// onFailure reads on_failure, and the number of instances beside local.
func (p *parser) onFailure(f, instances field) {
	local := false
	if f.value != nil {
		switch text := failure(p.text(f, "on_failure")); text {
		case failOpen, failClosed, failLocal, failError:
			p.domain.onFailure, local = text, text == failLocal
		default:
			p.fail(f.value, "on_failure: %s: want open, closed, local or error", describe(f.value))
		}
	}
	switch {
	case local && instances.value == nil:
		p.fail(f.value, "on_failure: local: want instances beside it")
	case local:
		p.domain.instances = p.number(instances, "instances")
	case instances.value != nil:
		p.fail(instances.key, "instances: want on_failure: local beside it")
	}
}

// number is the value of a field that is a whole number above 0, or 0.
func (p *parser) number(f field, what string) int {
	n, err := strconv.ParseInt(p.text(f, what), 0, 32)
	if err != nil || f.value.Tag != "!!int" || n < 1 {
		p.fail(f.value, "%s: %s: want a number from 1 to %d", what, describe(f.value), maxRate)
		return 0
	}
	return int(n)
}

// store reads what stands before the store.
func (p *parser) store(f field) {
	if f.value == nil {
		return
	}
	fields := p.fields(f.value, "store", storeFields...)
	front := &p.domain.front
	front.denyCache, front.coalescing = p.flag(fields["deny_cache"], "deny_cache"), p.flag(fields["coalescing"], "coalescing")
	life := fields["lease"]
	if life.value == nil {
		return
	}
	d, err := time.ParseDuration(p.text(life, "lease"))
	switch {
	case err != nil || d <= 0:
		p.fail(life.value, "lease: %s: want how long a lease lives, such as 50ms", describe(life.value))
	case front.denyCache || front.coalescing:
		p.fail(life.key, "lease: want no deny_cache and no coalescing beside it: a lease does both")
	}
	front.lease = d
}

// descriptors reads one level, or more of it: next is what there is of it, or nil.
func (p *parser) descriptors(f field, next level, at place) level {
	for _, item := range p.list(f, "descriptors") {
		switch {
		case at.depth >= maxEntries:
			p.fail(item, "descriptors are nested over %d deep", maxEntries)
			return nil
		case p.nodes > maxNodes:
			return nil
		}
		if next == nil {
			next = level{}
		}
		p.descriptor(item, next, at)
	}
	return next
}

// descriptor reads one into a level.
func (p *parser) descriptor(item *yaml.Node, to level, at place) {
	fields := p.fields(item, "descriptor", descriptorFields...)
	key, value := p.text(fields["key"], "key"), p.text(fields["value"], "value")
	at.path += "/" + key
	if value != "" {
		at.path += "=" + value
	}
	switch {
	case key == "":
		if item.Kind == yaml.MappingNode {
			p.fail(item, "the descriptor has no key")
		}
		return
	case strings.Contains(key, "*"):
		p.fail(fields["key"].value, "key %s: a * has a meaning only in a value", quote(key))
	}
	v := to[key]
	if v == nil {
		v = &values{place: len(to), exact: map[string]*node{}}
		to[key] = v
	}
	n := &node{value: value, at: p.placeOf(item), byValue: p.flag(fields["value_to_metric"], "value_to_metric")}
	if other := v.add(value, n); other != nil {
		p.fail(item, "descriptor %s is already at %s", quote(at.path), other.at)
	}
	if share := fields["share_threshold"]; p.flag(share, "share_threshold") {
		if n.share = value; !strings.Contains(value, "*") {
			p.fail(share.key, "share_threshold: want a value with a * beside it")
		}
	}
	at.byValue = at.byValue || n.byValue
	p.rule(n, fields, at)
	at.depth++
	n.next = p.descriptors(fields["descriptors"], nil, at)
}

// add adds the descriptor for a value, "" for all others. If there is one already, it returns that.
func (v *values) add(value string, n *node) (other *node) {
	if value == "" {
		if v.any == nil {
			v.any = n
			return nil
		}
		return v.any
	}
	if other = v.exact[value]; other != nil {
		return other
	}
	v.exact[value] = n // of a pattern too: a value that is written like it is its own
	if strings.Contains(value, "*") {
		v.wild.add(value, n)
	}
	return nil
}

// rule reads the limit of a descriptor, and what is about it.
func (p *parser) rule(n *node, fields map[string]field, at place) {
	r := &rule{index: len(p.to.rules), path: at.path, file: p.file, domain: p.domain, algorithm: byDefault}
	r.detailed = p.flag(fields["detailed_metric"], "detailed_metric")
	r.byValue = r.detailed || at.byValue
	r.shadow, r.quota = p.flag(fields["shadow_mode"], "shadow_mode"), p.flag(fields["quota_mode"], "quota_mode")
	own := p.metadata(r, fields["metadata"])
	limit := fields["rate_limit"]
	if limit.value == nil {
		if len(own) > 0 {
			p.fail(fields["metadata"].key, "metadata: %s: want a rate_limit beside it", ownSetting)
		}
		if r.detailed {
			p.note(fields["detailed_metric"].key, "detailed_metric: it has no effect without a rate_limit beside it")
		}
		return
	}
	before := len(p.errs)
	in := p.fields(limit.value, "rate_limit", limitFields...)
	r.name = p.text(in["name"], "name")
	p.replaces(r, in["replaces"])
	unlimited := p.flag(in["unlimited"], "unlimited")
	switch unit := in["unit"]; {
	case unlimited && (unit.value != nil || in["limit"].value != nil || in[overLimit].value != nil || len(own) > 0):
		p.fail(limit.value, "rate_limit: want no other limit beside unlimited")
	case unlimited:
		r.limit = ratelimit.Unlimited()
	default:
		p.limit(r, limit, in, own)
	}
	if len(p.errs) > before {
		return
	}
	if !unlimited {
		r.shown = shownLimit(r.limit, r.name)
	}
	n.rule = r
	p.to.rules = append(p.to.rules, r)
}

// replaces reads the names of the rules that do not count beside this one.
func (p *parser) replaces(r *rule, f field) {
	for _, item := range p.list(f, "replaces") {
		name := p.text(p.fields(item, "replaces", "name")["name"], "name")
		switch name {
		case "":
			p.fail(item, "replaces: an entry has no name")
		case r.name:
			p.fail(item, "replaces: %s is the rule itself", quote(name))
		}
		r.replaces = append(r.replaces, name)
	}
}

// metadata reads that of a descriptor. It returns the fields of its block "ratelimit".
func (p *parser) metadata(r *rule, f field) map[string]field {
	if f.value == nil {
		return nil
	}
	fields := p.fields(f.value, "metadata")
	var values map[string]any
	err := f.value.Decode(&values)
	if err == nil {
		r.metadata, err = structpb.NewStruct(values)
	}
	if err != nil {
		p.fail(f.value, "metadata: %w", err)
	}
	if own := fields[ownSetting]; own.value != nil {
		return p.fields(own.value, "metadata: "+ownSetting, ownFields...)
	}
	return nil
}

// limit reads the limit, the algorithm and charge_over_limit: of rate_limit itself, or of the metadata, which has
// the last word.
func (p *parser) limit(r *rule, at field, in, own map[string]field) {
	r.overdraws = p.overdraws(in[overLimit], own[overLimit])
	for _, f := range []field{in["algorithm"], own["algorithm"]} {
		if f.value != nil {
			r.algorithm = p.text(f, "algorithm")
		}
		if err := ratelimit.PerSecond(1).ValidateFor(r.algorithm); err != nil {
			p.fail(f.value, "algorithm: %w", err)
			return
		}
	}
	text, hasUnit := in["limit"], in["unit"].value != nil || in["requests_per_unit"].value != nil
	switch {
	case text.value != nil && hasUnit:
		p.fail(text.key, "limit: want no unit and no requests_per_unit beside it")
		return
	case text.value == nil:
		p.perUnit(r, at, in)
	}
	if own["limit"].value != nil {
		text = own["limit"]
	}
	if text.value != nil {
		l, err := ratelimit.ParseLimit(p.text(text, "limit"))
		if err != nil || l == ratelimit.Unlimited() {
			p.fail(text.value, "limit: %w", cmp.Or(err, errors.New("unlimited: want the field unlimited: true")))
			return
		}
		at, r.limit = text, l
	}
	if r.limit == (ratelimit.Limit{}) {
		return
	}
	if err := r.limit.ValidateFor(r.algorithm); err != nil {
		p.fail(at.value, "limit: %w", err)
	} else if p.domain.instances > 0 {
		if _, err := p.domain.share(r.limit, r.algorithm); err != nil {
			p.fail(at.value, "limit: on_failure: local: %w", err)
		}
	}
}

// overdraws is charge_over_limit of a rule: of the last of these fields that there is, or else of the domain.
func (p *parser) overdraws(fields ...field) bool {
	overdraws := p.domain.overdraws
	for _, f := range fields {
		if f.value != nil {
			overdraws = p.flag(f, overLimit)
		}
	}
	return overdraws
}

// perUnit reads unit and requests_per_unit.
func (p *parser) perUnit(r *rule, at field, in map[string]field) {
	unit, requests := in["unit"], in["requests_per_unit"]
	if unit.value == nil {
		p.fail(at.value, "rate_limit: no unit")
		return
	}
	period := periodOf(p.text(unit, "unit"))
	if period == 0 {
		p.fail(unit.value, "unit: %s: want second, minute, hour, day, week, month or year", describe(unit.value))
		return
	}
	if requests.value == nil {
		p.note(at.value, "rate_limit: no requests_per_unit: it denies everything")
		r.limit = ratelimit.Limit{Period: period}
		return
	}
	rate, err := strconv.ParseUint(p.text(requests, "requests_per_unit"), 0, 64)
	switch {
	case err != nil || requests.value.Tag != "!!int":
		p.fail(requests.value, "requests_per_unit: %s: want a number from 0 to %d", describe(requests.value), maxRate)
	case rate > maxRate:
		p.fail(requests.value, "requests_per_unit: %d is over %d: want unlimited: true instead", rate, maxRate)
	default:
		r.limit = ratelimit.Limit{Rate: int(rate), Period: period}
	}
}

// describe says what a node is that should be something else.
func describe(n *yaml.Node) string {
	switch {
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
