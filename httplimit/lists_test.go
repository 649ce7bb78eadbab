package httplimit_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// listed puts lists around a limit of 1,000 an hour.
func listed(t testing.TB, lists accesslist.Lists) *accesslist.Limiter {
	t.Helper()
	lim, err := accesslist.New(window(t, memory(t), ratelimit.PerHour(1000)), accesslist.WithLists(lists))
	require.NoError(t, err)
	return lim
}

func list(t testing.TB, entries ...string) *accesslist.List {
	t.Helper()
	l, err := accesslist.NewList(entries...)
	require.NoError(t, err)
	return l
}

// serverAt is a server at host, with h at its root.
func serverAt(t testing.TB, host string, h http.Handler) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skip("no address of that kind here: ", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", h)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)}}
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// ask is a request that a proxy at this machine hands on for a client at addr.
func ask(t testing.TB, server *httptest.Server, addr string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	r.Header.Set("X-Api-Key", "0123456789abcdef")
	r.Header.Set("X-User", "ann")
	if addr != "" {
		r.Header.Set("X-Forwarded-For", addr)
	}
	w, err := server.Client().Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { w.Body.Close() })
	return w
}

// requireVerdict checks the answer to a client that is on the deny list, on the allow list or on
// neither.
func requireVerdict(t *testing.T, w *http.Response, verdict string) {
	t.Helper()
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	fields := []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"}
	switch verdict {
	case "denied":
		require.Equal(t, http.StatusForbidden, w.StatusCode)
		require.Equal(t, "application/problem+json", w.Header.Get("Content-Type"))
		require.Equal(t, "no-store", w.Header.Get("Cache-Control"))
		require.JSONEq(t, `{"type":"about:blank","title":"Forbidden","status":403,"detail":"The client is not admitted."}`, string(body))
	case "allowed":
		require.Equal(t, http.StatusOK, w.StatusCode)
	default:
		require.Equal(t, http.StatusOK, w.StatusCode)
		require.Contains(t, w.Header.Get("RateLimit"), `"1000/h";r=`)
		return
	}
	for _, field := range fields {
		require.Empty(t, w.Header.Values(field), field)
	}
}

var (
	proxies  = []string{"127.0.0.0/8", "::1"}
	apiKey   = httplimit.APIKey("X-API-Key")
	clientIP = httplimit.ClientIP(proxies)
	user     = httplimit.User(func(r *http.Request) string { return r.Header.Get("X-User") })
	device   = httplimit.KeyFunc("device", func(*http.Request) (string, error) { return "2001:db8:66::66", nil })
)

func TestListsHoldBehindEveryKindOfKey(t *testing.T) {
	byOption := httplimit.WithClientAddr(clientIP)
	for name, opts := range map[string][]httplimit.ServerOption{
		"ClientIP":             {httplimit.WithKey(clientIP)},
		"First":                {httplimit.WithKey(httplimit.First(apiKey, clientIP))},
		"First, the address":   {httplimit.WithKey(httplimit.First(httplimit.APIKey("X-Other"), clientIP))},
		"Combined":             {httplimit.WithKey(httplimit.Combined(user, clientIP))},
		"Combined in a First":  {httplimit.WithKey(httplimit.First(user, httplimit.Combined(httplimit.Method(), clientIP)))},
		"PeerIP":               {byOption},
		"APIKey":               {httplimit.WithKey(apiKey), byOption},
		"User":                 {httplimit.WithKey(user), byOption},
		"KeyFunc":              {httplimit.WithKey(device), byOption},
		"Route":                {httplimit.WithKey(httplimit.Route()), byOption},
		"Method":               {httplimit.WithKey(httplimit.Method()), byOption},
		"Global":               {httplimit.WithKey(httplimit.Global()), byOption},
		"the option, combined": {httplimit.WithKey(user), httplimit.WithClientAddr(httplimit.First(user, clientIP))},
	} {
		t.Run(name, func(t *testing.T) {
			lim := listed(t, accesslist.Lists{
				Deny:  list(t, "203.0.113.66", "2001:db8:66::66"),
				Allow: list(t, "203.0.113.0/24", "2001:db8::/32"),
			})
			server := serverAt(t, "127.0.0.1", protect(t, lim, opts...))
			for addr, verdict := range map[string]string{
				"203.0.113.66": "denied", "::ffff:203.0.113.66": "denied", "64:ff9b::203.0.113.66": "denied", "2001:db8:66::66": "denied",
				"203.0.113.7": "allowed", "64:ff9b::203.0.113.7": "allowed", "2001:db8:66::67": "allowed",
				"198.51.100.1": "limited", "2001:db9::1": "limited",
				"": "limited", // the proxy itself
			} {
				requireVerdict(t, ask(t, server, addr), verdict)
			}
			lim.Replace(accesslist.Lists{})
			requireVerdict(t, ask(t, server, "203.0.113.66"), "limited")
		})
	}
}

