package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/serve"
)

func get(t testing.TB, h http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code)
	return w.Body.String()
}

func post(s *serve.Service, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w
}

const overHTTP = edge + `checks:
	client: [{user: address}]
	login: [{path: path, user: header X-User}, {unknown: method}]
	api: [{key: header X-API-Key}]
	host: [{user: host, more: method}, {user: host}]
	path: [{user: path}]
`

func TestJSON(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, overHTTP)
	const body = `{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": "2"}]}`
	w := post(s, "/json", body)
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 3, "unit": "MINUTE"}, "limitRemaining": 1, "durationUntilReset": "60s"}]}`, w.Body.String())
	w = post(s, "/json", body)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Contains(t, w.Body.String(), "OVER_LIMIT")
	for body, want := range map[string]int{
		"": 400, "{": 400, "{}": 400, `{"domains": "x"}`: 400, `{"domain": "edge"}`: 400,
		strings.Repeat("x", serve.MaxBody+1): 413,
	} {
		require.Equal(t, want, post(s, "/json", body).Code, body)
	}
	w = httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/json", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

// Each request that is answered with 400 or 413 is counted once, whatever is wrong with it.
func TestRequestsThatCannotBeReadAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, overHTTP)
	const good = `{"domain": "edge", "asks": [{"entries": {"user": "ann"}}]}`
	n := 0
	for _, one := range [][2]string{
		{"/json", "{"}, {"/json", strings.Repeat("x", serve.MaxBody+1)}, {"/json", "{}"}, {"/json?timeout=x", "{}"}, {"/check/client?denied=404", ""}, {"/check/client?%zz", ""},
		{"/v1/decide", "{"}, {"/v1/decide", good + "x"}, {"/v1/decide", "\xff"}, {"/v1/decide", `{"domain": "edge", "asks": [{}]}`}, {"/v1/decide", `{"domain": "edge"}`},
		{"/v1/refund", `{"reserve": true}`}, {"/v1/settle", "{"}, {"/v1/settle", good}, {"/v1/settle", strings.Replace(good, "{", `{"reservation": "AA", `, 1)},
	} {
		require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, post(s, one[0], one[1]).Code, one)
		n++
		require.Contains(t, get(t, s.Private(nil), "/metrics"), fmt.Sprintf("ratelimit_serve_requests_total{answer=\"invalid\",domain=\"\"} %d\n", n), one)
	}
}

func TestDecideAndRefund(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, overHTTP)
	const two = `{"domain": "edge", "asks": [{"entries": {"path": "/login", "user": "ann"}}, {"entries": {"tokens": "acme"}, "hits": 900}]}`
	w := post(s, "/v1/decide", two)
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"allowed": true, "asks": [{"allowed": true, "limit": 2, "remaining": 1, "reset_after": 86400}, {"allowed": true, "limit": 1000, "remaining": 100, "reset_after": 3600}]}`, w.Body.String())
	w = post(s, "/v1/decide", two)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "3600", w.Header().Get("Retry-After"))
	require.JSONEq(t, `{"allowed": false, "retry_after": 3600, "asks": [{"allowed": true, "limit": 2, "remaining": 1, "reset_after": 86400}, {"allowed": false, "limit": 1000, "remaining": 100, "reset_after": 3600}]}`, w.Body.String())
	w = post(s, "/v1/refund", two)
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"given": [1, 900]}`, w.Body.String())
	require.JSONEq(t, `{"given": [0, 0]}`, post(s, "/v1/refund", two).Body.String())
	w = post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"tokens": "acme"}, "hits": 1001}, {"entries": {"free": "x"}}]}`)
	require.JSONEq(t, `{"allowed": false, "asks": [{"allowed": false, "limit": 1000, "remaining": 1000}, {"allowed": true}]}`, w.Body.String(), "no waiting helps")
	require.Empty(t, w.Header().Get("Retry-After"))
	for _, body := range []string{ // an unknown domain and unknown entries are counted by no rule, as in Envoy, and told
		`{"domain": "edgy", "asks": [{"entries": {"user": "ann"}}]}`, `{"domain": "edge", "asks": [{"entries": {"usr": "ann"}}]}`,
		`{"domain": "edge", "asks": [{"entries": {"listed": "x"}}]}`, `{"domain": "edge", "asks": [{"entries": {"user": "ann", "more": "x"}}]}`,
	} {
		w := post(s, "/v1/decide", body)
		require.JSONEq(t, `{"allowed": true, "asks": [{"allowed": true, "no_rule": true}]}`, w.Body.String(), body)
	}
	for _, body := range []string{
		`{"domain": "edge", "asks": [{}]}`, `{"domain": "edge", "asks": [{"entries": {}}]}`, `{"domain": "edge", "asks": [{"entry": {"user": "ann"}}]}`,
		"", "[]", two + "x", `{"domain": "edge"}`, `{"domain": "edge", "asks": [{"entries": {"a": 1}}]}`, `{"domain": "edge", "asks": [{"entries": {"a": {"b": "c"}}}]}`,
		`{"domain": "edge", "asks": [{"entries": ["a"]}]}`, `{"domain": "edge", "asks": [{"hits": -1}]}`, `{"domain": "edge", "ask": []}`,
		`{"Domain": "edge", "asks": [{"entries": {"user": "ann"}}]}`, `{"domain": "edge", "asks": [{"Entries": {"user": "ann"}}]}`, // package json takes these
		`{"domain": "free", "asks": [{"entries": {"user": "ann"}}], "domain": "edge"}`, `{"domain": "edge", "asks": [{"entries": {"user": "ann"}, "entries": {"user": "bob"}}]}`,
		`{"domain": "edge", "asks": [{"entries": {"a": "b"}}], "asks": [{"entries": {"user": "ann"}}]}`, `{"domain": "edge", "asks": [{"entries": {"user": "ann", "user": "ann"}}]}`,
	} {
		for _, path := range []string{"/v1/decide", "/v1/refund", "/v1/settle"} {
			require.Equal(t, http.StatusBadRequest, post(s, path, body).Code, "%s %s", path, body)
		}
	}
	require.Contains(t, post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entry": {"user": "ann"}}]}`).Body.String(), `unknown field "entry"`)
	require.Contains(t, post(s, "/v1/decide", `{"domain": "edge", "Asks": []}`).Body.String(), `unknown field "Asks"`)
	require.Equal(t, http.StatusOK, post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"Entries": "x", "user": "ann"}}]}`).Code, "entries have any names")
}

func check(s *serve.Service, target string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = "10.0.0.1:1234"
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// A proxy's subrequest is counted by what it says about the request, if the proxy is trusted.
func TestChecks(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, overHTTP, serve.WithProxies("10.0.0.0/8"), serve.WithFields("original"))
	for range 3 {
		w := check(s, "/check/client", "X-Forwarded-For: 192.0.2.1")
		require.Equal(t, http.StatusNoContent, w.Code)
		require.Equal(t, "3", w.Header().Get("RateLimit-Limit"))
	}
	for target, want := range map[string]int{"/check/client": 429, "/check/client?denied=403": 403, "/check/client?denied=429": 429, "/check/client?denied=200": 400, "/check/none": 404} {
		w := check(s, target, "X-Forwarded-For: 192.0.2.1")
		require.Equal(t, want, w.Code, target)
		if want == 429 || want == 403 {
			require.Equal(t, "60", w.Header().Get("Retry-After"))
			require.Equal(t, "0", w.Header().Get("RateLimit-Remaining"))
		}
	}
	require.Equal(t, http.StatusNoContent, check(s, "/check/client", "X-Forwarded-For: 192.0.2.2").Code)
	require.Equal(t, http.StatusNoContent, check(s, "/check/client", "X-Forwarded-For: 192.0.2.1, 8.8.8.8").Code, "the right one counts")

	login := func(path string, fields ...string) *httptest.ResponseRecorder {
		return check(s, "/check/login", append(fields, "X-Original-Method: GET", "X-Original-URI: "+path)...)
	}
	for range 2 {
		require.Equal(t, http.StatusNoContent, login("/login?next=1", "X-User: ann").Code)
	}
	require.Equal(t, http.StatusTooManyRequests, login("/login", "X-User: ann").Code)
	require.Equal(t, http.StatusNoContent, login("/other", "X-User: ann").Code)
	require.Equal(t, http.StatusNoContent, login("/login").Code, "without the field the descriptor is left out")
	require.Equal(t, http.StatusBadRequest, login("/login", "X-User: a", "X-User: b").Code)
	require.Equal(t, http.StatusNoContent, check(s, "/check/api").Code, "it has no descriptor")

	others, _ := inMemory(t, overHTTP)
	for i := range 4 {
		w := check(others, "/check/client", "X-Forwarded-For: 192.0.2."+string(rune('1'+i)))
		require.Equal(t, i == 3, w.Code == 429, "who is not trusted has one address")
	}
}

// described has a check for each thing that a proxy says, and one for all.
const described = `domain: edge
descriptors:
	- {key: path, rate_limit: {unit: day, requests_per_unit: 2}}
	- {key: method, rate_limit: {unit: day, requests_per_unit: 2}}
	- {key: host, rate_limit: {unit: day, requests_per_unit: 2}}
	- {key: address, rate_limit: {unit: day, requests_per_unit: 2}}
