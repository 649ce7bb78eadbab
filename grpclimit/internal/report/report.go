// Code generated from internal/report by go generate ./internal/copies; DO NOT EDIT.

// Package report is what a server says of a decision in header fields of HTTP and in
// metadata of gRPC. Numbers and strings are those of RFC 9651.
package report

import (
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Decision is a Result and what is known of the limits behind it.
type Decision struct {
	Result   ratelimit.Result
	Parts    []ratelimit.Result // of Result
	DeniedBy string             // of Result
	Policies []ratelimit.Policy
}

// Part returns the decision of the i-th policy, if it is known. A limit that was not asked,
// because another one had denied before, has a zero Result.
func (d *Decision) Part(i int) (part *ratelimit.Result, ok bool) {
	switch {
	case len(d.Parts) == len(d.Policies):
		part = &d.Parts[i]
		return part, *part != (ratelimit.Result{}) && part.Counted()
	case len(d.Policies) == 1, d.DeniedBy != "" && d.DeniedBy == d.Policies[i].Name:
		return &d.Result, d.Result.Counted()
	}
	return nil, false // the limiter does not say what each of its limits did
}

// Time returns the time to report of part, which is d.Result or one of its parts. A limit
// that has not denied has no say in the time to come back, and where no waiting helps there is none.
func (d *Decision) Time(part *ratelimit.Result) (t time.Duration, ok bool) {
	r := &d.Result
	if part.Allowed != r.Allowed || !r.Allowed && r.RetryAfter == ratelimit.Never {
		return 0, false
	}
	return Until(part)
}

// Until returns the time until there is more, above 0 after a denial. There is none if that
// is unknown or never.
func Until(r *ratelimit.Result) (d time.Duration, ok bool) {
	switch {
	case r.Allowed:
		return max(r.ResetAfter, 0), r.ResetAfter != ratelimit.Never
	case r.RetryAfter == ratelimit.Never:
		return 0, false
	}
	return max(r.RetryAfter, 1), true
}

// Limiter returns the name of the policy that decided: the one that denied or, of an
// admission, the one with the least left. It is "" if that is not known.
func Limiter(r *ratelimit.Result, policies []ratelimit.Policy) string {
	if name := r.DeniedBy(); name != "" {
		return name
	}
	if len(policies) == 1 {
		return policies[0].Name
	}
	parts, least := r.Parts(), -1
	if len(parts) != len(policies) {
		return ""
	}
	for i := range parts {
		if parts[i].Counted() && (least < 0 || parts[i].Remaining < parts[least].Remaining) {
			least = i
		}
	}
	if least < 0 {
		return ""
	}
	return policies[least].Name
}

// Limits reports whether p limits anything.
func Limits(p *ratelimit.Policy) bool { return p.Limit.Rate >= 0 }

// maxInteger is the largest integer of RFC 9651, of 15 digits.
const maxInteger = 999_999_999_999_999

// Count returns n as a field can have it.
func Count(n int) int64 { return min(max(int64(n), 0), maxInteger) }

// Seconds returns d in whole seconds, rounded up.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// AppendString appends s as a string of RFC 9651, which is the same in JSON. What is not
// printable ASCII is percent-encoded.
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

// AppendQuota appends 1000;w=86400, which follows the name and ;q= in draft 10 and stands
// alone in the drafts before it.
func AppendQuota(b []byte, p *ratelimit.Policy) []byte {
	b = strconv.AppendInt(b, Count(p.Quota), 10)
	if p.Window > 0 {
		b = strconv.AppendInt(append(b, ";w="...), Seconds(p.Window), 10)
	}
	return b
}
