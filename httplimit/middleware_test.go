package httplimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// start is a round time, so that windows begin there.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// memory is a store whose clock stands still, so that no window ends in a test.
func memory(t testing.TB) store.Store {
	t.Helper()
	s, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	return s
}

// stores counts those on Redis, so that a test that is run again has its own.
var stores atomic.Int64

func onRedis(t testing.TB) store.Store {
	t.Helper()
	prefix := t.Name() + strconv.FormatInt(stores.Add(1), 10)
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(prefix),
		redisstore.WithTimeout(10*time.Second), redisstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	return s
}

func window(t testing.TB, s store.Store, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	lim, err := ratelimit.NewFixedWindow(s, l, opts...)
	require.NoError(t, err)
	return lim
}

// ok is the handler that is protected.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "welcome") })

// protect puts lim in front of ok.
func protect(t testing.TB, lim ratelimit.Limiter, opts ...httplimit.ServerOption) http.Handler {
	t.Helper()
	wrap, err := httplimit.New(lim, opts...)
	require.NoError(t, err)
	return wrap(ok)
}

// get is a request of a client.
func get(remote string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	return r
}

func serve(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(b)
}

const alice, bob = "192.0.2.1:1111", "192.0.2.2:2222"

func TestEachClientHasTheLimitByDefault(t *testing.T) {
	for name, s := range map[string]store.Store{"in memory": memory(t), "on Redis": onRedis(t)} {
		t.Run(name, func(t *testing.T) {
			h := httplimit.Middleware(window(t, s, ratelimit.PerHour(2)))(ok)
			for _, remaining := range []string{"1", "0"} {
				res := serve(h, get(alice))
				require.Equal(t, http.StatusOK, res.StatusCode)
				require.Equal(t, "welcome", body(t, res))
				require.Equal(t, remaining, res.Header.Get("X-RateLimit-Remaining"))
			}
			require.Equal(t, http.StatusTooManyRequests, serve(h, get(alice)).StatusCode)
			require.Equal(t, http.StatusTooManyRequests, serve(h, get("192.0.2.1:999")).StatusCode, "the port does not count")
			require.Equal(t, http.StatusOK, serve(h, get(bob)).StatusCode)
			for i, want := range []int{200, 200, 429} {
				r := get("[2001:db8::" + strconv.Itoa(i) + "]:1")
				require.Equal(t, want, serve(h, r).StatusCode, "IPv6 addresses of one /64 are one client")
			}
		})
	}
}

func TestARefusalSaysWhenToComeBackAndIsNotCached(t *testing.T) {
	h := protect(t, window(t, memory(t), ratelimit.PerMinute(1), ratelimit.WithName("daily \"x\"")))
	serve(h, get(alice))
	res := serve(h, get(alice))
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Equal(t, "60", res.Header.Get("Retry-After"))
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
	require.JSONEq(t, `{
		"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title": "Too Many Requests",
		"status": 429,
		"detail": "Too many requests. Try again in 60 s.",
		"retryAfter": 60,
		"violated-policies": ["daily \"x\""]}`, body(t, res))
}

func TestRetryAfterIsWholeSecondsRoundedUp(t *testing.T) {
	for retry, want := range map[time.Duration]string{
		time.Microsecond:               "1",
		time.Second:                    "1",
		time.Second + time.Microsecond: "2",
		90 * time.Minute:               "5400",
		ratelimit.Never - 1:            "9223372037",
	} {
		res := serve(protect(t, ratelimittest.Static(ratelimit.Result{Limit: 1, RetryAfter: retry}, nil)), get(alice))
		require.Equal(t, want, res.Header.Get("Retry-After"), retry)
	}
}

func TestWhereNoWaitingHelpsThereIsNoTimeToComeBack(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerMinute(3))
	h := protect(t, lim, httplimit.WithCost(func(*http.Request) int { return 4 }))
	res := serve(h, get(alice))
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	for _, field := range []string{"Retry-After", "X-RateLimit-Reset"} {
		require.NotContains(t, res.Header, http.CanonicalHeaderKey(field))
	}
	require.Equal(t, `"3/m";r=3`, res.Header.Get("RateLimit"))
	var problem map[string]any
	require.NoError(t, json.Unmarshal([]byte(body(t, res)), &problem))
	require.NotContains(t, problem, "retryAfter")
}