checks:
	path: [{path: path}]
	method: [{method: method}]
	host: [{host: host}]
	address: [{address: address}]
`

// remaining is what is left of the only limit of a check, after one event.
func remaining(t *testing.T, s *serve.Service, target string, fields ...string) string {
	t.Helper()
	w := check(s, target, fields...)
	require.Equal(t, http.StatusNoContent, w.Code, "%v: %s", fields, w.Body)
	return w.Header().Get("RateLimit-Remaining")
}

// The method, path and host are taken only from the family of fields that the operator has chosen.
// If they are missing there or cannot be read, the request is rejected.
func TestOneFamilyOfFields(t *testing.T) {
	t.Parallel()
	for family, other := range map[string]string{"Original": "Forwarded", "Forwarded": "Original"} {
		s, _ := inMemory(t, described, serve.WithProxies("10.0.0.0/8"), serve.WithFields(strings.ToLower(family)))
		for what, c := range map[string]struct {
			name, value string
			wrong       []string
		}{
			"path":   {"Uri", "/login", []string{"", " ", "login", "/login%zz", "/login%", "/log%00in", "?login", "http:login", "mailto:x"}},
			"method": {"Method", "POST", []string{""}},
			"host":   {"Host", "example.com", []string{"", "a, b", "a,b", "a b", "a/b", "u@a", "[::1", ":80", ".", "a%zz"}},
		} {
			ours, theirs := "X-"+family+"-"+c.name+": ", "X-"+other+"-"+c.name+": "
			target := "/check/" + what
			for _, value := range c.wrong {
				require.Equal(t, http.StatusBadRequest, check(s, target, ours+value).Code, "%s%s", ours, value)
				require.Equal(t, http.StatusBadRequest, check(s, target, ours+value, theirs+c.value).Code, "%s%s", ours, value)
			}
			require.Equal(t, http.StatusBadRequest, check(s, target).Code, "it is missing")
			require.Equal(t, http.StatusBadRequest, check(s, target, theirs+c.value).Code, "the other family has it")
			require.Equal(t, http.StatusBadRequest, check(s, target, ours+c.value, ours+c.value).Code, "which one?")
			require.Equal(t, "1", remaining(t, s, target, ours+c.value), "nothing was counted before")
			require.Equal(t, "0", remaining(t, s, target, ours+c.value, theirs+"x"))
			require.Equal(t, http.StatusTooManyRequests, check(s, target, theirs+"x", ours+c.value).Code)
			r := httptest.NewRequest(http.MethodGet, target, nil) // of 192.0.2.1, which is no proxy
			r.Header.Set("X-"+family+"-"+c.name, c.value+"x")
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			require.Equal(t, http.StatusBadRequest, w.Code)
			require.Contains(t, w.Body.String(), "not one of the proxies")
		}
		for _, forwardedFor := range [][]string{nil, {"X-Forwarded-For: "}, {"X-Forwarded-For: unix:"}, {"X-Forwarded-For: 192.0.2.1, unknown"}, {"X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: -"}} {
			require.Equal(t, http.StatusBadRequest, check(s, "/check/address", forwardedFor...).Code, "%v: a proxy is no client", forwardedFor)
		}
		require.Equal(t, "1", remaining(t, s, "/check/address", "X-Forwarded-For: unknown, 10.0.0.1"), "a client of the proxies' network")
		require.Contains(t, get(t, s.Private(nil), "/metrics"), `ratelimit_serve_requests_total{answer="invalid",domain="edge"} `)
	}
}

// A path, a host and a method have one count, however a client spells them.
func TestOtherSpellings(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, strings.ReplaceAll(described, "requests_per_unit: 2", "requests_per_unit: 100"), serve.WithProxies("10.0.0.0/8"), serve.WithFields("original"))
	for what, c := range map[string]struct {
		name string
		same [][]string
	}{
		"path": {"URI", [][]string{
			{"/login", "//login", "/./login", "/x/../login", "/../login", "/%6Cogin", "/%2e/login", "/%2Flogin", "/login?x", "/login#x", "/login#?x", "/login?%zz", "http://a/login", "HTTP://b//login"},
			{"/login/", "/login//", "/login/.", "/login/x/.."}, {"/Login"}, {"/login;a=1", "//login;a=1"}, {"/login%3Fx"}, {"/login%23x"}, {"/login%252e"}, {"*"}, {"/", "http://a", "http://a?x", "/.."}, {"/login%ff"},
		}},
		"host": {"Host", [][]string{{"example.com", "EXAMPLE.com", "example.com:80", "example.com.", "Example.Com.:8080"}, {"www.example.com"}, {"[2001:DB8::1]", "[2001:db8::1]:443"}}},
		"method": {"Method", [][]string{
			{"GET"}, {"HEAD"}, {"POST"}, {"PUT"}, {"PATCH"}, {"DELETE"}, {"CONNECT"}, {"OPTIONS"}, {"TRACE"}, {"get", "FOO", "Get", "PROPFIND", "other"},
		}},
	} {
		for _, same := range c.same {
			for i, spelt := range same {
				require.Equal(t, strconv.Itoa(99-i), remaining(t, s, "/check/"+what, "X-Original-"+c.name+": "+spelt), "%s %s", what, spelt)
			}
		}
	}
}

// If the operator has not chosen the fields for a check that needs them, the error says so, and
// nothing starts.
func TestFieldsMustBeNamed(t *testing.T) {
	t.Parallel()
	address := strings.NewReplacer("\tpath: [{path: path}]\n", "", "\tmethod: [{method: method}]\n", "", "\thost: [{host: host}]\n", "").Replace(described)
	for _, one := range []string{"path: [{path: path}]", "method: [{address: address}, {method: method}]", "host: [{address: address, host: host}]"} {
		file := address + "\t" + one + "\n"
		_, err := serve.New(memory(t), rules(t, file), serve.WithProxies("10.0.0.1"))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, "f0.yaml: check")
		require.ErrorContains(t, err, "-fields")
		s, _ := inMemory(t, address, serve.WithProxies("10.0.0.1"))
		require.ErrorContains(t, s.Update(rules(t, file)), "-fields", "of a new file too")
		require.Equal(t, "1", remaining(t, s, "/check/address", "X-Forwarded-For: 192.0.2.1"), "the rules stay")
		_, err = serve.New(memory(t), rules(t, file), serve.WithFields("original"), serve.WithProxies("10.0.0.1"))
		require.NoError(t, err)

		var log strings.Builder
		_, err = serve.New(memory(t), rules(t, file), serve.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.Contains(t, log.String(), "-proxies", "without proxies nobody can say them")
	}
	for _, opts := range [][]serve.Option{{serve.WithFields("original")}, {serve.WithProxies("10.0.0.1"), serve.WithFields("")}, {serve.WithProxies("10.0.0.1"), serve.WithFields("Original")}} {
		_, err := serve.New(memory(t), rules(t, described), opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// nginx answers 500 as soon as a check that it asks for is gone, so the log says which one it was.
func TestACheckThatIsGoneIsLogged(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	const gone = "a check was removed"
	s, err := serve.New(memory(t), rules(t, overHTTP), serve.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	require.NoError(t, s.Update(rules(t, overHTTP)))
	require.NotContains(t, log.String(), gone)
	require.NoError(t, s.Update(rules(t, strings.Replace(overHTTP, "client:", "clients:", 1))))
	require.Equal(t, 1, strings.Count(log.String(), gone), log.String())
	require.Regexp(t, gone+".*check=client ", log.String())
	require.Equal(t, http.StatusNotFound, check(s, "/check/client").Code)
}

// Proxies are networks as httplimit.ClientIP reads them.
func TestProxies(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"::ffff:10.0.0.0/104", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::10.0.0.0/104", "10.0.0.1", "10.9.9.9/8"} {
		s, _ := inMemory(t, overHTTP, serve.WithProxies(proxy), serve.WithFields("original"))
		require.Equal(t, "2", check(s, "/check/login", "X-Original-URI: /login", "X-Original-Method: GET", "X-User: ann").Header().Get("RateLimit-Limit"), proxy)
		require.Equal(t, http.StatusNoContent, check(s, "/check/client", "X-Forwarded-For: 192.0.2.1").Code)
	}
	for _, proxy := range []string{"::ffff:0.0.0.0/96", "::ffff:0.0.0.0/90", "::ffff:10.0.0.0/95", "0.0.0.0/0", "::/0", "", "10.0.0.1/33", "10.0.0.1:80", "proxy", "Unix"} {
		_, err := serve.New(memory(t), rules(t, overHTTP), serve.WithProxies(proxy))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, proxy)
		require.ErrorContains(t, err, strconv.Quote(proxy))
		_, err = httplimit.ClientIP([]string{proxy}).Of(httptest.NewRequest(http.MethodGet, "/", nil))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, proxy)
	}
}

// A proxy at a Unix socket is trusted as "unix", whatever its own end is called.
func TestProxyAtAUnixSocket(t *testing.T) {
	t.Parallel()
	for proxy, want := range map[string]int{"unix": http.StatusNoContent, "127.0.0.1": http.StatusBadRequest} {
		s, _ := inMemory(t, described, serve.WithProxies(proxy), serve.WithFields("forwarded"))
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, "socket"))
		require.NoError(t, err)
		srv := httptest.NewUnstartedServer(s.Handler())
		require.NoError(t, srv.Listener.Close())
		srv.Listener = l
		srv.Start()
		t.Cleanup(srv.Close)
		for i, target := range []string{"/check/path", "/check/address", "/check/path", "/check/address"} {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				d := net.Dialer{}
				if i > 1 {
					d.LocalAddr = &net.UnixAddr{Name: filepath.Join(dir, fmt.Sprint("own", i)), Net: "unix"}
				}
				return d.DialContext(ctx, "unix", l.Addr().String())
			}}}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://unix"+target, nil)
			require.NoError(t, err)
			req.Header.Set("X-Forwarded-Uri", "/")
			req.Header.Set("X-Forwarded-For", "192.0.2.1")
			resp, err := client.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, resp.StatusCode, "%s %s", proxy, target)
		}
	}
}

// A page of another origin, in a browser beside the service, changes nothing. Fields that a proxy passes on are those
// of a client's own page, and mean nothing.
func TestPagesOfOtherOrigins(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, overHTTP)
	require.Equal(t, "OK, OK 0/3 1m0s", short(ask(t, s, "user=ann 3")))
	send := func(method, path, body string, fields ...string) int {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w.Code
	}
	const asks = `{"domain": "edge", "asks": [{"entries": {"user": "ann"}, "hits": 3}]}`
	for _, path := range []string{"/v1/refund", "/v1/decide", "/v1/settle", "/json"} {
		for _, fields := range [][]string{{"Sec-Fetch-Site: cross-site"}, {"Sec-Fetch-Site: same-site"}, {"Origin: http://evil.example"}, {"Origin: null"}} {
			require.Equal(t, http.StatusForbidden, send(http.MethodPost, path, asks, fields...), "%s %v", path, fields)
		}
	}
	require.Equal(t, "OVER, OVER 0/3 1m0s", short(ask(t, s, "user=ann")))
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		require.Equal(t, http.StatusNoContent, send(method, "/check/client", "", "Sec-Fetch-Site: cross-site", "Origin: http://shop.example"))
	}
	require.Equal(t, http.StatusOK, send(http.MethodPost, "/v1/refund", asks, "Origin: http://example.com"), "its own origin")
	require.Equal(t, http.StatusOK, send(http.MethodPost, "/v1/decide", asks), "no browser")
}

// No key is in a metric, however many there are.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge)
	ask(t, s, "user=secret")
	page := get(t, s.Private(nil), "/metrics")
	for i := range 1000 {
		req := request("user="+strings.Repeat("x", i%90), "unknown=secret")
		req.Domain = []string{"edge", "secret" + strings.Repeat("x", i%50)}[i%2]
		_, _ = s.ShouldRateLimit(t.Context(), req)
	}
	_, err := s.ShouldRateLimit(t.Context(), request())
	require.Error(t, err)
	after := get(t, s.Private(nil), "/metrics")
	require.NotContains(t, after, "secret")
	require.Less(t, strings.Count(after, "\n"), strings.Count(page, "\n")+40)
	for _, want := range []string{
		`ratelimit_serve_requests_total{answer="invalid",domain=""} 1`,
		`ratelimit_serve_requests_total{answer="over_limit",domain="edge"} `,
		`ratelimit_decisions_total{limiter="edge/user",outcome="allowed",source="store"} `,
		`ratelimit_store_keys{store="memory"} `,
	} {
		require.Contains(t, after, want)
	}
	require.Equal(t, "ok\n", get(t, s.Private(nil), "/healthz"))
	require.Equal(t, "ready\n", get(t, s.Private(nil), "/readyz"))
	var shown []map[string]any
	require.NoError(t, json.Unmarshal([]byte(get(t, s.Private(nil), "/rules")), &shown))
	require.Len(t, shown, 8)
	require.Equal(t, map[string]any{"rule": "edge/user", "limit": "3/m", "algorithm": "fixed_window", "file": "f0.yaml"}, shown[0])
}

// detailed are the lines of /metrics that are by value.
func detailed(t testing.TB, s *serve.Service) (lines []string) {
	for line := range strings.Lines(get(t, s.Private(nil), "/metrics")) {
		if strings.HasPrefix(line, "ratelimit_serve_detailed_total{") {
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "ratelimit_serve_detailed_total")))
		}
	}
	return lines
}

// between is a context that calls a function while the client's address is looked for: a warning about X-Forwarded-For goes
// to the server.
type between struct {
	context.Context
	then func()
}

func (b *between) Value(key any) any {
	if key == http.ServerContextKey {
		b.then()
	}
	return b.Context.Value(key)
}

// A check is by one set of files, so that no request goes through while keys are renamed.
func TestAChecksKeysAreOfTheRulesThatCount(t *testing.T) {
	t.Parallel()
	var both [2]*serve.Rules
	for i, key := range []string{"user", "client"} {
		both[i] = rules(t, "domain: edge\ndescriptors: [{key: "+key+", rate_limit: {unit: day, requests_per_unit: 0}}]\nchecks: {c: [{"+key+": address}]}\n")
	}
	s, err := serve.New(memory(t), both[0])
	require.NoError(t, err)
	updates := 0
	ctx := &between{t.Context(), func() {
		updates++
		require.NoError(t, s.Update(both[1]))
	}}
	r := httptest.NewRequest(http.MethodGet, "/check/c", nil).WithContext(ctx)
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	require.Equal(t, 1, updates)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
}

// Values are in metrics where a file wants them, up to a bound.
func TestDetailedMetrics(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, `domain: edge
descriptors:
	- key: user
	  detailed_metric: true
	  rate_limit: {unit: minute, requests_per_unit: 1}
	- key: tenant
	  value_to_metric: true
	  descriptors:
	  	- {key: route, rate_limit: {unit: minute, requests_per_unit: 1}}
	  	- key: path
	  	  value: /a*
	  	  detailed_metric: true
	  	  rate_limit: {unlimited: true}
	- {key: plan, value: "g*", share_threshold: true, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: trial, shadow_mode: true, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: plain, rate_limit: {unit: minute, requests_per_unit: 1}}
