package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

// ErrNoIdentity says that a request does not show who it is from, for use with
// errors.Is.
var ErrNoIdentity = errors.New("httplimit: no identity")

// Key finds out whose bucket a request is charged to: [ClientIP], [APIKey], [User],
// [Route], [Method], [Global], [KeyFunc], and of those [Combined] and [First].
//
// A wrong argument of a constructor is told by [New], and by [Key.Of] on each call. It
// is safe for concurrent use. The zero Key is not valid.
type Key struct {
	name string // in front of what First finds, without ":"
	of   func(r *http.Request) (string, error)
	err  error
}

// Of is the key of r. Its errors are [ErrNoIdentity], those of the function given to
// [KeyFunc], and [ratelimit.ErrInvalidOption] for a Key that is not valid.
func (k Key) Of(r *http.Request) (string, error) {
	if k.err != nil || k.of == nil {
		return "", k.check()
	}
	return k.of(r)
}

// check is the error of a Key that is not valid.
func (k Key) check() error {
	if k.err == nil && k.of == nil {
		return fmt.Errorf("%w: a Key is made by its constructor", ratelimit.ErrInvalidOption)
	}
	return k.err
}

// invalid is the Key that a constructor makes of a wrong argument.
func invalid(format string, args ...any) Key {
	return Key{err: fmt.Errorf("%w: "+format, append([]any{ratelimit.ErrInvalidOption}, args...)...)}
}

// KeyFunc is a Key by a function of your own. If that finds nobody its error is (or
// wraps) [ErrNoIdentity], and so is that of a Key for an empty text. [First] puts name
// in front of the key; it is not empty and has no ":".
//
// f is called with each request, possibly by many at once. A client must not be able
// to choose freely among keys, or it has as many buckets as it likes.
func KeyFunc(name string, f func(r *http.Request) (string, error)) Key {
	if name == "" || strings.Contains(name, ":") {
		return invalid("KeyFunc(%q, f): a name is not empty and has no colon", name)
	}
	if f == nil {
		return invalid("KeyFunc(%q, nil)", name)
	}
	return Key{name: name, of: func(r *http.Request) (string, error) {
		text, err := f(r)
		if err == nil && text == "" {
			err = ErrNoIdentity
		}
		return text, err
	}}
}

// User is the authenticated user, as f tells it: of a session, a token, the request's
// context. "" means that there is none. It goes into keys as it is, so return an id, no
// secret.
func User(f func(r *http.Request) string) Key {
	if f == nil {
		return invalid("User(nil)")
	}
	return KeyFunc("user", func(r *http.Request) (string, error) { return f(r), nil })
}

var errNoPattern = fmt.Errorf("%w: no pattern has matched: the middleware stands around the mux, not within", ErrNoIdentity)

// Route is the pattern of [http.ServeMux] that the request matched, such as
// "GET /users/{id}" (other routers that set [http.Request.Pattern] will do). The mux
// sets it, so that the middleware must be around the handlers of the mux, not around the
// mux: there, and for a request without a pattern, it is [ErrNoIdentity].
//
// Alone it is a bucket for all clients of a route together.
func Route() Key {
	return Key{name: "route", of: func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", errNoPattern
		}
		return r.Pattern, nil
	}}
}

// Method is the request's method. Those that net/http does not know are all "other",
// since a client can invent as many as it likes.
func Method() Key {
	return Key{name: "method", of: func(r *http.Request) (string, error) {
		switch r.Method {
		case "":
			return http.MethodGet, nil
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, nil
		}
		return "other", nil
	}}
}

// Global is one bucket for all requests.
func Global() Key {
	return Key{name: "global", of: func(*http.Request) (string, error) { return "global", nil }}
}

// Combined is all of keys together, such as the client's address and the route: each
// combination has a bucket of its own. The length of each part stands in front of it,
// so that two combinations never make one key. A part that finds nobody is the error
// of the whole. There must be at least one.
func Combined(keys ...Key) Key {
	names, err := checkAll("Combined", keys)
	if err != nil {
		return Key{err: err}
	}
	keys = append([]Key(nil), keys...)
	return Key{name: strings.Join(names, "+"), of: func(r *http.Request) (string, error) {
		var room [128]byte
		text := room[:0]
		for _, k := range keys {
			part, err := k.of(r)
			if err != nil {
				return "", err
			}
			text = strconv.AppendInt(text, int64(len(part)), 10)
			text = append(text, ':')
			text = append(text, part...)
		}
		return string(text), nil
	}}
}

// First is the first of keys that applies, such as
//
//	First(APIKey("X-API-Key", KnownKeys(issued)), User(login), ClientIP())
//
// Each has its own prefix, "X-Api-Key:", "user:" and "ip:" here, so that a user who is
// called 192.0.2.1 is not that address. A key applies unless its error is
// [ErrNoIdentity]; if none does, it is that. There must be at least one, and no two of
// one kind.
func First(keys ...Key) Key {
	names, err := checkAll("First", keys)
	if err != nil {
		return Key{err: err}
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if seen[name] {
			return invalid("First: two keys have the name %q", name)
		}
		seen[name] = true
	}
	keys = append([]Key(nil), keys...)
	return Key{name: strings.Join(names, "|"), of: func(r *http.Request) (string, error) {
		for _, k := range keys {
			text, err := k.of(r)
			if err == nil {
				return k.name + ":" + text, nil
			}
			if !errors.Is(err, ErrNoIdentity) {
				return "", err
			}
		}
		return "", ErrNoIdentity
	}}
}

// checkAll is the names of keys, or what is wrong with them.
func checkAll(of string, keys []Key) (names []string, err error) {
	if len(keys) == 0 {
		return nil, invalid("%s: no keys", of).err
	}
	for _, k := range keys {
		if err := k.check(); err != nil {
			return nil, err
		}
		names = append(names, k.name)
	}
	return names, nil
}
