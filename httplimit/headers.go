package httplimit

import (
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// HeaderStyle is a way to tell clients of limits, in each answer. All say the same: how
// many requests are left, and the seconds until the key is as if never seen or, in a
// refusal, until the same request will be admitted. These are rounded up, and left out
// if no waiting helps.
type HeaderStyle uint8

// The header styles. Draft10 has the names of the fields of Draft6 and Draft7 for
// values of another syntax, so that it excludes these.
const (
	// Legacy is X-RateLimit-Limit, X-RateLimit-Remaining, and X-RateLimit-Reset in
	// Unix seconds.
	Legacy HeaderStyle = 1 << iota
	// Draft10 is RateLimit-Policy: "daily";q=1000;w=86400 and RateLimit: "daily";r=42;t=30
	// of draft-ietf-httpapi-ratelimit-headers-10, with an item for each limit.
	Draft10
	// Draft7 is RateLimit: limit=1000, remaining=42, reset=30 and RateLimit-Policy:
	// 1000;w=86400 of draft 7.
	Draft7
	// Draft6 is RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset in seconds, and
	// RateLimit-Policy: 1000;w=86400 of draft 6.
	Draft6
)

const (
	defaultStyles = Legacy | Draft10
	withPolicies  = Draft10 | Draft7 | Draft6
)

// Names of header fields, in the form that net/http keeps them.
const (
	xLimit          = "X-Ratelimit-Limit"
	xRemaining      = "X-Ratelimit-Remaining"
	xReset          = "X-Ratelimit-Reset"
	rateLimit       = "Ratelimit"
	rateLimitPolicy = "Ratelimit-Policy"
	limitField      = "Ratelimit-Limit"
	remainingField  = "Ratelimit-Remaining"
	resetField      = "Ratelimit-Reset"
	retryAfter      = "Retry-After"
	cacheControl    = "Cache-Control"
	contentType     = "Content-Type"
)

// told is what an answer tells of its decision.
type told struct {
	result   ratelimit.Result   // not by a pointer: escape analysis would have it on the heap
	parts    []ratelimit.Result // of several limits, else nil
	deniedBy string
	policies []ratelimit.Policy
	only     *policyText // of the policy, if that is one, as soon as it is looked up
}

// tell adds the fields of styles.
func (f *fields) tell(styles HeaderStyle, t *told, texts *policyTexts) {
	if !known(&t.result) {
		return
	}
	if len(t.policies) == 1 {
		t.only = texts.of(&t.policies[0])
	}
	if styles&Legacy != 0 {
		f.legacy(t)
	}
	if styles&Draft10 != 0 {
		f.draft10(t, texts)
	}
	if styles&(Draft7|Draft6) == 0 {
		return
	}
	if styles&Draft7 != 0 {
		f.draft7(&t.result)
	}
	if styles&Draft6 != 0 {
		f.draft6(&t.result)
	}
	f.oldPolicies(t, texts)
}

// known is whether r says how much of a limit is left. An admission by a limit of 0 is
// that of a [ratelimit.Static], which has none.
func known(r *ratelimit.Result) bool {
	if r.Allowed && r.Limit == 0 {
		return false
	}
	switch r.Source() {
	case ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLimit:
		return false
	}
	return true
}

// asked is whether a part of an [ratelimit.All] has decided: after one that denies, those
// on other stores have not.
func asked(part *ratelimit.Result) bool { return *part != ratelimit.Result{} }

// until is the time until there is more, or none if that is unknown or never.
func until(r *ratelimit.Result) (d time.Duration, ok bool) {
	switch {
	case r.Allowed:
		return max(r.ResetAfter, 0), r.ResetAfter != ratelimit.Never
	case r.RetryAfter == ratelimit.Never:
		return 0, false
	}
	return max(r.RetryAfter, 1), true
}

func (f *fields) integer(n int64) { f.text = strconv.AppendInt(f.text, n, 10) }
func (f *fields) string(s string) { f.text = append(f.text, s...) }

// number adds a field that is a number.
func (f *fields) number(name string, n int64) {
	f.integer(n)
	f.end(name)
}

func (f *fields) legacy(t *told) {
	r := &t.result
	if t.only != nil && t.only.policy.Quota == r.Limit {
		f.add(xLimit, t.only.quota)
	} else {
		f.number(xLimit, count(r.Limit))
	}
	f.repeated(&f.left, count(r.Remaining))
	f.end(xRemaining)
	if d, ok := until(r); ok {
		at := time.Now().Add(d)
		second := at.Unix()
		if at.Nanosecond() > 0 {
			second++
		}
		f.number(xReset, second)
	}
}

func (f *fields) draft10(t *told, texts *policyTexts) {
	if t.only != nil && counts(&t.only.policy) {
		f.add(rateLimitPolicy, t.only.draft10)
		f.item(t.only.name, &t.result, true)
		f.end(rateLimit)
		return
	}
	for i := range t.policies {
		if counts(&t.policies[i]) {
			f.comma()
			f.string(texts.of(&t.policies[i]).draft10)
		}
	}
	if len(t.policies) == 0 {
		f.string(`"default";q=`)
		f.integer(count(t.result.Limit))
	}
	f.end(rateLimitPolicy)
	f.draft10Limits(t, texts)
	f.end(rateLimit)
}

// draft10Limits appends an item for each limit, or for the one of which something is
// known.
func (f *fields) draft10Limits(t *told, texts *policyTexts) {
	switch {
	case len(t.policies) == 0:
		f.item(`"default"`, &t.result, true)
	case len(t.parts) == len(t.policies):
		never := !t.result.Allowed && t.result.RetryAfter == ratelimit.Never
		for i := range t.parts {
			if part := &t.parts[i]; counts(&t.policies[i]) && asked(part) && known(part) {
				// A limit that has not refused says nothing of the time to come back.
				timed := part.Allowed == t.result.Allowed && !never
				f.item(texts.of(&t.policies[i]).name, part, timed)
			}
		}
	case t.deniedBy != "":
		f.item(quoted(t.deniedBy), &t.result, true)
	}
}

// item appends an item of draft 10.
func (f *fields) item(name string, r *ratelimit.Result, timed bool) {
	f.comma()
	f.string(name)
	f.string(";r=")
	f.repeated(&f.left, count(r.Remaining))
	if d, ok := until(r); ok && timed {
		f.string(";t=")
		f.repeated(&f.wait, seconds(d))
	}
}

// comma separates the items of a list.
func (f *fields) comma() {
	if len(f.text) > f.begin() {
		f.text = append(f.text, ',')
	}
}

func (f *fields) draft7(r *ratelimit.Result) {
	f.string("limit=")
	f.integer(count(r.Limit))
	f.string(", remaining=")
	f.repeated(&f.left, count(r.Remaining))
	if d, ok := until(r); ok {
		f.string(", reset=")
		f.repeated(&f.wait, seconds(d))
	}
	f.end(rateLimit)
}

func (f *fields) draft6(r *ratelimit.Result) {
	f.number(limitField, count(r.Limit))
	f.repeated(&f.left, count(r.Remaining))
	f.end(remainingField)
	if d, ok := until(r); ok {
		f.repeated(&f.wait, seconds(d))
		f.end(resetField)
	}
}

// oldPolicies is RateLimit-Policy of drafts 6 and 7.
func (f *fields) oldPolicies(t *told, texts *policyTexts) {
	for i := range t.policies {
		if counts(&t.policies[i]) {
			f.comma()
			f.string(texts.of(&t.policies[i]).draft6)
		}
	}
	f.end(rateLimitPolicy)
}

// counts is whether p limits anything.
func counts(p *ratelimit.Policy) bool { return p.Limit.Rate >= 0 }

// refusal adds the fields of a refusal.
func (f *fields) refusal(r *ratelimit.Result) {
	if d, ok := until(r); ok {
		f.repeated(&f.wait, seconds(d))
		f.end(retryAfter)
	}
	f.add(cacheControl, "no-store")
}