`)
	for _, descriptors := range []string{
		"user=ann", "user=ann", "tenant=t,route=secret", "tenant=,route=secret", "tenant=t,path=/abc", "plan=gold", "plan=grey", "plain=secret", "trial=x", "trial=x",
		"user=" + strings.Repeat("x", 200), "user=a\"b\n\xff",
	} {
		ask(t, s, descriptors)
	}
	_, err := s.ShouldRateLimit(t.Context(), request("user=bad", "=x"))
	require.Error(t, err)
	require.ElementsMatch(t, []string{
		`{answer="ok",descriptor="edge/user=ann"} 1`,
		`{answer="over_limit",descriptor="edge/user=ann"} 1`,
		`{answer="ok",descriptor="edge/tenant=t/route"} 1`,
		`{answer="ok",descriptor="edge/tenant/route"} 1`,
		`{answer="ok",descriptor="edge/tenant=t/path=/abc"} 1`,
		`{answer="ok",descriptor="edge/plan=g*"} 1`,
		`{answer="over_limit",descriptor="edge/plan=g*"} 1`,
		`{answer="ok",descriptor="edge/trial=x"} 1`,
		`{answer="over_limit",descriptor="edge/trial=x"} 1`,
		`{answer="ok",descriptor="edge/user=` + strings.Repeat("x", 64) + `..."} 1`,
		`{answer="ok",descriptor="edge/user=a\"b\n` + "\uFFFD" + `"} 1`,
	}, detailed(t, s))
	for i := range 3000 {
		ask(t, s, "user="+strconv.Itoa(i%1500))
	}
	lines := detailed(t, s)
	require.LessOrEqual(t, len(lines), 1002)
	require.Contains(t, lines, `{answer="ok",descriptor="edge/user=100"} 1`)
	require.Contains(t, lines, `{answer="ok",descriptor="other"} 1008`, "those of 492 descriptors have their own")
	require.Contains(t, lines, `{answer="over_limit",descriptor="other"} 1008`)
}

// A client must not be counted as another descriptor by what it writes.
func TestDetailedMetricsOfAValueWithASlash(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, `domain: edge
descriptors:
	- key: user
	  detailed_metric: true
	  rate_limit: {unit: day, requests_per_unit: 9}
	  descriptors: [{key: role, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}]
