package accesslist

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
)

// List is a set of exact keys and of IP prefixes. Make it by [NewList] or [ParseList]. It never
// changes after that. A nil or zero List is empty.
//
// An entry is
//
//	=user:42          the key behind the "=", byte for byte: 1 byte to 64 KiB
//	192.0.2.0/24      an IP prefix, without bits set behind its length
//	2001:db8::1       an address: a prefix of its whole length
//	::ffff:192.0.2.1  an IPv4 address: mapped ones and those of NAT64 (64:ff9b::/96),
//	                  and prefixes of them, are IPv4's
//
// An IPv6 prefix holds no IPv4 address, not even ::/0. Zones are refused: the addresses of a
// prefix are those of every zone. Entries given twice, or inside others, do no harm.
//
// A prefix costs some 60 bytes if prefixes are far from each other, and less if they are near.
// A key costs its own length and some 30 bytes.
type List struct {
	keys     map[string]struct{}
	prefixes bart.Lite
}

const maxKey = 64 << 10 // bytes

// NewList returns the list of these entries. Its error is [ratelimit.ErrInvalidOption], and
// names the first invalid entry, counted from 1.
func NewList(entries ...string) (*List, error) {
	l := new(List)
	for i, entry := range entries {
		if err := l.add(entry); err != nil {
			return nil, fmt.Errorf("%w: entry %d, %.100q: %w", ratelimit.ErrInvalidOption, i+1, entry, err)
		}
	}
	return l, nil
}

// ParseList reads a list with one entry a line. Space around entries, empty lines and what
// follows a "#" are skipped. In the line of a key a "#" is part of the key. A key that
// begins or ends with space needs [NewList].
//
// Its error is that of r, or [ratelimit.ErrInvalidOption]. It names the first invalid line,
// counted from 1.
func ParseList(r io.Reader) (*List, error) {
	l := new(List)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 2*maxKey)
	number := 1
	for ; lines.Scan(); number++ {
		entry := entryOf(lines.Text())
		if entry == "" {
			continue
		}
		if err := l.add(entry); err != nil {
			return nil, fmt.Errorf("%w: line %d, %.100q: %w", ratelimit.ErrInvalidOption, number, entry, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d: %w", ratelimit.ErrInvalidOption, number, err)
	case err != nil:
		return nil, fmt.Errorf("line %d: %w", number, err)
	}
	return l, nil
}

// entryOf returns the entry of a line, "" if it has none.
func entryOf(line string) string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "=") {
		line, _, _ = strings.Cut(line, "#")
	}
	return strings.TrimSpace(line)
}

func (l *List) add(entry string) error {
	key, exact := strings.CutPrefix(entry, "=")
	if !exact {
		p, err := parsePrefix(entry)
		if err == nil {
			l.prefixes.Insert(p)
		}
		return err
	}
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("a key of %d bytes: 1 to %d are allowed", len(key), maxKey)
	}
	if l.keys == nil {
		l.keys = make(map[string]struct{})
	}
	l.keys[strings.Clone(key)] = struct{}{} // do not keep the whole text that it was cut from
	return nil
}

// parsePrefix returns the prefix of a text, or an address as a prefix of its whole length.
func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("an entry is an address, a prefix or \"=\" and a key: %w", err)
		}
		if a.Zone() != "" {
			return netip.Prefix{}, errors.New("an address with a zone")
		}
		a = clientaddr.Unmap(a)
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text) // which refuses zones
	if err != nil {
		return netip.Prefix{}, err
	}
	if p, err = unmapped(p); err != nil {
		return netip.Prefix{}, err
	}
	if whole := p.Masked(); p != whole { // a mistyped length would let a whole network in, or lock it out
		return netip.Prefix{}, fmt.Errorf("bits are set behind the length: %v or %v/%d?", whole, p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// unmapped returns p as a prefix of IPv4 addresses, if it is one written as IPv6.
func unmapped(p netip.Prefix) (netip.Prefix, error) {
	a := clientaddr.Unmap(p.Addr())
	if !a.Is4() || p.Addr().Is4() {
		return p, nil
	}
	if p.Bits() < 96 {
		return netip.Prefix{}, errors.New("a prefix of more than the mapped IPv4 addresses: they begin at /96")
	}
	return netip.PrefixFrom(a, p.Bits()-96), nil
}

// Len returns the number of different keys and prefixes.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return len(l.keys) + l.prefixes.Size()
}

// hasKey reports whether the list holds key.
func (l *List) hasKey(key string) bool {
	if l == nil {
		return false
	}
	_, found := l.keys[key]
	return found
}

// hasNetwork reports whether a prefix of the list holds all of p, which may be the zero
// Prefix. If prefixes hold only a part of it, the error is ErrNoAddr.
func (l *List) hasNetwork(p netip.Prefix) (bool, error) {
	switch {
	case p.IsSingleIP():
		return l.prefixes.Contains(p.Addr()), nil
	case l.prefixes.LookupPrefix(p):
		return true, nil
	case l.prefixes.OverlapsPrefix(p):
		return false, ErrNoAddr
	}
	return false, nil
}

// hasPrefixes reports whether addresses matter.
func (l *List) hasPrefixes() bool { return l != nil && l.prefixes.Size() > 0 }
