package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

const (
	forwardedFor    = "X-Forwarded-For"
	maxForwarded    = 4 << 10 // bytes of X-Forwarded-For that are read, from the right
	maxHops         = 32      // and hops
	defaultIPv6Bits = 64      // what a customer gets at least
)

// IPOption sets what is optional about a [ClientIP].
type IPOption func(*clientIP) error

type clientIP struct {
	trusted []netip.Prefix // IPv4 ones not as IPv6
	bits    int            // of IPv6 addresses that make a group
}

// TrustedProxies are the networks of the proxies and load balancers in front of this
// server, as "10.0.0.0/8", "2001:db8::/32" or single addresses. Only what these have
// written into X-Forwarded-For is believed. A network of all addresses is refused: with
// it each client could call itself what it likes.
func TrustedProxies(networks ...string) IPOption {
	return func(c *clientIP) error {
		for _, text := range networks {
			network, err := parseNetwork(text)
			if err != nil {
				return fmt.Errorf("%w: TrustedProxies: %w", ratelimit.ErrInvalidOption, err)
			}
			if network.Bits() == 0 {
				return fmt.Errorf("%w: TrustedProxies(%q) trusts everybody", ratelimit.ErrInvalidOption, text)
			}
			c.trusted = append(c.trusted, network)
		}
		return nil
	}
}

// IPv6Prefix groups IPv6 addresses by their first bits, 32 to 64, in place of 64. One
// customer has at least a /64 and often a /56 or a /48, all addresses of which he can
// use.
func IPv6Prefix(bits int) IPOption {
	return func(c *clientIP) error {
		if bits < 32 || bits > 64 {
			return fmt.Errorf("%w: IPv6Prefix(%d): 32 to 64", ratelimit.ErrInvalidOption, bits)
		}
		c.bits = bits
		return nil
	}
}

// ClientIP is the address of the client: an IPv4 address such as "192.0.2.1", or a
// network of IPv6 addresses such as "2001:db8::/64" ([IPv6Prefix]). IPv4 addresses
// written as IPv6 are IPv4 ones, and zones do not count.
//
// It is that of [http.Request.RemoteAddr]. If that is one of the [TrustedProxies], it
// is the first address of X-Forwarded-For, read from the right, that is none of them. At
// most 4 KiB and 32 hops are read, of all fields of that name together. Where these
// end, or with something that is no address, it is the last trusted address before. A
// client can write what it likes into the left part of X-Forwarded-For, and no other
// field is believed at all.
//
// A RemoteAddr that is no address, such as that of a Unix socket, is [ErrNoIdentity].
func ClientIP(opts ...IPOption) Key {
	c := &clientIP{bits: defaultIPv6Bits}
	for _, opt := range opts {
		if opt == nil {
			return invalid("ClientIP: an IPOption is nil")
		}
		if err := opt(c); err != nil {
			return Key{err: err}
		}
	}
	return Key{name: "ip", of: c.of}
}

var errNoAddress = fmt.Errorf("%w: RemoteAddr is no address", ErrNoIdentity)

func (c *clientIP) of(r *http.Request) (string, error) {
	if len(c.trusted) == 0 {
		if host, ok := ipv4Host(r.RemoteAddr); ok {
			return host, nil
		}
	}
	peer, text, ok := parseAddr(r.RemoteAddr)
	if !ok {
		return "", errNoAddress
	}
	addr := peer
	if len(c.trusted) > 0 && c.trusts(peer) {
		addr = c.client(peer, r.Header[forwardedFor])
	}
	switch {
	case !addr.Is4():
		network, _ := addr.Prefix(c.bits) // no error: an IPv6 address has that many bits
		var room [48]byte
		return string(network.AppendTo(room[:0])), nil
	case addr == peer && text != "":
		return text, nil
	}
	return addr.String(), nil
}

// client is the first address of lines, from the right, that is not trusted.
func (c *clientIP) client(peer netip.Addr, lines []string) netip.Addr {
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
			if last = addr; !c.trusts(addr) {
				return addr
			}
			line = line[:max(0, cut)]
		}
	}
	return last
}

func (c *clientIP) trusts(addr netip.Addr) bool {
	for _, network := range c.trusted {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// parseAddr reads "192.0.2.1", "2001:db8::1" and "[2001:db8::1]", the first and last
// also with a port. text is a part of s, if that is an IPv4 address in its one form.
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
	return addr.WithZone("").Unmap(), "", true
}

// ipv4Host is the host of s, if that is an IPv4 address in its one form with a port. It
// says what parseAddr says of most addresses, in half the time.
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

// isPort is whether s is "", or a colon and digits.
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
		addr = addr.WithZone("").Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if addr := network.Addr(); addr.Is4In6() { // addresses are compared as IPv4
		if network.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q: more than the IPv4 addresses", s)
		}
		network = netip.PrefixFrom(addr.Unmap(), network.Bits()-96)
	}
	return network, nil
}