`)
	ask(t, s, "user=bob,role=admin")
	for _, name := range []string{"bob/role=admin", "bob%2Frole=admin", "/bob", "/", "//"} {
		req := request("user=x")
		req.Descriptors[0].Entries[0].Value = name
		_, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
	}
	require.ElementsMatch(t, []string{
		`{answer="ok",descriptor="edge/user=bob/role=admin"} 1`,
		`{answer="ok",descriptor="edge/user=bob%2Frole=admin"} 1`,
		`{answer="ok",descriptor="edge/user=bob%252Frole=admin"} 1`,
		`{answer="ok",descriptor="edge/user=/bob"} 1`,
		`{answer="ok",descriptor="edge/user=/"} 1`,
		`{answer="ok",descriptor="edge/user=/%2F"} 1`,
	}, detailed(t, s))
}

// decisionsOf are the decisions that a rule has counted, as "allowed store 1".
func decisionsOf(t testing.TB, s *serve.Service, rule string) (all []string) {
	t.Helper()
	prefix := `ratelimit_decisions_total{limiter="` + rule + `",outcome="`
	for line := range strings.Lines(get(t, s.Private(nil), "/metrics")) {
		if rest, found := strings.CutPrefix(line, prefix); found && !strings.HasSuffix(rest, " 0\n") {
			all = append(all, strings.NewReplacer(`",source="`, " ", `"}`, "").Replace(strings.TrimSpace(rest)))
		}
	}
	return all
}

