package grpclimit

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
)

const defaultIPv6Bits = 64 // the least that a customer gets

// IPOption sets what is optional about a [PeerIP].
type IPOption func(*ipKey) error

type ipKey struct{ bits int } // of IPv6 addresses that make a group

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
// written as IPv6, also by NAT64 (64:ff9b::/96), are IPv4 ones, and zones do not count. It is
// that of [peer.FromContext].
//
// Behind a proxy that is the address of the proxy. Metadata such as x-forwarded-for is
// not read: a client can write what it likes there. Use [User] or [KeyFunc] if your proxy
// vouches for it. A peer without an IP address, such as at a Unix socket, is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	k := &ipKey{bits: defaultIPv6Bits}
	for _, opt := range opts {
		if opt == nil {
			return invalid("PeerIP: an IPOption is nil")
		}
		if err := opt(k); err != nil {
			return Key{err: err}
		}
	}
	return Key{of: k.of, addr: peerAddr}
}

var errNoAddress = fmt.Errorf("%w: the peer has no IP address", ErrNoIdentity)

func (k *ipKey) of(ctx context.Context, _ string) (string, error) {
	addr := peerAddr(ctx)
	switch {
	case !addr.IsValid():
		return "", errNoAddress
	case addr.Is4():
		return addr.String(), nil
	}
	network, _ := addr.Prefix(k.bits) // no error: an IPv6 address has that many bits
	return network.String(), nil
}

// peerAddr returns the address that opened the connection, invalid if there is none.
func peerAddr(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return clientaddr.Unmap(addrOf(p.Addr))
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
