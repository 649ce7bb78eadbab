package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// supplier answers calls in turn, the last answer for all that follow.
type supplier struct {
	mu      sync.Mutex
	answers []answer
	sent    []time.Time
	bodies  []string
}

type answer struct {
	status int
	header map[string]string
}

var fine = answer{status: http.StatusOK}

func (s *supplier) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, time.Now())
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		s.bodies = append(s.bodies, string(b))
		r.Body.Close()
	}
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	h := make(http.Header)
	for name, value := range a.header {
		h.Set(name, value)
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: io.NopCloser(strings.NewReader("answer")), Request: r}, nil
}

// plenty is a limiter that is never in the way.
func plenty(t testing.TB) ratelimit.Limiter {
	t.Helper()
	return window(t, memory(t), ratelimit.PerDay(1<<30))
}

func transport(t testing.TB, base http.RoundTripper, lim ratelimit.Limiter, opts ...httplimit.ClientOption) *httplimit.Transport {
	t.Helper()
	tr, err := httplimit.NewTransport(base, lim, opts...)
	require.NoError(t, err)
	return tr
}

func call(t testing.TB, rt http.RoundTripper, url string) error {
	t.Helper()
	res, err := rt.RoundTrip(httptest.NewRequest(http.MethodGet, url, nil))
	if err == nil {
		res.Body.Close()
	}
	return err
}

func TestCallsWaitUntilTheLimiterAdmitsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		lim, err := ratelimit.NewLeakyBucket(s, ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 5})
		require.NoError(t, err)
		sup := &supplier{answers: []answer{fine}}
		tr := transport(t, sup, lim)
		begin := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _ = call(t, tr, "http://example.com/") })
		}
		wg.Wait()
		require.Len(t, sup.sent, 10)
		require.GreaterOrEqual(t, time.Since(begin), 900*time.Millisecond)
		for i := 1; i < len(sup.sent); i++ {
			require.GreaterOrEqual(t, sup.sent[i].Sub(sup.sent[i-1]), 90*time.Millisecond)
		}
	})
}

