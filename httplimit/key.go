package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// The errors of keys, for use with errors.Is. Their texts contain no values.
var (
	// ErrNoIdentity means that the request does not have what a Key looks for.
	ErrNoIdentity = errors.New("httplimit: no identity")
	// ErrAmbiguousIdentity means that the request has several values where a Key looks for one.
	ErrAmbiguousIdentity = errors.New("httplimit: more than one identity")
)

// Key determines which requests are counted together: those for which it makes the same key. A key
// includes the kind of its Key, so that keys of different kinds are never equal:
//
//	PeerIP, ClientIP   192.0.2.1 or 2001:db8::/64
//	APIKey             apikey:x-api-key:ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0
//	User               user:ann
//	Route              route:GET /users/{id}
//	Method             method:GET
//	Path               path:/login
//	Global             global
//	KeyFunc            its name, a colon, and what its function returns
//	Combined           combined:9:192.0.2.1,8:user:ann,
//	First              that of the Key that applies
//
// Package grpclimit makes the same keys, so a limiter behind both counts each client once.
//
// A request whose key cannot be determined is not counted, and [WithKeyErrorHandler] answers it.
// The error is [ErrNoIdentity], [ErrAmbiguousIdentity], one that your function returned, or
// [ratelimit.ErrInvalidKey] for a key over 64 KiB. A panic in a key function is not recovered:
// nothing is charged, and the server handles it like a panic of the protected handler.
//
// If an argument of a constructor is invalid, [New], [NewTransport] and every call of [Key.Of]
// return the error. A Key is safe for concurrent use. The zero Key is invalid.
type Key struct{ key requestKey }

type requestKey = guard.Key[*http.Request]

var maker = &guard.KeyMaker[*http.Request]{None: ErrNoIdentity, Ambiguous: ErrAmbiguousIdentity}

// Of returns the key of r. Its errors are those of the Key, and [ratelimit.ErrInvalidOption] if the
// Key is invalid.
func (k Key) Of(r *http.Request) (string, error) { return k.key.Of(r) }

// KeyFunc makes a Key from f. If f does not apply to a request, it returns [ErrNoIdentity] or an
// error that wraps it. An empty key is that error too. f must be safe for concurrent use.
//
// name is the kind of the keys. Keys with the same name are of the same kind, even if they are made
// differently: KeyFunc("user", f) and [User] count the same users. The name must not be empty,
// contain a colon, or be a hexadecimal number, because IPv6 addresses begin with one.
//
// A client that can choose its key freely has as many limits as it likes.
func KeyFunc(name string, f func(r *http.Request) (string, error)) Key {
	return Key{maker.Func(name, f)}
}

// User identifies clients by the authenticated user that f finds in a session, a token, or the
// request's context. If f returns "", the error is [ErrNoIdentity]. The name becomes part of the
// key as it is, so return an ID and not a secret. It must be authenticated: if clients can claim
// any name, as with [http.Request.BasicAuth], they can spend the limits of others, or have any
// number of their own. f must be safe for concurrent use.
func User(f func(r *http.Request) string) Key { return Key{maker.User(f)} }

var errNoPattern = fmt.Errorf("%w: no pattern has matched: put the middleware around handlers, not around the mux", ErrNoIdentity)

// Route counts requests by the pattern of [http.ServeMux] that they matched, such as "GET
// /users/{id}". Other routers that set [http.Request.Pattern] work too. If muxes are nested, the
// pattern of the innermost one counts, and equal patterns of two muxes are one Route.
//
// The mux sets the pattern, so put the middleware around the mux's handlers, not around the mux.
// Without a pattern the error is [ErrNoIdentity], and the first time, the server's ErrorLog has the
// reason. Alone, Route limits each route for all clients together; with [Combined], for each
// client.
func Route() Key {
	var outside notice
	return Key{requestKey{Kind: "route:", Make: func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			outside.say(r, errNoPattern.Error())
			return "", errNoPattern
		}
		return r.Pattern, nil
	}}}
}

// Method counts requests by their method. All methods that net/http does not define are "other",
// because a client can invent any number of them.
func Method() Key {
	return Key{requestKey{Kind: "method:", Make: func(r *http.Request) (string, error) {
		switch r.Method {
		case "":
			return http.MethodGet, nil
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, nil
		}
		return "other", nil
	}}}
}

// Path counts requests by the path of their URL in a canonical form, so that a client cannot get a
// new limit by spelling it differently. Percent-encoding is decoded, repeated slashes become one,
// and "." and ".." are resolved, as nginx does to choose a location. For example, "//login",
// "/./login", "/x/../login" and "/%6Cogin" all become "/login". Letter case, a slash at the end,
// and parameters such as ";a=1" are kept. The query is ignored.
//
// A client can request any number of paths, and each has its own limit. Combine Path with the
// client's address ([Combined]), or use [Route].
func Path() Key {
	return Key{requestKey{Kind: "path:", Make: func(r *http.Request) (string, error) {
		if r.URL == nil {
			return "", ErrNoIdentity
		}
		return cleanPath(r.URL.Path), nil
	}}}
}

// cleanPath returns a decoded path in the form of [Path].
func cleanPath(p string) string {
	if p == "*" { // a path of OPTIONS
		return p
	}
	clean := path.Clean("/" + p)
	if clean != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		clean += "/"
	}
	return clean
}

// Global is the same key for all requests.
func Global() Key { return Key{maker.Global()} }

// Combined combines keys in their order, for example to limit each route for each user. It encodes
// them as netstrings, so that two combinations are never equal. If one of the keys has an error,
// the first error is returned. There must be at least one key.
func Combined(keys ...Key) Key { return Key{maker.Combined(inside("Combined", keys))} }

// First uses the first of keys that applies, such as
//
//	First(APIKey("X-API-Key", KnownKeys(issued)), User(login), PeerIP())
//
// A Key applies unless its error is [ErrNoIdentity]. Any other error ends the search, because a
// client that cannot be identified now must not be counted as somebody else. There must be at least
// one key.
func First(keys ...Key) Key { return Key{maker.First(inside("First", keys))} }

// inside returns the underlying keys of the arguments of a constructor.
func inside(constructor string, keys []Key) ([]requestKey, error) {
	return guard.Checked(constructor, keys, func(k Key) requestKey { return k.key })
}
