package httplimit

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// A server can write anything. The result is a time that is not negative, from a field that exists,
// and always the same.
func FuzzWhatAServerSaysIsLeft(f *testing.F) {
	for _, seed := range [][4]string{
		{"0", "30", `"a";r=0;t=30, "b";r=7;t=55`, `"a";q=10;w=60`},
		{"0.0", "6m0s", `"a,;r=0;t=50\"";r=0;t=10`, `"a,;r=0;t=50\"";q=1;qu="concurrent-requests"`},
		{"-1", "120ms", "limit=9, remaining=0, reset=30", "9;w=60"},
		{"00", "2026-11-29T12:00:30Z", `"";;=`, `"`},
		{"0", "Sun, 29 Nov 2026 12:00:30 GMT", `a;r=0.0;t=1.5;t=?1, (b "c");r=0;t=5`, "a;qu=concurrent-requests"},
		{"0", "99999999999999999999999", `"a";r=0;t=999999999999999`, `"a`},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, left, reset, limits, policies string) {
		h := http.Header{
			"Ratelimit": {limits}, "Ratelimit-Policy": {policies}, "Ratelimit-Remaining": {left}, "Ratelimit-Reset": {reset},
			"X-Ratelimit-Remaining-Tokens": {left}, "X-Ratelimit-Reset-Tokens": {reset}, "Anthropic-Ratelimit-Remaining": {left}, "Anthropic-Ratelimit-Reset": {reset},
		}
		d, field := parseRemaining(h, noon)
		again, too := parseRemaining(h, noon)
		require.Equal(t, d, again)
		require.Equal(t, field, too)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.Equal(t, field == "", h[field] == nil)
		if field == "" {
			require.Zero(t, d)
		}
		d, field = parseRetryAfter(h, noon)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.Equal(t, field == "", h[field] == nil)

		want, plain := limitsOf(limits)
		if d, ok := parseRateLimit(http.Header{"Ratelimit": {limits}}, noon, false); plain {
			require.Equal(t, want > 0, ok)
			require.Equal(t, want, d)
		}
	})
}

// limitsOf reads a list of draft 10 with an independent parser, if it has nothing that the RFC leaves to us: times above 0 and
// below ten years in whole seconds.
func limitsOf(text string) (longest time.Duration, plain bool) {
	list, err := httpsfv.UnmarshalList([]string{text})
	if err != nil || len(text) > maxField {
		return 0, false
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if _, isString := item.Value.(string); !ok || !isString {
			return 0, false
		}
		left, found := item.Params.Get("r")
		reset, timed := item.Params.Get("t")
		if !found || !timed {
			continue
		}
		n, whole := left.(int64)
		seconds, wholeToo := reset.(int64)
		if !whole || !wholeToo || seconds < 1 || seconds > 1e8 {
			return 0, false
		}
		if n == 0 {
			longest = max(longest, time.Duration(seconds)*time.Second)
		}
	}
	return longest, !strings.Contains(text, "-0") && !strings.Contains(text, "re") // neither -0 nor remaining and reset
}

// A field of many limits, and a policy for each that says it is of requests at once, are read in one pass.
func BenchmarkWhatIsLeft(b *testing.B) {
	fields := http.Header{}
	for _, name := range []string{"Date", "Content-Type", "Content-Length", "Cache-Control", "Etag", "Vary", "Server", "X-Request-Id", "Via", "Set-Cookie"} {
		fields[name] = []string{"something"}
	}
	fields.Set("Date", noon.Format(http.TimeFormat))
	with := func(more http.Header) http.Header {
		all := fields.Clone()
		for name, values := range more {
			all[name] = values
		}
		return all
	}
	for name, h := range map[string]http.Header{
		"none":     fields,
		"draft 10": with(http.Header{"Ratelimit": {`"a";r=7;t=30`}, "Ratelimit-Policy": {`"a";q=10;w=60`}, xRemaining: {"7"}, xReset: {"1764417600"}}),
		"used up":  with(http.Header{"Ratelimit": {`"a";r=0;t=30`}, "Ratelimit-Policy": {`"a";q=10;w=60`}, xRemaining: {"0"}, xReset: {"1764417600"}}),
		"hostile": with(http.Header{"Ratelimit": {strings.Repeat(`"";r=0;t=9,`, maxField/11)},
			"Ratelimit-Policy": {strings.Repeat(`"";qu="concurrent-requests",`, maxField/28)}}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				parseRemaining(h, noon)
			}
		})
	}
}
