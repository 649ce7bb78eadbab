package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

const canary = "sk-canary-5f1e"

// keyOf is the key of r, which has one.
func keyOf(t testing.TB, k httplimit.Key, r *http.Request) string {
	t.Helper()
	key, err := k.Of(r)
	require.NoError(t, err)
	return key
}

func with(r *http.Request, header, value string) *http.Request {
	r.Header.Set(header, value)
	return r
}

func loggedIn(r *http.Request) string { return r.Header.Get("Test-User") }

func TestTheSingleKeys(t *testing.T) {
	r := with(get(alice), "Test-User", "ann")
	require.Equal(t, "192.0.2.1", keyOf(t, httplimit.PeerIP(), r))
	require.Equal(t, "user:ann", keyOf(t, httplimit.User(loggedIn), r))
	require.Equal(t, "method:GET", keyOf(t, httplimit.Method(), r))
	require.Equal(t, "tenant:7", keyOf(t, httplimit.KeyFunc("tenant", func(*http.Request) (string, error) { return "7", nil }), r))
	require.Equal(t, "global", keyOf(t, httplimit.Global(), r))
}

func TestTheRouteIsThePatternThatMatched(t *testing.T) {
	var key string
	var err error
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", func(_ http.ResponseWriter, r *http.Request) { key, err = httplimit.Route().Of(r) })
	for _, path := range []string{"/users/1", "/users/2"} {
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		require.NoError(t, err)
		require.Equal(t, "route:GET /users/{id}", key)
	}
	_, err = httplimit.Route().Of(get(alice))
	require.ErrorIs(t, err, httplimit.ErrNoIdentity, "around the mux there is no pattern yet")
}

func TestInventedMethodsAreOneMethod(t *testing.T) {
	for method, want := range map[string]string{"": "GET", "PUT": "PUT", "get": "other", "FOO": "other", "BAR": "other"} {
		r := get(alice)
		r.Method = method
		require.Equal(t, "method:"+want, keyOf(t, httplimit.Method(), r))
	}
}

// All spellings that a handler may treat as one path have one count. Other paths have their own.
func TestOtherSpellingsOfAPathAreOnePath(t *testing.T) {
	for want, targets := range map[string][]string{
		"/login": {
			"/login", "//login", "///login", "/./login", "/x/../login", "/../login", "/x/y/../../login", "/%6Cogin", "/%6cogin",
			"/%2Flogin", "/%2e/login", "/x/%2E%2e/login", "/x/%2e.%2flogin", "/login?a=/../b", "http://example.com/login", "/x%2f..//login",
		},
		"/login/":     {"/login/", "/login//", "/login/.", "/login/x/..", "/login/%2e", "/login%2F"},
		"/":           {"/", "//", "/.", "/..", "/login/..", "/?x", "http://example.com", "/%2e%2e"},
		"*":           {"*"},
		"/Login":      {"/Login"},
		"/login;a=1":  {"/login;a=1", "/login%3Ba=1", "//login;a=1"},
		"/login%2e":   {"/login%252e"},
		"/...":        {"/..."},
		"/.login":     {"/.login"},
		"/login.":     {"/login."},
		`/x\..\login`: {`/x%5C..%5Clogin`},
		"/login\xff":  {"/login%FF"},
	} {
		for _, target := range targets {
			require.Equal(t, "path:"+want, keyOf(t, httplimit.Path(), httptest.NewRequest(http.MethodGet, target, nil)), target)
		}
	}
	key := httplimit.Combined(httplimit.Path(), httplimit.PeerIP())
	handler := protect(t, window(t, memory(t), ratelimit.PerHour(3)), httplimit.WithKey(key))
	codes := map[int]int{}
	for _, target := range []string{"/login", "//login", "/./login", "/x/../login", "/%6Cogin", "/login?b"} {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		codes[serve(handler, r).StatusCode]++
	}
	require.Equal(t, map[int]int{200: 3, 429: 3}, codes)
}