func TestLaterCallsWaitAsTheAnswerSays(t *testing.T) {
	date := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name   string
		status int
		header func() map[string]string
		want   time.Duration
	}{
		{"429 in seconds", 429, func() map[string]string { return map[string]string{"Retry-After": "30"} }, 30 * time.Second},
		{"503 in seconds", 503, func() map[string]string { return map[string]string{"Retry-After": "30"} }, 30 * time.Second},
		{"a date", 429, func() map[string]string { return map[string]string{"Retry-After": date(30 * time.Second)} }, 30 * time.Second},
		{"a date of a clock that is an hour ahead", 429, func() map[string]string {
			return map[string]string{"Retry-After": date(time.Hour + 30*time.Second), "Date": date(time.Hour)}
		}, 30 * time.Second},
		{"a date that is over", 429, func() map[string]string { return map[string]string{"Retry-After": date(-time.Hour)} }, 0},
		{"at most the maximum", 429, func() map[string]string { return map[string]string{"Retry-After": "99999999999999999"} }, time.Minute},
		{"beyond 64 bits", 429, func() map[string]string { return map[string]string{"Retry-After": "99999999999999999999"} }, time.Minute},
		{"a date that is far off", 429, func() map[string]string {
			return map[string]string{"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}
		}, time.Minute},
		{"Retry-After wins", 429, func() map[string]string {
			return map[string]string{"Retry-After": "5", "RateLimit": `"a";r=0;t=30`}
		}, 5 * time.Second},
		{"draft 10", 429, func() map[string]string {
			return map[string]string{"RateLimit": `"a,;r=0;t=50\"";r=0;t=10, "b";r=7;t=55,"c";t=30;r=0`}
		}, 30 * time.Second},
		{"draft 10 in 4 KiB", 429, func() map[string]string {
			return map[string]string{"RateLimit": strings.Repeat(`"a";r=0;t=30,`, 4<<10/13)}
		}, 30 * time.Second},
		{"a field of 8 MiB is not read", 429, func() map[string]string {
			return map[string]string{"Retry-After": strings.Repeat("9", 8<<20), "RateLimit": strings.Repeat(`"a";r=0;t=30,`, 8<<20/13),
				"RateLimit-Reset": strings.Repeat("9", 8<<20), "X-RateLimit-Reset": strings.Repeat("9", 8<<20)}
		}, 0},
		{"draft 7", 429, func() map[string]string { return map[string]string{"RateLimit": "limit=9, remaining=0, reset=30"} }, 30 * time.Second},
		{"draft 7, of a request that needs more than is left", 429, func() map[string]string {
			return map[string]string{"RateLimit": "limit=9, remaining=1, reset=30"}
		}, 30 * time.Second},
		{"draft 10, of slots", 429, func() map[string]string {
			return map[string]string{"RateLimit": `"a";r=0;t=30`, "RateLimit-Policy": `"a";q=1;qu="concurrent-requests"`}
		}, 30 * time.Second},
		{"what only WithRemaining reads", 429, func() map[string]string {
			return map[string]string{"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "30"}
		}, 0},
		{"draft 6", 429, func() map[string]string { return map[string]string{"RateLimit-Reset": "30"} }, 30 * time.Second},
		{"legacy", 429, func() map[string]string {
			return map[string]string{"X-RateLimit-Reset": fmt.Sprint(time.Now().Unix() + 30)}
		}, 30 * time.Second},
		{"legacy, in seconds from now", 429, func() map[string]string { return map[string]string{"X-RateLimit-Reset": "30"} }, 30 * time.Second},
		{"what can be read", 429, func() map[string]string {
			return map[string]string{"Retry-After": "soon", "RateLimit-Reset": "1.5 s", "X-RateLimit-Reset": "30"}
		}, 30 * time.Second},
		{"garbage", 429, func() map[string]string { return map[string]string{"Retry-After": "soon", "RateLimit": `"";;=`} }, 0},
		{"negative", 429, func() map[string]string { return map[string]string{"Retry-After": "-5"} }, 0},
		{"nothing", 503, func() map[string]string { return nil }, 0},
		{"an answer that is no refusal", 200, func() map[string]string {
			return map[string]string{"Retry-After": "30", "RateLimit": `"a";r=0;t=30`}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sup := &supplier{answers: []answer{{c.status, c.header()}, fine}}
				tr := transport(t, sup, plenty(t))
				require.NoError(t, call(t, tr, "http://example.com/"))
				require.NoError(t, call(t, tr, "http://other.example/"), "another key does not wait")
				require.Equal(t, sup.sent[0], sup.sent[1])
				require.NoError(t, call(t, tr, "http://EXAMPLE.com:80/x"))
				require.Equal(t, c.want, sup.sent[2].Sub(sup.sent[0]))
				require.NoError(t, call(t, tr, "http://example.com/"))
				require.Equal(t, sup.sent[2], sup.sent[3], "and then no more")
			})
		})
	}
}

