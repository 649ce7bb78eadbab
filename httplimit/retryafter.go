package httplimit

import (
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/cooldown"
)

// maxField is the largest field that is read, in bytes. A longer one is ignored, because cutting it
// off could split a number.
const maxField = 4 << 10

// maxName is the longest field name that is reported, because the server can make it up.
const maxName = 100

// Fields of older drafts, which other servers write.
const (
	remainingField = "Ratelimit-Remaining"
	resetField     = "Ratelimit-Reset"
)

// value returns the value of the field name in h.
func value(h http.Header, name string) string {
	if text := h.Get(name); len(text) <= maxField {
		return text
	}
	return ""
}

// list returns the values of the field name, joined.
func list(h http.Header, name string) string {
	size := 0
	for _, line := range h[name] {
		if size += len(line) + 1; size > maxField {
			return ""
		}
	}
	return strings.Join(h[name], ",")
}

// parseRetryAfter returns how long a refusal with header h that arrived at now asks to wait, and
// which field says so, or "" if none does. It reads Retry-After, the RateLimit fields of any draft
// and the legacy ones, and uses the first that is valid.
func parseRetryAfter(h http.Header, now time.Time) (d time.Duration, field string) {
	now = sent(h, now)
	if d, ok := parseWait(value(h, retryAfter), now); ok {
		return d, retryAfter
	}
	if d, ok := parseRateLimit(h, now, true); ok {
		return d, rateLimit
	}
	for _, field := range [...]string{resetField, xReset} {
		if d, ok := parseWait(value(h, field), now); ok {
			return d, field
		}
	}
	return 0, ""
}

// parseRemaining looks for limits that a response with header h, which arrived at now, reports as
// used up. It returns the longest time until one of them has room again, and the field that reports
// it, or "" if there is none.
func parseRemaining(h http.Header, now time.Time) (longest time.Duration, field string) {
	if age := value(h, "Age"); age != "" && age != "0" { // a cache repeats an old response
		return 0, ""
	}
	now = sent(h, now)
	if d, ok := parseRateLimit(h, now, false); ok {
		longest, field = d, rateLimit
	}
	// These report the same limit in another form. Unix times come last, because they are up to a
	// second late: they are relative to Date, which is in whole seconds.
	for _, name := range [...]string{remainingField, xRemaining} {
		if d := parsePair(h, name, now); field == "" && d > 0 {
			longest, field = d, name
		}
	}
	for name := range h {
		if name == remainingField || name == xRemaining {
			continue
		}
		if d := parsePair(h, name, now); d > longest || d > 0 && d == longest && name < field { // h has no order
			longest, field = d, name
		}
	}
	return longest, field
}

// parsePair returns how long a limit has no room if the field name reports that nothing is left, and
// otherwise 0. The time is in the field with Reset in place of Remaining.
func parsePair(h http.Header, name string, now time.Time) time.Duration {
	before, after, ok := strings.Cut(name, "Remaining")
	if !ok || len(name) > maxName || !strings.Contains(before, "Ratelimit-") && !strings.Contains(before, "Rate-Limit-") || !nothing(value(h, name)) {
		return 0
	}
	d, _ := parseWait(value(h, before+"Reset"+after), now)
	return d
}

// nothing reports whether text is the number 0. Some servers write -1 if they do not know.
func nothing(text string) bool {
	text = strings.TrimSpace(text)
	digits, fraction, _ := strings.Cut(text, ".")
	return digits != "" && strings.Trim(digits+fraction, "0") == ""
}

// sent returns when a response that arrived at now was sent, by the server's clock. Times are
// relative to that clock, because the local clock may be wrong.
func sent(h http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(value(h, "Date")); err == nil {
		return date
	}
	return now
}

// parseWait reads how long from now text says to wait.
func parseWait(text string, now time.Time) (d time.Duration, ok bool) {
	if d, ok := cooldown.ParseWait(text, now); ok {
		return d, true
	}
	at, err := http.ParseTime(text)
	return max(at.Sub(now), 0), err == nil
}

// parseRateLimit reads a RateLimit field. It returns the longest t of the items of draft 10 with
// nothing left, or reset of draft 7 if nothing is left or the response is a refusal. It ignores
// everything else.
func parseRateLimit(h http.Header, now time.Time, refusal bool) (longest time.Duration, ok bool) {
	heed := func(text string) {
		if d, valid := parseWait(text, now); valid {
			longest, ok = max(longest, d), true
		}
	}
	text := list(h, rateLimit)
	if text == "" {
		return 0, false
	}
	var atOnce map[string]bool
	if !refusal {
		atOnce = concurrent(list(h, rateLimitPolicy))
	}
	var remaining, reset string // of draft 7, where each is an item
	for item := range split(text, ',') {
		var name, r, t string
		for param := range split(item, ';') {
			param = strings.Trim(param, " \t")
			if name == "" {
				name = param
			}
			switch key, value, _ := strings.Cut(param, "="); key {
			case "r":
				r = value
			case "t":
				t = value
			case "remaining":
				remaining = value
			case "reset":
				reset = value
			}
		}
		if nothing(r) && !atOnce[name] {
			heed(t)
		}
	}
	if refusal || nothing(remaining) {
		heed(reset)
	}
	return longest, ok
}

// concurrent returns the names of the policies in a RateLimit-Policy field that limit concurrent
// requests. They have room as soon as another request ends.
func concurrent(text string) map[string]bool {
	const unit = `qu="concurrent-requests"`
	if !strings.Contains(text, unit) {
		return nil
	}
	names := make(map[string]bool)
	for item := range split(text, ',') {
		var name string
		for param := range split(item, ';') {
			param = strings.Trim(param, " \t")
			if name == "" {
				name = param
			}
			if param == unit {
				names[name] = true
			}
		}
	}
	return names
}

// split yields the parts of text between separators that are not inside quoted strings.
func split(text string, separator byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		within, start := false, 0
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case within && c == '\\':
				i++
			case c == '"':
				within = !within
			case !within && c == separator:
				if !yield(text[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(text[start:])
	}
}
