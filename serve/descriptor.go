package serve

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimit-go/ratelimit"
)

// place is the place of a level of descriptors.
type place struct {
	path    string // such as "edge/path=/login"
	depth   int
	counted []counted
	byValue bool // whether one of the descriptors above has value_to_metric
}

// descriptors reads one level into next, which is nil if the level has no descriptors yet.
func (p *parser) descriptors(f field, next level, at place) level {
	for _, item := range p.list(f, "descriptors") {
		switch {
		case at.depth >= maxEntries:
			p.Fail(item, "descriptors are nested more than %d levels deep", maxEntries)
			return nil
		case p.Exhausted():
			return nil
		}
		if next == nil {
			next = level{}
		}
		p.descriptor(item, next, at)
	}
	return next
}

// descriptor reads one descriptor into a level.
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
			p.Fail(item, "the descriptor has no key")
		}
		return
	case strings.Contains(key, "*"):
		p.Fail(fields["key"].Value, "key %s: a * is allowed only in a value", quote(key))
	}
	v := to[key]
	if v == nil {
		v = &values{place: len(to), exact: map[string]*node{}}
		to[key] = v
	}
	n := &node{value: value, at: p.placeOf(item), byValue: p.flag(fields["value_to_metric"], "value_to_metric")}
	if other := v.add(value, n); other != nil {
		p.Fail(item, "descriptor %s is already at %s", quote(at.path), other.at)
	}
	if share := fields["share_threshold"]; p.flag(share, "share_threshold") {
		if n.share = value; !strings.Contains(value, "*") {
			p.Fail(share.Key, "share_threshold: needs a value with a *")
		}
	}
	if parent := fields["share_parent"]; p.flag(parent, "share_parent") {
		if n.parent = true; n.share != "" {
			p.Fail(parent.Key, "share_parent: cannot be combined with share_threshold, because no value is counted")
		}
	} else {
		at.counted = append(slices.Clip(at.counted), counted{key, value})
	}
	at.byValue = at.byValue || n.byValue
	p.rule(n, fields, at)
	at.depth++
	n.next = p.descriptors(fields["descriptors"], nil, at)
}

// add adds the descriptor for a value, or for all other values if it is "". If there already is a
// descriptor for it, add returns that one.
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
	v.exact[value] = n // patterns too: a value that looks like the pattern is matched exactly
	if strings.Contains(value, "*") {
		v.wild.add(value, n)
	}
	return nil
}

// rule reads the limit of a descriptor, and its settings.
func (p *parser) rule(n *node, fields map[string]field, at place) {
	r := &rule{index: len(p.to.rules), path: at.path, file: p.File, domain: p.domain, algorithm: byDefault, counted: at.counted}
	r.detailed = p.flag(fields["detailed_metric"], "detailed_metric")
	r.byValue = r.detailed || at.byValue
	r.shadow, r.quota = p.flag(fields["shadow_mode"], "shadow_mode"), p.flag(fields["quota_mode"], "quota_mode")
	own := p.metadata(r, fields["metadata"])
	limit := fields["rate_limit"]
	if limit.Value == nil {
		if len(own) > 0 {
			p.Fail(fields["metadata"].Key, "metadata: %s: needs a rate_limit", ownSetting)
		}
		leaf := fields["descriptors"].Value == nil // otherwise these apply to the descriptors below
		p.idle(fields, "without a rate_limit", map[string]bool{
			"detailed_metric": r.detailed, "shadow_mode": r.shadow, "quota_mode": r.quota, "metadata": r.metadata != nil,
			"value_to_metric": leaf && n.byValue, "share_threshold": leaf && n.share != "", "share_parent": leaf && n.parent,
		})
		return
	}
	before := len(p.Errors)
	in := p.fields(limit.Value, "rate_limit", limitFields...)
	r.name = p.text(in["name"], "name")
	p.replaces(r, in["replaces"])
	unlimited := p.flag(in["unlimited"], "unlimited")
	switch unit := in["unit"]; {
	case unlimited && (unit.Value != nil || in["limit"].Value != nil || in[overLimit].Value != nil || in["reserved"].Value != nil || in["algorithm"].Value != nil || len(own) > 0):
		p.Fail(limit.Value, "rate_limit: unlimited cannot be combined with another limit")
	case unlimited:
		r.limit = ratelimit.Unlimited()
		const why = "beside unlimited"
		p.idle(fields, why, map[string]bool{"shadow_mode": r.shadow, "quota_mode": r.quota, "metadata": r.metadata != nil})
		p.idle(in, why, map[string]bool{"requests_per_unit": in["requests_per_unit"].Value != nil})
	default:
		p.limit(r, limit, in, own)
	}
	if len(p.Errors) > before {
		return
	}
	if !unlimited {
		r.shown = shownLimit(r.limit, r.reserved, r.name)
	}
	n.rule = r
	p.to.rules = append(p.to.rules, r)
}

// idle adds a note for each field that is set, but has no effect.
func (p *parser) idle(fields map[string]field, why string, set map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if set[name] {
			p.note(fields[name].Key, "%s: it has no effect %s", name, why)
		}
	}
}

