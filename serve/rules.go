package serve

import (
	"cmp"
	"slices"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
)

// Rules are what a set of files says. They never change, and can be used by several services.
// Make them by [Parse] or [ParseMerged].
type Rules struct {
	domains map[string]*domain
	checks  map[string]*check
	rules   []*rule // of all domains, in the order of the files
	notes   []string
	merged  bool // made by ParseMerged
}

// Notes are what is no error, but may surprise: settings without an effect, and limits that
// deny everything. Each is a line for a log.
func (r *Rules) Notes() []string { return r.notes }

// answerAlone reports whether some domain answers while the store fails. A denial is an answer.
func (r *Rules) answerAlone() bool {
	for _, d := range r.domains {
		if d.onFailure != failError {
			return true
		}
	}
	return false
}

// domain is what one file says, or several that are merged.
type domain struct {
	name      string
	at        string            // the place of its name, in the first
	said      map[string]string // the places of wholeFields
	next      level
	onFailure failure
	instances int  // 0 unless onFailure is local
	each      bool // all_or_none: false
	overdraws bool // charge_over_limit, unless a rule says otherwise
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

// share is the part of l that this process admits while the store fails.
func (d *domain) share(l ratelimit.Limit, algorithm string) (ratelimit.Limit, error) {
	share, err := l.Share(d.instances)
	if err == nil {
		err = share.ValidateFor(algorithm)
	}
	return share, err
}

// capacity is how many events a limit admits at once.
func capacity(l ratelimit.Limit) int { return cmp.Or(l.Burst, l.Rate) }

// front says what stands before the store.
type front struct {
	denyCache, coalescing bool
	lease                 time.Duration // 0 is none
}

// level has the descriptors of one depth, by the key of the entry that they are for.
type level map[string]*values

// values are the descriptors of one key.
type values struct {
	place int // among the keys of its level, in the order of the file
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

// reaches reports whether some values of entries with these keys have a rule, in some order.
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
		for _, n := range v.exact { // those of patterns too
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

// arranged are the entries of a set in the order of a rule: of the first in the file, level by level, that
// they have in some order. They are as they were if there is none.
func (l level) arranged(set []*common.RateLimitDescriptor_Entry) []*common.RateLimitDescriptor_Entry {
	if len(set) > 1 {
		list := slices.Clone(set)
		if l.arrange(list) {
			return list
		}
	}
	return set
}

// arrange reorders list, and is whether it has a rule then. Each descriptor is looked at once at most, since
// no two entries of a set have one key.
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
	value   string // "" for all others
	at      string // its place
	rule    *rule  // nil if it has no limit
	next    level
	share   string // the pattern whose values have one count; "" if each has its own
	parent  bool   // share_parent: the entry is no part of the count
	byValue bool   // value_to_metric
}

// rule is the limit of a descriptor.
type rule struct {
	index     int    // in Rules.rules
	path      string // such as "edge/path=/login/user", for people and metrics
	file      string
	domain    *domain
	name      string // for the replaces of others
	replaces  []string
	limit     ratelimit.Limit
	reserved  int       // events
	at        string    // the place of that
	counted   []counted // what its entries are counted by
	algorithm string
	overdraws bool // charge_over_limit
	shadow    bool
	quota     bool
	detailed  bool                            // detailed_metric
	byValue   bool                            // it, or a descriptor above, has metrics by values
	metadata  *structpb.Struct                // nil if there is none
	shown     *pb.RateLimitResponse_RateLimit // nil of an unlimited one
}

// counted is an entry as far as it is counted: its key, and its value or pattern, "" for all others.
type counted struct{ key, value string }

// leavesTo reports whether other can use what r reserves, of some entries.
func (r *rule) leavesTo(other *rule) bool {
	l, of := r.limit, other.limit
	l.Rate, l.Burst, of.Rate, of.Burst = 0, 0, 0, 0
	isAny := func(value string) bool { return value == "" || strings.Contains(value, "*") }
	return other.domain == r.domain && other.algorithm == r.algorithm && l == of && other.reserved < r.reserved &&
		slices.EqualFunc(r.counted, other.counted, func(a, b counted) bool {
			return a.key == b.key && (a.value == b.value || isAny(a.value) || isAny(b.value))
		})
}

// match finds the rule for entries, and appends to buf the key that its events are counted under.
// The rule is nil if there is none: descriptors that are deeper or shallower than the rule have
// none.
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
		buf = append(buf, '~') // which no entry begins with
	}
	return n.rule, buf
}

// label is the path of r for metrics, with the values of entries that the file wants there. Values with
// one count have their pattern.
func (d *domain) label(r *rule, entries []*common.RateLimitDescriptor_Entry) string {
	text, next := d.name, d.next
	for _, e := range entries {
		n := next[e.GetKey()].find(e.GetValue())
		value := n.value
		if n.share == "" && (n.byValue || r.detailed) {
			value = shortened(e.GetValue())
		}
		text += "/" + e.GetKey()
		if value != "" {
			text += "=" + value
		}
		next = n.next
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// shortened is a value of a request as a metric has it.
func shortened(value string) string {
	if len(value) > maxLabel {
		return value[:maxLabel] + "..."
	}
	return value
}

const maxLabel = 64 // bytes of a value

// entriesKey is the key of entries that no file says anything about.
func entriesKey(entries []*common.RateLimitDescriptor_Entry, buf []byte) []byte {
	for i, e := range entries {
		buf = appendEntry(buf, i, e.GetKey(), e.GetValue(), "")
	}
	return buf
}

// appendEntry appends entry i to a key. No two lists of entries have one key: what separates is
// escaped. A shared pattern is not equal to a value that is written like it.
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

// appendEscaped appends s with the bytes of special as in a URL.
func appendEscaped(buf []byte, s, special string) []byte {
	plain := true
	for i := range len(special) {
		plain = plain && strings.IndexByte(s, special[i]) < 0
	}
	if plain { // as nearly all are
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

// units are those of a file, the longest first. They are windows of this length from the Unix
// epoch on, whatever the calendar.
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

// periodOf is that of a unit in any case, 0 if there is no such unit.
func periodOf(unit string) time.Duration {
	for _, u := range units {
		if strings.EqualFold(u.name, unit) {
			return u.period
		}
	}
	return 0
}

// shownLimit is l as callers are told. A period of no whole seconds has no unit.
func shownLimit(l ratelimit.Limit, reserved int, name string) *pb.RateLimitResponse_RateLimit {
	if l.Burst > 0 {
		reserved = 0 // of the burst, which has no field
	}
	shown := &pb.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: uint32(l.Rate - reserved)}
	period := l.Period
	if strings.Contains(l.String(), "/month") { // of the calendar
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