// Rules whose places read alike count by themselves.
func TestRulesWhosePlacesReadAlike(t *testing.T) {
	t.Parallel()
	const limit = "rate_limit: {unit: day, requests_per_unit: 2}"
	r := rules(t, `domain: edge
descriptors:
	- {key: path, value: /login, descriptors: [{key: user, `+limit+`}]}
	- {key: path, value: /login/user, `+limit+`}
	- {key: path, value: "/login/user#2", `+limit+`}
	- {key: a, descriptors: [{key: b overrides, `+limit+`}]}
`, "domain: edge/a\ndescriptors: [{key: b overrides, "+limit+"}]", "domain: edge/a/b")
	s, err := serve.New(memory(t), r)
	require.NoError(t, err)
	ask(t, s, "path=/login,user=ann")
	ask(t, s, "path=/login/user 3")
	ask(t, s, "path=/login/user#2")
	require.Equal(t, []string{"allowed store 1"}, decisionsOf(t, s, "edge/path=/login/user"))
	require.Equal(t, []string{"denied store 1"}, decisionsOf(t, s, "edge/path=/login/user#2"))
	require.Equal(t, []string{"allowed store 1"}, decisionsOf(t, s, "edge/path=/login/user#2#2"))
	require.Regexp(t, `"edge/a/b overrides#2".*"edge/a/b overrides#3"`, get(t, s.Private(nil), "/rules"), "the first is that of limits in requests")
	require.Equal(t, 8, strings.Count(get(t, s.Private(nil), "/limits"), `"limiter":`), "of five rules and three domains")
}

