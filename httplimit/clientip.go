package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/ratelimit-go/ratelimit/internal/clientip"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

const forwardedFor = "X-Forwarded-For"

// IPOption sets what is optional about a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey = guard.Prefixes

// address finds the address of a client.
type address struct {
	guard.Prefixes
	proxies clientip.Proxies // that are trusted
	notice  notice           // that there seems to be a proxy that is not trusted
}

const notTrusted = "httplimit: a request has X-Forwarded-For, which PeerIP does not read: " +
	"behind a proxy all clients share one limit. Trust the proxy by ClientIP, or of ratelimit-serve by -proxies"

const unknownProxy = "httplimit: a request with X-Forwarded-For comes from none of the proxies of ClientIP, or of -proxies: " +
	"if it is from a proxy, all clients behind that share one limit"

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
// of 6to4 (2002::/16) counts by its first 48 bits: they are one IPv4 address. It is that of [http.Request.RemoteAddr].
//
// Behind a proxy that is the address of the proxy: use [ClientIP]. The first request with
// X-Forwarded-For makes the server's ErrorLog say so. A peer without an IP address, such as at
// a Unix socket, is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", clientip.Proxies{}, opts)
}

// ClientIP is the address of a client behind trusted proxies, and otherwise what [PeerIP]
// is. The proxies are single addresses or networks, such as "10.0.0.7" or "2001:db8::/64", or
// "unix" for all peers at a Unix socket. There must be at least one, and none may be a
// network of all addresses. A client inside such a network can pretend to be anybody.
//
// If the peer is trusted, the client is the first address of X-Forwarded-For, read from
// the right, that is not. At most 4 KiB and 32 hops are read, of all fields of that name
// together. Where these end, or at what is not an address, it is the last trusted address
// before, and [ErrNoIdentity] if there is none. A client can write what it likes into the left
// part of X-Forwarded-For. No other field is believed.
//
// The first X-Forwarded-For from a peer that is not trusted is said in the server's ErrorLog. It
// may be of a proxy that is missing from the list, or of a client that forges it.
func ClientIP(proxies []string, opts ...IPOption) Key {
	trusted, err := clientip.ParseProxies(proxies)
	if err != nil {
		return Key{requestKey{Err: guard.Invalid("ClientIP: %w", err)}}
	}
	return newIPKey("ClientIP", trusted, opts)
}

func newIPKey(constructor string, trusted clientip.Proxies, opts []IPOption) Key {
	prefixes, err := guard.NewPrefixes(constructor, opts)
	a := &address{Prefixes: prefixes, proxies: trusted}
	return Key{requestKey{Make: a.of, Addr: a.addr, Err: err}}
}

var errNoAddress = fmt.Errorf("%w: RemoteAddr is not an IP address", ErrNoIdentity)

func (a *address) of(r *http.Request) (string, error) {
	a.warn(r)
	if a.proxies.None() && a.WholeIPv4() {
		if host, ok := clientip.ParseIPv4Host(r.RemoteAddr); ok {
			return host, nil
		}
	}
	addr, text := a.find(r)
	switch {
	case !addr.IsValid():
		return "", errNoAddress
	case text != "" && a.WholeIPv4():
		return text, nil
	}
	return a.Text(addr), nil
}

// addr returns the whole address, invalid if there is none.
func (a *address) addr(r *http.Request) netip.Addr {
	a.warn(r)
	addr, _ := a.find(r)
	return addr
}

// warn says so if there seems to be a proxy, and none is trusted.
func (a *address) warn(r *http.Request) {
	if a.proxies.None() && len(r.Header[forwardedFor]) > 0 {
		a.notice.say(r, notTrusted)
	}
}

// find returns the address of the client, invalid if there is none. text is the address as a
// part of RemoteAddr, if it is there in canonical form.
func (a *address) find(r *http.Request) (addr netip.Addr, text string) {
	peer, text, trusted := a.proxies.Peer(r)
	if !trusted {
		if !a.proxies.None() && len(r.Header[forwardedFor]) > 0 {
			a.notice.say(r, unknownProxy)
		}
		return peer, text
	}
	if addr = a.proxies.Client(peer, r.Header[forwardedFor]); addr != peer {
		text = ""
	}
	return addr, text
}
