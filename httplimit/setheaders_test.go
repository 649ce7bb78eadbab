package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// SetHeaders writes for a Decision what the middleware has written for it.
func TestSetHeadersWritesWhatTheMiddlewareDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // for the time of X-RateLimit-Reset
		down := unreachable{window(t, memory(t), ratelimit.PerHour(100), ratelimit.WithName("api"))}
		local, err := fallback.New(down, fallback.FailTo(window(t, memory(t), ratelimit.PerHour(2))))
		require.NoError(t, err)
		closed, err := fallback.New(down, fallback.FailClosed())
		require.NoError(t, err)
		for name, lim := range map[string]ratelimit.Limiter{
			"a window":           window(t, memory(t), ratelimit.PerHour(2)),
			"a bucket":           bucket(t, ratelimit.PerMinute(2)),
			"levels":             several(t, ratelimit.PerSecond(2), ratelimit.PerHour(3)),
			"a local share":      local,
			"closed":             closed,
			"unlimited":          window(t, memory(t), ratelimit.Unlimited()),
			"a list":             listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")}),
			"another list":       listed(t, accesslist.Lists{Allow: list(t, "192.0.2.0/24")}),
			"without a policy":   silent{window(t, memory(t), ratelimit.PerHour(2))},
			"nothing ever comes": window(t, memory(t), ratelimit.PerHour(0)),
		} {
			for _, styles := range [][]httplimit.HeaderStyle{
				nil, {httplimit.Legacy}, {httplimit.Draft10},
			} {
				opts := []httplimit.ServerOption{httplimit.WithContext(), httplimit.WithDeniedHandler(
					func(w http.ResponseWriter, r *http.Request, next http.Handler, _ httplimit.Decision) {
						next.ServeHTTP(w, r)
					})}
				if styles != nil {
					opts = append(opts, httplimit.WithHeaders(styles...))
				}
				wrap, err := httplimit.New(lim, opts...)
				require.NoError(t, err)
				require.NoError(t, lim.Reset(t.Context(), "192.0.2.1"))
				for range 3 { // the last one is denied
					w, again, anew := httptest.NewRecorder(), make(http.Header), make(http.Header)
					wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						d, found := httplimit.FromContext(r.Context())
						require.True(t, found)
						httplimit.SetHeaders(again, d, styles...)
						httplimit.SetHeaders(anew, httplimit.NewDecision(r.Context(), lim, d.Key, d.Result), styles...)
					})).ServeHTTP(w, get(alice))
					require.Equal(t, w.Header(), again, name)
					require.Equal(t, w.Header(), anew, name)
				}
			}
		}
	})
}

func bucket(t *testing.T, l ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	lim, err := ratelimit.NewTokenBucket(memory(t), l)
	require.NoError(t, err)
	return lim
}

func several(t *testing.T, limits ...ratelimit.Limit) ratelimit.Limiter {
	t.Helper()
	return levels.New(t, "fixed_window", memory(t), "api", limits...)
}

// silent does not describe itself.
type silent struct{ ratelimit.Limiter }

