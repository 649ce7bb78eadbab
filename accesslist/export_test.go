package accesslist

import "net/netip"

// AddrOf is how a key is read as an address.
var AddrOf = addrOf

// NetworkOf is how a key is read as an address or a network.
var NetworkOf = networkOf

// Has is the look-up behind a Limiter, but for keys.
func (l *List) Has(p netip.Prefix) (bool, error) { return l.hasNetwork(p) }