// replaces reads the names of the rules that do not count together with this one.
func (p *parser) replaces(r *rule, f field) {
	for _, item := range p.list(f, "replaces") {
		name := p.text(p.fields(item, "replaces", "name")["name"], "name")
		switch name {
		case "":
			p.Fail(item, "replaces: an entry has no name")
		case r.name:
			p.Fail(item, "replaces: a rule cannot replace itself: %s", quote(name))
		}
		r.replaces = append(r.replaces, name)
	}
}

// metadata reads the metadata of a descriptor. It returns the fields of its block "ratelimit".
func (p *parser) metadata(r *rule, f field) map[string]field {
	if f.Value == nil {
		return nil
	}
	fields := p.fields(f.Value, "metadata")
	var values map[string]any
	err := f.Value.Decode(&values)
	if err == nil {
		r.metadata, err = structpb.NewStruct(values)
	}
	if err != nil {
		p.Fail(f.Value, "metadata: %w", err)
	}
	if own := fields[ownSetting]; own.Value != nil {
		return p.fields(own.Value, "metadata: "+ownSetting, ownFields...)
	}
	return nil
}

// limit reads the limit, the algorithm and charge_over_limit, from rate_limit and from the
// metadata, which takes precedence.
func (p *parser) limit(r *rule, at field, in, own map[string]field) {
	r.overdraws = p.overdraws(in[overLimit], own[overLimit])
	for _, f := range []field{in["algorithm"], own["algorithm"]} {
		if f.Value != nil {
			r.algorithm = p.text(f, "algorithm")
		}
		if err := ratelimit.PerSecond(1).ValidateFor(r.algorithm); err != nil {
			p.Fail(f.Value, "algorithm: %w", err)
			return
		}
	}
	text, hasUnit := in["limit"], in["unit"].Value != nil || in["requests_per_unit"].Value != nil
	switch {
	case text.Value != nil && hasUnit:
		p.Fail(text.Key, "limit: cannot be combined with unit and requests_per_unit")
		return
	case text.Value == nil:
		p.perUnit(r, at, in)
	}
	if own["limit"].Value != nil {
		text = own["limit"]
	}
	if text.Value != nil {
		l, err := ratelimit.ParseLimit(p.text(text, "limit"))
		if err != nil || l == ratelimit.Unlimited() {
			p.Fail(text.Value, "limit: %w", cmp.Or(err, errors.New("unlimited: use the field unlimited: true")))
			return
		}
		at, r.limit = text, l
	}
	if r.limit == (ratelimit.Limit{}) {
		return
	}
	if err := r.limit.ValidateFor(r.algorithm); err != nil {
		p.Fail(at.Value, "limit: %w", err)
	} else if p.domain.instances > 0 {
		if _, err := p.domain.share(r.limit, r.algorithm); err != nil {
			p.Fail(at.Value, "limit: on_failure: local: %w", err)
		}
	}
	p.reserved(r, in["reserved"], own["reserved"])
}

// reserved reads how many events a rule leaves to others, from the last of these fields that is set.
func (p *parser) reserved(r *rule, fields ...field) {
	for _, f := range fields {
		if f.Value == nil {
			continue
		}
		r.at = p.placeOf(f.Value)
		if r.reserved = p.Number(f.Value, "reserved: "); r.reserved >= capacity(r.limit) {
			p.Fail(f.Value, "reserved: %d leaves nothing of %v", r.reserved, r.limit)
		}
	}
}

// overdraws returns charge_over_limit of a rule: the last of these fields that is set, or the value
// of the domain.
func (p *parser) overdraws(fields ...field) bool {
	overdraws := p.domain.overdraws
	for _, f := range fields {
		if f.Value != nil {
			overdraws = p.flag(f, overLimit)
		}
	}
	return overdraws
}

// perUnit reads unit and requests_per_unit.
func (p *parser) perUnit(r *rule, at field, in map[string]field) {
	unit, requests := in["unit"], in["requests_per_unit"]
	if unit.Value == nil {
		p.Fail(at.Value, "rate_limit: no unit: add one, such as minute")
		return
	}
	period := periodOf(p.text(unit, "unit"))
	if period == 0 {
		p.Fail(unit.Value, "unit: %s: want second, minute, hour, day, week, month or year", describe(unit.Value))
		return
	}
	if requests.Value == nil {
		p.note(at.Value, "rate_limit: no requests_per_unit: the rule denies everything")
		r.limit = ratelimit.Limit{Period: period}
		return
	}
	rate, err := strconv.ParseUint(p.text(requests, "requests_per_unit"), 0, 64)
	switch {
	case err != nil || requests.Value.Tag != "!!int":
		p.Fail(requests.Value, "requests_per_unit: %s: want a number from 0 to %d", describe(requests.Value), maxRate)
	case rate > maxRate:
		p.Fail(requests.Value, "requests_per_unit: %d is more than %d: use unlimited: true", rate, maxRate)
	default:
		r.limit = ratelimit.Limit{Rate: int(rate), Period: period}
	}
}
