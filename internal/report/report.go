// Package report makes the values that servers report about a decision in HTTP header fields and
// gRPC metadata. Numbers and strings have the form of RFC 9651.
package report

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Values are what servers report about a decision: its Result, and what is known about the limits behind it.
type Values struct {
	Result   ratelimit.Result
	Parts    []ratelimit.Part // of Result
	DeniedBy string           // of Result
	Policies []ratelimit.Policy
	Limiter  ratelimit.Limiter // which has decided
}

// Of returns the Values of r, with what r itself contains.
func Of(r ratelimit.Result) Values {
	d := Values{Result: r}
	d.Split()
	return d
}

// Known returns what to report about a decision of l whose policies [Values.Describe] has found.
// slotRetry is as for [Values.Shorten].
func Known(r ratelimit.Result, policies []ratelimit.Policy, l ratelimit.Limiter, slotRetry time.Duration) Values {
	d := Of(r)
	d.Policies, d.Limiter = policies, l
	if r.Source() == ratelimit.SourceLocal {
		d.Policies = slices.Clone(policies) // Follow changes them
		d.Follow(nil)
	}
	d.Shorten(slotRetry)
	return d
}

// Split fills in the parts of the Result.
func (d *Values) Split() { d.Parts, d.DeniedBy = d.Result.Parts(), d.Result.DeniedBy() }

// Describe appends the policies of l for key to dst, and keeps them. After an error there are none.
// The decision still stands, because a limit function that fails now has answered before.
func (d *Values) Describe(ctx context.Context, l ratelimit.Limiter, key string, dst []ratelimit.Policy) {
	policies, err := ratelimit.AppendPolicies(ctx, dst, l, key)
	if err == nil {
		d.Policies = policies
		d.Follow(Local(ctx, l, key, &d.Result))
	}
}

// drains reports whether part, which is d.Result or one of its parts, is known to be of a bucket.
func (d *Values) drains(part *ratelimit.Result) bool {
	l := d.Limiter
	for i := range d.Parts {
		if part == &d.Parts[i].Result {
			l = d.Parts[i].Limiter
		}
	}
	for {
		switch l.(type) {
		case *ratelimit.TokenBucket, *ratelimit.LeakyBucket:
			return true
		}
		inside := see.Through(l)
		if len(inside) != 1 {
			return false
		}
		l = inside[0]
	}
}

// ByList reports whether a list of clients has denied. A list is not a limit, and waiting
// does not help.
func (d *Values) ByList() bool { return d.deniedBy(ratelimit.SourceList) }

// ByBan reports whether a ban has denied.
func (d *Values) ByBan() bool { return d.deniedBy(ratelimit.SourceBan) }

func (d *Values) deniedBy(s ratelimit.Source) bool {
	if d.Result.Allowed {
		return false
	}
	for i := range d.Parts {
		if part := &d.Parts[i]; !part.Allowed && part.Source() == s {
			return true
		}
	}
	return d.Result.Source() == s
}

// Counted reports whether there are numbers to report, which come from limits and not from a list.
func (d *Values) Counted() bool { return d.Result.Counted() && !d.ByList() }

// Local returns the policies of the local limiter inside l, if it has made the decision r on key
// while the store failed, and if they are known. It looks inside wrappers that have a method
// Unwrap.
func Local(ctx context.Context, l ratelimit.Limiter, key string, r *ratelimit.Result) []ratelimit.Policy {
	if r.Source() != ratelimit.SourceLocal {
		return nil
	}
	for {
		switch w := l.(type) {
		case interface {
			AppendLocalPolicies(context.Context, []ratelimit.Policy, string) ([]ratelimit.Policy, error)
		}:
			policies, err := w.AppendLocalPolicies(ctx, nil, key)
			if err != nil {
				return nil
			}
			return policies
		case interface{ Unwrap() ratelimit.Limiter }:
			l = w.Unwrap()
		default:
			return nil
		}
	}
}

// Follow changes the policies if a local limiter decided while the store failed. Their quotas
// become those of the Result. Their windows become those of the policies of [Local], if these
// have that quota, and are not known otherwise.
func (d *Values) Follow(local []ratelimit.Policy) {
	if d.Result.Source() != ratelimit.SourceLocal {
		return
	}
	for i := range d.Policies {
		p := &d.Policies[i]
		part, ok := d.Part(i)
		switch {
		case !ok:
		case len(local) == len(d.Policies) && local[i].Quota == part.Limit:
			p.Quota, p.Window = part.Limit, local[i].Window
		case part.Limit != p.Quota:
			p.Quota, p.Window = part.Limit, 0
		}
	}
}