// /limits has the keys that are denied most, and that ask most, if that is set, over reloads, and none otherwise.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts         []serve.Option
		want, askers string
	}{
		{nil, `{}`, `{}`},
		{[]serve.Option{serve.WithTopKeys(0)}, `{"edge": [{"key": "user=ann", "count": 3, "error": 0}, {"key": "user=ben", "count": 2, "error": 0}, {"key": "path=/login&user=cid", "count": 1, "error": 0}], "more": []}`,
			`{"edge": [{"key": "user=ann", "count": 4, "error": 0}, {"key": "user=ben", "count": 3, "error": 0}, {"key": "path=/login&user=cid", "count": 2, "error": 0}, {"key": "user=dan", "count": 1, "error": 0}], "more": null}`},
	} {
		file := rules(t, edge, "domain: more")
		s, err := serve.New(memory(t), file, c.opts...)
		require.NoError(t, err)
		ask(t, s, "user=ann 3", "user=ben 3", "path=/login,user=cid 2")
		for _, descriptors := range []string{"user=ann", "user=ann", "user=ben", "path=/login,user=cid|user=dan"} {
			ask(t, s, strings.Split(descriptors, "|")...)
		}
		require.NoError(t, s.Update(file))
		req := request("user=ann")
		req.Descriptors[0].Limit = override(typev3.RateLimitUnit_YEAR, 0)
		for _, req := range []*pb.RateLimitRequest{req, request("user=ben")} {
			_, err = s.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
		}
		var page struct {
			Counters []observe.Snapshot     `json:"counters"`
			TopKeys  map[string]observe.Top `json:"top_keys"`
		}
		require.NoError(t, json.Unmarshal([]byte(get(t, s.Private(nil), "/limits")), &page))
		keys, askers := map[string][]observe.TopKey{}, map[string][]observe.TopKey{}
		for name, top := range page.TopKeys {
			keys[name], askers[name] = top.Keys, top.Askers
		}
		for want, found := range map[string]any{c.want: keys, c.askers: askers} {
			got, err := json.Marshal(found)
			require.NoError(t, err)
			require.JSONEq(t, want, string(got))
		}
		require.NotEmpty(t, page.Counters)
		r := httptest.NewRequest(http.MethodGet, "/limits", nil)
		r.Header.Set("Accept", "text/html")
		w := httptest.NewRecorder()
		s.Private(nil).ServeHTTP(w, r)
		require.Contains(t, w.Body.String(), "<h2>edge/trial</h2>\n<p>1/m fixed_window shadow_mode")
		require.Contains(t, w.Body.String(), "<h2>edge overrides</h2>\n<table>")
		require.Equal(t, len(c.opts) > 0, strings.Contains(w.Body.String(), "Asking edge most: 10 calls"))
		require.NotContains(t, get(t, s.Private(nil), "/metrics"), "ann")
	}
	_, err := serve.New(memory(t), rules(t, edge), serve.WithTopKeys(3))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// Files are followed. A bad one changes nothing, and a link that leads elsewhere is a change.
