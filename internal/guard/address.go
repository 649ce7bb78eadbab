package guard

import (
	"net/netip"

	"github.com/ratelimit-go/ratelimit/internal/clientip"
	"github.com/ratelimit-go/ratelimit/internal/options"
)

// Prefixes are the numbers of leading bits of addresses that are counted together.
type Prefixes struct{ IPv4, IPv6 int }

const (
	ipv4Bits = 32
	ipv6Bits = 64 // the smallest network that a customer gets
)

// IPv4Prefix is the option with that name.
func IPv4Prefix(bits int) func(*Prefixes) error {
	return options.Checked(options.Within("IPv4Prefix", bits, 16, 32), func(p *Prefixes) { p.IPv4 = bits })
}

// IPv6Prefix is the option with that name.
func IPv6Prefix(bits int) func(*Prefixes) error {
	return options.Checked(options.Within("IPv6Prefix", bits, 32, 64), func(p *Prefixes) { p.IPv6 = bits })
}

// NewPrefixes returns the Prefixes that the options of a constructor set.
func NewPrefixes[O ~func(*Prefixes) error](constructor string, opts []O) (Prefixes, error) {
	p := Prefixes{ipv4Bits, ipv6Bits}
	for _, opt := range opts {
		if opt == nil {
			return p, Invalid("%s: an IPOption is nil", constructor)
		}
		if err := opt(&p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// WholeIPv4 reports whether each IPv4 address is counted separately.
func (p Prefixes) WholeIPv4() bool { return p.IPv4 == ipv4Bits }

// Text returns the key of addr.
func (p Prefixes) Text(addr netip.Addr) string {
	if addr.Is4() && p.WholeIPv4() {
		return addr.String()
	}
	var room [48]byte
	return string(clientip.Network(addr, p.IPv4, p.IPv6).AppendTo(room[:0]))
}
