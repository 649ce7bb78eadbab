package serve

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
)

// Rules are the rules in a set of files. They never change, and can be used by several services.
// Use [Parse] or [ParseMerged] to create them.
type Rules struct {
	domains map[string]*domain
	checks  map[string]*check
	rules   []*rule // of all domains, in the order of the files
	notes   []string
	merged  bool // whether ParseMerged made them
}

// Notes returns warnings about settings that have no effect and limits that deny everything, each
// as a line for a log.
func (r *Rules) Notes() []string { return r.notes }

// distinguish gives each rule its own path, because metrics count by it. Two places read alike if a
// value or the name of a domain has a slash.
func (r *Rules) distinguish() {
	taken := map[string]bool{}
	for name := range r.domains {
		taken[overridesOf(name)] = true
	}
	for _, one := range r.rules {
		path := one.path
		for i := 2; taken[one.path]; i++ {
			one.path = path + "#" + strconv.Itoa(i)
		}
		taken[one.path] = true
	}
}

// overridesOf returns the name under which the limits of requests to a domain are counted.
func overridesOf(domain string) string { return domain + " overrides" }

// answerAlone reports whether a domain decides while the store fails. A denial is a decision too.
func (r *Rules) answerAlone() bool {
	for _, d := range r.domains {
		if d.onFailure != failError {
			return true
		}
	}
	return false
}

// domain is the content of one file, or of several merged files.
type domain struct {
	name      string
	at        string            // the place of its name in the first file
	said      map[string]string // the places of wholeFields
	next      level
	onFailure failure
	instances int  // 0 unless onFailure is local
	each      bool // all_or_none: false
	overdraws bool // charge_over_limit, unless a rule has its own
	front     front
}

// failure is a value of on_failure.
type failure string

const (
	failError  failure = "error"
	failOpen   failure = "open"
	failClosed failure = "closed"
	failLocal  failure = "local"
)

// share returns the part of l that this process admits while the store fails.
func (d *domain) share(l ratelimit.Limit, algorithm string) (ratelimit.Limit, error) {
	share, err := l.Share(d.instances)
	if err == nil {
		err = share.ValidateFor(algorithm)
	}
	return share, err
}

// capacity returns how many events a limit admits at the same time.
func capacity(l ratelimit.Limit) int { return cmp.Or(l.Burst, l.Rate) }

// front describes the caches in front of the store.
type front struct {
	denyCache, coalescing bool
	lease                 time.Duration // 0 for none
}

// level has the descriptors of one depth, by the key of their entry.
type level map[string]*values

// values are the descriptors of one key.
type values struct {
	place int // index among the keys of its level, in the order of the file
	exact map[string]*node
	wild  wildcards[*node]
	any   *node // for all other values; nil if there is none
}

// find returns the descriptor for a value, or nil.
func (v *values) find(value string) *node {
	if n := v.exact[value]; n != nil {
		return n
	}
	if n, ok := v.wild.find(value); ok {
		return n
	}
	return v.any
}

// reaches reports whether there is a rule for entries with these keys, in any order, and some
// values.
func (l level) reaches(keys []source) bool {
	for i, one := range keys {
		v := l[one.key]
		if v == nil {
			continue
		}
		others := slices.Delete(slices.Clone(keys), i, i+1)
		reaches := func(n *node) bool {
			return n != nil && (len(others) == 0 && n.rule != nil || n.next.reaches(others))
		}
		for _, n := range v.exact { // including those of patterns
			if reaches(n) {
				return true
			}
		}
		if reaches(v.any) {
			return true
		}
	}
	return false
}

// arranged returns the entries of a set in the order of a rule: the first rule in the file, level
// by level, that matches them in some order. If there is none, it returns them unchanged.
func (l level) arranged(set []*common.RateLimitDescriptor_Entry) []*common.RateLimitDescriptor_Entry {
	if len(set) > 1 {
		list := slices.Clone(set)
		if l.arrange(list) {
			return list
		}
	}
	return set
}

