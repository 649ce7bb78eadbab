package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/ratelimit-go/ratelimit"
)

const (
	problemJSON   = "application/problem+json"
	plainText     = "text/plain; charset=utf-8"
	quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	lessCapacity  = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

	// clientClosedRequest is what logs show for a client that has gone. Nobody else
	// reads it.
	clientClosedRequest = 499
)

// status is that of a refusal: 503 if the limiter is closed because its store is down,
// else 429.
func status(r *ratelimit.Result) int {
	if r.Source() == ratelimit.SourceFailClosed {
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}

// WriteProblem writes a refusal as the middleware does by default: status 429, or 503 if
// the limiter is closed because its store is down ([ratelimit.SourceFailClosed]), and a
// body by RFC 9457. It is for a [DeniedHandler] that answers some requests itself.
func WriteProblem(w http.ResponseWriter, d Decision) {
	t := told{result: d.Result, parts: d.Result.Parts(), deniedBy: d.Result.DeniedBy(), policies: d.Policies}
	code := status(&d.Result)
	w.Header()[contentType] = []string{problemJSON}
	w.WriteHeader(code)
	_, _ = w.Write(appendProblem(nil, code, &t, new(policyTexts))) // the client has gone
}

// WritePlainText is [WriteProblem] with a line of plain text in place of the body.
func WritePlainText(w http.ResponseWriter, d Decision) {
	code := status(&d.Result)
	http.Error(w, http.StatusText(code), code)
}

// tooManyHead is what nearly all refusals begin with.
var tooManyHead = string(appendHead(nil, quotaExceeded, http.StatusTooManyRequests, "Too many requests."))

// appendProblem appends the body of a refusal.
func appendProblem(b []byte, code int, t *told, texts *policyTexts) []byte {
	if code == http.StatusServiceUnavailable {
		b = appendHead(b, lessCapacity, code, "The service cannot check its limits now.")
	} else {
		b = append(b, tooManyHead...)
	}
	d, ok := until(&t.result)
	if ok {
		b = append(b[:len(b)-1], " Try again in "...) // before the quote
		start := len(b)
		b = strconv.AppendInt(b, seconds(d), 10)
		end := len(b)
		b = append(b, ` s.","retryAfter":`...)
		b = append(b, b[start:end]...)
	}
	if code == http.StatusTooManyRequests {
		b = appendViolated(b, t, texts)
	}
	return append(b, '}')
}

// appendHead appends what all problems have, without the brace at the end.
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
func appendViolated(b []byte, t *told, texts *policyTexts) []byte {
	const member = `,"violated-policies":[`
	start := len(b)
	b = append(b, member...)
	switch {
	case len(t.parts) > 0 && len(t.parts) == len(t.policies):
		for i := range t.parts {
			if part := &t.parts[i]; !part.Allowed && asked(part) {
				b = append(b, texts.of(&t.policies[i]).name...)
				b = append(b, ',')
			}
		}
	case t.deniedBy != "":
		b = append(append(b, quoted(t.deniedBy)...), ',')
	case len(t.policies) == 1:
		b = append(append(b, texts.of(&t.policies[0]).name...), ',')
	}
	if len(b) == start+len(member) {
		return b[:start]
	}
	b[len(b)-1] = ']' // in place of the last comma
	return b
}

// WriteError is what the middleware does by default where there is no decision, for an
// [ErrorHandler] that handles some errors itself: status 400 if the request does not show
// who it is from ([ErrNoIdentity], [ratelimit.ErrInvalidKey]), 500 if the middleware or
// its limiter is not set up correctly, and else 503. The body is by RFC 9457 and does not
// have err's text.
func WriteError(w http.ResponseWriter, err error) {
	problem, code, detail := "about:blank", http.StatusInternalServerError, "The limits of this service are not set up correctly."
	switch {
	case errors.Is(err, ErrNoIdentity), errors.Is(err, ratelimit.ErrInvalidKey):
		code, detail = http.StatusBadRequest, "The request does not show who it is from."
	case errors.Is(err, ratelimit.ErrInvalidOption), errors.Is(err, ratelimit.ErrInvalidLimit), errors.Is(err, ratelimit.ErrInvalidN):
	default:
		problem, code, detail = lessCapacity, http.StatusServiceUnavailable, "The service cannot check its limits now."
	}
	h := w.Header()
	h[contentType] = []string{problemJSON}
	h[cacheControl] = []string{"no-store"}
	w.WriteHeader(code)
	_, _ = w.Write(append(appendHead(nil, problem, code, detail), '}')) // the client has gone
}

// hasGone is whether err is only that the client of r has gone.
func hasGone(r *http.Request, err error) bool {
	return errors.Is(err, context.Canceled) && r.Context().Err() != nil
}
