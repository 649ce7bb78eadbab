package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// Errors of key functions, for use with errors.Is. Their texts hold no values.
var (
	// ErrNoIdentity: the request has nothing of what a Key looks for.
	ErrNoIdentity = errors.New("httplimit: no identity")
	// ErrAmbiguousIdentity: the request has several values where a Key looks for one.
	ErrAmbiguousIdentity = errors.New("httplimit: more than one identity")
)

// Key says which requests are counted together: those for which it makes the same key.
// The kind of a Key is part of the key, so that keys of different kinds are never equal:
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
// Package grpclimit makes the same keys. A limiter behind both counts each client once.
//
// A request whose key is not known is not counted: [WithKeyErrorHandler] answers it. The
// error is [ErrNoIdentity], [ErrAmbiguousIdentity], one of a function's own, or
// [ratelimit.ErrInvalidKey] for a key over 64 KiB. A panic is not recovered: nothing is
// charged, and the server handles it like a panic of the protected handler.
//
// Invalid arguments of a constructor are an error of [New] and [NewTransport], and of each
// call of [Key.Of]. A Key is safe for concurrent use. The zero Key is invalid.
type Key struct{ key requestKey }

type requestKey = guard.Key[*http.Request]

var maker = &guard.KeyMaker[*http.Request]{None: ErrNoIdentity, Ambiguous: ErrAmbiguousIdentity}

// Of returns the key of r. Its errors are those of the Key, and [ratelimit.ErrInvalidOption]
// for an invalid one.
func (k Key) Of(r *http.Request) (string, error) { return k.key.Of(r) }

// KeyFunc makes a Key of f. For a request that it does not apply to, f returns
// [ErrNoIdentity] or wraps it. An empty text is that error too. f must be safe for concurrent use.
//
// The name is the kind of the keys. Keys with one name are of one kind, whatever made
// them: KeyFunc("user", f) and [User] count the same users. The name is not empty, has no
// colon, and is not a hexadecimal number, which IPv6 addresses begin with.
//
// A client that can choose its key freely has as many limits as it likes.
func KeyFunc(name string, f func(r *http.Request) (string, error)) Key {
	return Key{maker.Func(name, f)}
}

// User is the authenticated user that f finds in a session, a token, or the request's
// context. "" is [ErrNoIdentity]. The name is part of the key as it is, so return an id and
// no secret. It must have been checked: who can claim to be anybody, as by
// [http.Request.BasicAuth], spends the limits of others, or has any number of its own. f must
// be safe for concurrent use.
func User(f func(r *http.Request) string) Key { return Key{maker.User(f)} }

var errNoPattern = fmt.Errorf("%w: no pattern has matched: put the middleware around handlers, not around the mux", ErrNoIdentity)

// Route is the pattern of [http.ServeMux] that the request matched, such as
// "GET /users/{id}". Other routers that set [http.Request.Pattern] will do. Of muxes inside each
// other it is the innermost one's: patterns that are equal in two of them are one Route.
//
// The mux sets the pattern, so put the middleware around handlers of the mux, not around
// the mux. Without a pattern the error is [ErrNoIdentity], and the first time the server's
// ErrorLog says why. Alone, Route limits each route for all clients together; with
// [Combined], for each client.
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

// Method is the request's method. Methods that net/http does not define are all "other",
// since a client can invent any number of them.
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

// Path is the path of the request's URL in one form, so that a client cannot spell it in another way to
// be counted anew: slashes in a row are one slash, and "." and ".." are resolved, after decoding
// what is percent-encoded. That is how nginx chooses a location. So "//login", "/./login",
// "/x/../login" and "/%6Cogin" are "/login". Letter case, a slash at the end and parameters such as
// ";a=1" stay, and the query is no part of it.
//
// A client can ask for any number of paths, and each has a limit of its own. So combine it with the
// address by [Combined], or use [Route].
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
	if p == "*" { // of OPTIONS
		return p
	}
	clean := path.Clean("/" + p)
	if clean != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		clean += "/"
	}
	return clean
}

// Global is one key for all requests.
func Global() Key { return Key{maker.Global()} }

// Combined is the combination of keys in their order, such as each route of each user. It
// makes netstrings of them, so that two combinations are never equal. The first error of
// one of them is the error of the combination. There must be at least one.
func Combined(keys ...Key) Key { return Key{maker.Combined(inside("Combined", keys))} }

// First is the first of keys that applies, such as
//
//	First(APIKey("X-API-Key", KnownKeys(issued)), User(login), PeerIP())
//
// A Key applies unless its error is [ErrNoIdentity]. Another error ends the search: a
// client that cannot be identified now is not somebody else. There must be at least one.
func First(keys ...Key) Key { return Key{maker.First(inside("First", keys))} }

// inside returns what is inside of the arguments of a constructor.
func inside(constructor string, keys []Key) ([]requestKey, error) {
	return guard.Checked(constructor, keys, func(k Key) requestKey { return k.key })
}