func TestTheNumbersOfALaterResultAreSet(t *testing.T) {
	lim := bucket(t, ratelimit.PerMinute(60))
	h := protectWith(t, lim, func(w http.ResponseWriter, r *http.Request) {
		d, _ := httplimit.FromContext(r.Context())
		var err error
		d.Result, err = lim.AllowN(r.Context(), d.Key, 59)
		require.NoError(t, err)
		httplimit.SetHeaders(w.Header(), d)
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, get(alice))
	require.Equal(t, `"60/m";r=0;t=1`, w.Header().Get("RateLimit"), "the next place of a bucket, not its reset")
	require.Equal(t, "0", w.Header().Get("X-RateLimit-Remaining"))
}

func TestTheDecisionOfAHandlerIsNotChanged(t *testing.T) {
	local, err := fallback.New(unreachable{window(t, memory(t), ratelimit.PerHour(100))}, fallback.FailTo(window(t, memory(t), ratelimit.PerHour(2))))
	require.NoError(t, err)
	r, err := local.Allow(t.Context(), "key")
	require.NoError(t, err)
	policy := ratelimit.Policy{Name: "api", Limit: ratelimit.PerHour(100), Quota: 100, Window: time.Hour}
	d, h := httplimit.Decision{Result: r, Policies: []ratelimit.Policy{policy}}, make(http.Header)
	httplimit.SetHeaders(h, d)
	require.Equal(t, `"api";q=2`, h.Get("RateLimit-Policy"))
	require.Equal(t, policy, d.Policies[0])
}

func protectWith(t *testing.T, lim ratelimit.Limiter, h http.HandlerFunc) http.Handler {
	t.Helper()
	wrap, err := httplimit.New(lim, httplimit.WithContext())
	require.NoError(t, err)
	return wrap(h)
}

// Of parts of all kinds only those are reported that have counted.
func TestOfMixedPartsOnlyThoseThatCountedAreReported(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	unlimited := window(t, mem, ratelimit.Unlimited(), ratelimit.WithName("unlimited"))
	real := window(t, mem, ratelimit.PerHour(100), ratelimit.WithName("real"))
	open, err := fallback.New(unreachable{window(t, mem, ratelimit.PerHour(7), ratelimit.WithName("open"))}, fallback.FailOpen())
	require.NoError(t, err)
	exempt := listed(t, accesslist.Lists{Allow: list(t, "192.0.2.0/24")})
	banned := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	full := window(t, mem, ratelimit.PerHour(1), ratelimit.WithName("full"))
	_, err = full.Allow(t.Context(), "192.0.2.1")
	require.NoError(t, err)
	last := window(t, mem, ratelimit.PerHour(5), ratelimit.WithName("last"))

	for _, c := range []struct {
		parts             []ratelimit.Limiter
		code              int
		policies, numbers string // of draft 10
		left              string // "": nothing
	}{
		{[]ratelimit.Limiter{unlimited, real, exempt}, 200, `"real";q=100;w=3600`, `"real";r=99;t=3600`, "99"},
		{[]ratelimit.Limiter{exempt, unlimited}, 200, "", "", ""},
		{[]ratelimit.Limiter{exempt, last, unlimited, real}, 200, `"last";q=5;w=3600,"real";q=100;w=3600`, `"last";r=4;t=3600,"real";r=99;t=3600`, "4"},
		{[]ratelimit.Limiter{unlimited, full, real}, 429, `"full";q=1;w=3600,"real";q=100;w=3600`, `"full";r=0;t=3600,"real";r=100`, "0"},
		{[]ratelimit.Limiter{unlimited, real, banned}, 403, "", "", ""},
		{[]ratelimit.Limiter{banned, full, unlimited}, 403, "", "", ""},
		{[]ratelimit.Limiter{open, unlimited}, 200, "", "", ""},
	} {
		all, err := ratelimit.NewAll(c.parts...)
		require.NoError(t, err)
		for _, style := range []httplimit.HeaderStyle{httplimit.Draft10, httplimit.Legacy} {
			require.NoError(t, real.Reset(t.Context(), "192.0.2.1"))
			require.NoError(t, last.Reset(t.Context(), "192.0.2.1"))
			w := serve(protect(t, all, httplimit.WithHeaders(style)), get(alice))
			require.Equal(t, c.code, w.StatusCode)
			h := w.Header
			for _, values := range h {
				require.NotContains(t, values[0], "2147483647")
			}
			switch style {
			case httplimit.Draft10:
				require.Equal(t, c.policies, h.Get("RateLimit-Policy"))
				require.Equal(t, c.numbers, h.Get("RateLimit"))
			case httplimit.Legacy:
				require.Equal(t, c.left, h.Get("X-RateLimit-Remaining"))
			}
		}
	}
}

// If two middlewares are nested, no field of the outer one remains among those of the inner one.
func TestTheFieldsOfTheInnerMiddlewareAreNotMixedWithTheOuterOnes(t *testing.T) {
	for name, inner := range map[string]ratelimit.Limiter{
		"slots":              slots(t, living(t), 1),
		"without a policy":   silent{window(t, memory(t), ratelimit.PerHour(2))},
		"nothing ever comes": window(t, memory(t), ratelimit.PerHour(0)),
	} {
		for _, styles := range []httplimit.ServerOption{
			httplimit.WithHeaders(httplimit.Legacy), httplimit.WithHeaders(httplimit.Draft10),
		} {
			synctest.Test(t, func(t *testing.T) { // for the time of X-RateLimit-Reset
				within := httplimit.Middleware(inner, styles)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				headers := func(h http.Handler) http.Header {
					require.NoError(t, inner.Reset(t.Context(), "192.0.2.1"))
					w := httptest.NewRecorder()
					h.ServeHTTP(w, get(alice))
					return w.Header()
				}
				around := httplimit.Middleware(window(t, memory(t), ratelimit.PerMinute(1)), styles, httplimit.WithDeniedHandler(
					func(w http.ResponseWriter, r *http.Request, next http.Handler, d httplimit.Decision) {
						next.ServeHTTP(w, r)
					}))(within)
				alone := headers(within)
				require.Equal(t, alone, headers(around), name)
				if name == "nothing ever comes" { // after a denial that the outer one has let through
					require.Equal(t, alone, headers(around), name)
				}
			})
		}
	}
}

// A ReverseProxy forwards interim responses, and clears the header after them.
func TestFieldsThatAProxySetsOutliveInterimResponses(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"backend";r=1`)
		w.WriteHeader(http.StatusEarlyHints)
	}))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, ModifyResponse: func(res *http.Response) error {
		d, found := httplimit.FromContext(res.Request.Context())
		require.True(t, found)
		httplimit.SetHeaders(res.Header, d)
		return nil
	}}
	front := httptest.NewServer(httplimit.Middleware(window(t, memory(t), ratelimit.PerHour(5)), httplimit.WithContext(), httplimit.WithoutHeaders())(proxy))
	defer front.Close()
	res, err := http.Get(front.URL)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, []string{`"5/h";q=5;w=3600`}, res.Header["Ratelimit-Policy"])
	require.Len(t, res.Header["Ratelimit"], 1)
}

// A field that a later Result does not have is not left over from the earlier one.
func TestAFieldThatALaterResultHasNotIsRemoved(t *testing.T) {
	h := make(http.Header)
	for _, styles := range [][]httplimit.HeaderStyle{nil, {httplimit.Legacy}, {httplimit.Draft10}} {
		httplimit.SetHeaders(h, httplimit.Decision{Result: ratelimit.Result{Limit: 2, RetryAfter: time.Minute, ResetAfter: time.Hour}}, styles...)
		require.Equal(t, "60", h.Get("Retry-After"))
		never := httplimit.Decision{Result: ratelimit.Result{Limit: 2, RetryAfter: ratelimit.Never, ResetAfter: time.Hour}}
		httplimit.SetHeaders(h, never, styles...)
		anew := make(http.Header)
		httplimit.SetHeaders(anew, never, styles...)
		require.Equal(t, anew, h)
		clear(h)
	}
}
