package accesslist

// AddrOf is how a key is read as an address.
var AddrOf = addrOf
