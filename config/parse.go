package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/yamltree"
)

const (
	maxName   = 256 // bytes
	maxLimits = 16  // the most that an All takes

	defaultLife = time.Minute // of a slot
)

// The known fields. schema.json describes their values.
var (
	limiterFields = []string{"algorithm", "limit", "limits", "tiers", "shares", "reserved", "in_flight", "life", "ban", "store", "on_failure", "instances"}
	banFields     = []string{"denials", "for", "most"}
	storeFields   = []string{"deny_cache", "coalescing", "lease"}
	failures      = []failure{failOpen, failClosed, failLocal, failError}
)

// dialect is strict, so that a text means what it seems to mean. A valid text has a depth of 4.
var dialect = yamltree.Dialect{Noun: "text", MaxDepth: 16}

// parser reads one text, and collects the errors in it.
type parser struct {
	yamltree.Reader
	specs   []*spec
	sharing []func() // run once all limiters are known
}

// limiters reads the whole text.
func (p *parser) limiters(root *yaml.Node) {
	fields := p.Fields(root, "", "a mapping with the field limiters", "limiters")
	limiters, found := fields["limiters"]
	if !found {
		if len(p.Errors) == 0 {
			p.Fail(root, "no limiters")
		}
		return
	}
	for _, l := range p.Pairs(limiters.Value, "limiters: ", "a limiter for each name") {
		p.limiter(l.Key, l.Value)
	}
	for _, readOn := range p.sharing {
		readOn()
	}
}

// limiter reads one limiter.
func (p *parser) limiter(name, n *yaml.Node) {
	what := "limiter " + yamltree.Quote(name.Value) + ": "
	s := &spec{line: name.Line, column: name.Column, name: name.Value, onFailure: failError}
	p.specs = append(p.specs, s)
	p.name(name, what)
	before := len(p.Errors)
	fields := p.Fields(n, what, "a mapping with the fields algorithm and limit, or in_flight", limiterFields...)
	if len(fields) == 0 && len(p.Errors) > before {
		return
	}
	in := block{p, s, what, name, fields}
	if f, found := fields["shares"]; found {
		if in.shares(f.Value) {
			good := len(p.Errors) == before
			p.sharing = append(p.sharing, func() { in.rest(in.share(f.Value) && good) })
		}
		return
	}
	if in.slots(); !in.slotsAlone() {
		in.algorithm()
		in.limits()
		in.tiers()
	}
	in.rest(len(p.Errors) == before)
}

func (p *parser) name(n *yaml.Node, what string) {
	if len(n.Value) > maxName {
		p.Fail(n, "%sthe name has %d bytes, more than %d", what, len(n.Value), maxName)
	}
	if n.Value == "" || strings.ContainsAny(n.Value, "{}") {
		p.Fail(n, "%s%w: want a name that is not empty and has no braces", what, ratelimit.ErrInvalidOption)
	}
}

// block reads the fields of a limiter, or of a mapping inside it.
type block struct {
	*parser
	spec   *spec
	what   string // the beginning of errors
	name   *yaml.Node
	fields map[string]yamltree.Field
}

// rest reads the fields that do not define counts. good reports whether the limiter has no errors so far.
func (b *block) rest(good bool) {
	before := len(b.Errors)
	b.reserved(good)
	b.ban()
	b.store(good && len(b.Errors) == before)
	b.onFailure(good && len(b.Errors) == before)
}

// shares reads the name of the limiter whose counts this limiter shares.
func (b *block) shares(n *yaml.Node) (ok bool) {
	b.spec.shares, ok = b.Text(n, b.what+"shares: ", "the name of a limiter")
	for _, field := range []string{"algorithm", "limit", "limits", "tiers", "in_flight", "life"} {
		if f, found := b.fields[field]; found {
			b.Fail(f.Key, "%s%s: want none beside shares: the limits are those of the limiter that it names", b.what, field)
		}
	}
	return ok
}

