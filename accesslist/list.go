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

// List is a set of exact keys and of IP prefixes. Use [NewList] or [ParseList] to create one; it
// never changes afterwards. A nil List and the zero value are empty.
//
// An entry is one of these:
//
//	=user:42          the key after the "=", byte for byte: 1 byte to 64 KiB
//	192.0.2.0/24      an IP prefix, without bits set beyond its length
//	2001:db8::1       an address: a prefix of full length
//	::ffff:192.0.2.1  an IPv4 address: mapped and NAT64 addresses (64:ff9b::/96),
//	                  and prefixes of them, count as IPv4
//
// An IPv6 prefix contains no IPv4 address, not even ::/0 does. Entries with zones are refused: a
// prefix contains its addresses in every zone. Duplicate and overlapping entries are allowed.
//
// A prefix costs about 60 bytes if the prefixes are far apart, and less if they are close together.
// A key costs its own length and about 30 bytes.
type List struct {
	keys     map[string]struct{}
	prefixes bart.Lite
}

const maxKey = 64 << 10 // bytes

// NewList returns a list of the entries. If an entry is invalid, it returns
// [ratelimit.ErrInvalidOption]; the text names the first invalid entry, counted from 1.
func NewList(entries ...string) (*List, error) {
	l := new(List)
	for i, entry := range entries {
		if err := l.add(entry); err != nil {
			return nil, fmt.Errorf("%w: entry %d, %.100q: %w", ratelimit.ErrInvalidOption, i+1, entry, err)
		}
	}
	return l, nil
}

// ParseList reads a list with one entry per line. It skips empty lines, space around entries, and
// comments, which begin with "#". In a line with a key, a "#" is part of the key. For a key that
// begins or ends with space, use [NewList].
//
// ParseList returns the error of r, or [ratelimit.ErrInvalidOption] if an entry is invalid or a
// line too long. The text names the line, counted from 1.
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

// entryOf returns the entry of a line, or "" if the line has none.
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

// parsePrefix parses a prefix, or an address as a prefix of full length.
func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("an entry must be an address, a prefix, or \"=\" followed by a key: %w", err)
		}
		if a.Zone() != "" {
			return netip.Prefix{}, errors.New("an address must not have a zone")
		}
		a = clientaddr.Unmap(a)
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text) // ParsePrefix refuses zones
	if err != nil {
		return netip.Prefix{}, err
	}
	if p, err = unmapped(p); err != nil {
		return netip.Prefix{}, err
	}
	if whole := p.Masked(); p != whole { // a mistyped length would let a whole network in, or lock it out
		return netip.Prefix{}, fmt.Errorf("bits are set beyond the prefix length: use %v or %v/%d", whole, p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// unmapped returns p as an IPv4 prefix if it is one written as IPv6, and otherwise p itself.
func unmapped(p netip.Prefix) (netip.Prefix, error) {
	a := clientaddr.Unmap(p.Addr())
	if !a.Is4() || p.Addr().Is4() {
		return p, nil
	}
	if p.Bits() < 96 {
		return netip.Prefix{}, errors.New("the prefix covers more than the IPv4-mapped addresses: use /96 to /128")
	}
	return netip.PrefixFrom(a, p.Bits()-96), nil
}

// hasKey reports whether the list holds key.
func (l *List) hasKey(key string) bool {
	if l == nil {
		return false
	}
	_, found := l.keys[key]
	return found
}

// hasNetwork reports whether a prefix of the list contains all of p, which may be the zero Prefix.
// It returns ErrNoAddr if prefixes contain only a part of it.
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

// hasPrefixes reports whether the list has prefixes, so that addresses matter.
func (l *List) hasPrefixes() bool { return l != nil && l.prefixes.Size() > 0 }
