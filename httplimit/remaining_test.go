package httplimit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// usedUp is an answer that was served with the last request of a limit.
func usedUp(header map[string]string) answer { return answer{http.StatusOK, header} }

func TestAnAnswerThatSaysThatNothingIsLeftPausesTheRequestsAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, opts := range map[int][]httplimit.ClientOption{4: nil, 0: {httplimit.WithRemaining()}} {
			sup := &supplier{answers: []answer{usedUp(map[string]string{"RateLimit": `"a";r=0;t=30`}), fine}}
			tr := transport(t, sup, plenty(t), opts...)
			for range 5 {
				require.NoError(t, call(t, tr, "http://example.com/"))
			}
			early := 0
			for _, sent := range sup.sent[1:] {
				if sent.Sub(sup.sent[0]) < 30*time.Second {
					early++
				}
			}
			require.Equal(t, want, early, "requests before the limit has room")
		}
	})
}

// The header fields are those that services document or have sent. A bubble begins at midnight of 2000-01-01 UTC, 946684800.
func TestRemainingFieldsOfServicesAreRead(t *testing.T) {
	type header = map[string]string
	with := func(more header, fields header) header {
		all := header{"Date": "Sat, 01 Jan 2000 00:00:00 GMT", "Content-Type": "application/json"}
		for _, from := range []header{fields, more} {
			for name, value := range from {
				all[name] = value
			}
		}
		return all
	}
	openAI := header{
		"x-ratelimit-limit-requests": "60", "x-ratelimit-limit-tokens": "150000", "x-ratelimit-remaining-requests": "59",
		"x-ratelimit-remaining-tokens": "149984", "x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s",
	}
	anthropic := header{
		"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49", "anthropic-ratelimit-requests-reset": "2000-01-01T00:00:01Z",
		"anthropic-ratelimit-tokens-limit": "40000", "anthropic-ratelimit-tokens-remaining": "37000", "anthropic-ratelimit-tokens-reset": "2000-01-01T00:00:20Z",
		"anthropic-ratelimit-input-tokens-limit": "30000", "anthropic-ratelimit-input-tokens-remaining": "29000", "anthropic-ratelimit-input-tokens-reset": "2000-01-01T00:00:30Z",
		"anthropic-ratelimit-output-tokens-limit": "8000", "anthropic-ratelimit-output-tokens-remaining": "8000", "anthropic-ratelimit-output-tokens-reset": "2000-01-01T00:00:00Z",
	}
	gitHub := header{
		"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "4987", "X-RateLimit-Reset": "946688400",
		"X-RateLimit-Used": "13", "X-RateLimit-Resource": "core",
	}
	for name, c := range map[string]struct {
		status int
		header header
		want   time.Duration
		field  string
	}{
		"OpenAI":                  {200, with(openAI, nil), 0, ""},
		"OpenAI, no requests":     {200, with(header{"x-ratelimit-remaining-requests": "0"}, openAI), time.Second, "X-Ratelimit-Remaining-Requests"},
		"OpenAI, no tokens":       {200, with(header{"x-ratelimit-remaining-tokens": "0"}, openAI), 6 * time.Minute, "X-Ratelimit-Remaining-Tokens"},
		"OpenAI, neither":         {200, with(header{"x-ratelimit-remaining-tokens": "0", "x-ratelimit-remaining-requests": "0"}, openAI), 6 * time.Minute, "X-Ratelimit-Remaining-Tokens"},
		"OpenAI, in milliseconds": {200, with(header{"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, openAI), 120 * time.Millisecond, "X-Ratelimit-Remaining-Tokens"},
		"OpenAI, of a project": {200, with(header{"x-ratelimit-remaining-project-tokens": "0", "x-ratelimit-reset-project-tokens": "90ms"}, openAI),
			90 * time.Millisecond, "X-Ratelimit-Remaining-Project-Tokens"},
		"OpenAI, a refusal that says nothing else": {429, with(header{"x-ratelimit-remaining-tokens": "0"}, openAI), 6 * time.Minute, "X-Ratelimit-Remaining-Tokens"},
		"OpenAI, a refusal that does":              {429, with(header{"x-ratelimit-remaining-tokens": "0", "Retry-After": "7"}, openAI), 7 * time.Second, "Retry-After"},
		"Azure, which does not know": {200, with(header{"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1",
			"x-ratelimit-reset-tokens": "0"}, nil), 0, ""},
		"Azure, without a time": {200, with(header{"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "0"}, nil), 0, ""},
		"Groq": {200, with(header{"x-ratelimit-remaining-requests": "14370", "x-ratelimit-remaining-tokens": "0",
			"x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-reset-tokens": "7.66s"}, nil), 7660 * time.Millisecond, "X-Ratelimit-Remaining-Tokens"},
		"Cerebras": {200, with(header{"x-ratelimit-remaining-requests-day": "1", "x-ratelimit-reset-requests-day": "33011.382867",
			"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "11.382867"}, nil), 12 * time.Second, "X-Ratelimit-Remaining-Tokens-Minute"},
		"Anthropic":                    {200, with(anthropic, nil), 0, ""},
		"Anthropic, no requests":       {200, with(header{"anthropic-ratelimit-requests-remaining": "0"}, anthropic), time.Second, "Anthropic-Ratelimit-Requests-Remaining"},
		"Anthropic, no input tokens":   {200, with(header{"anthropic-ratelimit-input-tokens-remaining": "0"}, anthropic), 30 * time.Second, "Anthropic-Ratelimit-Input-Tokens-Remaining"},
		"Anthropic, a time that is up": {200, with(header{"anthropic-ratelimit-output-tokens-remaining": "0"}, anthropic), 0, ""},
		"Anthropic, several": {200, with(header{"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-remaining": "0"}, anthropic),
			20 * time.Second, "Anthropic-Ratelimit-Tokens-Remaining"},
		"Anthropic's priority tier, after which the other tier serves": {200, with(header{"anthropic-priority-input-tokens-remaining": "0",
			"anthropic-priority-input-tokens-reset": "2000-01-01T00:01:00Z"}, anthropic), 0, ""},
		"GitHub":                     {200, with(gitHub, nil), 0, ""},
		"GitHub, the last":           {200, with(header{"X-RateLimit-Remaining": "0"}, gitHub), time.Hour, "X-Ratelimit-Remaining"},
		"GitHub, the last, by a 404": {404, with(header{"X-RateLimit-Remaining": "0"}, gitHub), time.Hour, "X-Ratelimit-Remaining"},
		"GitHub, a refusal":          {403, with(header{"X-RateLimit-Remaining": "0"}, gitHub), time.Hour, "X-Ratelimit-Remaining"},
		"GitHub, another 403":        {403, with(gitHub, nil), 0, ""},
		"GitLab": {200, with(header{"RateLimit-Limit": "60", "RateLimit-Observed": "60", "RateLimit-Remaining": "0", "RateLimit-Reset": "946684860",
			"RateLimit-ResetTime": "Sat, 01 Jan 2000 00:01:00 GMT"}, nil), time.Minute, "Ratelimit-Remaining"},
		"X":      {200, with(header{"x-rate-limit-limit": "75", "x-rate-limit-remaining": "0", "x-rate-limit-reset": "946685700"}, nil), 15 * time.Minute, "X-Rate-Limit-Remaining"},
		"Reddit": {200, with(header{"x-ratelimit-remaining": "0.0", "x-ratelimit-reset": "489", "x-ratelimit-used": "600"}, nil), 489 * time.Second, "X-Ratelimit-Remaining"},
		"a date": {200, with(header{"x-ratelimit-remaining": "0", "x-ratelimit-reset": "Sat, 01 Jan 2000 00:01:00 GMT"}, nil), time.Minute, "X-Ratelimit-Remaining"},

		"draft 10":                    {200, header{"RateLimit": `"a,;r=0;t=50\"";r=0;t=10, "b";r=7;t=55,"c";t=30;r=0`}, 30 * time.Second, "Ratelimit"},
		"draft 10, the longest first": {200, header{"RateLimit": `"a";r=0;t=30, "b";r=0;t=10`}, 30 * time.Second, "Ratelimit"},
		"draft 10, with room":         {200, header{"RateLimit": `"a";r=1;t=30`}, 0, ""},
		"draft 10, no time":           {200, header{"RateLimit": `"a";r=0`, "RateLimit-Policy": `"a";q=10;w=60`}, 0, ""},
		"draft 10, of slots":          {200, header{"RateLimit": `"a";r=0;t=30, "b";r=0;t=5`, "RateLimit-Policy": `"a";q=10;qu="concurrent-requests", "b";q=5;w=60`}, 5 * time.Second, "Ratelimit"},
		"draft 10, of bytes":          {200, header{"RateLimit": `"a";r=0;t=30`, "RateLimit-Policy": `"a";q=10;qu="content-bytes", "concurrent-requests";q=1`}, 30 * time.Second, "Ratelimit"},
		"draft 7":                     {200, header{"RateLimit": "limit=9, remaining=0, reset=30"}, 30 * time.Second, "Ratelimit"},
		"draft 7, with room":          {200, header{"RateLimit": "limit=9, remaining=10, reset=30"}, 0, ""},
		"draft 6":                     {200, header{"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"}, 30 * time.Second, "Ratelimit-Remaining"},
		"draft 6, with room":          {200, header{"RateLimit-Remaining": "1", "RateLimit-Reset": "30"}, 0, ""},
		"a time and no number":        {200, header{"RateLimit-Reset": "30", "X-RateLimit-Reset": "30", "Retry-After": "30"}, 0, ""},
		// A Unix time is up to a second later, since Date is a whole second.
		"one limit in all forms": {200, with(header{"RateLimit": `"a";r=0;t=1`, "RateLimit-Remaining": "0", "RateLimit-Reset": "1",
			"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684802"}, nil), time.Second, "Ratelimit"},
		"one limit in two forms": {200, with(header{"RateLimit-Remaining": "0", "RateLimit-Reset": "1",
			"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684802"}, nil), time.Second, "Ratelimit-Remaining"},
		"a gateway's limit in front of the service's": {200, with(header{"RateLimit": `"a";r=5;t=50`,
			"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684802"}, nil), 2 * time.Second, "X-Ratelimit-Remaining"},
		"tokens beside requests": {200, with(header{"RateLimit": `"a";r=0;t=5`, "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6s"}, nil),
			6 * time.Second, "X-Ratelimit-Remaining-Tokens"},
		"two that last as long": {200, with(header{"x-ratelimit-remaining-b": "0", "x-ratelimit-reset-b": "6s", "x-ratelimit-remaining-a": "0", "x-ratelimit-reset-a": "6s"}, nil),
			6 * time.Second, "X-Ratelimit-Remaining-A"},

		"of a cache":      {200, with(header{"Age": "20", "RateLimit": `"a";r=0;t=30`, "X-RateLimit-Remaining": "0"}, gitHub), 0, ""},
		"through a cache": {200, with(header{"Age": "0", "RateLimit": `"a";r=0;t=30`}, nil), 30 * time.Second, "Ratelimit"},
		"nothing to read": {200, header{"RateLimit": `"";;=`, "X-RateLimit-Remaining": "none", "X-RateLimit-Reset": "soon", "RateLimit-Remaining": ".", "RateLimit-Reset": "30"}, 0, ""},
		"a name that is too long": {200, header{"X-RateLimit-Remaining-" + strings.Repeat("a", 78): "0", "X-RateLimit-Reset-" + strings.Repeat("a", 78): "30",
			"X-RateLimit-Remaining-" + strings.Repeat("a", 79): "0", "X-RateLimit-Reset-" + strings.Repeat("a", 79): "60"}, 30 * time.Second, "X-Ratelimit-Remaining-A" + strings.Repeat("a", 77)},
		"no rate limit":     {200, header{"X-Quota-Remaining": "0", "X-Quota-Reset": "30", "X-RateLimit-Used": "0"}, 0, ""},
		"room in no time":   {200, with(header{"RateLimit": `"a";r=0;t=0`, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684801"}, nil), 0, ""},
		"no sooner":         {200, header{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "-30"}, 0, ""},
		"a lie":             {200, header{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": strings.Repeat("9", 100)}, longestPause, "X-Ratelimit-Remaining"},
		"a lie by draft 10": {200, header{"RateLimit": `"a";r=0;t=999999999999999`}, longestPause, "Ratelimit"},
		"a far year":        {200, header{"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "9999-12-31T23:59:59Z"}, longestPause, "Anthropic-Ratelimit-Requests-Remaining"},
		"long durations":    {200, header{"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2562047h"}, longestPause, "X-Ratelimit-Remaining-Tokens"},
		"fields of 8 MiB are not read": {200, header{"RateLimit": strings.Repeat(`"a";r=0;t=30,`, 8<<20/13), "X-RateLimit-Remaining": strings.Repeat("0", 8<<20), "X-RateLimit-Reset": "30",
			"RateLimit-Remaining": "0", "RateLimit-Reset": strings.Repeat("9", 8<<20)}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sup := &supplier{answers: []answer{{c.status, c.header}, fine}}
				told := ""
				tr := transport(t, sup, plenty(t), httplimit.WithRemaining(), httplimit.WithMaxPause(longestPause),
					httplimit.WithOnPause(func(_ string, d time.Duration, field string) { told = fmt.Sprint(d, " by ", field) }))
				require.NoError(t, call(t, tr, "http://example.com/"))
				require.NoError(t, call(t, tr, "http://example.com/"))
				require.Equal(t, c.want, sup.sent[1].Sub(sup.sent[0]))
				if c.want > 0 {
					require.Equal(t, fmt.Sprint(c.want, " by ", c.field), told)
				} else {
					require.Empty(t, told)
				}
			})
		})
	}
}

const longestPause = 24 * time.Hour

// served counts what a server behind a real socket has answered.
type served struct{ admitted, refused atomic.Int64 }

func (s *served) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		if rec.Code == http.StatusTooManyRequests {
			s.refused.Add(1)
		} else {
			s.admitted.Add(1)
		}
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
	})
}

// Every style of our own middleware, over a socket. Nothing is left after three requests, and a fourth is not sent.
func TestTheMiddlewareIsNotAskedForMoreThanItSaysIsLeft(t *testing.T) {
	day := ratelimit.PerDay(3)
	limiters := map[string]func() (ratelimit.Limiter, error){
		"token bucket":   func() (ratelimit.Limiter, error) { return ratelimit.NewTokenBucket(memory(t), day) },
		"leaky bucket":   func() (ratelimit.Limiter, error) { return ratelimit.NewLeakyBucket(memory(t), day) },
		"sliding window": func() (ratelimit.Limiter, error) { return ratelimit.NewSlidingWindow(memory(t), day) },
		"sliding log":    func() (ratelimit.Limiter, error) { return ratelimit.NewSlidingLog(memory(t), day) },
		"two limits": func() (ratelimit.Limiter, error) {
			s := memory(t)
			narrow, err := ratelimit.NewSlidingLog(s, day)
			require.NoError(t, err)
			wide, err := ratelimit.NewTokenBucket(s, ratelimit.PerDay(100))
			require.NoError(t, err)
			return ratelimit.NewAll(wide, narrow)
		},
	}
	for style, c := range map[string]struct {
		styles []httplimit.HeaderStyle
		field  string
	}{
		"default":  {nil, "Ratelimit"},
		"legacy":   {[]httplimit.HeaderStyle{httplimit.Legacy}, "X-Ratelimit-Remaining"},
		"draft 10": {[]httplimit.HeaderStyle{httplimit.Draft10}, "Ratelimit"},
	} {
		for name, limiter := range limiters {
			t.Run(style+"/"+name, func(t *testing.T) {
				l, err := limiter()
				require.NoError(t, err)
				var opts []httplimit.ServerOption
				if c.styles != nil {
					opts = append(opts, httplimit.WithHeaders(c.styles...))
				}
				var count served
				server := httptest.NewServer(count.around(httplimit.Middleware(l, opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))))
				defer server.Close()
				var told string
				tr := transport(t, nil, plenty(t), httplimit.WithRemaining(), httplimit.WithoutWaiting(), httplimit.WithMaxPause(longestPause),
					httplimit.WithOnPause(func(_ string, _ time.Duration, field string) { told = field }))
				client := &http.Client{Transport: tr}
				for range 3 {
					res, err := client.Get(server.URL)
					require.NoError(t, err)
					res.Body.Close()
				}
				_, err = client.Get(server.URL)
				var limited *httplimit.LimitedError
				require.ErrorAs(t, err, &limited)
				require.LessOrEqual(t, limited.RetryAfter, longestPause)
				require.EqualValues(t, 3, count.admitted.Load())
				require.Zero(t, count.refused.Load())
				require.Equal(t, c.field, told)
				client.CloseIdleConnections()
			})
		}
	}
}

// A client without a limit of its own keeps to that of the server, in real time.
func TestAClientThatReadsWhatIsLeftIsNeverRefused(t *testing.T) {
	t.Parallel()
	l, err := ratelimit.NewTokenBucket(living(t), ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 3})
	require.NoError(t, err)
	var count served
	server := httptest.NewServer(count.around(httplimit.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))))
	defer server.Close()
	client := &http.Client{Transport: transport(t, nil, plenty(t), httplimit.WithRemaining())}
	defer client.CloseIdleConnections()
	for range 4 {
		res, err := client.Get(server.URL)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, http.StatusOK, res.StatusCode)
	}
	require.Zero(t, count.refused.Load())
}

// Nobody knows when a slot is free, so the server reports no time.
func TestSlotsThatAreAllTakenBeginNoPause(t *testing.T) {
	server := httptest.NewServer(httplimit.Middleware(slots(t, memory(t), 1))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	tr := transport(t, nil, plenty(t), httplimit.WithRemaining(), httplimit.WithoutWaiting())
	res, err := (&http.Client{Transport: tr}).Get(server.URL)
	require.NoError(t, err)
	res.Body.Close()
	require.Contains(t, res.Header.Get("RateLimit"), "r=0")
	begun, _ := tr.Pauses()
	require.Zero(t, begun)
	tr.CloseIdleConnections()
}

func TestAPauseByWhatIsLeftIsOneOfItsKeyAndNoLongerThanTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{usedUp(map[string]string{"RateLimit": `"a";r=0;t=3600`}), fine}}
		tr := transport(t, sup, plenty(t), httplimit.WithRemaining())
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.NoError(t, call(t, tr, "http://b.example/"))
		require.Equal(t, sup.sent[0], sup.sent[1], "another host")
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		_, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://a.example/", nil).WithContext(ctx))
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Equal(t, time.Minute, sup.sent[2].Sub(sup.sent[0]))

		sup.answers = []answer{usedUp(map[string]string{"RateLimit": `"a";r=0;t=30`}), fine}
		all := transport(t, sup, plenty(t), httplimit.WithRemaining(), httplimit.WithKey(httplimit.Global()))
		require.NoError(t, call(t, all, "http://a.example/"))
		require.NoError(t, call(t, all, "http://b.example/"))
		require.Equal(t, 30*time.Second, sup.sent[4].Sub(sup.sent[3]), "one key for all hosts")
	})
}

func TestWithoutWaitingARequestIsRefusedWhileNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{usedUp(map[string]string{"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6.5s"}), fine}}
		lim := plenty(t)
		tr := transport(t, sup, lim, httplimit.WithRemaining(), httplimit.WithoutWaiting())
		require.NoError(t, call(t, tr, "http://example.com/"))
		var limited *httplimit.LimitedError
		require.ErrorAs(t, call(t, tr, "http://example.com/"), &limited)
		require.Equal(t, &httplimit.LimitedError{Key: "host:example.com:80", RetryAfter: 6500 * time.Millisecond}, limited)
		time.Sleep(6500 * time.Millisecond)
		require.NoError(t, call(t, tr, "http://example.com/"))
		p, err := lim.Peek(t.Context(), "host:example.com:80")
		require.NoError(t, err)
		require.Equal(t, 2, p.Limit-p.Remaining, "the refused one is not charged")
	})
}

