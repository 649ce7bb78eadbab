package accesslist

import "net/netip"

// AddrOf parses a key as an address.
var AddrOf = addrOf

// NetworkOf parses a key as an address or a network.
var NetworkOf = networkOf

// Has is the lookup of a network that a Limiter makes, without the keys.
func (l *List) Has(p netip.Prefix) (bool, error) { return l.hasNetwork(p) }