// Many services write Unix seconds or milliseconds where seconds from now are meant, and others a fraction.
func TestATimeIsReadWhateverItsFormAndField(t *testing.T) {
	const longest = 24 * time.Hour
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	for form, c := range map[string]struct {
		text func() string
		want time.Duration
	}{
		"seconds":                          {func() string { return "5" }, 5 * time.Second},
		"a fraction":                       {func() string { return "4.2" }, 5 * time.Second},
		"less than a second":               {func() string { return "0.001" }, time.Second},
		"a fraction that is none":          {func() string { return "5.000" }, 5 * time.Second},
		"Unix seconds":                     {func() string { return fmt.Sprint(in(5 * time.Second).Unix()) }, 5 * time.Second},
		"Unix seconds with a fraction":     {func() string { return fmt.Sprintf("%d.250", in(4*time.Second).Unix()) }, 5 * time.Second},
		"Unix milliseconds":                {func() string { return fmt.Sprint(in(5 * time.Second).UnixMilli()) }, 5 * time.Second},
		"Unix milliseconds, not whole":     {func() string { return fmt.Sprint(in(4750 * time.Millisecond).UnixMilli()) }, 4750 * time.Millisecond},
		"Unix milliseconds and a fraction": {func() string { return fmt.Sprintf("%d.5", in(4999*time.Millisecond).UnixMilli()) }, 5 * time.Second},
		"Unix seconds that are over":       {func() string { return fmt.Sprint(in(-time.Hour).Unix()) }, 0},
		"Unix milliseconds that are over":  {func() string { return fmt.Sprint(in(-time.Hour).UnixMilli()) }, 0},
		"a day":                            {func() string { return "86400" }, longest},
		"ten years":                        {func() string { return "315360000" }, longest},
		"no time near now":                 {func() string { return "315360001" }, longest},
		"nines":                            {func() string { return strings.Repeat("9", 12) }, longest},
		"beyond 64 bits":                   {func() string { return strings.Repeat("9", 100) }, longest},
		"beyond 64 bits, with a fraction":  {func() string { return strings.Repeat("9", 100) + "." + strings.Repeat("9", 100) }, longest},
		"no digits after the point":        {func() string { return "5." }, 0},
		"no digits before the point":       {func() string { return ".5" }, 0},
		"two points":                       {func() string { return "5.0.0" }, 0},
		"a sign after the point":           {func() string { return "5.-1" }, 0},
		"an exponent":                      {func() string { return "5e3" }, 0},
	} {
		for name, field := range map[string]string{
			"Retry-After": "%s", "RateLimit-Reset": "%s", "X-RateLimit-Reset": "%s",
			"RateLimit": "limit=9, remaining=0, reset=%s", "Ratelimit": `"a";r=0;t=%s`,
		} {
			t.Run(form+" in "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sup := &supplier{answers: []answer{{429, map[string]string{name: fmt.Sprintf(field, c.text())}}, fine}}
					tr := transport(t, sup, plenty(t), httplimit.WithMaxPause(longest))
					require.NoError(t, call(t, tr, "http://example.com/"))
					require.NoError(t, call(t, tr, "http://example.com/"))
					require.Equal(t, c.want, sup.sent[1].Sub(sup.sent[0]))
				})
			})
		}
	}
}

// A Unix time is relative to the answer's Date, as a date is.
func TestAUnixTimeOfAClockThatIsAheadIsReadByItsDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := time.Now().Add(365 * 24 * time.Hour).UTC()
		sup := &supplier{answers: []answer{{429, map[string]string{
			"Date": ahead.Format(http.TimeFormat), "Retry-After": fmt.Sprint(ahead.Unix() + 5),
		}}, fine}}
		tr := transport(t, sup, plenty(t))
		require.NoError(t, call(t, tr, "http://example.com/"))
		require.NoError(t, call(t, tr, "http://example.com/"))
		require.Equal(t, 5*time.Second, sup.sent[1].Sub(sup.sent[0]))
	})
}

func TestAWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "30"}}}}
		tr := transport(t, sup, plenty(t))
		require.NoError(t, call(t, tr, "http://example.com/"))
		begin := time.Now()

		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		_, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx))
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Equal(t, begin, time.Now(), "at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		body := &closed{Reader: strings.NewReader("x")}
		r := httptest.NewRequest(http.MethodPost, "http://example.com/", nil).WithContext(ctx)
		r.Body = body
		_, err = tr.RoundTrip(r)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(begin))
		require.True(t, body.closed)
		require.Len(t, sup.sent, 1)
	})
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return nil
}

func TestAPauseThatBeginsWhileACallWaitsHoldsForItToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		lim, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: time.Second})
		require.NoError(t, err)
		sup := &supplier{answers: []answer{fine}}
		tr := transport(t, slow{sup, 500 * time.Millisecond}, lim, httplimit.WithMaxPause(time.Hour))
		require.NoError(t, call(t, tr, "http://example.com/"))
		sup.answers = []answer{{429, map[string]string{"Retry-After": "100"}}, fine}
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { _ = call(t, tr, "http://example.com/") }) // sent at 0.5 s, refused at 1 s
		wg.Go(func() { _ = call(t, tr, "http://example.com/") }) // waits for the limiter until 1.5 s
		wg.Wait()
		require.Len(t, sup.sent, 3)
		require.GreaterOrEqual(t, sup.sent[2].Sub(begin), 100*time.Second)
	})
}