// arrange reorders list, and reports whether it then has a rule. It looks at each descriptor at
// most once, because the entries of a set have different keys.
func (l level) arrange(list []*common.RateLimitDescriptor_Entry) bool {
	for last := -1; ; {
		best := -1
		for i, e := range list {
			if v := l[e.GetKey()]; v != nil && v.place > last && (best < 0 || v.place < l[list[best].GetKey()].place) {
				best = i
			}
		}
		if best < 0 {
			return false
		}
		list[0], list[best] = list[best], list[0]
		v := l[list[0].GetKey()]
		last = v.place
		n := v.find(list[0].GetValue())
		if n != nil && (len(list) == 1 && n.rule != nil || n.next.arrange(list[1:])) {
			return true
		}
	}
}

// node is one descriptor of a file.
type node struct {
	value   string // "" for all other values
	at      string // place in the file
	rule    *rule  // nil if it has no limit
	next    level
	share   string // the pattern whose values share one count; "" if each value has its own
	parent  bool   // share_parent: the entry is not part of the count
	byValue bool   // value_to_metric
}

// rule is the limit of a descriptor.
type rule struct {
	index     int    // index in Rules.rules
	path      string // such as "edge/path=/login/user", for people and metrics; no other rule has it
	file      string
	domain    *domain
	name      string // for the replaces of other rules
	replaces  []string
	limit     ratelimit.Limit
	reserved  int       // events
	at        string    // the place of reserved
	counted   []counted // what its entries are counted by
	algorithm string
	overdraws bool // charge_over_limit
	shadow    bool
	quota     bool
	detailed  bool                            // detailed_metric
	byValue   bool                            // whether it, or a descriptor above, has metrics by value
	metadata  *structpb.Struct                // nil if there is none
	shown     *pb.RateLimitResponse_RateLimit // nil for an unlimited rule
}

// counted is the part of an entry that is counted: its key, and its value or pattern, or "" for all other values.
type counted struct{ key, value string }

// leavesTo reports whether other can use what r reserves, for at least some entries.
func (r *rule) leavesTo(other *rule) bool {
	l, of := r.limit, other.limit
	l.Rate, l.Burst, of.Rate, of.Burst = 0, 0, 0, 0
	isAny := func(value string) bool { return value == "" || strings.Contains(value, "*") }
	return other.domain == r.domain && other.algorithm == r.algorithm && l == of && other.reserved < r.reserved &&
		slices.EqualFunc(r.counted, other.counted, func(a, b counted) bool {
			return a.key == b.key && (a.value == b.value || isAny(a.value) || isAny(b.value))
		})
}

// match finds the rule for entries, and appends the key under which its events are counted to buf.
// The rule is nil if no descriptor matches all entries, or if that descriptor has no limit.
func (d *domain) match(entries []*common.RateLimitDescriptor_Entry, buf []byte) (*rule, []byte) {
	next, n, parts := d.next, (*node)(nil), 0
	for _, e := range entries {
		v := next[e.GetKey()]
		if v == nil {
			return nil, buf
		}
		if n = v.find(e.GetValue()); n == nil {
			return nil, buf
		}
		if !n.parent {
			buf = appendEntry(buf, parts, e.GetKey(), e.GetValue(), n.share)
			parts++
		}
		next = n.next
	}
	if n == nil {
		return nil, buf
	}
	if parts == 0 {
		buf = append(buf, '~') // no entry begins with it
	}
	return n.rule, buf
}

