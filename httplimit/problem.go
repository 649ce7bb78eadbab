package httplimit

import (
	"net/http"
	"strconv"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

const (
	problemJSON   = "application/problem+json"
	plainText     = "text/plain; charset=utf-8"
	quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	abnormalUsage = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
	lessCapacity  = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

	// for logs, because the client has disconnected and does not read it
	clientClosedRequest = 499
)

// status returns the status of a refusal: 403 if a list denies, 503 if the limiter is closed
// because its store is down, and otherwise 429.
func status(d *report.Values) int {
	switch {
	case d.ByList():
		return http.StatusForbidden
	case d.Result.Source() == ratelimit.SourceFailClosed:
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}

// WriteProblem writes a refusal as the middleware does by default, for a [DeniedHandler] that
// answers only some requests itself. The body is a problem of RFC 9457. The status is
//
//   - 429, with a type of its own if the client is banned ([ratelimit.SourceBan])
//   - 403 if a list denies ([ratelimit.SourceList])
//   - 503 if the limiter is closed by an outage ([ratelimit.SourceFailClosed])
//
// If the request costs more than the limit ever admits ([ratelimit.Never]), the detail says so.
func WriteProblem(w http.ResponseWriter, d Decision) {
	all := d.report()
	code := status(&all)
	w.Header()[contentType] = []string{problemJSON}
	w.WriteHeader(code)
	_, _ = w.Write(appendProblem(nil, code, &all, new(policyTexts))) // an error: the client has gone
}

// tooManyHead is the beginning of nearly all refusals.
var tooManyHead = string(appendHead(nil, quotaExceeded, http.StatusTooManyRequests, "Too many requests."))

// bannedHead is the beginning of a refusal by a ban. Its strikes may be wrong passwords as well as
// denials.
var bannedHead = string(appendHead(nil, abnormalUsage, http.StatusTooManyRequests, "The client is banned."))

// tooCostlyHead is the beginning of the refusal of a request that can never be admitted.
var tooCostlyHead = string(appendHead(nil, quotaExceeded, http.StatusTooManyRequests,
	"The request costs more than the limit ever admits, so waiting will not help."))

// appendProblem appends the body of a refusal.
func appendProblem(b []byte, code int, d *report.Values, texts *policyTexts) []byte {
	switch code {
	case http.StatusForbidden:
		return append(appendHead(b, "about:blank", code, "The client is not admitted."), '}')
	case http.StatusServiceUnavailable:
		b = appendHead(b, lessCapacity, code, "The service cannot check its limits now.")
	default:
		head := tooManyHead
		switch {
		case d.ByBan():
			head = bannedHead
		case d.Result.RetryAfter == ratelimit.Never:
			head = tooCostlyHead
		}
		b = append(b, head...)
	}
	if wait, ok := report.Until(&d.Result); ok {
		b = append(b[:len(b)-1], " Try again in "...) // before the quote
		start := len(b)
		b = strconv.AppendInt(b, report.Seconds(wait), 10)
		end := len(b)
		b = append(b, ` s.","retryAfter":`...)
		b = append(b, b[start:end]...)
	}
	if code == http.StatusTooManyRequests {
		b = appendViolated(b, d, texts)
	}
	return append(b, '}')
}

// appendHead appends the members that all problems have, without the closing brace.
func appendHead(b []byte, problem string, code int, detail string) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, problem...)
	b = append(b, `","title":"`...)
	b = append(b, http.StatusText(code)...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, `,"detail":"`...)
	b = append(b, detail...)
	return append(b, '"')
}

// appendViolated appends the names of the limits that denied.
func appendViolated(b []byte, d *report.Values, texts *policyTexts) []byte {
	const member = `,"violated-policies":[`
	start := len(b)
	b = append(b, member...)
	for i := range d.Policies {
		if part, ok := d.Part(i); ok && !part.Allowed {
			b = append(b, texts.of(&d.Policies[i]).name...)
			b = append(b, ',')
		}
	}
	if len(b) == start+len(member) {
		if d.DeniedBy == "" {
			return b[:start]
		}
		b = append(report.AppendString(b, d.DeniedBy), ',')
	}
	b[len(b)-1] = ']' // in place of the last comma
	return b
}

// WriteError writes what the middleware writes by default if there is no decision, for an
// [ErrorHandler] that handles only some errors itself. The body is a problem of RFC 9457 and does
// not contain err's text. The status is
//
//   - 400 if the client cannot be identified ([ErrNoIdentity], [ErrAmbiguousIdentity],
//     [ratelimit.ErrInvalidKey])
//   - 500 for a configuration error ([ratelimit.ErrInvalidOption], [ratelimit.ErrInvalidLimit],
//     [ratelimit.ErrInvalidN])
//   - 503 otherwise
func WriteError(w http.ResponseWriter, err error) {
	problem, code, detail := "about:blank", statusOf(err), "The limits of this service are not set up correctly."
	switch code {
	case http.StatusBadRequest:
		detail = "The client cannot be identified."
	case http.StatusServiceUnavailable:
		problem, detail = lessCapacity, "The service cannot check its limits now."
	}
	h := w.Header()
	h[contentType] = []string{problemJSON}
	h[cacheControl] = []string{"no-store"}
	w.WriteHeader(code)
	_, _ = w.Write(append(appendHead(nil, problem, code, detail), '}')) // an error: the client has gone
}

// statusOf returns the status for [WriteError].
func statusOf(err error) int {
	switch maker.FaultOf(err) {
	case guard.Unidentified:
		return http.StatusBadRequest
	case guard.Misconfigured:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}