// concurrent is the Unit of slots (package inflight).
const concurrent = "concurrent-requests"

// Slots reports whether p is a limit of slots. Nobody knows when a slot will be released.
func Slots(p *ratelimit.Policy) bool { return p != nil && p.Unit == concurrent }

// Shorten sets the RetryAfter of slots to retry, or to 1 s if that is 0. The limiter's own
// RetryAfter is when a slot expires that is never released, which may be in years.
func (d *Values) Shorten(to time.Duration) {
	if d.Result.Allowed || !d.Result.Counted() || !slices.ContainsFunc(d.Policies, func(p ratelimit.Policy) bool { return Slots(&p) }) {
		return
	}
	shorten := func(r *ratelimit.Result) {
		if r.RetryAfter != ratelimit.Never {
			r.RetryAfter = cmp.Or(to, time.Second)
		}
	}
	switch {
	case d.Parts != nil:
		longest, denied := time.Duration(0), false
		d.Parts = slices.Clone(d.Parts)
		for i := range d.Parts {
			if part := &d.Parts[i].Result; !part.Allowed && *part != (ratelimit.Result{}) {
				if part.Counted() && Slots(d.policy(i)) {
					shorten(part)
					denied = true
				}
				longest = max(longest, part.RetryAfter)
			}
		}
		if denied && longest < ratelimit.Never { // otherwise the whole is better informed, as in an outage, when the store may answer again
			d.Result.RetryAfter = longest
		}
	case len(d.Policies) == 1:
		shorten(&d.Result)
	}
}

// One returns the decision of one limit, and its policy, or nil if that is not known. After a
// denial, it is the limit whose RetryAfter is that of the Result: the longest, or the shortest of a
// [ratelimit.First]. After an admission, it is the limit with the fewest events left and, among
// several of these, the one with the longest time. Limits of slots come after limits of requests,
// because most clients expect the latter.
func (d *Values) One() (one *ratelimit.Result, p *ratelimit.Policy) {
	one = &d.Result
	if len(d.Policies) == 1 {
		p = &d.Policies[0]
	}
	found := false
	for i := range d.Parts {
		part := &d.Parts[i].Result
		if part.Allowed != d.Result.Allowed || *part == (ratelimit.Result{}) || !part.Counted() {
			continue
		}
		policy := d.policy(i)
		if !found || d.tighter(part, policy, one, p) {
			one, p, found = part, policy, true
		}
	}
	return one, p
}

// policy returns the policy of part i, or nil if it is not known. For a part that has decided for
// several limits, it is the first of their policies. Parts that are as many as the policies need not be in the same
// places, because one part may stand for several policies, and another for none.
func (d *Values) policy(i int) *ratelimit.Policy {
	var same *ratelimit.Policy // in the place of the part
	if len(d.Policies) == len(d.Parts) {
		same = &d.Policies[i]
	}
	if name := d.Parts[i].Name(); same == nil || name != "" && name != same.Name {
		for j := range d.Policies {
			if d.Policies[j].Name == name {
				return &d.Policies[j]
			}
		}
	}
	if l := d.Parts[i].Limiter; l != nil {
		if _, ok := l.(ratelimit.PolicyAppender); !ok { // it has none
			return nil
		}
	}
	return same
}

// tighter reports whether part, of policy p, comes before other, of policy o.
func (d *Values) tighter(part *ratelimit.Result, p *ratelimit.Policy, other *ratelimit.Result, o *ratelimit.Policy) bool {
	switch {
	case !part.Allowed:
		decides, decided := part.RetryAfter == d.Result.RetryAfter, other.RetryAfter == d.Result.RetryAfter
		return decides && !decided || decides == decided && part.RetryAfter > other.RetryAfter
	case Slots(p) != Slots(o):
		return Slots(o)
	case d.has(part) != d.has(other):
		return d.has(part)
	case part.Remaining != other.Remaining:
		return part.Remaining < other.Remaining
	}
	return d.admitted(part, p) > d.admitted(other, o)
}

// has reports whether the numbers of the Result are those of part. Of a [ratelimit.First], limits that were not
// charged may have fewer events left. Numbers are compared, and not what was charged, because a Peek charges
// nothing, and the limiters of other packages do not report it. If a limit that was not charged has the same numbers
// by chance, only the name and the window that are reported may be its own.
func (d *Values) has(part *ratelimit.Result) bool {
	return part.Remaining == d.Result.Remaining && part.Limit == d.Result.Limit
}