func TestARefusalThatSaysOnlyWhatIsLeftIsSentAgainThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := map[string]string{"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2000-01-01T00:00:20Z"}
		for status, sent := range map[int]int{429: 2, 503: 2, 403: 1, 200: 1} {
			sup := &supplier{answers: []answer{{status, left}, fine}}
			tr := transport(t, sup, plenty(t), httplimit.WithRemaining(), httplimit.WithRetries(1))
			began := time.Now()
			left["Date"] = began.UTC().Format(http.TimeFormat)
			left["anthropic-ratelimit-tokens-reset"] = began.UTC().Add(20 * time.Second).Format(time.RFC3339)
			require.NoError(t, call(t, tr, "http://example.com/"))
			require.Len(t, sup.sent, sent, status)
			require.NoError(t, call(t, tr, "http://example.com/"))
			require.Equal(t, 20*time.Second, sup.sent[1].Sub(sup.sent[0]))
		}
	})
}

// The body of the answer that began the pause may be read long after its header.
func TestARequestThatWaitsForRoomHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		l, err := inflight.New(s, 1, time.Minute)
		require.NoError(t, err)
		sup := &supplier{answers: []answer{usedUp(map[string]string{"RateLimit": `"a";r=0;t=30`}), fine}}
		tr := transport(t, sup, l, httplimit.WithRemaining())
		began := time.Now()
		res, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil))
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- call(t, tr, "http://example.com/") }()
		time.Sleep(10 * time.Second)
		p, err := l.Peek(t.Context(), "host:example.com:80")
		require.NoError(t, err)
		require.Zero(t, p.Remaining, "the slot of the answer")
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		p, err = l.Peek(t.Context(), "host:example.com:80")
		require.NoError(t, err)
		require.Equal(t, 1, p.Remaining, "the waiting request has none")
		require.NoError(t, <-done)
		require.Equal(t, 30*time.Second, time.Since(began))
		synctest.Wait()
	})
}

