package httplimit

import (
	"strconv"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// policyText has the texts that header fields contain for a policy.
type policyText struct {
	policy  ratelimit.Policy
	quota   string // 1000
	name    string // as a string of RFC 9651, and of JSON: "daily"
	draft10 string // "daily";q=1000;w=86400
}

// policyTexts are the recently used texts, so that a text is not made for each request. Policies
// with the same index replace each other, which only costs making a text again.
type policyTexts [64]atomic.Pointer[policyText]

func (t *policyTexts) of(p *ratelimit.Policy) *policyText {
	const prime = 0x9E3779B97F4A7C15
	i := (uint64(p.Quota)*prime ^ uint64(p.Window)) * prime >> 58
	if known := t[i].Load(); known != nil && known.policy == *p {
		return known
	}
	text := newPolicyText(*p)
	t[i].Store(text)
	return text
}

func newPolicyText(p ratelimit.Policy) *policyText {
	quota := strconv.FormatInt(report.Count(p.Quota), 10)
	name := string(report.AppendString(nil, p.Name))
	return &policyText{policy: p, quota: quota, name: name, draft10: name + ";q=" + string(report.AppendQuota(nil, &p))}
}