func TestCallsThatWaitedThroughAPauseAreNotSentAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		lim, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: time.Second})
		require.NoError(t, err)
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "30"}}, fine}}
		tr := transport(t, slow{sup, 500 * time.Millisecond}, lim)
		var wg sync.WaitGroup
		for range 10 { // one is sent and refused, while the others wait for the limiter
			wg.Go(func() { _ = call(t, tr, "http://example.com/") })
		}
		wg.Wait()
		require.Len(t, sup.sent, 10)
		for i, sent := range sup.sent[1:] {
			require.GreaterOrEqual(t, sent.Sub(sup.sent[0]), 30*time.Second)
			require.GreaterOrEqual(t, sent.Sub(sup.sent[i]), time.Second)
		}
	})
}

func TestACallThatIsNotSentAfterAllIsRefunded(t *testing.T) {
	for want, opts := range map[error][]httplimit.ClientOption{
		ratelimit.ErrWouldExceedDeadline: nil,
		httplimit.ErrLimited:             {httplimit.WithoutWaiting()},
	} {
		synctest.Test(t, func(t *testing.T) {
			sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "30"}}}}
			lim := &meanwhile{Limiter: plenty(t)}
			tr := transport(t, slow{sup, time.Second}, lim, opts...)
			go func() { _ = call(t, tr, "http://example.com/") }()
			synctest.Wait()
			lim.do = func() { time.Sleep(2 * time.Second) } // while the first is answered
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx))
			require.ErrorIs(t, err, want)
			p, err := lim.Peek(t.Context(), "host:example.com:80")
			require.NoError(t, err)
			require.Equal(t, 1, p.Limit-p.Remaining)
		})
	}
}

// The context of a call ends while the limiter is asked, which admits it. The call is not sent, and not charged.
func TestACallThatEndsWhileTheLimiterIsAskedIsRefunded(t *testing.T) {
	for name, opts := range map[string][]httplimit.ClientOption{
		"waiting": nil, "without waiting": {httplimit.WithoutWaiting()}, "with pauses": {httplimit.WithMaxPause(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			sup := &supplier{answers: []answer{fine}}
			lim := &meanwhile{Limiter: plenty(t)}
			ctx, hangUp := context.WithCancel(t.Context())
			lim.do = hangUp
			_, err := transport(t, sup, lim, opts...).RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, sup.sent)
			p, err := lim.Peek(t.Context(), "host:example.com:80")
			require.NoError(t, err)
			require.Equal(t, p.Limit, p.Remaining)
		})
	}
}

// meanwhile does something, once, while it is asked.
type meanwhile struct {
	ratelimit.Limiter
	do func()
}

func (l *meanwhile) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if do := l.do; do != nil {
		l.do = nil
		do()
	}
	return l.Limiter.AllowN(context.WithoutCancel(ctx), key, n) // as a store that answers in spite of the end
}

// slow answers after some time.
type slow struct {
	base http.RoundTripper
	d    time.Duration
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.d)
	return s.base.RoundTrip(r)
}

func TestWithoutWaitingACallFailsAndSaysForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{fine}}
		lim := window(t, memory(t), ratelimit.PerMinute(2))
		tr := transport(t, sup, lim, httplimit.WithoutWaiting())
		require.NoError(t, call(t, tr, "https://example.com/"))
		sup.answers = []answer{{429, map[string]string{"Retry-After": "7"}}}
		require.NoError(t, call(t, tr, "https://example.com/"), "an answer, if a refusal")

		var limited *httplimit.LimitedError
		err := call(t, tr, "https://example.com/")
		require.ErrorIs(t, err, httplimit.ErrLimited)
		require.ErrorAs(t, err, &limited)
		require.Equal(t, &httplimit.LimitedError{Key: "host:example.com:443", RetryAfter: 7 * time.Second}, limited)
		require.EqualError(t, err, `httplimit: over the limit: key "host:example.com:443" has room in 7s`)
		time.Sleep(7 * time.Second)
		require.ErrorAs(t, call(t, tr, "https://example.com/"), &limited)
		require.Equal(t, time.Minute, limited.RetryAfter, "that of the limiter, whose clock stands still here")
		require.Len(t, sup.sent, 2)

		closed := transport(t, sup, window(t, memory(t), ratelimit.PerMinute(0)), httplimit.WithoutWaiting())
		require.EqualError(t, call(t, closed, "http://example.com"), `httplimit: over the limit: key "host:example.com:80" never has enough room`)
	})
}

