// Package clientip finds the address of a client behind trusted proxies.
package clientip

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit/clientaddr"
)

const (
	maxForwarded = 4 << 10 // bytes of X-Forwarded-For that are read, from the right
	maxHops      = 32      // hops that are read
)

// Proxies are the trusted proxies. The zero Proxies trusts no proxy.
type Proxies struct {
	networks []netip.Prefix // IPv4 networks are not in IPv6 form
	Unix     bool           // whether peers on a Unix socket are trusted
}

// ParseProxies reads networks, single addresses and "unix". There must be at least one, and together
// they must not include all IPv4 or all IPv6 addresses.
func ParseProxies(texts []string) (Proxies, error) {
	var p Proxies
	for _, text := range texts {
		if text == "unix" {
			p.Unix = true
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return Proxies{}, fmt.Errorf("proxy %q: %w", text, err)
		}
		if network.Bits() == 0 {
			return Proxies{}, fmt.Errorf("proxy %q: it would trust every address", text)
		}
		p.networks = append(p.networks, network)
	}
	if p.None() {
		return Proxies{}, errors.New("want at least one proxy")
	}
	if everyone(p.networks) {
		return Proxies{}, errors.New("together, the proxies would trust every IPv4 or every IPv6 address")
	}
	return p, nil
}

// everyone reports whether networks together include all IPv4 or all IPv6 addresses.
func everyone(networks []netip.Prefix) bool {
	var v4, v6 float64 // the share of all addresses
	var last netip.Prefix
	for _, n := range slices.SortedFunc(slices.Values(networks), netip.Prefix.Compare) {
		switch {
		case last.Overlaps(n): // last includes n, because a network comes before those inside it
			continue
		case n.Addr().Is4():
			v4 += math.Ldexp(1, -n.Bits())
		default:
			v6 += math.Ldexp(1, -n.Bits())
		}
		last = n
	}
	return v4 >= 1 || v6 >= 1
}

// None reports whether no proxy is trusted.
func (p *Proxies) None() bool { return len(p.networks) == 0 && !p.Unix }

// Client reads lines, the values of X-Forwarded-For, from the right. It returns the first address
// that is not trusted. If the lines end, or something is not an address, it returns the last
// address before that, or peer.
func (p *Proxies) Client(peer netip.Addr, lines []string) netip.Addr {
	last, room, hops := peer, maxForwarded, maxHops
	for i := len(lines) - 1; i >= 0; i-- {
		line, more := lines[i], true
		for more {
			cut := strings.LastIndexByte(line[max(0, len(line)-room-1):], ',') // within the bytes that may still be read
			if more = cut >= 0; more {
				cut += max(0, len(line)-room-1)
			}
			hop := line[cut+1:]
			room -= len(hop) + 1 // with its comma
			hops--
			if room < 0 || hops < 0 {
				return last
			}
			addr, _, ok := ParseAddr(strings.Trim(hop, " \t"))
			if !ok {
				return last
			}
			if last = addr; !p.Trust(addr) {
				return addr
			}
			line = line[:max(0, cut)]
		}
	}
	return last
}

// Peer returns the address of r's peer, which is invalid if it has none, and whether the peer is
// trusted. text is as for ParseAddr.
func (p *Proxies) Peer(r *http.Request) (addr netip.Addr, text string, trusted bool) {
	if p.Unix && atUnixSocket(r) {
		return netip.Addr{}, "", true
	}
	addr, text, _ = ParseAddr(r.RemoteAddr)
	return addr, text, p.Trust(addr)
}

// atUnixSocket reports whether the server received r on a Unix socket. RemoteAddr does not show
// that, because it is the name of the peer's socket.
func atUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// Trust reports whether addr belongs to a trusted proxy.
func (p *Proxies) Trust(addr netip.Addr) bool {
	return slices.ContainsFunc(p.networks, func(network netip.Prefix) bool { return network.Contains(addr) })
}

// localNAT64 is the prefix with which networks translate IPv4 addresses for themselves (RFC 8215).
// The mapping is up to each network, but each address stands for one IPv4 address.
var localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")

// sixToFour contains the networks of 48 bits that belong to each IPv4 address (RFC 3056).
var sixToFour = netip.MustParsePrefix("2002::/16")

// Network returns the network that addr is counted with, which has ipv4Bits or ipv6Bits. An IPv6
// address that stands for an IPv4 address is its own network. For a 6to4 address, the network has
// at most the 48 bits of its IPv4 address.
func Network(addr netip.Addr, ipv4Bits, ipv6Bits int) netip.Prefix {
	bits := ipv6Bits
	switch {
	case addr.Is4():
		bits = ipv4Bits
	case localNAT64.Contains(addr):
		bits = addr.BitLen()
	case sixToFour.Contains(addr):
		bits = min(bits, 48)
	}
	network, _ := addr.Prefix(bits) // never fails, because the address has that many bits
	return network
}

// ParseAddr reads "192.0.2.1", "2001:db8::1" and "[2001:db8::1]", the first and last optionally
// with a port. If the address is IPv4 in canonical form, text is that part of s.
func ParseAddr(s string) (addr netip.Addr, text string, ok bool) {
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

// ParseIPv4Host returns the host of s if that is an IPv4 address in canonical form with a port. It
// replaces ParseAddr for most addresses, in half the time.
func ParseIPv4Host(s string) (host string, ok bool) {
	value, digits, dots := 0, 0, 0
	for i, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9':
			if value = 10*value + int(c-'0'); value > 255 || digits > 0 && value < 10 { // also rejects a leading 0
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

// parseNetwork reads a network, or an address as a network of one address.
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
	if addr := clientaddr.Unmap(network.Addr()); addr.Is4() && !network.Addr().Is4() { // because addresses are compared as IPv4
		if network.Bits() < 96 {
			return netip.Prefix{}, errors.New("the prefix covers more than the IPv4-mapped addresses: use /96 to /128")
		}
		network = netip.PrefixFrom(addr, network.Bits()-96)
	}
	return network, nil
}