// share copies the limits of the limiter whose counts this limiter shares. It reports whether they are known.
func (b *block) share(n *yaml.Node) bool {
	name := b.spec.shares
	i := slices.IndexFunc(b.specs, func(s *spec) bool { return s.name == name })
	if i < 0 {
		b.Fail(n, "%sshares: there is no limiter %s", b.what, yamltree.Quote(name))
		return false
	}
	switch other := b.specs[i]; {
	case other.shares != "":
		b.Fail(n, "%sshares: want a limiter with limits of its own, and %s shares those of %s", b.what, yamltree.Quote(name), yamltree.Quote(other.shares))
	case other.slots > 0:
		b.Fail(n, "%sshares: limiter %s has in_flight, and slots are not shared", b.what, yamltree.Quote(name))
	case len(other.limits) == maxLimits && b.has("ban"):
		b.Fail(n, "%sshares: limiter %s has %d limits, and a ban takes one of the %d places", b.what, yamltree.Quote(name), len(other.limits), maxLimits)
	default:
		b.spec.algorithm, b.spec.limits, b.spec.several, b.spec.tiers = other.algorithm, other.limits, other.several, other.tiers
		b.spec.front.lease = other.front.lease // otherwise, both together would admit what flows into a bucket in a TTL twice
		return len(other.limits) > 0
	}
	return false
}

func (b *block) has(field string) bool {
	_, found := b.fields[field]
	return found
}

// reserved reads how many events are left to other limiters. good reports whether the limiter has no errors so
// far, so that the reserve can be compared with its limits.
func (b *block) reserved(good bool) {
	f, found := b.fields["reserved"]
	if !found {
		return
	}
	b.spec.reserved = b.Number(f.Value, b.what+"reserved: ")
	if !good || b.spec.reserved == 0 {
		return
	}
	if err := b.spec.checkReserved(); err != nil {
		b.Fail(f.Value, "%sreserved: %w", b.what, err)
	}
}

// slots reads how many calls may be in flight, and how long a slot outlives its process.
func (b *block) slots() {
	life, hasLife := b.fields["life"]
	f, found := b.fields["in_flight"]
	if !found {
		if hasLife {
			b.Fail(life.Key, "%slife: needs in_flight", b.what)
		}
		return
	}
	b.spec.slots, b.spec.life = b.Number(f.Value, b.what+"in_flight: "), defaultLife
	if hasLife {
		b.life(life.Value)
	}
	for _, other := range []struct{ field, why string }{
		{"store", "cannot be combined with in_flight, because each slot is taken in the store"},
		{"ban", "cannot be combined with in_flight, because a client that finds no slot has done nothing wrong"},
		{"reserved", "cannot be combined with in_flight, because slots are not reserved"},
	} {
		if f, found := b.fields[other.field]; found {
			b.Fail(f.Key, "%s%s: %s", b.what, other.field, other.why)
		}
	}
}

// life reads the lifetime of a slot.
func (b *block) life(n *yaml.Node) {
	b.spec.life = b.duration("life", "30s", false)
	if b.spec.life <= 0 {
		return
	}
	if err := checkLife(b.spec.life); err != nil {
		b.Fail(n, "%slife: %w", b.what, err)
	}
}

// slotsAlone reports whether in_flight is the only limit, so that nothing counts rates.
func (b *block) slotsAlone() bool {
	if !b.has("in_flight") {
		return false
	}
	for _, field := range []string{"limit", "limits"} {
		if b.has(field) {
			return false
		}
	}
	for _, field := range []string{"algorithm", "tiers"} {
		if f, found := b.fields[field]; found {
			b.Fail(f.Key, "%s%s: needs a limit", b.what, field)
		}
	}
	return true
}

func (b *block) algorithm() {
	f, found := b.fields["algorithm"]
	if !found {
		b.Fail(b.name, "%sno algorithm: add one, such as token_bucket", b.what)
		return
	}
	name, ok := b.Text(f.Value, b.what+"algorithm: ", "its name")
	if !ok {
		return
	}
	if err := ratelimit.PerSecond(1).ValidateFor(name); err != nil {
		b.Fail(f.Value, "%salgorithm: %w", b.what, shortened(err, name))
		return
	}
	b.spec.algorithm = name
}

// limit reads a limit, and checks it with the algorithm if that is known.
func (b *block) limit(n *yaml.Node, field string) (l ratelimit.Limit, ok bool) {
	text, ok := b.Text(n, b.what+field+": ", "a limit such as 100/m")
	if !ok {
		return l, false
	}
	l, err := ratelimit.ParseLimit(text)
	if err == nil && b.spec.algorithm != "" {
		err = b.spec.check(l)
	}
	if err != nil {
		b.Fail(n, "%s%s: %w", b.what, field, err)
	}
	return l, err == nil
}