func TestListsHoldForThePeer(t *testing.T) {
	for host, addr := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "::1"} {
		for _, opts := range [][]httplimit.ServerOption{
			nil,
			{httplimit.WithKey(httplimit.First(apiKey, httplimit.PeerIP()))},
			{httplimit.WithKey(user), httplimit.WithClientAddr(httplimit.PeerIP())},
			{httplimit.WithKey(user), httplimit.WithClientAddr(httplimit.PeerIP()), httplimit.WithContext()},
		} {
			lim := listed(t, accesslist.Lists{Deny: list(t, addr)})
			server := serverAt(t, host, protect(t, lim, opts...))
			requireVerdict(t, ask(t, server, "198.51.100.1"), "denied")
			lim.Replace(accesslist.Lists{Allow: list(t, addr)})
			requireVerdict(t, ask(t, server, "198.51.100.1"), "allowed")
			lim.Replace(accesslist.Lists{Deny: list(t, "198.51.100.1")})
			requireVerdict(t, ask(t, server, "198.51.100.1"), "limited")
		}
	}
}

func TestAnAddressThatNoKeyHasIsSaidAloud(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	h := protect(t, lim, httplimit.WithKey(user))
	var said bytes.Buffer
	ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{ErrorLog: log.New(&said, "", 0)})
	for range 2 {
		r := get("192.0.2.1:1234").WithContext(ctx)
		r.Header.Set("X-User", "ann")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusInternalServerError, w.Code)
	}
	require.Equal(t, "httplimit: ratelimit: invalid option: accesslist: the client's address is unknown: key \"user:ann\"\n", said.String())

	for _, k := range []httplimit.Key{user, httplimit.Combined(user, apiKey), httplimit.First(httplimit.Global()), {}} {
		_, err := httplimit.New(lim, httplimit.WithClientAddr(k))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

func TestAnAddressThatIsNotFoundIsAnError(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	h := protect(t, lim, httplimit.WithKey(httplimit.First(user, clientIP)))
	r := get("@") // at a Unix socket
	r.Header.Set("X-User", "ann")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusInternalServerError, w.Code)
}

func TestAnAddressThatWasSaidOverridesOneThatIsFound(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "203.0.113.66")})
	for _, opts := range [][]httplimit.ServerOption{nil, {httplimit.WithKey(user)}, {httplimit.WithKey(user), httplimit.WithClientAddr(clientIP)}} {
		h := protect(t, lim, opts...)
		server := serverAt(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(clientaddr.NewContext(r.Context(), netip.MustParseAddr("203.0.113.66"))))
		}))
		requireVerdict(t, ask(t, server, "198.51.100.1"), "denied")
	}
}

// If two middlewares are nested, each uses the address that it finds, and the handler gets that of
// the inner one.
func TestMiddlewaresAroundEachOtherHaveTheirOwnAddresses(t *testing.T) {
	both := func(outer, inner []httplimit.ServerOption, outerDeny, innerDeny string) *httptest.Server {
		in := protect(t, listed(t, accesslist.Lists{Deny: list(t, innerDeny)}), inner...)
		wrap, err := httplimit.New(listed(t, accesslist.Lists{Deny: list(t, outerDeny)}), outer...)
		require.NoError(t, err)
		return serverAt(t, "127.0.0.1", wrap(in))
	}
	peer := []httplimit.ServerOption{httplimit.WithContext()}
	behind := []httplimit.ServerOption{httplimit.WithKey(clientIP), httplimit.WithContext()}
	byUser := []httplimit.ServerOption{httplimit.WithKey(user)}
	for _, c := range []struct {
		outer, inner         []httplimit.ServerOption
		outerDeny, innerDeny string
		want                 int
	}{
		{peer, behind, "127.0.0.1", "192.0.2.9", http.StatusForbidden},
		{peer, behind, "192.0.2.9", "203.0.113.66", http.StatusForbidden},
		{peer, behind, "203.0.113.66", "127.0.0.1", http.StatusOK},
		{behind, peer, "127.0.0.1", "203.0.113.66", http.StatusOK},
		{behind, byUser, "192.0.2.9", "203.0.113.66", http.StatusForbidden}, // handed on by WithContext
	} {
		require.Equal(t, c.want, ask(t, both(c.outer, c.inner, c.outerDeny, c.innerDeny), "203.0.113.66").StatusCode, "%v", c)
	}
}

func TestAHandlerHasTheAddressWithTheDecision(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "203.0.113.66")})
	outer, err := httplimit.New(window(t, memory(t), ratelimit.PerHour(9)), httplimit.WithKey(httplimit.First(user, clientIP)), httplimit.WithContext())
	require.NoError(t, err)
	server := serverAt(t, "127.0.0.1", outer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := httplimit.FromContext(r.Context())
		res, err := lim.Allow(r.Context(), d.Key)
		if err != nil || !res.Allowed {
			httplimit.WriteProblem(w, httplimit.NewDecision(r.Context(), lim, d.Key, res))
		}
	})))
	require.Equal(t, http.StatusForbidden, ask(t, server, "203.0.113.66").StatusCode)
	require.Equal(t, http.StatusOK, ask(t, server, "203.0.113.67").StatusCode)
}

