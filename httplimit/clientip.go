package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/ratelimit-go/ratelimit/internal/clientip"
	"github.com/ratelimit-go/ratelimit/internal/guard"
)

const forwardedFor = "X-Forwarded-For"

// IPOption configures a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey = guard.Prefixes

// address finds the address of a client.
type address struct {
	guard.Prefixes
	proxies clientip.Proxies // trusted ones
	notice  notice           // logged once if there seems to be an untrusted proxy
}

// The logs of a request from an address that may be a proxy. ratelimit-serve writes them too, for operators.
const (
	notTrusted = "httplimit: a request from %s has X-Forwarded-For, which PeerIP does not read: if that address is a proxy, " +
		"all clients behind it share one limit; use ClientIP with the proxy's address (ratelimit-serve: set -proxies)"
	unknownProxy = "httplimit: a request with X-Forwarded-For comes from %s, which is not among the trusted proxies: if that address is a proxy, " +
		"all clients behind it share one limit; add it to the proxies of ClientIP (ratelimit-serve: to -proxies)"
)

// IPv4Prefix groups IPv4 addresses by their first bits, 16 to 32. The default is 32, which counts
// each address separately. With fewer bits, everyone in a network pays for one abusive client, so
// also set a lower limit per address.
func IPv4Prefix(bits int) IPOption { return guard.IPv4Prefix(bits) }

// IPv6Prefix groups IPv6 addresses by their first bits, 32 to 64. The default is 64. A customer of
// a provider has at least a /64, often a /56 or a /48, and can use all its addresses.
func IPv6Prefix(bits int) IPOption { return guard.IPv6Prefix(bits) }

// PeerIP identifies clients by the address that opened the connection ([http.Request.RemoteAddr]).
// It is an IPv4 address such as "192.0.2.1", or an IPv6 network such as "2001:db8::/64". Use
// [IPv4Prefix] and [IPv6Prefix] to group more addresses.
//
// IPv4 addresses written as IPv6, including those of NAT64 (64:ff9b::/96), count as IPv4, and zones
// are ignored. Each address of a network's own NAT64 (64:ff9b:1::/48) counts separately, as a /128.
// A 6to4 address (2002::/16) counts by its first 48 bits, which stand for one IPv4 address.
//
// Behind a proxy, this is the address of the proxy: use [ClientIP] there. On the first request with
// X-Forwarded-For, the server's ErrorLog says so. For a peer without an IP address, such as on a
// Unix socket, the error is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", clientip.Proxies{}, opts)
}

// ClientIP identifies clients by their address behind trusted proxies, and otherwise as [PeerIP]
// does. proxies are addresses or networks, such as "10.0.0.7" or "2001:db8::/64", or "unix" for all
// peers on a Unix socket. There must be at least one, and together they must not include all IPv4
// or all IPv6 addresses. A client inside a trusted network can pretend to be anybody.
//
// If the peer is trusted, the client is the first untrusted address of X-Forwarded-For, read from
// the right. Only the right end is reliable, because a client can write anything into the left
// part. At most 4 KiB and 32 hops are read, of all fields of that name together. If the addresses
// end there, or something is not an address, the client is the last trusted address before it, or
// the error is [ErrNoIdentity] if there is none. No other header field is used.
//
// The first X-Forwarded-For from an untrusted peer is reported in the server's ErrorLog. That peer
// may be a proxy that is missing from the list, or a client that forges the field.
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

// addr returns the whole address, or an invalid one if there is none.
func (a *address) addr(r *http.Request) netip.Addr {
	a.warn(r)
	addr, _ := a.find(r)
	return addr
}

// warn logs a message if there seems to be a proxy and none is trusted.
func (a *address) warn(r *http.Request) {
	if a.proxies.None() && len(r.Header[forwardedFor]) > 0 {
		a.suspect(r, notTrusted)
	}
}

// suspect logs format once, with the peer's address.
func (a *address) suspect(r *http.Request, format string) {
	a.notice.once.Do(func() {
		peer, _, _ := a.proxies.Peer(r)
		text := peer.String()
		if !peer.IsValid() { // such as "@", or what a middleware has written there
			text = fmt.Sprintf("%.64q", r.RemoteAddr)
		}
		tell(r, fmt.Sprintf(format, text))
	})
}

// find returns the address of the client, or an invalid one if there is none. text is the address
// as it appears in RemoteAddr, if it is there in canonical form.
func (a *address) find(r *http.Request) (addr netip.Addr, text string) {
	peer, text, trusted := a.proxies.Peer(r)
	if !trusted {
		if !a.proxies.None() && len(r.Header[forwardedFor]) > 0 {
			a.suspect(r, unknownProxy)
		}
		return peer, text
	}
	if addr = a.proxies.Client(peer, r.Header[forwardedFor]); addr != peer {
		text = ""
	}
	return addr, text
}