// Part returns the decision of the i-th policy, if it is known. A limit that was not asked, because
// another one had denied before, has a zero Result.
func (d *Values) Part(i int) (part *ratelimit.Result, ok bool) {
	for j := range d.Parts {
		if d.policy(j) == &d.Policies[i] {
			part = &d.Parts[j].Result
			return part, *part != (ratelimit.Result{}) && part.Counted()
		}
	}
	switch {
	case len(d.Policies) == 1, d.DeniedBy != "" && d.DeniedBy == d.Policies[i].Name:
		return &d.Result, d.Result.Counted()
	}
	return nil, false // the limiter does not report what each of its limits did
}

// Time returns the time to report for part and its policy p, which may be nil. part is d.Result or
// one of its parts. A limit that has not denied does not affect when to come back. If waiting will
// not help, ok is false.
func (d *Values) Time(part *ratelimit.Result, p *ratelimit.Policy) (t time.Duration, ok bool) {
	r := &d.Result
	switch {
	case part.Allowed != r.Allowed, !r.Allowed && r.RetryAfter == ratelimit.Never:
		return 0, false
	case !part.Allowed && part.RetryAfter == ratelimit.Never: // the part never admits, but the whole may, because an outage may end
		return Until(r)
	case !part.Allowed:
		return Until(part)
	case Slots(p):
		return 0, false
	}
	t = d.admitted(part, p)
	return t, t != ratelimit.Never
}

// admitted returns the time to report after an admission. If nothing is left and the Result
// contains the time until the next event is possible, it is that time. Otherwise it is the time
// until the full reset. For a window, ResetAfter is both, or the time until the next event is not
// known. A bucket has room for one event when all but Quota-1 events have drained.
func (d *Values) admitted(part *ratelimit.Result, p *ratelimit.Policy) time.Duration {
	reset := max(part.ResetAfter, 0)
	if part.Remaining > 0 || p == nil || p.Quota < 1 || p.Quota != part.Limit || part.Source() != ratelimit.SourceStore || reset == ratelimit.Never ||
		p.Limit.Burst == 0 && !d.drains(part) { // windows have no Burst
		return reset
	}
	return max(reset-p.Window+p.Window/time.Duration(p.Quota), 1)
}

// Until returns the time until there is more of all limits, above 0 after a denial. If that
// is unknown or never, ok is false.
func Until(r *ratelimit.Result) (d time.Duration, ok bool) {
	switch {
	case r.Allowed:
		return max(r.ResetAfter, 0), r.ResetAfter != ratelimit.Never
	case r.RetryAfter == ratelimit.Never:
		return 0, false
	}
	return max(r.RetryAfter, 1), true
}

// Limiter returns the name of the policy that decided, or "" if it is not known. After a denial
// that is the policy that denied, and after an admission the one with the fewest events left.
func Limiter(r *ratelimit.Result, policies []ratelimit.Policy) string {
	if name := r.DeniedBy(); name != "" {
		return name
	}
	d := Of(*r)
	d.Policies = policies
	if _, p := d.One(); p != nil {
		return p.Name
	}
	return ""
}

// Limits reports whether p limits anything.
func Limits(p *ratelimit.Policy) bool { return p.Limit.Rate >= 0 }

// maxInteger is the largest integer of RFC 9651, of 15 digits.
const maxInteger = 999_999_999_999_999

// Count returns n within the range of a field.
func Count(n int) int64 { return min(max(int64(n), 0), maxInteger) }

// Seconds returns d in whole seconds, rounded up.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// AppendString appends s as a string of RFC 9651, which is the same in JSON. Bytes that are
// not printable ASCII are percent-encoded.
func AppendString(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~':
			b = append(b, '%', hex[c>>4], hex[c&15])
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// AppendQuota appends 1000;w=86400. In draft 10 that follows the name and ;q=, and in
// earlier drafts it stands alone.
func AppendQuota(b []byte, p *ratelimit.Policy) []byte {
	b = strconv.AppendInt(b, Count(p.Quota), 10)
	if p.Window > 0 {
		b = strconv.AppendInt(append(b, ";w="...), Seconds(p.Window), 10)
	}
	if p.Unit != "" { // defined by the same draft since version 8; clients that do not know it skip it
		b = AppendString(append(b, ";qu="...), p.Unit)
	}
	return b
}