// A mux redirects other spellings of a path, or matches them with the same route.
func TestOtherSpellingsOfAPathAreOneRoute(t *testing.T) {
	served := 0
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	lim := window(t, memory(t), ratelimit.PerHour(3))
	mux := http.NewServeMux()
	mux.Handle("/login", httplimit.Middleware(lim, httplimit.WithKey(httplimit.Route()))(handler))
	for _, target := range []string{"/login", "//login", "/./login", "/x/../login", "/%6Cogin", "/%2e/login", "/%2Flogin", "/login?b"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodConnect, "FOO"} {
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Method = method
			mux.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	require.Equal(t, 3, served)
}

func TestARequestThatCannotBeIdentifiedIsNotCounted(t *testing.T) {
	lim := window(t, memory(t), ratelimit.PerHour(100))
	nobody := func(*http.Request) string { return "" }
	for name, k := range map[string]httplimit.Key{
		"no user":           httplimit.User(nobody),
		"no API key":        httplimit.APIKey("X-API-Key"),
		"an unknown key":    httplimit.APIKey("Test-Key", httplimit.KnownKeys(func(*http.Request, string) bool { return false })),
		"no route":          httplimit.Route(),
		"a part is missing": httplimit.Combined(httplimit.Method(), httplimit.User(nobody)),
		"none applies":      httplimit.First(httplimit.APIKey("X-API-Key"), httplimit.User(nobody)),
		"a function":        httplimit.KeyFunc("session", func(*http.Request) (string, error) { return "", nil }),
	} {
		t.Run(name, func(t *testing.T) {
			r := with(get(alice), "Test-Key", "x")
			_, err := k.Of(r)
			require.ErrorIs(t, err, httplimit.ErrNoIdentity)
			res := serve(protect(t, lim, httplimit.WithKey(k)), r)
			require.Equal(t, http.StatusBadRequest, res.StatusCode)
			require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
			res = serve(protect(t, lim, httplimit.WithKey(k), httplimit.WithKeyErrorHandler(
				func(w http.ResponseWriter, _ *http.Request, _ http.Handler, err error) {
					require.ErrorIs(t, err, httplimit.ErrNoIdentity)
					w.WriteHeader(http.StatusUnauthorized)
				})), r)
			require.Equal(t, http.StatusUnauthorized, res.StatusCode)
		})
	}
}

func TestTheFirstKeyThatAppliesIsTaken(t *testing.T) {
	k := httplimit.First(httplimit.APIKey("X-API-Key"), httplimit.User(loggedIn), httplimit.PeerIP())
	require.Equal(t, "192.0.2.1", keyOf(t, k, get(alice)))
	r := with(get(alice), "Test-User", "192.0.2.1")
	require.Equal(t, "user:192.0.2.1", keyOf(t, k, r))
	require.True(t, strings.HasPrefix(keyOf(t, k, with(r, "X-API-Key", "x")), "apikey:x-api-key:"))

	broken := errors.New("session store is down")
	k = httplimit.First(httplimit.KeyFunc("session", func(*http.Request) (string, error) { return "", broken }), httplimit.PeerIP())
	_, err := k.Of(r)
	require.ErrorIs(t, err, broken, "who cannot be told now is not somebody else")
}

func TestPartsOfACombinedKeyHaveTheirLengths(t *testing.T) {
	k := httplimit.Combined(httplimit.PeerIP(), httplimit.Method())
	require.Equal(t, "combined:9:192.0.2.1,10:method:GET,", keyOf(t, k, get(alice)))
}

// parts is two texts as a combination, as a Key with its name, and as a nested combination.
func parts(a, b string) (combined, named, nested httplimit.Key) {
	text := func(name, s string) httplimit.Key {
		return httplimit.KeyFunc(name, func(*http.Request) (string, error) { return s, nil })
	}
	combined = httplimit.Combined(text("x", a), text("y", b))
	return combined, text(a, b), httplimit.Combined(combined, text("z", a))
}

func FuzzTwoTuplesNeverMakeOneKey(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("1:a", "a", "1", ":aa")
	f.Add("", "x", "x", "")
	f.Add("1:1", "11", "1:11", "1")
	f.Add("2001", "db8::/64", "FE80", ":/64")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		c1, f1, n1 := parts(a, b)
		c2, f2, n2 := parts(c, d)
		r := get(alice)
		for _, pair := range [][2]httplimit.Key{{c1, c2}, {f1, f2}, {n1, n2}} {
			k1, err1 := pair[0].Of(r)
			k2, err2 := pair[1].Of(r)
			if err1 != nil || err2 != nil {
				continue
			}
			_, addr := netip.ParseAddr(k1)
			_, network := netip.ParsePrefix(k1)
			require.True(t, addr != nil && network != nil, "%q is an address", k1)
			if (k1 == k2) != (a == c && b == d) {
				t.Fatalf("(%q, %q) is %q, (%q, %q) is %q", a, b, k1, c, d, k2)
			}
		}
	})
}

