package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit"
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
type Key struct {
	kind string // what the text begins with; "" if of returns all of it
	of   func(ctx context.Context, fullMethod string) (string, error)
	addr func(ctx context.Context) netip.Addr // of the client; nil if the Key does not know it
	err  error
}

// Of returns the key of the call of fullMethod whose context ctx is. Its errors are those of
// the Key, and [ratelimit.ErrInvalidOption] for an invalid one.
func (k Key) Of(ctx context.Context, fullMethod string) (string, error) {
	if err := k.check(); err != nil {
		return "", err
	}
	return k.text(ctx, fullMethod)
}

// text is Of for a valid Key.
func (k *Key) text(ctx context.Context, fullMethod string) (string, error) {
	text, err := k.of(ctx, fullMethod)
	if err == nil && k.kind != "" {
		text = k.kind + text
	}
	return text, err
}

// check returns the error of an invalid Key.
func (k *Key) check() error {
	if k.err == nil && k.of == nil {
		return fmt.Errorf("%w: the zero Key", ratelimit.ErrInvalidOption)
	}
	return k.err
}

// invalid is the Key that a constructor makes of an invalid argument.
func invalid(format string, args ...any) Key {
	return Key{err: fmt.Errorf("%w: "+format, append([]any{ratelimit.ErrInvalidOption}, args...)...)}
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
	if strings.Contains(name, ":") || strings.Trim(name, "0123456789abcdefABCDEF") == "" {
		return invalid("KeyFunc(%q, f): a name is not empty, has no colon and is not hexadecimal", name)
	}
	if f == nil {
		return invalid("KeyFunc(%q, nil)", name)
	}
	return Key{kind: name + ":", of: func(ctx context.Context, fullMethod string) (string, error) {
		text, err := f(ctx, fullMethod)
		if err == nil && text == "" {
			err = ErrNoIdentity
		}
		return text, err
	}}
}

// User is the authenticated user that f finds in the call's context, where an interceptor
// before this one has put it. "" is [ErrNoIdentity]. The name is part of the key as it is,
// so return an id and no secret. f must be safe for concurrent use.
func User(f func(ctx context.Context) string) Key {
	if f == nil {
		return invalid("User(nil)")
	}
	return KeyFunc("user", func(ctx context.Context, _ string) (string, error) { return f(ctx), nil })
}

// Route is the full method of the call, "/package.Service/Method".
//
// On a server with an UnknownServiceHandler a client chooses it freely. Alone, Route limits
// each method for all clients together; with [Combined], for each client.
func Route() Key {
	return Key{kind: "route:", of: func(_ context.Context, fullMethod string) (string, error) {
		if fullMethod == "" {
			return "", ErrNoIdentity
		}
		return fullMethod, nil
	}}
}

// Global is one key for all calls.
func Global() Key {
	return Key{of: func(context.Context, string) (string, error) { return "global", nil }}
}

// Combined is the combination of keys in their order, such as each route of each user. It
// makes netstrings of them, so that two combinations are never equal. The first error of
// one of them is the error of the combination. There must be at least one.
func Combined(keys ...Key) Key {
	keys, err := checked("Combined", keys)
	if err != nil {
		return Key{err: err}
	}
	return Key{addr: clientAddrOf(keys), of: func(ctx context.Context, fullMethod string) (string, error) {
		var room [128]byte
		text := append(room[:0], "combined:"...)
		for i := range keys {
			k := &keys[i]
			part, err := k.of(ctx, fullMethod)
			if err != nil {
				return "", err
			}
			text = strconv.AppendInt(text, int64(len(k.kind)+len(part)), 10)
			text = append(text, ':')
			text = append(text, k.kind...)
			text = append(text, part...)
			text = append(text, ',')
		}
		return string(text), nil
	}}
}

// First is the first of keys that applies, such as
//
//	First(APIKey("x-api-key", KnownKeys(issued)), User(login), PeerIP())
//
// A Key applies unless its error is [ErrNoIdentity]. Another error ends the search: a
// client that cannot be identified now is not somebody else. There must be at least one.
func First(keys ...Key) Key {
	keys, err := checked("First", keys)
	if err != nil {
		return Key{err: err}
	}
	return Key{addr: clientAddrOf(keys), of: func(ctx context.Context, fullMethod string) (string, error) {
		for i := range keys {
			text, err := keys[i].text(ctx, fullMethod)
			if !errors.Is(err, ErrNoIdentity) {
				return text, err
			}
		}
		return "", ErrNoIdentity
	}}
}

// clientAddrOf returns what finds the address of a client: that of the first key that has it.
func clientAddrOf(keys []Key) func(ctx context.Context) netip.Addr {
	for i := range keys {
		if keys[i].addr != nil {
			return keys[i].addr
		}
	}
	return nil
}

// checked returns a copy of keys, or the error of an invalid one.
func checked(constructor string, keys []Key) ([]Key, error) {
	if len(keys) == 0 {
		return nil, invalid("%s: no keys", constructor).err
	}
	for i := range keys {
		if err := keys[i].check(); err != nil {
			return nil, err
		}
	}
	return append([]Key(nil), keys...), nil
}
