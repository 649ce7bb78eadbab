package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// HeaderStyle is a way to report limits in the header of each response. All styles report how many
// requests are left, and a time in seconds, rounded up, which Legacy gives as a Unix time:
//
//   - If requests are left, it is the time until the key's state is fully reset.
//   - If none is left, it is the time until the next one is, if the limiter knows it. The fixed
//     window and the buckets do.
//   - In a refusal, it is the time until the same request would be admitted. Only the limits that
//     deny have it, and it is left out if waiting will not help.
//
// Events that no limit counts are not reported, such as those that a list or an outage lets
// through. Neither are denials by a list, nor the limit [ratelimit.Unlimited].
//
// With several limits, Draft10 reports each of them. Legacy has room for one: the limit that denies
// longest or, for an admission, the one with the fewest events left. For a [ratelimit.First], that is
// the limiter that admits again first or, for an admission, the one that was charged.
type HeaderStyle uint8

// The header styles.
const (
	// Legacy is X-RateLimit-Limit, X-RateLimit-Remaining, and X-RateLimit-Reset in
	// Unix seconds.
	Legacy HeaderStyle = 1 << iota
	// Draft10 is RateLimit-Policy: "daily";q=1000;w=86400 and RateLimit: "daily";r=42;t=30
	// of draft-ietf-httpapi-ratelimit-headers-10, with an item for each limit.
	Draft10
)

const defaultStyles = Legacy | Draft10

// SetHeaders sets the fields in h that the middleware would write for d, in these styles, or in
// [Legacy] and [Draft10] if there are none. For a denial, they include Retry-After and
// Cache-Control.
//
// Use it in handlers without the middleware, for trailers, or if the counts have changed since, as
// after [ratelimit.Reservation.Settle].
func SetHeaders(h http.Header, d Decision, styles ...HeaderStyle) {
	all, chosen := d.report(), HeaderStyle(0)
	for _, s := range styles {
		chosen |= s
	}
	if len(styles) == 0 {
		chosen = defaultStyles
	}
	s := scratches.Get().(*scratch)
	f := fields{text: s.text[:0]}
	f.report(chosen, &all, new(policyTexts))
	if !d.Result.Allowed {
		f.refusal(&all.Result)
	}
	f.set(h, &s.supply)
	s.text = f.text
	scratches.Put(s)
}

// Names of header fields, in the form that net/http keeps them.
const (
	xLimit          = "X-Ratelimit-Limit"
	xRemaining      = "X-Ratelimit-Remaining"
	xReset          = "X-Ratelimit-Reset"
	rateLimit       = "Ratelimit"
	rateLimitPolicy = "Ratelimit-Policy"
	retryAfter      = "Retry-After"
	cacheControl    = "Cache-Control"
	contentType     = "Content-Type"
)

// report adds the fields of styles.
func (f *fields) report(styles HeaderStyle, d *report.Values, texts *policyTexts) {
	if !d.Counted() {
		return
	}
	if len(d.Policies) == 1 {
		f.only = texts.of(&d.Policies[0])
	}
	if styles&Legacy != 0 {
		one, p := d.One()
		t, timed := d.Time(one, p)
		f.legacy(one, t, timed)
	}
	if styles&Draft10 != 0 {
		f.draft10(d, texts)
	}
}

func (f *fields) integer(n int64) { f.text = strconv.AppendInt(f.text, n, 10) }
func (f *fields) string(s string) { f.text = append(f.text, s...) }

// number adds a field that is a number.
func (f *fields) number(name string, n int64) {
	f.integer(n)
	f.end(name)
}

func (f *fields) legacy(r *ratelimit.Result, t time.Duration, timed bool) {
	if f.only != nil && f.only.policy.Quota == r.Limit {
		f.add(xLimit, f.only.quota)
	} else {
		f.number(xLimit, report.Count(r.Limit))
	}
	f.repeated(&f.left, report.Count(r.Remaining))
	f.end(xRemaining)
	if timed {
		at := time.Now().Add(t)
		second := at.Unix()
		if at.Nanosecond() > 0 {
			second++
		}
		f.integer(second)
	}
	f.end(xReset)
}

func (f *fields) draft10(d *report.Values, texts *policyTexts) {
	if f.only != nil && report.Limits(&f.only.policy) {
		f.add(rateLimitPolicy, f.only.draft10)
		f.item(f.only.name, d, &d.Result, &d.Policies[0])
		f.end(rateLimit)
		return
	}
	if len(d.Policies) == 0 {
		f.string(`"default";q=`)
		f.integer(report.Count(d.Result.Limit))
		f.end(rateLimitPolicy)
		f.item(`"default"`, d, &d.Result, nil)
		f.end(rateLimit)
		return
	}
	for i := range d.Policies {
		if p := &d.Policies[i]; report.Limits(p) {
			f.comma()
			f.string(texts.of(p).draft10)
		}
	}
	f.end(rateLimitPolicy)
	for i := range d.Policies {
		if part, ok := d.Part(i); ok && report.Limits(&d.Policies[i]) {
			f.item(texts.of(&d.Policies[i]).name, d, part, &d.Policies[i])
		}
	}
	f.end(rateLimit)
}

// item appends an item of draft 10 for part of d, whose policy is p, or nil if that is not known.
func (f *fields) item(name string, d *report.Values, part *ratelimit.Result, p *ratelimit.Policy) {
	f.comma()
	f.string(name)
	f.string(";r=")
	f.repeated(&f.left, report.Count(part.Remaining))
	if t, ok := d.Time(part, p); ok {
		f.string(";t=")
		f.repeated(&f.wait, report.Seconds(t))
	}
}

// comma separates the items of a list.
func (f *fields) comma() {
	if len(f.text) > f.begin() {
		f.text = append(f.text, ',')
	}
}

// refusal adds the fields of a refusal.
func (f *fields) refusal(r *ratelimit.Result) {
	if d, ok := report.Until(r); ok {
		f.repeated(&f.wait, report.Seconds(d))
	}
	f.end(retryAfter)
	f.add(cacheControl, "no-store")
}
