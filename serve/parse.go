package serve

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve/internal/yamltree"
)

const (
	maxRate    = 1<<31 - 1
	byDefault  = "fixed_window"
	ownSetting = "ratelimit" // the block in a descriptor's metadata
	overLimit  = "charge_over_limit"
)

// The known fields.
var (
	rootFields       = []string{"domain", "descriptors", "on_failure", "instances", "all_or_none", overLimit, "store", "checks"}
	wholeFields      = []string{"on_failure", "instances", "all_or_none", overLimit, "store"} // fields that apply to a whole domain
	descriptorFields = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "share_parent", "metadata"}
	limitFields      = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "limit", "reserved", overLimit}
	ownFields        = []string{"algorithm", "limit", "reserved", overLimit}
	storeFields      = []string{"deny_cache", "coalescing", "lease"}
)

// Error is a mistake at one place of a file.
type Error struct {
	File   string
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
}

// Error returns the place and the mistake, such as `limits.yaml:3:12: …`.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Parse reads at least one file in the YAML format of github.com/envoyproxy/ratelimit. Each file is
// one domain; see [ParseMerged] to combine several.
//
// The error lists all mistakes, or the first 20 of them, in the order of the files. Each of them is
// an [*Error] with line and column, and errors.As finds the first. Unknown fields are errors, and
// so is everything that the original rejects.
func Parse(files ...File) (*Rules, error) { return parse(files, false) }

// ParseMerged is like [Parse], but merges files with the same domain in their order, as the
// original does with MERGE_DOMAIN_CONFIG. If two patterns match, the first counts. Two descriptors
// with the same key and value are an error, even if only their nested descriptors differ. The
// settings on_failure, instances, all_or_none, charge_over_limit and store apply to the whole
// domain, and each can be set in only one of its files.
func ParseMerged(files ...File) (*Rules, error) { return parse(files, true) }

// parse first reads the settings of whole domains, because a rule in one file may depend on a
// setting in a later one.
func parse(files []File, merge bool) (*Rules, error) {
	rules := &Rules{domains: map[string]*domain{}, checks: map[string]*check{}, merged: merge}
	parsers := make([]*parser, len(files))
	for i, f := range files {
		p := &parser{Reader: yamltree.Reader{Dialect: &dialect, File: f.Name}, to: rules}
		parsers[i] = p
		if len(f.Text) > maxText {
			p.FailAt(1, 1, fmt.Errorf("the file has more than %d bytes", maxText))
		} else if root := p.Document(f.Text); root != nil {
			p.root(root)
		}
	}
	for _, p := range parsers {
		if p.domain != nil {
			p.domain.next = p.descriptors(p.top["descriptors"], p.domain.next, place{path: p.domain.name})
		}
	}
	var errs []*yamltree.Error
	for _, p := range parsers {
		if p.domain != nil {
			p.checks(p.top["checks"])
		}
		errs = append(errs, p.Sorted()...)
	}
	switch {
	case len(errs) > 0:
		return nil, yamltree.Join(errs, func(e *yamltree.Error) error { return (*Error)(e) })
	case len(files) == 0:
		return nil, fmt.Errorf("%w: no files", ratelimit.ErrInvalidOption)
	}
	for _, name := range slices.Sorted(maps.Keys(rules.domains)) {
		limited := func(r *rule) bool { return r.domain.name == name }
		if !slices.ContainsFunc(rules.rules, limited) {
			rules.notes = append(rules.notes, fmt.Sprintf("%s: domain %s has no rate_limit: it admits everything", rules.domains[name].at, quote(name)))
		}
	}
	rules.distinguish()
	for _, r := range rules.rules {
		for _, name := range r.replaces {
			if !slices.ContainsFunc(rules.rules, func(other *rule) bool { return other.domain == r.domain && other.name == name }) {
				rules.notes = append(rules.notes, fmt.Sprintf("%s: descriptor %s: replaces: it has no effect, because no rule of the domain has the name %s", r.file, quote(r.path), quote(name)))
			}
		}
		if r.reserved > 0 && !slices.ContainsFunc(rules.rules, r.leavesTo) {
			rules.notes = append(rules.notes, fmt.Sprintf("%s: reserved: no other descriptor counts the same and reserves fewer, so that nobody can use what is reserved", r.at))
		}
	}
	return rules, nil
}

// dialect is the YAML dialect of the original.
var dialect = yamltree.Dialect{Noun: "file", MaxDepth: 64, Loose: true, MaxValues: 1 << 18, Absent: map[string]string{
	"in_flight": "a proxy never reports when a request ends, so its slot would never be released: use package inflight where the work is done",
}}

// parser reads one file, and collects the errors in it.
type parser struct {
	yamltree.Reader
	to     *Rules
	domain *domain          // nil if the text cannot be read
	top    map[string]field // the fields of the root
}

type field = yamltree.Field