func TestAPIKeysAreHashed(t *testing.T) {
	r := with(get(alice), "X-API-Key", canary)
	plain := keyOf(t, httplimit.APIKey("x-api-key"), r)
	require.Len(t, plain, len("apikey:x-api-key:")+43, "SHA-256 in base64")
	require.Equal(t, plain, keyOf(t, httplimit.APIKey("X-API-Key"), r))
	require.NotEqual(t, plain, keyOf(t, httplimit.APIKey("X-API-Key"), with(get(alice), "X-API-Key", canary+"2")))
	one := keyOf(t, httplimit.APIKey("X-API-Key", httplimit.HashedWith([]byte("0123456789abcdef"))), r)
	other := keyOf(t, httplimit.APIKey("X-API-Key", httplimit.HashedWith([]byte("0123456789abcdeF"))), r)
	require.Len(t, one, len(plain))
	require.NotEqual(t, one, other)
	require.NotEqual(t, one, plain)
}

func TestAHashedAPIKeyIsThatOfARequest(t *testing.T) {
	const canary = "canary-0123456789abcdef"
	secret := httplimit.HashedWith([]byte("0123456789abcdef"))
	for _, opts := range [][]httplimit.APIKeyOption{nil, {secret}} {
		hashed, err := httplimit.HashedAPIKey("x-api-key", canary, opts...)
		require.NoError(t, err)
		require.Equal(t, keyOf(t, httplimit.APIKey("X-API-Key", opts...), with(get(alice), "X-API-Key", canary)), hashed)
		hashed, err = httplimit.HashedAPIKey("Authorization", canary, opts...)
		require.NoError(t, err)
		require.Equal(t, keyOf(t, httplimit.APIKey("Authorization", opts...), with(get(alice), "Authorization", "Bearer "+canary)), hashed)
	}
	_, err := httplimit.HashedAPIKey("X-API-Key", "")
	require.ErrorIs(t, err, httplimit.ErrNoIdentity)
	for _, name := range []string{"", "X API"} {
		_, err = httplimit.HashedAPIKey(name, canary)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err = httplimit.HashedAPIKey("X-API-Key", canary, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestSeveralAPIKeysAreAnErrorThatEndsTheSearch(t *testing.T) {
	r := with(get(alice), "X-API-Key", canary)
	r.Header.Add("X-API-Key", canary+"2")
	for _, k := range []httplimit.Key{
		httplimit.APIKey("X-API-Key"),
		httplimit.First(httplimit.APIKey("X-API-Key"), httplimit.PeerIP()),
		httplimit.Combined(httplimit.PeerIP(), httplimit.APIKey("X-API-Key")),
	} {
		key, err := k.Of(r)
		require.ErrorIs(t, err, httplimit.ErrAmbiguousIdentity)
		require.NotErrorIs(t, err, httplimit.ErrNoIdentity)
		require.NotContains(t, err.Error(), canary)
		require.Empty(t, key)
		require.Equal(t, http.StatusBadRequest, serve(protect(t, plenty(t), httplimit.WithKey(k)), r).StatusCode)
	}
}

func TestTheSchemeOfAuthorizationDoesNotCount(t *testing.T) {
	k := httplimit.APIKey("Authorization")
	want := keyOf(t, k, with(get(alice), "Authorization", "Bearer "+canary))
	for _, same := range []string{"bearer " + canary, "BEARER   " + canary + " "} {
		require.Equal(t, want, keyOf(t, k, with(get(alice), "Authorization", same)))
	}
	_, err := k.Of(with(get(alice), "Authorization", "Bearer"))
	require.ErrorIs(t, err, httplimit.ErrNoIdentity)
}

func TestInventedAPIKeysDoNotGiveNewBuckets(t *testing.T) {
	k := httplimit.First(httplimit.APIKey("X-API-Key", httplimit.KnownKeys(
		func(_ *http.Request, key string) bool { return key == canary })), httplimit.PeerIP())
	require.Equal(t, "192.0.2.1", keyOf(t, k, with(get(alice), "X-API-Key", "made up")))
	require.NotEqual(t, "192.0.2.1", keyOf(t, k, with(get(alice), "X-API-Key", canary)))
}

func TestWrongArgumentsOfKeysAreErrors(t *testing.T) {
	for name, k := range map[string]httplimit.Key{
		"the zero Key":               {},
		"a nil function":             httplimit.KeyFunc("x", nil),
		"a function without name":    httplimit.KeyFunc("", func(*http.Request) (string, error) { return "", nil }),
		"a name that is hexadecimal": httplimit.KeyFunc("2001", func(*http.Request) (string, error) { return "db8::/64", nil }),
		"a name with a colon":        httplimit.KeyFunc("a:b", func(*http.Request) (string, error) { return "", nil }),
		"a nil user function":        httplimit.User(nil),
		"no header":                  httplimit.APIKey(""),
		"a header with a space":      httplimit.APIKey("X API"),
		"a nil APIKeyOption":         httplimit.APIKey("X", nil),
		"a nil KnownKeys":            httplimit.APIKey("X", httplimit.KnownKeys(nil)),
		"a short secret":             httplimit.APIKey("X", httplimit.HashedWith([]byte("short"))),
		"a nil IPOption":             httplimit.PeerIP(nil),
		"a prefix too long":          httplimit.PeerIP(httplimit.IPv6Prefix(65)),
		"a prefix too short":         httplimit.PeerIP(httplimit.IPv6Prefix(31)),
		"an IPv4 prefix too long":    httplimit.PeerIP(httplimit.IPv4Prefix(33)),
		"an IPv4 prefix too short":   httplimit.PeerIP(httplimit.IPv4Prefix(15)),
		"a network that is none":     httplimit.ClientIP([]string{"10.0.0.0/33"}),
		"an address that is none":    httplimit.ClientIP([]string{"lb"}),
		"everybody is trusted":       httplimit.ClientIP([]string{"0.0.0.0/0"}),
		"in IPv6 too":                httplimit.ClientIP([]string{"::/0"}),
		"and in IPv4 as IPv6":        httplimit.ClientIP([]string{"::ffff:0.0.0.0/96"}),
		"or more than that":          httplimit.ClientIP([]string{"::ffff:0.0.0.0/90"}),
		"nothing combined":           httplimit.Combined(),
		"a wrong key combined":       httplimit.Combined(httplimit.Global(), httplimit.Key{}),
		"the first of none":          httplimit.First(),
		"the first of a wrong key":   httplimit.First(httplimit.User(nil)),
		"no proxies":                 httplimit.ClientIP(nil),
		"a nil IPOption too":         httplimit.ClientIP([]string{"10.0.0.0/8"}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := k.Of(get(alice))
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
			require.NotContains(t, err.Error(), "short\"", "a secret is not told")
		})
	}
}

func TestAnErrorOfAKeyFunctionIsAnsweredByItsKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{httplimit.ErrNoIdentity, http.StatusBadRequest},
		{httplimit.ErrAmbiguousIdentity, http.StatusBadRequest},
		{ratelimit.ErrInvalidKey, http.StatusBadRequest},
		{ratelimit.ErrInvalidOption, http.StatusInternalServerError},
		{errors.New("session store is down"), http.StatusServiceUnavailable},
	} {
		lim := &recorded{Limiter: plenty(t)}
		k := httplimit.KeyFunc("session", func(*http.Request) (string, error) { return "ann", c.err })
		require.Equal(t, c.want, serve(protect(t, lim, httplimit.WithKey(k)), get(alice)).StatusCode, c.err)
		require.Empty(t, lim.keys, "not counted")
	}
}

func TestAPanicOfAKeyFunctionGoesOnAndChargesNothing(t *testing.T) {
	lim := &recorded{Limiter: plenty(t)}
	k := httplimit.KeyFunc("session", func(*http.Request) (string, error) { panic("boom") })
	handled := httplimit.WithKeyErrorHandler(func(http.ResponseWriter, *http.Request, http.Handler, error) { t.Error("an error") })
	require.PanicsWithValue(t, "boom", func() { serve(protect(t, lim, httplimit.WithKey(k), handled), get(alice)) })
	require.Empty(t, lim.keys, "not counted")
}
