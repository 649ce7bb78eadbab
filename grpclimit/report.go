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
	"github.com/ratelimit-go/ratelimit/internal/tell"
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
	tell.Decision
	text []byte
}

var reports = sync.Pool{New: func() any { return new(report) }}

// free hands r back.
func (r *report) free() {
	clear(r.Policies)
	*r = report{Decision: tell.Decision{Policies: r.Policies[:0]}, text: r.text[:0]}
	reports.Put(r)
}

// metadata is the headers, nil if there is nothing to say.
func (r *report) metadata() metadata.MD {
	if len(r.Policies) == 0 && r.Result.Limit > 0 && r.Result.Counted() {
		r.Policies = append(r.Policies, ratelimit.Policy{Name: unnamed, Quota: r.Result.Limit})
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
	if wait, ok := tell.Until(&r.Result); ok && !r.Result.Allowed {
		add(2, retryAfterHeader, strconv.FormatInt(tell.Seconds(wait), 10))
	}
	if len(md) == 0 {
		return nil
	}
	return md
}

// policyList is `"burst";q=100;w=60,"daily";q=1000;w=86400`.
func (r *report) policyList() string {
	r.text = r.text[:0]
	for i := range r.Policies {
		if p := &r.Policies[i]; tell.Limits(p) {
			r.item(p)
			r.text = tell.AppendQuota(append(r.text, ";q="...), p)
		}
	}
	return string(r.text)
}

// limitList is `"burst";r=50;t=30,"daily";r=900;t=40000`.
func (r *report) limitList() string {
	r.text = r.text[:0]
	for i := range r.Policies {
		part, ok := r.Part(i)
		if !ok || !tell.Limits(&r.Policies[i]) {
			continue
		}
		r.item(&r.Policies[i])
		r.text = strconv.AppendInt(append(r.text, ";r="...), tell.Count(part.Remaining), 10)
		if t, ok := r.Time(part); ok {
			r.text = strconv.AppendInt(append(r.text, ";t="...), tell.Seconds(t), 10)
		}
	}
	return string(r.text)
}

// item begins the next item of a list, that of p.
func (r *report) item(p *ratelimit.Policy) {
	if len(r.text) > 0 {
		r.text = append(r.text, ',')
	}
	r.text = tell.AppendString(r.text, p.Name)
}

// denial is the status of a call that is not admitted.
func (r *report) denial() error {
	if r.Result.Source() == ratelimit.SourceFailClosed {
		return refusal(codes.Unavailable, "rate limit: closed, no decision is known", r.Result.RetryAfter)
	}
	failure := new(errdetails.QuotaFailure)
	for i := range r.Policies {
		if part, ok := r.Part(i); ok && !part.Allowed {
			failure.Violations = append(failure.Violations, violation(&r.Policies[i]))
		}
	}
	if len(failure.Violations) == 0 {
		failure.Violations = []*errdetails.QuotaFailure_Violation{{QuotaId: unnamed, Description: "rate limit exceeded"}}
	}
	return refusal(codes.ResourceExhausted, "rate limit exceeded", r.Result.RetryAfter, failure)
}

// violation says which policy it was. Its subject stays empty: that is the key.
func violation(p *ratelimit.Policy) *errdetails.QuotaFailure_Violation {
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
