package grpclimit

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/grpclimit/internal/clientip"
)

const defaultIPv6Bits = 64 // the least that a customer gets

const forwardedFor = "x-forwarded-for"

// IPOption sets what is optional about a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey struct {
	bits    int              // of IPv6 addresses that make a group
	proxies clientip.Proxies // that are trusted
}

// IPv6Prefix groups IPv6 addresses by their first bits, 32 to 64. The default is 64. One
// customer has at least a /64, often a /56 or a /48, and can use all its addresses.
func IPv6Prefix(bits int) IPOption {
	return func(k *ipKey) error {
		if bits < 32 || bits > 64 {
			return fmt.Errorf("%w: IPv6Prefix(%d): 32 to 64", ratelimit.ErrInvalidOption, bits)
		}
		k.bits = bits
		return nil
	}
}

// PeerIP is the address that opened the connection: an IPv4 address such as "192.0.2.1", or
// a network of IPv6 addresses such as "2001:db8::/64" ([IPv6Prefix]). IPv4 addresses
// written as IPv6, also by NAT64 (64:ff9b::/96), are IPv4 ones, and zones do not count. An
// address of a network's own NAT64 (64:ff9b:1::/48) stands for itself, with /128. It is
// that of [peer.FromContext].
//
// Behind a proxy that is the address of the proxy: use [ClientIP]. A peer without an IP
// address, such as at a Unix socket, is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", &ipKey{bits: defaultIPv6Bits}, opts)
}

// ClientIP is the address of a client behind trusted proxies, and otherwise what [PeerIP]
// is. The proxies are networks or single addresses, such as "10.0.0.0/8" or "2001:db8::7", or
// "unix" for all peers at a Unix socket. There must be at least one, and none may be a
// network of all addresses.
//
// If the peer is trusted, the client is the first address of x-forwarded-for in the
// metadata, read from the right, that is not. At most 4 KiB and 32 hops are read, of all its
// values together. Where these end, or at what is not an address, it is the last trusted
// address before, and [ErrNoIdentity] if there is none. A client can write what it likes into
// the left part of x-forwarded-for. No other metadata is believed.
func ClientIP(proxies []string, opts ...IPOption) Key {
	trusted, err := clientip.ParseProxies(proxies)
	if err != nil {
		return invalid("ClientIP: %w", err)
	}
	return newIPKey("ClientIP", &ipKey{bits: defaultIPv6Bits, proxies: trusted}, opts)
}

func newIPKey(constructor string, k *ipKey, opts []IPOption) Key {
	for _, opt := range opts {
		if opt == nil {
			return invalid("%s: an IPOption is nil", constructor)
		}
		if err := opt(k); err != nil {
			return Key{err: err}
		}
	}
	return Key{of: k.of, addr: k.addr}
}

var errNoAddress = fmt.Errorf("%w: the peer has no IP address", ErrNoIdentity)

func (k *ipKey) of(ctx context.Context, _ string) (string, error) {
	addr := k.addr(ctx)
	switch {
	case !addr.IsValid():
		return "", errNoAddress
	case addr.Is4():
		return addr.String(), nil
	}
	return clientip.Network(addr, k.bits).String(), nil
}

// addr returns the whole address, invalid if there is none.
func (k *ipKey) addr(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	addr := clientaddr.Unmap(addrOf(p.Addr))
	trusted := k.proxies.Trust(addr)
	if !addr.IsValid() {
		trusted = k.proxies.Unix && p.Addr.Network() == "unix"
	}
	if !trusted {
		return addr
	}
	return k.proxies.Client(addr, metadata.ValueFromIncomingContext(ctx, forwardedFor))
}

// addrOf returns the address of a, invalid if it has none.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	text := a.String()
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr()
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return addr
}
