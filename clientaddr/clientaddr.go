// Package clientaddr carries a client's IP address in a context, for limiters that decide by it,
// such as those of package accesslist. The key need not be the address: it can be a network, a user
// or a hash.
//
// The middleware of package httplimit and the interceptors of grpclimit store the address that
// their Key finds. Code in front of them can store another one:
//
//	ctx = clientaddr.NewContext(ctx, addr)
package clientaddr

import (
	"context"
	"net/netip"
	"sync"
)

type contextKey struct{}

// NewContext returns a context with the client's address. It overrides the address that middlewares
// find, whether they are inside or outside of this call. The zero Addr means that the address is
// not known.
func NewContext(ctx context.Context, addr netip.Addr) context.Context {
	return context.WithValue(ctx, contextKey{}, addr)
}

// NewContextFunc returns a context whose address is find(arg), unless [NewContext] has set one. It
// is meant for middlewares, and costs one allocation. The first call of [FromContext] calls find,
// which returns the zero Addr if it finds no address. Later calls return the same address, even if
// what arg refers to has changed.
func NewContextFunc[T any](ctx context.Context, arg T, find func(arg T) netip.Addr) context.Context {
	return &found[T]{Context: ctx, arg: arg, find: find}
}

// found is a context that finds the address when it is first asked for it. What is charged by it
// must be refunded by it, although a handler may change the request.
type found[T any] struct {
	context.Context
	arg    T
	find   func(T) netip.Addr
	once   sync.Once
	client netip.Addr
}

type finder interface{ addr() netip.Addr }

func (f *found[T]) addr() netip.Addr {
	f.once.Do(func() { f.client = f.find(f.arg) })
	return f.client
}

func (f *found[T]) Value(key any) any {
	v := f.Context.Value(key)
	if key == (contextKey{}) {
		if _, said := v.(netip.Addr); !said {
			return f
		}
	}
	return v
}

// FromContext returns the client's address as [Unmap] returns it, and reports whether it is known.
// Call it only while the request is served, because a middleware may read the address from the
// request.
func FromContext(ctx context.Context) (addr netip.Addr, ok bool) {
	switch v := ctx.Value(contextKey{}).(type) {
	case netip.Addr:
		addr = v
	case finder:
		addr = v.addr()
	}
	return Unmap(addr), addr.IsValid()
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052

// Unmap returns addr without its zone. It returns IPv4 addresses written as IPv6 as IPv4, both
// ::ffff:192.0.2.1 and 64:ff9b::192.0.2.1 (NAT64).
func Unmap(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("").Unmap()
	if nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}
