package httplimit

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxSeconds is the most that a time.Duration can be.
const maxSeconds = uint64(math.MaxInt64 / time.Second)

// comeBack is when h, of a refusal that has arrived now, says to come back: by
// Retry-After or else the RateLimit fields of any draft or the legacy ones, the first of
// these that can be read. Times of day are by the Date of the answer, so that our own clock
// may be wrong.
func comeBack(h http.Header, now time.Time) (d time.Duration, ok bool) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	text := h.Get(retryAfter)
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0), true
	}
	if d, ok := parseSeconds(text); ok {
		return d, true
	}
	if d, ok := parseRateLimit(strings.Join(h[rateLimit], ",")); ok {
		return d, true
	}
	if d, ok := parseSeconds(h.Get(resetField)); ok {
		return d, true
	}
	return parseReset(h.Get(xReset), now)
}

// parseSeconds reads a whole number of seconds, of which what is too large for a
// time.Duration is the most that it can be.
func parseSeconds(text string) (time.Duration, bool) {
	s, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // beyond the range s is the largest there is
		return 0, false
	}
	return time.Duration(min(s, maxSeconds)) * time.Second, true
}

// parseReset reads X-RateLimit-Reset, which is Unix seconds at most services and
// seconds from now at some: those of more than ten years are Unix seconds.
func parseReset(text string, now time.Time) (time.Duration, bool) {
	d, ok := parseSeconds(text)
	if ok && d > 10*365*24*time.Hour {
		d = max(time.Unix(int64(d/time.Second), 0).Sub(now), 0)
	}
	return d, ok
}

// parseRateLimit reads a RateLimit field: the longest t of the items of draft 10 with
// nothing left, or reset of draft 7. What else stands there is not looked at.
func parseRateLimit(text string) (longest time.Duration, ok bool) {
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
		if d, valid := parseSeconds(wait); valid {
			longest, ok = max(longest, d), true
		}
	}
	return longest, ok
}

// split splits text at a separator, but for those in strings.
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