// quota is a server with a limit of its own, which says with each answer what is left, or refuses.
type quota struct {
	mu      sync.Mutex
	limiter ratelimit.Limiter
	delay   time.Duration
	sent    []string
	refused int
}

func (s *quota) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := httptest.NewRecorder()
	httplimit.Middleware(s.limiter, httplimit.WithKey(httplimit.Global()))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		s.sent = append(s.sent, r.URL.Path[1:])
	})).ServeHTTP(rec, r)
	if rec.Code == http.StatusTooManyRequests {
		s.refused++
	}
	return rec.Result(), nil
}

// Requests one after the other are never refused, whatever the server's algorithm, and lose little of its rate.
func TestAClientThatReadsWhatIsLeftGetsTheServersRate(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := memstore.New()
				require.NoError(t, err)
				l, err := ratelimit.New(algorithm, s, ratelimit.PerMinute(30))
				require.NoError(t, err)
				server := &quota{limiter: l}
				tr := transport(t, server, plenty(t), httplimit.WithRemaining(), httplimit.WithMaxPause(time.Hour))
				began := time.Now()
				for i := range 300 {
					require.NoError(t, call(t, tr, fmt.Sprint("http://example.com/", i)))
				}
				require.Zero(t, server.refused)
				require.Len(t, server.sent, 300)
				t.Log(time.Since(began))
				require.LessOrEqual(t, time.Since(began), 20*time.Minute, "at least half of the rate")
			})
		})
	}
}

// A server may say of each answer that nothing is left. Each pause ends, and lets some of those who wait go on in their order.
func TestAServerThatAlwaysSaysThatNothingIsLeftIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		server := &quota{limiter: plenty(t), delay: 10 * time.Microsecond}
		rate, err := memstore.New()
		require.NoError(t, err)
		l, err := ratelimit.NewTokenBucket(rate, ratelimit.Limit{Rate: 10, Period: time.Second})
		require.NoError(t, err)
		tr := transport(t, always{server, http.Header{"Ratelimit": {`"a";r=0;t=999999999`}}}, l, httplimit.WithRemaining())
		began := time.Now()
		var all sync.WaitGroup
		var want []string
		for i := range n {
			all.Go(func() { assert.NoError(t, call(t, tr, fmt.Sprint("http://example.com/", i))) })
			time.Sleep(time.Millisecond)
			want = append(want, fmt.Sprint(i))
		}
		all.Wait()
		require.Equal(t, want, server.sent)
		require.LessOrEqual(t, time.Since(began), n*(time.Minute+time.Second))
	})
}

// always sets the header of each answer.
type always struct {
	http.RoundTripper
	header http.Header
}

func (a always) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := a.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Header = a.header
	}
	return res, err
}