func TestAListWithinAnAllDeniesAsAList(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "203.0.113.66")})
	room, full := window(t, memory(t), ratelimit.PerHour(9)), window(t, memory(t), ratelimit.PerHour(1))
	_, err := full.Allow(t.Context(), "203.0.113.66")
	require.NoError(t, err)
	for _, parts := range [][]ratelimit.Limiter{{room, lim}, {lim, room}, {lim, full}} {
		all, err := ratelimit.NewAll(parts...)
		require.NoError(t, err)
		server := serverAt(t, "127.0.0.1", protect(t, all, httplimit.WithKey(clientIP)))
		requireVerdict(t, ask(t, server, "203.0.113.66"), "denied")
	}
	r, err := room.Peek(t.Context(), "203.0.113.66")
	require.NoError(t, err)
	require.Equal(t, 9, r.Remaining)
}

func TestADenialByAListCanBeAnsweredInOtherWays(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	w := httptest.NewRecorder()
	protect(t, lim, httplimit.WithDeniedHandler(func(w http.ResponseWriter, _ *http.Request, _ http.Handler, d httplimit.Decision) {
		require.Equal(t, ratelimit.SourceList, d.Result.Source())
		w.WriteHeader(http.StatusNotFound)
	})).ServeHTTP(w, get("192.0.2.1:1234"))
	require.Equal(t, http.StatusNotFound, w.Code)
}

// What a limit counts by the client's address goes back there, even if the handler changes the address.
func TestARefundKnowsTheAddressOfTheClient(t *testing.T) {
	byAddr := ratelimit.WithKeyFunc(func(ctx context.Context, _ string) (string, error) {
		addr, ok := clientaddr.FromContext(ctx)
		if !ok {
			return "", accesslist.ErrNoAddr
		}
		return addr.String(), nil
	})
	for _, opts := range [][]httplimit.ServerOption{nil, {httplimit.WithContext()}} {
		mem := memory(t)
		inner, atOnce := window(t, mem, ratelimit.PerHour(5)), slots(t, mem, 1)
		perAddr, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(5), byAddr)
		require.NoError(t, err)
		atOncePerAddr, err := inflight.New(mem, 1, time.Minute, ratelimit.WithName(atOnce.Name()), byAddr)
		require.NoError(t, err)
		handler := httplimit.Middleware(ratelimittest.All(t, perAddr, atOncePerAddr), append(opts, httplimit.WithRefund(httplimit.Failed))...)(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, 1, spent(t, inner, "192.0.2.1"))
				require.Equal(t, 1, spent(t, atOnce, "192.0.2.1"))
				r.RemoteAddr = "192.0.2.2:1234" // as a RealIP middleware does
				w.WriteHeader(http.StatusInternalServerError)
			}))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "192.0.2.1:1234"
		handler.ServeHTTP(httptest.NewRecorder(), r)
		require.Zero(t, spent(t, inner, "192.0.2.1"))
		require.Zero(t, spent(t, atOnce, "192.0.2.1"))
	}
}

// noting is a store that notes whether a call's context has an address.
type noting struct {
	store.Store
	found bool
}

func (s *noting) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	_, s.found = clientaddr.FromContext(ctx)
	return s.Store.Take(ctx, ns, key, l, n)
}

func (s *noting) Together(string, string) bool { return false }

// opaque hides what is inside of it.
type opaque struct{ ratelimit.Limiter }

func TestOnlyLimitersThatNeverAskGetNoAddress(t *testing.T) {
	s := &noting{Store: memory(t)}
	plain, other := window(t, s, ratelimit.PerHour(5)), window(t, s, ratelimit.PerMinute(5))
	both, err := ratelimit.NewAll(plain, other)
	require.NoError(t, err)
	tiered, err := ratelimit.NewFixedWindow(s, ratelimit.PerHour(5), ratelimit.WithName("tiered"),
		ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return ratelimit.PerHour(6), nil }))
	require.NoError(t, err)
	mixed, err := ratelimit.NewAll(plain, tiered)
	require.NoError(t, err)
	observed, err := observe.Around(plain, new(observe.Counters))
	require.NoError(t, err)
	for _, test := range []struct {
		name  string
		l     ratelimit.Limiter
		found bool
		opts  []httplimit.ServerOption
	}{
		{"one", plain, false, nil},
		{"all", both, false, nil},
		{"in the context", plain, true, []httplimit.ServerOption{httplimit.WithContext()}},
		{"tiers", tiered, true, nil},
		{"all with tiers", mixed, true, nil},
		{"observed", observed, true, nil},
		{"another type", opaque{plain}, true, nil},
		{"a list", listedIn(t, plain), true, nil},
	} {
		protect(t, test.l, test.opts...).ServeHTTP(httptest.NewRecorder(), get("192.0.2.1:1234"))
		require.Equal(t, test.found, s.found, test.name)
	}
}

func listedIn(t *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
	t.Helper()
	l, err := accesslist.New(l, accesslist.WithLists(accesslist.Lists{Deny: list(t, "203.0.113.0/24")}))
	require.NoError(t, err)
	return l
}