func TestARefusedCallIsSentAgainOnRequest(t *testing.T) {
	refused := func(status int) answer { return answer{status, map[string]string{"Retry-After": "10"}} }
	for _, c := range []struct {
		name    string
		answers []answer
		method  string
		body    bool // that cannot be had again
		header  string
		sent    int
		status  int
	}{
		{name: "until it is not", answers: []answer{refused(429), refused(503), fine}, sent: 3, status: 200},
		{name: "at most so often", answers: []answer{refused(429)}, sent: 4, status: 429},
		{name: "a body that can be had again", method: "POST", answers: []answer{refused(429), fine}, sent: 2, status: 200},
		{name: "a body that cannot", method: "POST", body: true, answers: []answer{refused(429), fine}, sent: 1, status: 429},
		{name: "503 to a POST", method: "POST", answers: []answer{refused(503), fine}, sent: 1, status: 503},
		{name: "503 to a POST with a key", method: "POST", header: "Idempotency-Key", answers: []answer{refused(503), fine}, sent: 2, status: 200},
		{name: "503, and nobody says when", answers: []answer{{status: 503}, fine}, sent: 1, status: 503},
		{name: "another failure", answers: []answer{{500, map[string]string{"Retry-After": "1"}}, fine}, sent: 1, status: 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sup := &supplier{answers: c.answers}
				lim := plenty(t)
				tr := transport(t, sup, lim, httplimit.WithRetries(3))
				r, err := http.NewRequestWithContext(t.Context(), c.method, "http://example.com/", nil)
				require.NoError(t, err)
				if c.method != "" {
					r, err = http.NewRequestWithContext(t.Context(), c.method, "http://example.com/", strings.NewReader("order"))
					require.NoError(t, err)
				}
				if c.body {
					r.GetBody = nil
				}
				if c.header != "" {
					r.Header.Set(c.header, "1")
				}
				begin := time.Now()
				res, err := tr.RoundTrip(r)
				require.NoError(t, err)
				require.Equal(t, c.status, res.StatusCode)
				require.Len(t, sup.sent, c.sent)
				require.Equal(t, time.Duration(c.sent-1)*10*time.Second, time.Since(begin))
				for _, body := range sup.bodies {
					require.Equal(t, "order", body)
				}
				p, err := lim.Peek(t.Context(), "host:example.com:80")
				require.NoError(t, err)
				require.Equal(t, c.sent, p.Limit-p.Remaining, "each is charged")
			})
		})
	}
}

// To come back before the time that a server has named makes it worse.
// RoundTrippers that are not net/http's return such answers, and its Client takes them.
func TestAnAnswerWithoutABodyIsNoReasonToPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, lim := range map[string]ratelimit.Limiter{"rates": plenty(t), "slots": slots(t, memory(t), 1)} {
			answers := []*http.Response{{StatusCode: http.StatusTooManyRequests}, {StatusCode: http.StatusOK}, nil}
			sent := 0
			tr := transport(t, bare(func() *http.Response { sent++; return answers[sent-1] }), lim, httplimit.WithRetries(1))
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
			res, err := tr.RoundTrip(r)
			require.NoError(t, err, name)
			require.Equal(t, http.StatusOK, res.StatusCode)
			res, err = tr.RoundTrip(r)
			require.NoError(t, err, name)
			require.Nil(t, res)
		}
	})
}

type bare func() *http.Response

func (b bare) RoundTrip(*http.Request) (*http.Response, error) { return b(), nil }

func TestARequestIsNotSentAgainBeforeTheServerWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, sent := range map[string]int{"60": 2, "61": 1, "3600": 1} {
			sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": after}}, fine}}
			tr := transport(t, sup, plenty(t), httplimit.WithRetries(3))
			require.NoError(t, call(t, tr, "http://example.com/"))
			require.Len(t, sup.sent, sent, after)
			_, pauses := tr.Pauses()
			require.Equal(t, 2-sent, pauses, "others wait for a minute")
			time.Sleep(time.Hour)
		}
	})
}

func TestARefusalThatTricklesHoldsNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "10"}}, fine}}
		body := &trickle{done: make(chan struct{})}
		tr := transport(t, withBody{sup, body}, plenty(t), httplimit.WithRetries(1))
		require.NoError(t, call(t, tr, "http://example.com/"))
		require.Len(t, sup.sent, 2)
		require.Equal(t, 10*time.Second, sup.sent[1].Sub(sup.sent[0]))
	})
}

// withBody gives refusals that body.
type withBody struct {
	http.RoundTripper
	body io.ReadCloser
}

func (b withBody) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusTooManyRequests {
		res.Body = b.body
	}
	return res, err
}

// trickle is a body of a byte a second, until it is closed. As net/http's it can be closed
// during a Read.
type trickle struct {
	once sync.Once
	done chan struct{}
}

func (b *trickle) Read(p []byte) (int, error) {
	select {
	case <-b.done:
		return 0, http.ErrBodyReadAfterClose
	case <-time.After(time.Second):
		return copy(p, "x"), nil
	}
}

func (b *trickle) Close() error {
	b.once.Do(func() { close(b.done) })
	return nil
}

func TestAServerThatSaysNowIsAskedEverMoreSlowly(t *testing.T) {
	for name, after := range map[string]string{"now": "0", "a date that is over": "Sat, 01 Jan 2000 00:00:00 GMT", "nothing": "", "no time": "soon"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": after}}}}
				tr := transport(t, sup, plenty(t), httplimit.WithRetries(100), httplimit.WithMaxPause(5*time.Second))
				require.NoError(t, call(t, tr, "http://example.com/"))
				require.Len(t, sup.sent, 101)
				pause := 100 * time.Millisecond
				for i := range 100 {
					require.Equal(t, pause, sup.sent[i+1].Sub(sup.sent[i]), i)
					pause = min(2*pause, 5*time.Second)
				}
			})
		})
	}
}

func TestIdleConnectionsOfTheBaseAreClosed(t *testing.T) {
	base := &idle{}
	client := http.Client{Transport: transport(t, base, plenty(t))}
	client.CloseIdleConnections()
	require.True(t, base.closed)
	transport(t, &supplier{}, plenty(t)).CloseIdleConnections() // of a base that has none
	new(httplimit.Transport).CloseIdleConnections()
}

type idle struct {
	supplier
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestByItselfNothingIsSentAgain(t *testing.T) {
	sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "0"}}, fine}}
	require.NoError(t, call(t, transport(t, sup, plenty(t)), "http://example.com/"))
	require.Len(t, sup.sent, 1)
}

func TestAnAnswerWhosePauseIsTooLongIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "10"}}, fine}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		tr := transport(t, sup, plenty(t), httplimit.WithRetries(1))
		res, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 429, res.StatusCode)
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "answer", string(b))
	})
}

func TestTheKeyOfACallCanBeAnything(t *testing.T) {
	broken := errors.New("no account")
	sup := &supplier{answers: []answer{fine}}
	lim := plenty(t)
	tr := transport(t, sup, lim, httplimit.WithKey(httplimit.KeyFunc("account", func(r *http.Request) (string, error) {
		if r.URL.Path == "/broken" {
			return "", broken
		}
		return "7", nil
	})))
	require.NoError(t, call(t, tr, "http://example.com/"))
	p, err := lim.Peek(t.Context(), "account:7")
	require.NoError(t, err)
	require.Equal(t, 1, p.Limit-p.Remaining)
	require.ErrorIs(t, call(t, tr, "http://example.com/broken"), broken)
	require.ErrorIs(t, call(t, transport(t, sup, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)), "http://example.com/"), ratelimit.ErrStore)
	require.Len(t, sup.sent, 1)
}