// If waiting will not help, the response says so with a reason, whichever limit denies.
func TestARequestThatCostsMoreThanTheLimitIsToldSo(t *testing.T) {
	for name, s := range map[string]store.Store{"memory": memory(t), "redis": onRedis(t)} {
		policy := ratelimit.WithName("small")
		small, bucket := window(t, s, ratelimit.PerMinute(3), policy), ratelimittest.New(t, "leaky_bucket", s, ratelimit.PerMinute(3), policy)
		full := window(t, s, ratelimit.PerMinute(1000), ratelimit.WithName("full")) // which waiting helps
		_, err := full.AllowN(t.Context(), "192.0.2.1", 1000)
		require.NoError(t, err)
		for kind, c := range map[string]struct {
			l        ratelimit.Limiter
			violated []any
		}{
			"a window": {small, []any{"small"}}, "a bucket": {bucket, []any{"small"}},
			"nothing is admitted": {window(t, s, ratelimit.PerMinute(0), policy), []any{"small"}},
			"beside another":      {ratelimittest.All(t, plenty(t), small), []any{"small"}},
			"beside a full one":   {ratelimittest.All(t, full, small), []any{"full", "small"}},
			"beside slots":        {ratelimittest.All(t, slots(t, s, 10), small), []any{"small"}},
		} {
			h := protect(t, c.l, httplimit.WithCost(func(*http.Request) int { return 4 }))
			for range 2 { // nothing is charged
				res := serve(h, get(alice))
				require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "%s, %s", kind, name)
				require.NotContains(t, res.Header, "Retry-After")
				require.NotContains(t, res.Header.Get("RateLimit"), ";t=")
				var problem map[string]any
				require.NoError(t, json.Unmarshal([]byte(body(t, res)), &problem))
				require.Equal(t, map[string]any{
					"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
					"title": "Too Many Requests", "status": 429.0, "violated-policies": c.violated,
					"detail": "The request costs more than the limit ever admits, so waiting will not help.",
				}, problem, "%s, %s", kind, name)
			}
		}
	}
}

func TestARefusalCanBeAnything(t *testing.T) {
	var told httplimit.Decision
	lim := window(t, memory(t), ratelimit.PerHour(1))
	h := protect(t, lim, httplimit.WithDeniedHandler(
		func(w http.ResponseWriter, r *http.Request, next http.Handler, d httplimit.Decision) {
			told = d
			next.ServeHTTP(w, r)
		}))
	serve(h, get(alice))
	res := serve(h, get(alice))
	require.Equal(t, "welcome", body(t, res))
	require.Equal(t, "192.0.2.1", told.Key)
	require.Equal(t, "1/h", told.Limiter())
	require.False(t, told.Result.Allowed)
	require.Len(t, told.Policies, 1)
	require.Equal(t, "3600", res.Header.Get("Retry-After"))
}

func TestADeniedHandlerCanFallBackOnTheProblem(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(0))
	standard := serve(protect(t, lim), get(alice))
	own := serve(protect(t, lim, httplimit.WithDeniedHandler(
		func(w http.ResponseWriter, _ *http.Request, _ http.Handler, d httplimit.Decision) {
			httplimit.WriteProblem(w, d)
		})), get(alice))
	require.Equal(t, standard.StatusCode, own.StatusCode)
	require.Equal(t, standard.Header, own.Header)
	require.Equal(t, body(t, standard), body(t, own))
}

