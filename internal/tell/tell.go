// Package tell is what a server tells its callers of a decision, in header fields of HTTP
// and in metadata of gRPC, and in the numbers and strings of RFC 9651 that stand there.
package tell

import (
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Decision is a Result, and what is known of the limits that have made it.
type Decision struct {
	Result   ratelimit.Result
	Parts    []ratelimit.Result // of Result
	DeniedBy string             // of Result
	Policies []ratelimit.Policy
}

// Part is the decision by the i-th policy, if that is known. That of a limit that was not
// asked, because another one had denied before, is zero, and not known.
func (d *Decision) Part(i int) (part *ratelimit.Result, ok bool) {
	switch {
	case len(d.Parts) == len(d.Policies):
		part = &d.Parts[i]
		return part, *part != (ratelimit.Result{}) && part.Counted()
	case len(d.Policies) == 1, d.DeniedBy != "" && d.DeniedBy == d.Policies[i].Name:
		return &d.Result, d.Result.Counted()
	}
	return nil, false // somebody has decided for several, and does not say what each of them did
}

// Time is what to tell of the time of part, which is d.Result or one of its parts: a limit
// that has not refused says nothing of the time to come back, and where no waiting helps
// there is none.
func (d *Decision) Time(part *ratelimit.Result) (t time.Duration, ok bool) {
	r := &d.Result
	if part.Allowed != r.Allowed || !r.Allowed && r.RetryAfter == ratelimit.Never {
		return 0, false
	}
	return Until(part)
}

// Until is the time until there is more, above 0 after a denial, or none if that is unknown
// or never.
func Until(r *ratelimit.Result) (d time.Duration, ok bool) {
	switch {
	case r.Allowed:
		return max(r.ResetAfter, 0), r.ResetAfter != ratelimit.Never
	case r.RetryAfter == ratelimit.Never:
		return 0, false
	}
	return max(r.RetryAfter, 1), true
}

// Limits is whether p limits anything.
func Limits(p *ratelimit.Policy) bool { return p.Limit.Rate >= 0 }

// maxInteger is the largest integer of RFC 9651, of 15 digits.
const maxInteger = 999_999_999_999_999

// Count is n as a field can say it.
func Count(n int) int64 { return min(max(int64(n), 0), maxInteger) }

// Seconds is d in whole seconds, rounded up.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// AppendString appends s as a string of RFC 9651, which is the same in JSON. What is not
// printable ASCII is as in a URL.
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

// AppendQuota appends 1000;w=86400: of draft 10 what follows the name, but for its ;q=, and
// of the drafts before it all that there is.
func AppendQuota(b []byte, p *ratelimit.Policy) []byte {
	b = strconv.AppendInt(b, Count(p.Quota), 10)
	if p.Window > 0 {
		b = strconv.AppendInt(append(b, ";w="...), Seconds(p.Window), 10)
	}
	return b
}