// A page that a crawler reads, or a redirect, can spell the URL of a host in many ways.
func TestOtherSpellingsOfAHostAreOneHost(t *testing.T) {
	for want, urls := range map[string][]string{
		"host:example.com:80":  {"http://example.com", "http://EXAMPLE.com/", "http://example.com:", "http://example.com.", "http://example.com.:0080/", "HTTP://user@example.com:00000080"},
		"host:example.com:443": {"https://example.com", "https://example.com:0443", "http://example.com:443"},
		"host:192.0.2.1:80":    {"http://192.0.2.1", "http://[::ffff:192.0.2.1]", "http://[::FFFF:c000:0201]:080"},
		"host:[2001:db8::1]:8": {"http://[2001:db8::1]:8", "http://[2001:DB8:0:0::0001]:08"},
		"host:[fe80::1%a]:80":  {"http://[fe80::1%25a]", "http://[fe80:0::1%25a]:80"},
	} {
		for _, url := range urls {
			lim := plenty(t)
			tr := transport(t, &supplier{answers: []answer{fine}}, lim)
			require.NoError(t, call(t, tr, url))
			p, err := lim.Peek(t.Context(), want)
			require.NoError(t, err)
			require.Equal(t, 1, p.Limit-p.Remaining, url)
		}
	}
}

func TestARequestCanCostMoreOrNothingToATransport(t *testing.T) {
	sup := &supplier{answers: []answer{fine}}
	lim := window(t, memory(t), ratelimit.PerHour(5))
	tr := transport(t, sup, lim, httplimit.WithoutWaiting(),
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/skipped" }),
		httplimit.WithCost(func(r *http.Request) int { return len(r.URL.Path) - len("/") }))
	require.NoError(t, call(t, tr, "http://example.com/1234"))
	require.ErrorIs(t, call(t, tr, "http://example.com/1234"), httplimit.ErrLimited)
	require.NoError(t, call(t, tr, "http://example.com/"))
	require.NoError(t, call(t, tr, "http://example.com/skipped"))
	require.Len(t, sup.sent, 3)
	p, err := lim.Peek(t.Context(), "host:example.com:80")
	require.NoError(t, err)
	require.Equal(t, 4, p.Limit-p.Remaining)
}

func TestWrongArgumentsOfATransportAreErrors(t *testing.T) {
	lim := plenty(t)
	for name, err := range map[string]error{
		"no limiter":            last(httplimit.NewTransport(nil, nil)),
		"a nil limiter":         last(httplimit.NewTransport(nil, (*ratelimit.TokenBucket)(nil))),
		"a nil RoundTripper":    last(httplimit.NewTransport((*http.Transport)(nil), lim)),
		"a nil option":          last(httplimit.NewTransport(nil, lim, nil)),
		"an invalid Key":        last(httplimit.NewTransport(nil, lim, httplimit.WithKey(httplimit.Key{}))),
		"a nil cost":            last(httplimit.NewTransport(nil, lim, httplimit.WithCost(nil))),
		"a nil skip":            last(httplimit.NewTransport(nil, lim, httplimit.WithSkip(nil))),
		"no hook":               last(httplimit.NewTransport(nil, lim, httplimit.WithOnPause(nil))),
		"no pause":              last(httplimit.NewTransport(nil, lim, httplimit.WithMaxPause(0))),
		"negative retries":      last(httplimit.NewTransport(nil, lim, httplimit.WithRetries(-1))),
		"too many retries":      last(httplimit.NewTransport(nil, lim, httplimit.WithRetries(101))),
		"a wait that is none":   last(httplimit.NewTransport(nil, slots(t, memory(t), 1), httplimit.WithoutWaiting(), httplimit.WithSlots(inflight.WaitUpTo(time.Second)))),
		"a wait too many":       last(httplimit.NewTransport(nil, ratelimit.Must(throttle.NewWaiter(lim, time.Second)))),
		"retries that are none": last(httplimit.NewTransport(nil, lim, httplimit.WithRetries(5), httplimit.WithoutWaiting())),
		"the zero Transport":    call(t, new(httplimit.Transport), "http://example.com/"),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
	}
	require.ErrorIs(t, call(t, transport(t, nil, lim), "/no/host"), httplimit.ErrNoIdentity)
}

func last[T any](_ T, err error) error { return err }
