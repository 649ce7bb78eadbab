package grpclimit

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Keys of the metadata that a server sends with each call that it has decided on.
const (
	policyHeader     = "ratelimit-policy"
	limitHeader      = "ratelimit"
	retryAfterHeader = "retry-after"
)

// unnamed is the name of a policy that the limiter does not describe.
const unnamed = "default"

// answer is the report of one decision, and memory for it.
type answer struct {
	report.Values
	kept bool // Policies are used after the answer
	text []byte
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// answer returns the report of r. The caller must free it.
func (c *config) answer(ctx context.Context, key string, r ratelimit.Result, keep bool) *answer {
	a := answers.Get().(*answer)
	a.Result, a.Limiter, a.kept = r, c.Limiter, keep
	a.Split()
	if keep {
		a.Policies = nil
	}
	a.Describe(ctx, c.Limiter, key, a.Policies)
	a.Shorten(c.SlotRetry)
	return a
}

// Metadata returns what the interceptors send in the header for d: ratelimit-policy, ratelimit and,
// for a denial, retry-after. It is nil if there is nothing to report. Use it with [grpc.SetHeader]
// and [grpc.SetTrailer] in handlers without an interceptor, or if the counts have changed since, as
// after [ratelimit.Reservation.Settle].
func Metadata(d Decision) metadata.MD {
	a := answer{Values: d.report()}
	return a.metadata()
}

// free returns a to the pool.
func (a *answer) free() {
	if a.kept {
		a.Policies = nil
	}
	clear(a.Policies)
	*a = answer{Values: report.Values{Policies: a.Policies[:0]}, text: a.text[:0]}
	answers.Put(a)
}

// metadata returns the header metadata, or nil if there is nothing to report.
func (a *answer) metadata() metadata.MD {
	if len(a.Policies) == 0 && a.Result.Limit > 0 {
		a.Policies = append(a.Policies, ratelimit.Policy{Name: unnamed, Quota: a.Result.Limit})
	}
	md := make(metadata.MD, 3)
	values := make([]string, 3)
	add := func(i int, key, value string) {
		if values[i] = value; value != "" {
			md[key] = values[i : i+1 : i+1]
		}
	}
	if a.Counted() {
		add(0, policyHeader, a.policyList())
		add(1, limitHeader, a.limitList())
	}
	if wait, ok := report.Until(&a.Result); ok && !a.Result.Allowed {
		add(2, retryAfterHeader, strconv.FormatInt(report.Seconds(wait), 10))
	}
	if len(md) == 0 {
		return nil
	}
	return md
}

// policyList returns a list such as `"burst";q=100;w=60,"daily";q=1000;w=86400`.
func (a *answer) policyList() string {
	a.text = a.text[:0]
	for i := range a.Policies {
		if p := &a.Policies[i]; report.Limits(p) {
			a.item(p)
			a.text = report.AppendQuota(append(a.text, ";q="...), p)
		}
	}
	return string(a.text)
}

// limitList returns a list such as `"burst";r=50;t=30,"daily";r=900;t=40000`.
func (a *answer) limitList() string {
	a.text = a.text[:0]
	for i := range a.Policies {
		part, ok := a.Part(i)
		if !ok || !report.Limits(&a.Policies[i]) {
			continue
		}
		a.item(&a.Policies[i])
		a.text = strconv.AppendInt(append(a.text, ";r="...), report.Count(part.Remaining), 10)
		if t, ok := a.Time(part, &a.Policies[i]); ok {
			a.text = strconv.AppendInt(append(a.text, ";t="...), report.Seconds(t), 10)
		}
	}
	return string(a.text)
}

// item begins the next item of a list, the one for p.
func (a *answer) item(p *ratelimit.Policy) {
	if len(a.text) > 0 {
		a.text = append(a.text, ',')
	}
	a.text = report.AppendString(a.text, p.Name)
}