func TestRequestsCanCostMoreOrNothing(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(5))
	h := protect(t, lim, httplimit.WithCost(func(r *http.Request) int {
		n, _ := strconv.Atoi(r.Header.Get("Cost"))
		return n
	}))
	for _, step := range []struct {
		cost, want int
		remaining  string
	}{
		{3, 200, "2"}, {3, 429, "2"}, {2, 200, "0"}, {0, 200, ""}, {1, 429, "0"}, {-1, 500, ""},
	} {
		r := get(alice)
		r.Header.Set("Cost", strconv.Itoa(step.cost))
		res := serve(h, r)
		require.Equal(t, step.want, res.StatusCode)
		require.Equal(t, step.remaining, res.Header.Get("X-RateLimit-Remaining"))
	}
}

func TestSkippedRequestsPassWithoutADecision(t *testing.T) {
	h := protect(t, window(t, memory(t), ratelimit.PerHour(0)),
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/healthz" }))
	health := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	res := serve(h, health)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Empty(t, res.Header.Get("X-RateLimit-Limit"))
	require.Equal(t, http.StatusTooManyRequests, serve(h, get(alice)).StatusCode)
}

func TestAnOutageIsAnsweredByTheFailurePolicyOrTheErrorHandler(t *testing.T) {
	down := ratelimittest.Static(ratelimit.Result{}, store.ErrUnavailable)
	failover := func(p fallback.Answer) ratelimit.Limiter {
		lim, err := fallback.New(down, p)
		require.NoError(t, err)
		return lim
	}
	local := window(t, memory(t), ratelimit.PerHour(1))

	res := serve(protect(t, failover(fallback.FailOpen())), get(alice))
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Empty(t, res.Header.Get("X-RateLimit-Limit"), "nothing is known")
	require.Empty(t, res.Header.Get("RateLimit"))

	res = serve(protect(t, failover(fallback.FailClosed())), get(alice))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	require.Empty(t, res.Header.Get("X-RateLimit-Limit"))
	require.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		"title":"Service Unavailable","status":503,"retryAfter":1,
		"detail":"The service cannot check its limits now. Try again in 1 s."}`, body(t, res))

	h := protect(t, failover(fallback.FailTo(local)))
	require.Equal(t, http.StatusOK, serve(h, get(alice)).StatusCode)
	require.Equal(t, http.StatusTooManyRequests, serve(h, get(alice)).StatusCode)

	res = serve(protect(t, down), get(alice))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	require.NotContains(t, body(t, res), "ratelimit:", "errors are not for clients")

	var told error
	res = serve(protect(t, down, httplimit.WithErrorHandler(
		func(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
			told = err
			next.ServeHTTP(w, r)
		})), get(alice))
	require.Equal(t, "welcome", body(t, res))
	require.ErrorIs(t, told, ratelimit.ErrStore)
}

// saying is r at a server, and what this writes into its log.
func saying(r *http.Request) (*http.Request, *bytes.Buffer) {
	said := new(bytes.Buffer)
	return r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{ErrorLog: log.New(said, "", 0)})), said
}

func letThrough(w http.ResponseWriter, r *http.Request, next http.Handler, _ error) {
	next.ServeHTTP(w, r)
}

// A handler that fails open is for outages. A configuration error lets nobody through.
func TestAnErrorOfTheConfigurationLetsNobodyThrough(t *testing.T) {
	noLimit := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{Rate: 1}, nil })
	fails := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		return ratelimit.Limit{}, errors.New("no database")
	})
	negative := httplimit.WithCost(func(*http.Request) int { return -1 })
	nobody := httplimit.WithKey(httplimit.User(func(*http.Request) string { return "ann" }))
	for name, c := range map[string]struct {
		lim  ratelimit.Limiter
		opts []httplimit.ServerOption
		want int
	}{
		"a deny list without an address": {listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")}), []httplimit.ServerOption{nobody}, http.StatusInternalServerError},
		"a negative cost":                {window(t, memory(t), ratelimit.PerHour(1)), []httplimit.ServerOption{negative}, http.StatusInternalServerError},
		"a limit that is none":           {window(t, memory(t), ratelimit.PerHour(1), noLimit), nil, http.StatusInternalServerError},
		"a database that is away":        {window(t, memory(t), ratelimit.PerHour(1), fails), nil, http.StatusOK},
	} {
		r, said := saying(get(alice))
		res := serve(protect(t, c.lim, append(c.opts, httplimit.WithErrorHandler(letThrough))...), r)
		require.Equal(t, c.want, res.StatusCode, name)
		require.Equal(t, c.want == http.StatusInternalServerError, strings.HasPrefix(said.String(), "httplimit: ratelimit: invalid "), name)
	}
}

func TestWhyThereIsNoDecisionIsSaidOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := protect(t, ratelimittest.Static(ratelimit.Result{}, store.ErrUnavailable))
		r, said := saying(get(alice))
		for range 121 { // from one second to the same two minutes later
			require.Equal(t, http.StatusServiceUnavailable, serve(down, r).StatusCode)
			time.Sleep(time.Second)
		}
		require.Equal(t, strings.Repeat("httplimit: "+store.ErrUnavailable.Error()+"\n", 3), said.String())

		r, said = saying(get(alice))
		serve(protect(t, ratelimittest.Static(ratelimit.Result{}, store.ErrUnavailable), httplimit.WithErrorHandler(letThrough)), r)
		require.Empty(t, said.String(), "a handler of the user's own is told")
		serve(protect(t, window(t, memory(t), ratelimit.PerHour(1)), httplimit.WithKey(httplimit.User(func(*http.Request) string { return "" }))), r)
		require.Empty(t, said.String(), "what a client did is not the operator's")
	})
}

func TestARequestThatHasEndedIsNoOutage(t *testing.T) {
	noOutage := httplimit.WithErrorHandler(func(http.ResponseWriter, *http.Request, http.Handler, error) { t.Error("an outage") })
	r, said := saying(get(alice))
	gone, cancel := context.WithCancel(r.Context())
	cancel()
	late, cancel := context.WithTimeout(r.Context(), -1) // our own deadline
	defer cancel()
	for _, h := range []http.Handler{
		protect(t, window(t, memory(t), ratelimit.PerHour(1)), noOutage),
		protect(t, window(t, memory(t), ratelimit.PerHour(1))),
	} {
		require.Equal(t, 499, serve(h, r.WithContext(gone)).StatusCode)
		require.Equal(t, http.StatusServiceUnavailable, serve(h, r.WithContext(late)).StatusCode)
	}
	require.Empty(t, said.String())
}

func TestTheDecisionIsInTheContextOnRequest(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(5), ratelimit.WithName("search"))
	var told httplimit.Decision
	var found bool
	look := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told, found = httplimit.FromContext(r.Context())
		require.NotNil(t, r.Context().Value(ctxKey{}), "what was in the context is there")
	})
	r := get(alice).WithContext(context.WithValue(t.Context(), ctxKey{}, "x"))
	httplimit.Middleware(lim)(look).ServeHTTP(httptest.NewRecorder(), r)
	require.False(t, found)
	httplimit.Middleware(lim, httplimit.WithContext())(look).ServeHTTP(httptest.NewRecorder(), r)
	require.True(t, found)
	require.Equal(t, "192.0.2.1", told.Key)
	require.Equal(t, "search", told.Limiter())
	require.Equal(t, 3, told.Result.Remaining)
	require.Equal(t, ratelimit.PerHour(5), told.Policies[0].Limit)
}

type ctxKey struct{}

func TestRequestsAreChargedAgainAsTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		lim, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 1, Period: 1500 * time.Millisecond})
		require.NoError(t, err)
		h := protect(t, lim)
		require.Equal(t, http.StatusOK, serve(h, get(alice)).StatusCode)
		res := serve(h, get(alice))
		require.Equal(t, "2", res.Header.Get("Retry-After"), "1.5 s, rounded up")
		reset, err := strconv.ParseInt(res.Header.Get("X-RateLimit-Reset"), 10, 64)
		require.NoError(t, err)
		require.Equal(t, time.Now().Unix()+2, reset)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, http.StatusOK, serve(h, get(alice)).StatusCode)
	})
}

func TestAWaiterAroundALeakyBucketHoldsRequestsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		bucket, err := ratelimit.NewLeakyBucket(mem, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 5})
		require.NoError(t, err)
		waiter, err := throttle.NewWaiter(bucket, 2*time.Second)
		require.NoError(t, err)
		h := protect(t, waiter)
		began := time.Now()
		for i := range 4 {
			require.Equal(t, http.StatusOK, serve(h, get("192.0.2.1:1")).StatusCode)
			require.Equal(t, time.Duration(i)*time.Second, time.Since(began))
		}
	})
}

func TestWrongArgumentsAreErrorsOfNewAndAnswersOfMiddleware(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(1))
	for name, c := range map[string]struct {
		lim  ratelimit.Limiter
		opts []httplimit.ServerOption
	}{
		"no limiter":                    {nil, nil},
		"a limiter that is a nil":       {(*ratelimit.TokenBucket)(nil), nil},
		"a nil option":                  {lim, []httplimit.ServerOption{nil}},
		"a nil cost":                    {lim, []httplimit.ServerOption{httplimit.WithCost(nil)}},
		"a nil skip":                    {lim, []httplimit.ServerOption{httplimit.WithSkip(nil)}},
		"a nil refund":                  {lim, []httplimit.ServerOption{httplimit.WithRefund(nil)}},
		"a nil denied handler":          {lim, []httplimit.ServerOption{httplimit.WithDeniedHandler(nil)}},
		"a nil key error handler":       {lim, []httplimit.ServerOption{httplimit.WithKeyErrorHandler(nil)}},
		"a nil error handler":           {lim, []httplimit.ServerOption{httplimit.WithErrorHandler(nil)}},
		"no style":                      {lim, []httplimit.ServerOption{httplimit.WithHeaders()}},
		"an unknown style":              {lim, []httplimit.ServerOption{httplimit.WithHeaders(1 << 7)}},
		"the zero Key":                  {lim, []httplimit.ServerOption{httplimit.WithKey(httplimit.Key{})}},
		"a Key with a wrong argument":   {lim, []httplimit.ServerOption{httplimit.WithKey(httplimit.User(nil))}},
		"a Key of a key that is wrong":  {lim, []httplimit.ServerOption{httplimit.WithKey(httplimit.First(httplimit.User(nil)))}},
		"and combined of what is wrong": {lim, []httplimit.ServerOption{httplimit.WithKey(httplimit.Combined(httplimit.Key{}))}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := httplimit.New(c.lim, c.opts...)
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption)

			var logged bytes.Buffer
			server := &http.Server{ErrorLog: log.New(&logged, "", 0)}
			r := get(alice).WithContext(context.WithValue(t.Context(), http.ServerContextKey, server))
			h := httplimit.Middleware(c.lim, c.opts...)(ok)
			for range 2 {
				require.Equal(t, http.StatusInternalServerError, serve(h, r).StatusCode)
			}
			require.Equal(t, "httplimit: "+err.Error()+"\n", logged.String(), "said once")
		})
	}
}

func TestANilHandlerIsAnsweredForToo(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	h := httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(1)))(nil)
	require.Equal(t, http.StatusInternalServerError, serve(h, get(alice)).StatusCode)
	require.Contains(t, logged.String(), "the handler is nil")
}

func TestAKeyTooLongIsNoIdentity(t *testing.T) {
	long := httplimit.User(func(*http.Request) string { return string(make([]byte, 1<<17)) })
	lim := window(t, memory(t), ratelimit.PerHour(1))
	require.Equal(t, http.StatusBadRequest, serve(protect(t, lim, httplimit.WithKey(long)), get(alice)).StatusCode)
	var told error
	serve(protect(t, lim, httplimit.WithKey(long), httplimit.WithKeyErrorHandler(
		func(_ http.ResponseWriter, _ *http.Request, _ http.Handler, err error) { told = err })), get(alice))
	require.ErrorIs(t, told, ratelimit.ErrInvalidKey)
}

func TestErrorsOfALimitFunctionReachTheErrorHandler(t *testing.T) {
	broken := errors.New("no such plan")
	lim := window(t, memory(t), ratelimit.PerHour(1), ratelimit.WithLimitFunc(
		func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.Limit{}, broken }))
	require.Equal(t, http.StatusServiceUnavailable, serve(protect(t, lim), get(alice)).StatusCode)
}

func TestLimitByIPRefusesWhatItsPartsRefuse(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	limit := ratelimit.PerMinute(1)
	for what, try := range map[string]func() (func(http.Handler) http.Handler, error){
		"no store":  func() (func(http.Handler) http.Handler, error) { return httplimit.LimitByIP(nil, "api", limit) },
		"no name":   func() (func(http.Handler) http.Handler, error) { return httplimit.LimitByIP(mem, "", limit) },
		"no option": func() (func(http.Handler) http.Handler, error) { return httplimit.LimitByIP(mem, "api", limit, nil) },
	} {
		wrap, err := try()
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, what)
		require.Nil(t, wrap, what)
	}
	_, err := httplimit.LimitByIP(mem, "api", ratelimit.Limit{})
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

// This is the behavior that docs/http.md describes for one limiter in two middlewares.
func TestOneLimiterInTwoMiddlewaresCountsTwice(t *testing.T) {
	limiter := ratelimittest.New(t, "fixed_window", ratelimit.Must(memstore.New()), ratelimit.PerDay(10))
	limit := httplimit.Middleware(limiter)
	skips := httplimit.Middleware(limiter, httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/in" }))
	left := 10
	for _, c := range []struct {
		around func(http.Handler) http.Handler
		path   string
		costs  int
	}{{limit, "/", 1}, {limit, "/in", 2}, {skips, "/", 1}, {skips, "/in", 1}} {
		mux := http.NewServeMux()
		mux.Handle("/", http.NotFoundHandler())
		mux.Handle("/in", limit(http.NotFoundHandler()))
		w := httptest.NewRecorder()
		c.around(mux).ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
		r, err := limiter.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		left -= c.costs
		require.Equal(t, left, r.Remaining)
	}
}

// Small limits are where people begin. A client that heeds Retry-After gets the whole of each of them.
func TestLimitByIPGivesTheWholeOfASmallLimit(t *testing.T) {
	for _, rate := range []int{1, 2, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			limit := ratelimit.Must(httplimit.LimitByIP(ratelimit.Must(memstore.New()), "web", ratelimit.PerHour(rate)))(http.NotFoundHandler())
			admitted := 0
			for began := time.Now(); time.Since(began) < 24*time.Hour; {
				w := httptest.NewRecorder()
				limit.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				if w.Code != http.StatusTooManyRequests {
					admitted++
					continue
				}
				seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
				require.NoError(t, err)
				time.Sleep(time.Duration(seconds) * time.Second)
			}
			require.GreaterOrEqual(t, admitted, 24*rate, "of %d an hour", rate)
			require.LessOrEqual(t, admitted, 25*rate)
		})
	}
}

// Two of one name on one store count together, and a Key given beside them counts.
func TestLimitByIPCountsByNameAndKey(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	limit := func(name string, opts ...httplimit.ServerOption) http.Handler {
		return ratelimit.Must(httplimit.LimitByIP(mem, name, ratelimit.PerHour(1), opts...))(http.NotFoundHandler())
	}
	status := func(h http.Handler, peer string) int {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.RemoteAddr = peer + ":1"
		h.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, 404, status(limit("a"), "192.0.2.1"))
	require.Equal(t, 404, status(limit("a"), "192.0.2.2"), "another client")
	require.Equal(t, 404, status(limit("b"), "192.0.2.1"), "another name")
	require.Equal(t, 429, status(limit("a"), "192.0.2.1"))
	require.Equal(t, 404, status(limit("a", httplimit.WithKey(httplimit.Global())), "192.0.2.1"))
	require.Equal(t, 429, status(limit("a", httplimit.WithKey(httplimit.Global())), "192.0.2.2"))
}
