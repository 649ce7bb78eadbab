package grpclimit

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// The errors of keys, for use with errors.Is. Their texts contain no values.
var (
	// ErrNoIdentity means that the call does not have what a Key looks for.
	ErrNoIdentity = errors.New("grpclimit: no identity")
	// ErrAmbiguousIdentity means that the call has several values where a Key looks for one.
	ErrAmbiguousIdentity = errors.New("grpclimit: more than one identity")
)

// Key determines which calls are counted together: those for which it makes the same key. A key
// includes the kind of its Key, so that keys of different kinds are never equal:
//
//	PeerIP, ClientIP   192.0.2.1 or 2001:db8::/64
//	APIKey             apikey:x-api-key:ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0
//	User               user:ann
//	Route              route:/package.Service/Method
//	Global             global
//	KeyFunc            its name, a colon, and what its function returns
//	Combined           combined:9:192.0.2.1,8:user:ann,
//	First              that of the Key that applies
//
// Package httplimit makes the same keys, so a limiter behind both counts each client once.
//
// A call whose key cannot be determined is not counted, and [WithKeyErrorHandler] answers it. The
// error is [ErrNoIdentity], [ErrAmbiguousIdentity], one that your function returned, or
// [ratelimit.ErrInvalidKey] for a key over 64 KiB. A panic in a key function is not recovered:
// nothing is charged, and it is handled like a panic of a handler, which ends a gRPC server unless
// an earlier interceptor recovers.
//
// If an argument of a constructor is invalid, the constructors of the interceptors and every call
// of [Key.Of] return the error. A Key is safe for concurrent use. The zero Key is invalid.
type Key struct{ key callKey }

type callKey = guard.Key[call]

// call is a call of a server or of a client.
type call struct {
	ctx        context.Context
	fullMethod string
	msg        any // for a cost: see [WithCost]
}

var maker = &guard.KeyMaker[call]{None: ErrNoIdentity, Ambiguous: ErrAmbiguousIdentity}

// Of returns the key of the call of fullMethod whose context is ctx. Its errors are those of the
// Key, and [ratelimit.ErrInvalidOption] if the Key is invalid.
func (k Key) Of(ctx context.Context, fullMethod string) (string, error) {
	return k.key.Of(call{ctx: ctx, fullMethod: fullMethod})
}

// KeyFunc makes a Key from f. If f does not apply to a call, it returns [ErrNoIdentity] or an error
// that wraps it. An empty key is that error too. f must be safe for concurrent use.
//
// name is the kind of the keys. Keys with the same name are of the same kind, even if they are made
// differently: KeyFunc("user", f) and [User] count the same users. The name must not be empty,
// contain a colon, or be a hexadecimal number, because IPv6 addresses begin with one.
//
// A client that can choose its key freely has as many limits as it likes.
func KeyFunc(name string, f func(ctx context.Context, fullMethod string) (string, error)) Key {
	if f == nil {
		return Key{maker.Func(name, nil)}
	}
	return Key{maker.Func(name, func(c call) (string, error) { return f(c.ctx, c.fullMethod) })}
}

// User identifies clients by the authenticated user that f finds in the call's context, where an
// earlier interceptor has put it. If f returns "", the error is [ErrNoIdentity]. The name becomes
// part of the key as it is, so return an ID and not a secret. f must be safe for concurrent use.
func User(f func(ctx context.Context) string) Key {
	if f == nil {
		return Key{maker.User(nil)}
	}
	return Key{maker.User(func(c call) string { return f(c.ctx) })}
}

// Route counts calls by their full method, "/package.Service/Method".
//
// On a server with an UnknownServiceHandler, clients can choose the method freely. Alone, Route
// limits each method for all clients together; with [Combined], for each client.
func Route() Key {
	return Key{callKey{Kind: "route:", Make: func(c call) (string, error) {
		if c.fullMethod == "" {
			return "", ErrNoIdentity
		}
		return c.fullMethod, nil
	}}}
}

// Global is the same key for all calls.
func Global() Key { return Key{maker.Global()} }

// Combined combines keys in their order, for example to limit each route for each user. It encodes
// them as netstrings, so that two combinations are never equal. If one of the keys has an error,
// the first error is returned. There must be at least one key.
func Combined(keys ...Key) Key { return Key{maker.Combined(inside("Combined", keys))} }

// First uses the first of keys that applies, such as
//
//	First(APIKey("x-api-key", KnownKeys(issued)), User(login), PeerIP())
//
// A Key applies unless its error is [ErrNoIdentity]. Any other error ends the search, because a
// client that cannot be identified now must not be counted as somebody else. There must be at least
// one key.
func First(keys ...Key) Key { return Key{maker.First(inside("First", keys))} }

// inside returns the underlying keys of the arguments of a constructor.
func inside(constructor string, keys []Key) ([]callKey, error) {
	return guard.Checked(constructor, keys, func(k Key) callKey { return k.key })
}