func (b *block) limits() {
	one, hasOne := b.fields["limit"]
	several, hasSeveral := b.fields["limits"]
	switch {
	case hasOne && hasSeveral:
		b.Fail(later(one.Key, several.Key), "%slimit and limits: use only one of them", b.what)
	case hasOne:
		if l, ok := b.limit(one.Value, "limit"); ok {
			b.spec.limits = []ratelimit.Limit{l}
		}
	case hasSeveral:
		b.spec.several = true
		b.list(several.Value)
	default:
		b.Fail(b.name, "%sno limit: add one, such as 100/m", b.what)
	}
}

// list reads limits that must all admit.
func (b *block) list(n *yaml.Node) {
	most := maxLimits
	if _, banned := b.fields["ban"]; banned || b.spec.slots > 0 { // each of these takes one place
		most--
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > most {
		b.Fail(n, "%slimits: %s: want a list of 1 to %d limits", b.what, yamltree.Describe(n), most)
		return
	}
	for _, item := range n.Content {
		l, ok := b.limit(item, "limits")
		switch {
		case !ok:
		case slices.Contains(b.spec.periods(), period(l)):
			b.Fail(item, "%slimits: %s: another limit has the same period, so both would share one count", b.what, yamltree.Quote(item.Value))
		default:
			b.spec.limits = append(b.spec.limits, l)
		}
	}
}

func (b *block) tiers() {
	f, found := b.fields["tiers"]
	if !found {
		return
	}
	if b.spec.several {
		b.Fail(f.Key, "%stiers: cannot be combined with limits: use limit", b.what)
	}
	b.spec.tiers = map[string]ratelimit.Limit{}
	for _, tier := range b.Pairs(f.Value, b.what+"tiers: ", "a limit for each tier") {
		if l, ok := b.limit(tier.Value, "tier "+yamltree.Quote(tier.Key.Value)); ok {
			b.spec.tiers[tier.Key.Value] = l
		}
	}
}

// ban reads when a key is banned, and for how long.
func (b *block) ban() {
	f, found := b.fields["ban"]
	if !found {
		return
	}
	before, what := len(b.Errors), b.what+"ban: "
	fields := b.Fields(f.Value, what, "a mapping with denials and for", banFields...)
	in := block{b.parser, b.spec, what, f.Key, fields}
	p := ratelimit.Penalty{For: in.duration("for", "15m", true), Most: in.duration("most", "24h", false)}
	p.Denials, p.Within = in.denials()
	if len(b.Errors) > before {
		return
	}
	if err := p.Validate(); err != nil {
		b.Fail(f.Key, "%s%w", what, err)
		return
	}
	b.spec.ban = &p
	if store, found := b.fields["store"]; found {
		b.Fail(store.Key, "%sstore: has no effect together with a ban, which asks the store for every call", b.what)
	}
}

// denials reads the number of denials and their time.
func (b *block) denials() (n int, within time.Duration) {
	const want = "a number and a time, such as 3/10m"
	f, found := b.fields["denials"]
	if !found {
		b.Fail(b.name, "%sno denials: add them, such as 3/10m", b.what)
		return 0, 0
	}
	text, ok := b.Text(f.Value, b.what+"denials: ", want)
	if !ok {
		return 0, 0
	}
	l, err := ratelimit.ParseLimit(text)
	if err != nil || l != (ratelimit.Limit{Rate: l.Rate, Period: l.Period}) {
		b.Fail(f.Value, "%sdenials: %s: want %s", b.what, yamltree.Quote(text), want)
	}
	return l.Rate, l.Period
}

// duration reads a field that is a time. It returns 0 if there is none.
func (b *block) duration(field, example string, wanted bool) time.Duration {
	f, found := b.fields[field]
	if !found {
		if wanted {
			b.Fail(b.name, "%sno %s: add it, such as %s", b.what, field, example)
		}
		return 0
	}
	want := "a time, such as " + example
	text, ok := b.Text(f.Value, b.what+field+": ", want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		b.Fail(f.Value, "%s%s: %s: want %s", b.what, field, yamltree.Quote(text), want)
	}
	return d
}

// later returns the node that comes later in the text.
func later(a, b *yaml.Node) *yaml.Node {
	if a.Line > b.Line || a.Line == b.Line && a.Column > b.Column {
		return a
	}
	return b
}

// shortened returns err, with a long text that it quotes cut short.
func shortened(err error, text string) error {
	whole, short := strconv.Quote(text), yamltree.Quote(text)
	if short == whole {
		return err
	}
	return shortError{strings.ReplaceAll(err.Error(), whole, short), err}
}

type shortError struct {
	text string
	err  error
}

func (e shortError) Error() string { return e.text }
func (e shortError) Unwrap() error { return e.err }
