package accesslist

import "net/netip"

// AddrOf is how a key is read as an address.
var AddrOf = addrOf

// Has is the look-up behind a Limiter.
func (l *List) Has(key string, a netip.Addr) bool { return l.has(key, a) }