var describe, quote = yamltree.Describe, yamltree.Quote

func (p *parser) note(n *yaml.Node, format string, args ...any) {
	p.to.notes = append(p.to.notes, p.placeOf(n)+": "+fmt.Sprintf(format, args...))
}

// placeOf returns the place of n, such as limits.yaml:3:12, or "" if n is nil.
func (p *parser) placeOf(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", p.File, n.Line, n.Column)
}

// fields returns the fields of the mapping n that have a value.
func (p *parser) fields(n *yaml.Node, what string, known ...string) map[string]field {
	fields := p.Fields(n, what+": ", "a mapping", known...)
	maps.DeleteFunc(fields, func(_ string, f field) bool { return f.Value.Tag == "!!null" })
	return fields
}

// pairs returns the fields of the mapping n in their order.
func (p *parser) pairs(n *yaml.Node, what string) []field { return p.Pairs(n, what+": ", "a mapping") }

// list returns the items of a list.
func (p *parser) list(f field, what string) []*yaml.Node {
	if f.Value == nil {
		return nil
	}
	if f.Value.Kind != yaml.SequenceNode {
		p.Fail(f.Value, "%s: %s: want a list", what, describe(f.Value))
		return nil
	}
	return p.Items(f.Value)
}

// text returns the text of a field, even if it looks like something else, such as 404 or true. It
// is "" if there is none.
func (p *parser) text(f field, what string) (text string) {
	if f.Value != nil {
		text, _ = p.Text(f.Value, what+": ", "a text")
	}
	return text
}

// flag returns the value of a boolean field, or false if there is none.
func (p *parser) flag(f field, what string) bool { return f.Value != nil && p.Flag(f.Value, what+": ") }

// root reads a file, except for its descriptors and checks.
func (p *parser) root(n *yaml.Node) {
	p.top = p.fields(n, "file", rootFields...)
	p.domain = p.domainOf(n)
	for _, name := range wholeFields {
		f := p.top[name]
		if f.Value == nil {
			continue
		}
		if at := p.domain.said[name]; at != "" {
			p.Fail(f.Key, "%s: domain %s already sets it at %s", name, quote(p.domain.name), at)
		}
		p.domain.said[name] = p.placeOf(f.Key)
	}
	p.onFailure(p.top["on_failure"], p.top["instances"])
	if f := p.top["all_or_none"]; f.Value != nil {
		p.domain.each = !p.flag(f, "all_or_none")
	}
	if f := p.top[overLimit]; f.Value != nil {
		p.domain.overdraws = p.flag(f, overLimit)
	}
	p.store(p.top["store"])
}

// domainOf returns the domain of the file with the root n.
func (p *parser) domainOf(n *yaml.Node) *domain {
	name := p.text(p.top["domain"], "domain")
	switch other := p.to.domains[name]; {
	case name == "":
		p.Fail(n, "the file has no domain: add one")
	case other != nil && p.to.merged:
		return other
	case other != nil:
		p.Fail(p.top["domain"].Value, "domain %s is already at %s: a domain must be one file, unless domains are merged", quote(name), other.at)
	}
	d := &domain{name: name, at: p.placeOf(p.top["domain"].Value), onFailure: failError, said: map[string]string{}}
	p.to.domains[name] = d
	return d
}

// onFailure reads on_failure, and instances for local.
func (p *parser) onFailure(f, instances field) {
	local := false
	if f.Value != nil {
		switch text := failure(p.text(f, "on_failure")); text {
		case failOpen, failClosed, failLocal, failError:
			p.domain.onFailure, local = text, text == failLocal
		default:
			p.Fail(f.Value, "on_failure: %s: want open, closed, local or error", describe(f.Value))
		}
	}
	switch {
	case local && instances.Value == nil:
		p.Fail(f.Value, "on_failure: local: needs instances, the number of processes that share the store")
	case local:
		p.domain.instances = p.Number(instances.Value, "instances: ")
	case instances.Value != nil:
		p.Fail(instances.Key, "instances: needs on_failure: local")
	}
}

// store reads the caches in front of the store.
func (p *parser) store(f field) {
	if f.Value == nil {
		return
	}
	fields := p.fields(f.Value, "store", storeFields...)
	front := &p.domain.front
	front.denyCache, front.coalescing = p.flag(fields["deny_cache"], "deny_cache"), p.flag(fields["coalescing"], "coalescing")
	life := fields["lease"]
	if life.Value == nil {
		return
	}
	d, err := time.ParseDuration(p.text(life, "lease"))
	switch {
	case err != nil || d <= 0:
		p.Fail(life.Value, "lease: %s: want the lifetime of a lease, such as 50ms", describe(life.Value))
	case front.denyCache || front.coalescing:
		p.Fail(life.Key, "lease: cannot be combined with deny_cache or coalescing, because a lease does both")
	}
	front.lease = d
}
