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

// IPOption configures a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey = guard.Prefixes

// address finds the address of a client.
type address struct {
	guard.Prefixes
	proxies clientip.Proxies // trusted ones
}

// IPv4Prefix groups IPv4 addresses by their first bits, 16 to 32. The default is 32, which counts
// each address separately. With fewer bits, everyone in a network pays for one abusive client, so
// also set a lower limit per address.
func IPv4Prefix(bits int) IPOption { return guard.IPv4Prefix(bits) }

// IPv6Prefix groups IPv6 addresses by their first bits, 32 to 64. The default is 64. A customer of
// a provider has at least a /64, often a /56 or a /48, and can use all its addresses.
func IPv6Prefix(bits int) IPOption { return guard.IPv6Prefix(bits) }

// PeerIP identifies clients by the address that opened the connection ([peer.FromContext]). It is
// an IPv4 address such as "192.0.2.1", or an IPv6 network such as "2001:db8::/64". Use [IPv4Prefix]
// and [IPv6Prefix] to group more addresses.
//
// IPv4 addresses written as IPv6, including those of NAT64 (64:ff9b::/96), count as IPv4, and zones
// are ignored. Each address of a network's own NAT64 (64:ff9b:1::/48) counts separately, as a /128.
// A 6to4 address (2002::/16) counts by its first 48 bits, which stand for one IPv4 address.
//
// Behind a proxy, this is the address of the proxy: use [ClientIP] there. For a peer without an IP
// address, such as on a Unix socket, the error is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", clientip.Proxies{}, opts)
}

// ClientIP identifies clients by their address behind trusted proxies, and otherwise as [PeerIP]
// does. proxies are addresses or networks, such as "10.0.0.7" or "2001:db8::/64", or "unix" for all
// peers on a Unix socket. There must be at least one, and together they must not include all IPv4
// or all IPv6 addresses. A client inside a trusted network can pretend to be anybody.
//
// If the peer is trusted, the client is the first untrusted address of x-forwarded-for in the
// metadata, read from the right. Only the right end is reliable, because a client can write
// anything into the left part. At most 4 KiB and 32 hops are read, of all values together. If the
// addresses end there, or something is not an address, the client is the last trusted address
// before it, or the error is [ErrNoIdentity] if there is none. No other metadata is used.
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

// addr returns the whole address, or an invalid one if there is none.
func (a *address) addr(c call) netip.Addr {
	p, ok := peer.FromContext(c.ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	addr := clientaddr.Unmap(addrOf(p.Addr))
	trusted := a.proxies.Trust(addr)
	if !addr.IsValid() {
		trusted = a.proxies.Unix && atUnixSocket(p)
	}
	if !trusted {
		return addr
	}
	return a.proxies.Client(addr, metadata.ValueFromIncomingContext(c.ctx, forwardedFor))
}

// atUnixSocket reports whether the server received a call on a Unix socket. Behind an http.Server, only the local address
// shows that.
func atUnixSocket(p *peer.Peer) bool {
	if p.LocalAddr != nil {
		return p.LocalAddr.Network() == "unix"
	}
	return p.Addr.Network() == "unix"
}

// addrOf returns the address of a, or an invalid one if it has none.
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
