package httplimit

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
)

const (
	forwardedFor    = "X-Forwarded-For"
	maxForwarded    = 4 << 10 // bytes of X-Forwarded-For that are read, from the right
	maxHops         = 32      // and hops
	defaultIPv6Bits = 64      // the least that a customer gets
)

// IPOption sets what is optional about a [PeerIP] or a [ClientIP].
type IPOption func(*ipKey) error

type ipKey struct {
	bits    int            // of IPv6 addresses that make a group
	trusted []netip.Prefix // IPv4 ones not as IPv6
	unix    bool           // whether peers at a Unix socket are trusted
	notice  notice         // that there seems to be a proxy, and none is trusted
}

const notTrusted = "httplimit: a request has X-Forwarded-For, which PeerIP does not read: " +
	"behind a proxy all clients share one limit, use ClientIP"

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
// that of [http.Request.RemoteAddr].
//
// Behind a proxy that is the address of the proxy: use [ClientIP]. The first request with
// X-Forwarded-For makes the server's ErrorLog say so. A peer without an IP address, such as at
// a Unix socket, is [ErrNoIdentity].
func PeerIP(opts ...IPOption) Key {
	return newIPKey("PeerIP", &ipKey{bits: defaultIPv6Bits}, opts)
}

// ClientIP is the address of a client behind trusted proxies, and otherwise what [PeerIP]
// is. The proxies are networks or single addresses, such as "10.0.0.0/8" or "2001:db8::7", or
// "unix" for all peers at a Unix socket. There must be at least one, and none may be a
// network of all addresses.
//
// If the peer is trusted, the client is the first address of X-Forwarded-For, read from
// the right, that is not. At most 4 KiB and 32 hops are read, of all fields of that name
// together. Where these end, or at what is not an address, it is the last trusted address
// before, and [ErrNoIdentity] if there is none. A client can write what it likes into the left part of X-Forwarded-For. No
// other field is believed.
func ClientIP(proxies []string, opts ...IPOption) Key {
	k := &ipKey{bits: defaultIPv6Bits}
	for _, text := range proxies {
		if text == "unix" {
			k.unix = true
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return invalid("ClientIP: %w", err)
		}
		if network.Bits() == 0 {
			return invalid("ClientIP: %q trusts everybody", text)
		}
		k.trusted = append(k.trusted, network)
	}
	if len(proxies) == 0 {
		return invalid("ClientIP: no proxies: use PeerIP")
	}
	return newIPKey("ClientIP", k, opts)
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

var errNoAddress = fmt.Errorf("%w: RemoteAddr is not an IP address", ErrNoIdentity)

func (k *ipKey) of(r *http.Request) (string, error) {
	k.warn(r)
	if len(k.trusted) == 0 && !k.unix {
		if host, ok := ipv4Host(r.RemoteAddr); ok {
			return host, nil
		}
	}
	addr, text := k.find(r)
	switch {
	case !addr.IsValid():
		return "", errNoAddress
	case !addr.Is4():
		network, _ := addr.Prefix(k.bits) // no error: an IPv6 address has that many bits
		var room [48]byte
		return string(network.AppendTo(room[:0])), nil
	case text != "":
		return text, nil
	}
	return addr.String(), nil
}

// addr returns the whole address, invalid if there is none.
func (k *ipKey) addr(r *http.Request) netip.Addr {
	k.warn(r)
	addr, _ := k.find(r)
	return addr
}

// warn says so if there seems to be a proxy, and none is trusted.
func (k *ipKey) warn(r *http.Request) {
	if len(k.trusted) == 0 && !k.unix && len(r.Header[forwardedFor]) > 0 {
		k.notice.say(r, notTrusted)
	}
}

// find returns the address of the client, invalid if there is none. text is the address as a
// part of RemoteAddr, if it is there in canonical form.
func (k *ipKey) find(r *http.Request) (addr netip.Addr, text string) {
	peer, text, ok := parseAddr(r.RemoteAddr)
	if ok && !k.trusts(peer) || !ok && !(k.unix && atUnixSocket(r)) {
		return peer, text // invalid unless ok
	}
	if addr = k.client(peer, r.Header[forwardedFor]); addr != peer {
		text = ""
	}
	return addr, text
}

// atUnixSocket reports whether the server got r at a Unix socket. RemoteAddr does not say:
// it is what the peer's socket is called.
func atUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// client returns the first address of lines, from the right, that is not trusted.
func (k *ipKey) client(peer netip.Addr, lines []string) netip.Addr {
	last, room, hops := peer, maxForwarded, maxHops
	for i := len(lines) - 1; i >= 0; i-- {
		line, more := lines[i], true
		for more {
			cut := strings.LastIndexByte(line[max(0, len(line)-room-1):], ',') // in no more than there is room for
			if more = cut >= 0; more {
				cut += max(0, len(line)-room-1)
			}
			hop := line[cut+1:]
			room -= len(hop) + 1 // with its comma
			hops--
			if room < 0 || hops < 0 {
				return last
			}
			addr, _, ok := parseAddr(strings.Trim(hop, " \t"))
			if !ok {
				return last
			}
			if last = addr; !k.trusts(addr) {
				return addr
			}
			line = line[:max(0, cut)]
		}
	}
	return last
}

func (k *ipKey) trusts(addr netip.Addr) bool {
	for _, network := range k.trusted {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// parseAddr reads "192.0.2.1", "2001:db8::1" and "[2001:db8::1]", the first and last
// also with a port. text is the address as a part of s, if it is IPv4 in canonical form.
func parseAddr(s string) (addr netip.Addr, text string, ok bool) {
	host, port := s, ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return netip.Addr{}, "", false
		}
		host, port = s[1:end], s[end+1:]
	} else if i := strings.IndexByte(s, ':'); i >= 0 && i == strings.LastIndexByte(s, ':') {
		host, port = s[:i], s[i:]
	}
	if !isPort(port) {
		return netip.Addr{}, "", false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, "", false
	}
	if addr.Is4() {
		return addr, host, true
	}
	return clientaddr.Unmap(addr), "", true
}

// ipv4Host returns the host of s, if that is an IPv4 address in canonical form with a port.
// It is parseAddr for most addresses, in half the time.
func ipv4Host(s string) (host string, ok bool) {
	value, digits, dots := 0, 0, 0
	for i, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9':
			if value = 10*value + int(c-'0'); value > 255 || digits > 0 && value < 10 { // as 0 in front has it
				return "", false
			}
			digits++
		case c == '.' && digits > 0:
			value, digits, dots = 0, 0, dots+1
		case c == ':' && digits > 0 && dots == 3:
			return s[:i], isPort(s[i:])
		default:
			return "", false
		}
	}
	return "", false
}

// isPort reports whether s is "", or a colon and digits.
func isPort(s string) bool {
	if s == "" {
		return true
	}
	if s[0] != ':' || len(s) < 2 || len(s) > len(":65535") {
		return false
	}
	for _, c := range []byte(s[1:]) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parseNetwork reads a network, or an address as a network of one.
func parseNetwork(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		addr = clientaddr.Unmap(addr)
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if addr := clientaddr.Unmap(network.Addr()); addr.Is4() && !network.Addr().Is4() { // addresses are compared as IPv4
		if network.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q: more than the IPv4 addresses", s)
		}
		network = netip.PrefixFrom(addr, network.Bits()-96)
	}
	return network, nil
}
