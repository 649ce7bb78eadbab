package httplimit

import (
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/cooldown"
)

// maxField is how many bytes of a field are read. A longer one counts as none: its end could be
// in the middle of a number.
const maxField = 4 << 10

// maxName is how long the name of a field can be that a server has made up, and that is told to people.
const maxName = 100

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

// parseRetryAfter returns when h, of a refusal that arrived at now, says to come back, and in which field, "" if it
// does not say so. It reads Retry-After, the RateLimit fields of any draft and the legacy ones, and takes the
// first that is valid.
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

// parseRemaining returns how long the last of the limits has no room of which h, of an answer that arrived at now, says
// that nothing is left, and in which field, "" if there is none.
func parseRemaining(h http.Header, now time.Time) (longest time.Duration, field string) {
	if age := value(h, "Age"); age != "" && age != "0" { // a cache repeats what was true then
		return 0, ""
	}
	now = sent(h, now)
	if d, ok := parseRateLimit(h, now, false); ok {
		longest, field = d, rateLimit
	}
	// These are the same limit in another form. A Unix time comes last, because it is up to a second later: it counts from
	// Date, which is a whole second.
	for _, name := range [...]string{remainingField, xRemaining} {
		if d := parsePair(h, name, now); field == "" && d > 0 {
			longest, field = d, name
		}
	}
	for name := range h {
		if name == remainingField || name == xRemaining {
			continue
		}
		if d := parsePair(h, name, now); d > longest || d > 0 && d == longest && name < field { // in no particular order
			longest, field = d, name
		}
	}
	return longest, field
}

// parsePair returns how long a limit has no room if the field name says that nothing of it is left, or else 0. The time is in
// the field with Reset in place of Remaining.
func parsePair(h http.Header, name string, now time.Time) time.Duration {
	before, after, ok := strings.Cut(name, "Remaining")
	if !ok || len(name) > maxName || !strings.Contains(before, "Ratelimit-") && !strings.Contains(before, "Rate-Limit-") || !nothing(value(h, name)) {
		return 0
	}
	d, _ := parseWait(value(h, before+"Reset"+after), now)
	return d
}

// nothing reports whether text is 0. Some servers write -1 if they do not know.
func nothing(text string) bool {
	text = strings.TrimSpace(text)
	digits, fraction, _ := strings.Cut(text, ".")
	return digits != "" && strings.Trim(digits+fraction, "0") == ""
}

// sent returns when an answer was sent that arrived at now, by the server's clock. Times are relative to it, so that the local
// clock may be wrong.
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

// parseRateLimit reads a RateLimit field: the longest t of the items of draft 10 with
// nothing left, or reset of draft 7, if nothing is left or the answer is a refusal. Everything else is ignored.
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

// concurrent returns the names of the policies in a RateLimit-Policy field that say how many requests may run at once. A request has
// room as soon as another one ends.
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

// split yields the parts of text between separators outside of strings.
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
