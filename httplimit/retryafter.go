package httplimit

import (
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/cooldown"
)

// maxField is how many bytes of a field are read. A longer one counts as none: its end could be
// in the middle of a number.
const maxField = 4 << 10

// value returns the field name of h.
func value(h http.Header, name string) string {
	if text := h.Get(name); len(text) <= maxField {
		return text
	}
	return ""
}

// list returns the fields of that name, joined.
func list(h http.Header, name string) string {
	size := 0
	for _, line := range h[name] {
		if size += len(line) + 1; size > maxField {
			return ""
		}
	}
	return strings.Join(h[name], ",")
}

// parseRetryAfter returns when h, of a refusal that arrived at now, says to come back. It
// reads Retry-After, the RateLimit fields of any draft and the legacy ones, and takes the
// first that is valid. Times are relative to the answer's Date, so that the local clock may be
// wrong.
func parseRetryAfter(h http.Header, now time.Time) (d time.Duration, ok bool) {
	if date, err := http.ParseTime(value(h, "Date")); err == nil {
		now = date
	}
	text := value(h, retryAfter)
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0), true
	}
	if d, ok := cooldown.ParseWait(text, now); ok {
		return d, true
	}
	if d, ok := parseRateLimit(list(h, rateLimit), now); ok {
		return d, true
	}
	if d, ok := cooldown.ParseWait(value(h, resetField), now); ok {
		return d, true
	}
	return cooldown.ParseWait(value(h, xReset), now)
}

// parseRateLimit reads a RateLimit field: the longest t of the items of draft 10 with
// nothing left, or reset of draft 7. Everything else is ignored.
func parseRateLimit(text string, now time.Time) (longest time.Duration, ok bool) {
	for _, item := range split(text, ',') {
		values := make(map[string]string)
		for _, param := range split(item, ';') {
			name, value, _ := strings.Cut(strings.Trim(param, " \t"), "=")
			values[name] = value
		}
		wait := values["reset"]
		if values["r"] == "0" {
			wait = values["t"]
		}
		if d, valid := cooldown.ParseWait(wait, now); valid {
			longest, ok = max(longest, d), true
		}
	}
	return longest, ok
}

// split splits text at separators outside of strings.
func split(text string, separator byte) (parts []string) {
	within, start := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case within && c == '\\':
			i++
		case c == '"':
			within = !within
		case !within && c == separator:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}
