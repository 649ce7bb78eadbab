package grpclimit

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
)

// Keys of the metadata that a server sends with each call that it has decided on.
const (
	policyHeader     = "ratelimit-policy"
	limitHeader      = "ratelimit"
	retryAfterHeader = "retry-after"
)

// unnamed is the name of a policy that the limiter does not describe.
const unnamed = "default"

// report is what is told about one decision, and scratch space for telling it.
type report struct {
	result   ratelimit.Result
	parts    []ratelimit.Result // of result, in the order of policies
	deniedBy string             // of result
	policies []ratelimit.Policy
	text     []byte
}

var reports = sync.Pool{New: func() any { return new(report) }}

// free hands r back.
func (r *report) free() {
	clear(r.policies)
	*r = report{policies: r.policies[:0], text: r.text[:0]}
	reports.Put(r)
}

// known is whether the Result's counts mean something: while the store fails they do not.
func (r *report) known() bool {
	source := r.result.Source()
	return source != ratelimit.SourceFailOpen && source != ratelimit.SourceFailClosed
}

// part is the decision of the i-th policy, if that is known: it is not where another has
// denied before it was asked.
func (r *report) part(i int) (part ratelimit.Result, ok bool) {
	switch {
	case !r.known():
		return part, false
	case len(r.parts) == len(r.policies):
		return r.parts[i], r.parts[i] != ratelimit.Result{}
	case len(r.policies) == 1:
		return r.result, true
	}
	// Somebody has decided for several without saying what each of them did.
	return r.result, r.deniedBy == r.policies[i].Name
}

// metadata is the headers, nil if there is nothing to say.
func (r *report) metadata() metadata.MD {
	if len(r.policies) == 0 && r.known() && r.result.Limit > 0 && r.result.Source() != ratelimit.SourceLimit {
		r.policies = append(r.policies, ratelimit.Policy{Name: unnamed, Quota: r.result.Limit})
	}
	md := make(metadata.MD, 3)
	values := make([]string, 3)
	add := func(i int, key, value string) {
		if values[i] = value; value != "" {
			md[key] = values[i : i+1 : i+1]
		}
	}
	add(0, policyHeader, r.policyList())
	add(1, limitHeader, r.limitList())
	if wait := r.result.RetryAfter; !r.result.Allowed && wait != ratelimit.Never {
		add(2, retryAfterHeader, strconv.FormatInt(max(1, seconds(wait)), 10))
	}
	if len(md) == 0 {
		return nil
	}
	return md
}

// policyList is `"burst";q=100;w=60,"daily";q=1000;w=86400`.
func (r *report) policyList() string {
	b := r.text[:0]
	for _, p := range r.policies {
		if p.Limit == ratelimit.Unlimited() {
			continue
		}
		b = appendItem(b, p.Name)
		b = appendParameter(b, ";q=", int64(p.Quota))
		if p.Window > 0 {
			b = appendParameter(b, ";w=", seconds(p.Window))
		}
	}
	r.text = b
	return string(b)
}

// limitList is `"burst";r=50;t=30,"daily";r=900;t=40000`. After a denial the policies
// that admitted have no t, since nothing may be later than retry-after.
func (r *report) limitList() string {
	b := r.text[:0]
	for i, p := range r.policies {
		part, ok := r.part(i)
		if !ok || p.Limit == ratelimit.Unlimited() {
			continue
		}
		b = appendItem(b, p.Name)
		b = appendParameter(b, ";r=", int64(part.Remaining))
		switch {
		case !part.Allowed && part.RetryAfter != ratelimit.Never:
			b = appendParameter(b, ";t=", max(1, seconds(part.RetryAfter)))
		case part.Allowed && r.result.Allowed:
			b = appendParameter(b, ";t=", seconds(part.ResetAfter))
		}
	}
	r.text = b
	return string(b)
}

// appendItem begins the next item of a list by its name, a string of RFC 9651. What
// that cannot hold is percent-encoded.
func appendItem(b []byte, name string) []byte {
	const hex = "0123456789ABCDEF"
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = append(b, '"')
	for i := range len(name) {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendParameter appends a number, which is never negative.
func appendParameter(b []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(b, name...), max(0, value), 10)
}

// seconds is d in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	whole := int64(d / time.Second)
	if d%time.Second > 0 {
		whole++
	}
	return whole
}

// denial is the status of a call that is not admitted.
func (r *report) denial() error {
	if r.result.Source() == ratelimit.SourceFailClosed {
		return refusal(codes.Unavailable, "rate limit: closed, no decision is known", r.result.RetryAfter)
	}
	failure := new(errdetails.QuotaFailure)
	for i, p := range r.policies {
		if part, ok := r.part(i); ok && !part.Allowed {
			failure.Violations = append(failure.Violations, violation(p))
		}
	}
	if len(failure.Violations) == 0 {
		failure.Violations = []*errdetails.QuotaFailure_Violation{{QuotaId: unnamed, Description: "rate limit exceeded"}}
	}
	return refusal(codes.ResourceExhausted, "rate limit exceeded", r.result.RetryAfter, failure)
}

// violation says which policy it was. Its subject stays empty: that is the key.
func violation(p ratelimit.Policy) *errdetails.QuotaFailure_Violation {
	v := &errdetails.QuotaFailure_Violation{
		QuotaId:     strings.ToValidUTF8(p.Name, "\uFFFD"), // as protobuf wants it
		QuotaValue:  int64(p.Quota),
		Description: "rate limit exceeded",
	}
	if p.Limit != (ratelimit.Limit{}) {
		v.Description += ": " + p.Limit.String()
	}
	return v
}

// refusal is a status with details, and with RetryInfo unless no waiting helps.
func refusal(code codes.Code, message string, retryAfter time.Duration, details ...protoadapt.MessageV1) error {
	s := status.New(code, message)
	if retryAfter != ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		s = detailed
	}
	return s.Err()
}
