package grpclimit

import (
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/internal/clientip"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

const forwardedFor = "x-forwarded-for"

// IPOption sets what is optional about a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey = guard.Prefixes

// address finds the address of a client.
type address struct {
	guard.Prefixes
	proxies clientip.Proxies // that are trusted
}

// IPv4Prefix groups IPv4 addresses by their first bits, 16 to 32. The default is 32, each address
// for itself. Many who share a network pay for one of them: so limit the address too, lower.
func IPv4Prefix(bits int) IPOption { return guard.IPv4Prefix(bits) }

// IPv6Prefix groups IPv6 addresses by their first bits, 32 to 64. The default is 64. One
// customer has at least a /64, often a /56 or a /48, and can use all its addresses.
func IPv6Prefix(bits int) IPOption { return guard.IPv6Prefix(bits) }

// PeerIP is the address that opened the connection: an IPv4 address such as "192.0.2.1", or
// a network of IPv6 addresses such as "2001:db8::/64". [IPv4Prefix] and [IPv6Prefix] group more of
// them. IPv4 addresses written as IPv6, also by NAT64 (64:ff9b::/96), are IPv4 ones, and zones do
// not count. An address of a network's own NAT64 (64:ff9b:1::/48) stands for itself, with /128. One
// of 6to4 (2002::/16) counts by its first 48 bits: they are one IPv4 address. It is that of [peer.FromContext].
//
// Behind a proxy that is the address of the proxy: use [ClientIP]. A peer without an IP
// address, such as at a Unix socket, is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", clientip.Proxies{}, opts)
}

// ClientIP is the address of a client behind trusted proxies, and otherwise what [PeerIP]
// is. The proxies are single addresses or networks, such as "10.0.0.7" or "2001:db8::/64", or
// "unix" for all peers at a Unix socket. There must be at least one, and none may be a
// network of all addresses. A client inside such a network can pretend to be anybody.
//
// If the peer is trusted, the client is the first address of x-forwarded-for in the
// metadata, read from the right, that is not. At most 4 KiB and 32 hops are read, of all its
// values together. Where these end, or at what is not an address, it is the last trusted
// address before, and [ErrNoIdentity] if there is none. A client can write what it likes into
// the left part of x-forwarded-for. No other metadata is believed.
func ClientIP(proxies []string, opts ...IPOption) Key {
	trusted, err := clientip.ParseProxies(proxies)
	if err != nil {
		return Key{callKey{Err: guard.Invalid("ClientIP: %w", err)}}
	}
	return newIPKey("ClientIP", trusted, opts)
}

func newIPKey(constructor string, trusted clientip.Proxies, opts []IPOption) Key {
	prefixes, err := guard.NewPrefixes(constructor, opts)
	a := &address{prefixes, trusted}
	return Key{callKey{Make: a.of, Addr: a.addr, Err: err}}
}

var errNoAddress = fmt.Errorf("%w: the peer has no IP address", ErrNoIdentity)

func (a *address) of(c call) (string, error) {
	addr := a.addr(c)
	if !addr.IsValid() {
		return "", errNoAddress
	}
	return a.Text(addr), nil
}

// addr returns the whole address, invalid if there is none.
func (a *address) addr(c call) netip.Addr {
	p, ok := peer.FromContext(c.ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	addr := clientaddr.Unmap(addrOf(p.Addr))
	trusted := a.proxies.Trust(addr)
	if !addr.IsValid() {
		trusted = a.proxies.Unix && p.Addr.Network() == "unix"
	}
	if !trusted {
		return addr
	}
	return a.proxies.Client(addr, metadata.ValueFromIncomingContext(c.ctx, forwardedFor))
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
