package grpclimit

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// Errors of key functions, for use with errors.Is. Their texts hold no values.
var (
	// ErrNoIdentity: the call has nothing of what a Key looks for.
	ErrNoIdentity = errors.New("grpclimit: no identity")
	// ErrAmbiguousIdentity: the call has several values where a Key looks for one.
	ErrAmbiguousIdentity = errors.New("grpclimit: more than one identity")
)

// Key says which calls are counted together: those for which it makes the same key.
// The kind of a Key is part of the key, so that keys of different kinds are never equal:
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
// Package httplimit makes the same keys. A limiter behind both counts each client once.
//
// A call whose key is not known is not counted: [WithKeyErrorHandler] answers it. The
// error is [ErrNoIdentity], [ErrAmbiguousIdentity], one of a function's own, or
// [ratelimit.ErrInvalidKey] for a key over 64 KiB. A panic is not recovered: nothing is
// charged, and the server handles it like a panic of a handler. A gRPC server ends, unless
// an interceptor before this one recovers.
//
// Invalid arguments of a constructor are an error of the interceptors' constructors, and of
// each call of [Key.Of]. A Key is safe for concurrent use. The zero Key is invalid.
type Key struct{ key callKey }

type callKey = guard.Key[call]

// call is one of a server or of a client.
type call struct {
	ctx        context.Context
	fullMethod string
	msg        any // of a cost: see [WithCost]
}

var maker = &guard.KeyMaker[call]{None: ErrNoIdentity, Ambiguous: ErrAmbiguousIdentity}

// Of returns the key of the call of fullMethod whose context ctx is. Its errors are those of
// the Key, and [ratelimit.ErrInvalidOption] for an invalid one.
func (k Key) Of(ctx context.Context, fullMethod string) (string, error) {
	return k.key.Of(call{ctx: ctx, fullMethod: fullMethod})
}

// KeyFunc makes a Key of f. For a call that it does not apply to, f returns
// [ErrNoIdentity] or wraps it. An empty text is that error too. f must be safe for concurrent use.
//
// The name is the kind of the keys. Keys with one name are of one kind, whatever made
// them: KeyFunc("user", f) and [User] count the same users. The name is not empty, has no
// colon, and is not a hexadecimal number, which IPv6 addresses begin with.
//
// A client that can choose its key freely has as many limits as it likes.
func KeyFunc(name string, f func(ctx context.Context, fullMethod string) (string, error)) Key {
	if f == nil {
		return Key{maker.Func(name, nil)}
	}
	return Key{maker.Func(name, func(c call) (string, error) { return f(c.ctx, c.fullMethod) })}
}

// User is the authenticated user that f finds in the call's context, where an interceptor
// before this one has put it. "" is [ErrNoIdentity]. The name is part of the key as it is,
// so return an id and no secret. f must be safe for concurrent use.
func User(f func(ctx context.Context) string) Key {
	if f == nil {
		return Key{maker.User(nil)}
	}
	return Key{maker.User(func(c call) string { return f(c.ctx) })}
}

// Route is the full method of the call, "/package.Service/Method".
//
// On a server with an UnknownServiceHandler a client chooses it freely. Alone, Route limits
// each method for all clients together; with [Combined], for each client.
func Route() Key {
	return Key{callKey{Kind: "route:", Make: func(c call) (string, error) {
		if c.fullMethod == "" {
			return "", ErrNoIdentity
		}
		return c.fullMethod, nil
	}}}
}

// Global is one key for all calls.
func Global() Key { return Key{maker.Global()} }

// Combined is the combination of keys in their order, such as each route of each user. It
// makes netstrings of them, so that two combinations are never equal. The first error of
// one of them is the error of the combination. There must be at least one.
func Combined(keys ...Key) Key { return Key{maker.Combined(inside("Combined", keys))} }

// First is the first of keys that applies, such as
//
//	First(APIKey("x-api-key", KnownKeys(issued)), User(login), PeerIP())
//
// A Key applies unless its error is [ErrNoIdentity]. Another error ends the search: a
// client that cannot be identified now is not somebody else. There must be at least one.
func First(keys ...Key) Key { return Key{maker.First(inside("First", keys))} }

// inside returns what is inside of the arguments of a constructor.
func inside(constructor string, keys []Key) ([]callKey, error) {
	return guard.Checked(constructor, keys, func(k Key) callKey { return k.key })
}