func TestFollow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, n := range map[string]string{"one": "1", "two": "2"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "limits.yaml"), []byte("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: "+n+"}}]\n"), 0o600))
	}
	data, file := filepath.Join(dir, "..data"), filepath.Join(dir, "..data", "limits.yaml")
	lead := func(to string) {
		require.NoError(t, os.Symlink(to, data+"_tmp"))
		require.NoError(t, os.Rename(data+"_tmp", data))
	}
	lead("one")
	files, err := serve.ReadFiles(file)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		parsed, err := serve.Parse(files...)
		require.NoError(t, err)
		s, err := serve.New(memory(t), parsed)
		require.NoError(t, err)
		now, done := make(chan struct{}), make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(done)
			s.Follow(contextUntil(stopped), files, time.Second, now, file)
		}()
		limit := func() uint32 { return ask(t, s, "user=a 0").GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() }
		after := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		require.EqualValues(t, 1, limit())
		inForce := func() bool {
			page := get(t, s.Private(nil), "/metrics")
			return strings.Contains(page, "\nratelimit_serve_config_last_reload_successful 1\n")
		}
		lead("two")
		require.EqualValues(t, 1, limit())
		after(time.Second)
		require.EqualValues(t, 1, limit(), "it may be half of a file")
		after(time.Second)
		require.EqualValues(t, 2, limit())
		require.True(t, inForce())
		taken := fmt.Sprintf("\nratelimit_serve_config_last_reload_success_timestamp_seconds %g\n", float64(time.Now().Unix()))
		require.Contains(t, get(t, s.Private(nil), "/metrics"), taken)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "one", "limits.yaml"), []byte("domain: edge\nx: y"), 0o600))
		lead("one")
		after(3 * time.Second)
		require.EqualValues(t, 2, limit(), "a bad file")
		require.False(t, inForce())
		require.Contains(t, get(t, s.Private(nil), "/metrics"), taken)
		lead("two")
		after(time.Second)
		require.True(t, inForce(), "the old one again")
		require.Contains(t, get(t, s.Private(nil), "/metrics"), `ratelimit_serve_loads_total{result="error"} 1`)
		require.NoError(t, os.Remove(data))
		after(time.Second)
		require.EqualValues(t, 2, limit(), "no file")
		require.False(t, inForce())
		require.NoError(t, os.WriteFile(filepath.Join(dir, "one", "limits.yaml"), []byte("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]\n"), 0o600))
		lead("one")
		now <- struct{}{}
		synctest.Wait()
		require.EqualValues(t, 3, limit(), "at once")
		require.True(t, inForce())
		close(stopped)
		<-done
	})
}