// label returns the path of r for metrics, with the values of entries that the file asks for.
// Values that share a count appear as their pattern. A slash that separates no entries is escaped,
// except at the beginning of a value, because a client must not be counted as another descriptor.
func (d *domain) label(r *rule, entries []*common.RateLimitDescriptor_Entry) string {
	text, next := appendEscaped(nil, d.name, "%/"), d.next
	for _, e := range entries {
		n := next[e.GetKey()].find(e.GetValue())
		value := n.value
		if n.share == "" && (n.byValue || r.detailed) {
			value = shortened(e.GetValue())
		}
		text = appendEscaped(append(text, '/'), e.GetKey(), "%/=")
		if value != "" {
			text = append(text, '=')
			rest, rooted := strings.CutPrefix(value, "/")
			if rooted {
				text = append(text, '/')
			}
			text = appendEscaped(text, rest, "%/")
		}
		next = n.next
	}
	return strings.ToValidUTF8(string(text), "\uFFFD")
}

// shortened returns a value of a request as it appears in metrics.
func shortened(value string) string {
	if len(value) > maxLabel {
		return value[:maxLabel] + "..."
	}
	return value
}

const maxLabel = 64 // bytes of a value

// entriesKey returns the key of entries that no file defines.
func entriesKey(entries []*common.RateLimitDescriptor_Entry, buf []byte) []byte {
	for i, e := range entries {
		buf = appendEntry(buf, i, e.GetKey(), e.GetValue(), "")
	}
	return buf
}

// appendEntry appends entry i to a key. Separators are escaped, so that no two lists of entries
// have the same key. A shared pattern differs from a value that looks like it.
func appendEntry(buf []byte, i int, key, value, share string) []byte {
	if i > 0 {
		buf = append(buf, '&')
	}
	buf = appendEscaped(buf, key, "%&=~")
	if share != "" {
		return appendEscaped(append(buf, '~'), share, "%&")
	}
	return appendEscaped(append(buf, '='), value, "%&")
}

// appendEscaped appends s, with the bytes in special escaped as in a URL.
func appendEscaped(buf []byte, s, special string) []byte {
	plain := true
	for i := range len(special) {
		plain = plain && strings.IndexByte(s, special[i]) < 0
	}
	if plain { // like nearly all texts
		return append(buf, s...)
	}
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; strings.IndexByte(special, c) >= 0 {
			buf = append(buf, '%', digits[c>>4], digits[c&15])
		} else {
			buf = append(buf, c)
		}
	}
	return buf
}

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// units are the units of a file, longest first. They are windows of this length since the Unix
// epoch, and do not follow the calendar.
var units = []struct {
	name   string
	unit   pb.RateLimitResponse_RateLimit_Unit
	period time.Duration
}{
	{"year", pb.RateLimitResponse_RateLimit_YEAR, 365 * day},
	{"month", pb.RateLimitResponse_RateLimit_MONTH, 30 * day},
	{"week", pb.RateLimitResponse_RateLimit_WEEK, week},
	{"day", pb.RateLimitResponse_RateLimit_DAY, day},
	{"hour", pb.RateLimitResponse_RateLimit_HOUR, time.Hour},
	{"minute", pb.RateLimitResponse_RateLimit_MINUTE, time.Minute},
	{"second", pb.RateLimitResponse_RateLimit_SECOND, time.Second},
}

// periodOf returns the period of a unit, in upper or lower case, or 0 if there is no such unit.
func periodOf(unit string) time.Duration {
	for _, u := range units {
		if strings.EqualFold(u.name, unit) {
			return u.period
		}
	}
	return 0
}

// shownLimit returns l as it is reported to callers. A period that is not in whole seconds has no
// unit.
func shownLimit(l ratelimit.Limit, reserved int, name string) *pb.RateLimitResponse_RateLimit {
	if l.Burst > 0 {
		reserved = 0 // of the burst, which no field shows
	}
	shown := &pb.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: uint32(l.Rate - reserved)}
	period := l.Period
	if strings.Contains(l.String(), "/month") { // a month of the calendar
		period = 30 * day
	}
	for _, u := range units {
		if period%u.period == 0 && period > 0 {
			shown.Unit = u.unit
			if times := period / u.period; times > 1 {
				shown.UnitMultiplier = wrapperspb.UInt32(uint32(times))
			}
			break
		}
	}
	return shown
}
