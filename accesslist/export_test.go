package accesslist

import "net/netip"

// AddrOf parses a key as an address.
var AddrOf = addrOf

// NetworkOf parses a key as an address or a network.
var NetworkOf = networkOf

// Has is the lookup of a network that a Limiter makes, without the keys.
func (l *List) Has(p netip.Prefix) (bool, error) { return l.hasNetwork(p) }

// Len returns the number of distinct keys and prefixes.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return len(l.keys) + l.prefixes.Size()
}