// A file that is written slowly takes effect when it is complete, although each part of it is a
// valid file, and an invalid part is not an error. If an operator asks for a reload, the file is
// read as it is.
func TestFollowOfAFileThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	parts := strings.SplitAfter("domain: edge\ndescriptors:\n- key: user\n  rate_limit: {unit: day,\n    requests_per_unit: 3}\n- key: path\n  rate_limit: {unit: day, requests_per_unit: 7}", "\n")
	whole := strings.Join(parts, "")
	require.NoError(t, os.WriteFile(file, []byte(whole), 0o600))
	files, err := serve.ReadFiles(file)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		stopped, done, now := make(chan struct{}), make(chan struct{}), make(chan struct{})
		lines := new(counting)
		parsed, err := serve.Parse(files...)
		require.NoError(t, err)
		s, err := serve.New(memory(t), parsed, serve.WithLogger(slog.New(slog.NewTextHandler(lines, nil))))
		require.NoError(t, err)
		go func() {
			defer close(done)
			s.Follow(contextUntil(stopped), files, time.Second, now, file)
		}()
		both := func() string { return short(ask(t, s, "user=a 0", "path=a 0")) }
		for i := range parts {
			require.NoError(t, os.WriteFile(file, []byte(strings.Replace(strings.Join(parts[:i+1], ""), ": 7", ": 8", 1)), 0o600))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, "OK, OK 3/3 0s, OK 7/7 0s", both(), "%d lines", i+1)
		}
		require.Zero(t, lines.Load(), "nothing is told of the parts")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "OK, OK 3/3 0s, OK 8/8 0s", both())
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(parts[:5], "")), 0o600))
		now <- struct{}{}
		synctest.Wait()
		require.Equal(t, "OK, OK 3/3 0s, OK", both())
		close(stopped)
		<-done
	})
}

// counting counts lines.
type counting struct{ atomic.Int64 }

func (c *counting) Write(p []byte) (int, error) {
	c.Add(1)
	return len(p), nil
}

// The caller may close the channel now. If the interval is not above 0, files are read only through
// now.
func TestFollowOfAnEndedChannel(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text(edge)), 0o600))
	files, err := serve.ReadFiles(file)
	require.NoError(t, err)
	for _, every := range []time.Duration{time.Hour, 0, -1} {
		synctest.Test(t, func(t *testing.T) {
			now, stopped, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			lines := &stopping{left: 3, stopped: stopped}
			s, err := serve.New(memory(t), rules(t, edge), serve.WithLogger(slog.New(slog.NewTextHandler(lines, nil))))
			require.NoError(t, err)
			go func() {
				defer close(done)
				s.Follow(contextUntil(stopped), files, every, now, file)
			}()
			now <- struct{}{}
			close(now)
			synctest.Wait()
			require.Equal(t, 2, lines.left, "it is read once")
			close(stopped)
			<-done
		})
	}
}

// stopping closes a channel after so many lines.
type stopping struct {
	left    int
	stopped chan struct{}
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.left--; s.left == 0 {
		close(s.stopped)
	}
	return len(p), nil
}

// Files that were merged are merged when they are read again.
func TestFollowMerges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, n int) {
		text := fmt.Sprintf("domain: edge\ndescriptors: [{key: %s, rate_limit: {unit: day, requests_per_unit: %d}}]\n", name, n)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600))
	}
	write("a", 1)
	write("b", 2)
	files, err := serve.ReadFiles(dir)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		parsed, err := serve.ParseMerged(files...)
		require.NoError(t, err)
		s, err := serve.New(memory(t), parsed)
		require.NoError(t, err)
		stopped, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			s.Follow(contextUntil(stopped), files, time.Second, nil, dir)
		}()
		for _, n := range []int{3, 4} {
			write("b", n)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Equal(t, fmt.Sprintf("OK, OK 1/1 0s, OK %d/%d 0s", n, n), short(ask(t, s, "a=x 0", "b=x 0")))
		}
		require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, "OK, OK 1/1 0s, OK", short(ask(t, s, "a=x 0", "b=x 0")), "a file that goes is a change too")
		close(stopped)
		<-done
	})
}

// BenchmarkTopKeys is a decision in memory with top keys and without.
func BenchmarkTopKeys(b *testing.B) {
	for name, opts := range map[string][]serve.Option{"none": nil, "256": {serve.WithTopKeys(256)}} {
		b.Run(name, func(b *testing.B) {
			s, err := serve.New(memory(b), rules(b, edge), opts...)
			require.NoError(b, err)
			var all []*pb.RateLimitRequest
			for i := range 10_000 {
				all = append(all, request("user="+strconv.Itoa(i)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, _ = s.ShouldRateLimit(b.Context(), all[i%len(all)])
			}
		})
	}
}
