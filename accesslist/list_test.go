package accesslist_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

func list(t testing.TB, entries ...string) *accesslist.List {
	t.Helper()
	l, err := accesslist.NewList(entries...)
	require.NoError(t, err)
	return l
}

// has reports whether key is on l, as a limiter sees it. It reports false if l has prefixes and key
// has no address.
func has(t testing.TB, l *accesslist.List, key string) bool {
	t.Helper()
	r, err := allowing(t, l).Allow(t.Context(), key)
	if !errors.Is(err, accesslist.ErrNoAddr) {
		require.NoError(t, err)
	}
	return r.Allowed
}

// allowing returns a limiter that admits the keys on l, and nothing else.
func allowing(t testing.TB, l *accesslist.List) ratelimit.Limiter {
	t.Helper()
	return limiter(t, ratelimittest.Static(ratelimit.Result{}, nil), accesslist.Lists{Allow: l})
}

func TestWhatAListHolds(t *testing.T) {
	for _, tt := range []struct{ entry, in, out string }{
		{"=user:42", "user:42", "user:421"},
		{"=user:42", "user:42", "User:42"},
		{"== =", "= =", "=="},
		{"=192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1"}, // the key, not the address
		{"192.0.2.1", "192.0.2.1", "192.0.2.2"},
		{"192.0.2.1", "::ffff:192.0.2.1", "::192.0.2.1"},
		{"192.0.2.1", "::FFFF:c000:201", "192.0.2.1:443"},
		{"192.0.2.0/24", "192.0.2.255", "192.0.3.0"},
		{"192.0.2.0/24", "192.0.2.0", "192.0.2.0:443"},
		{"192.0.2.0/24", "192.0.2.0/24", "192.0.3.0/24"},
		{"192.0.2.0/24", "192.0.2.128/25", "192.0.2.0/33"},
		{"2001:db8::/32", "2001:db8::/64", "2001:db9::/64"},
		{"2001:db8::/32", "2001:DB8:0:0::1/64", "2001:db8::/-1"},
		{"0.0.0.0/0", "203.0.113.9", "2001:db8::1"},
		{"::ffff:192.0.2.1", "192.0.2.1", "192.0.2.0"},
		{"::ffff:192.0.2.0/120", "192.0.2.77", "192.0.1.77"},
		{"::ffff:0:0/96", "198.51.100.1", "::1"},
		{"64:ff9b::192.0.2.1", "192.0.2.1", "64:ff9b::192.0.2.2"},
		{"64:ff9b::192.0.2.0/120", "192.0.2.77", "192.0.1.77"},
		{"192.0.2.0/24", "64:ff9b::192.0.2.1", "64:ff9b::192.0.1.1"},
		{"192.0.2.0/24", "::ffff:192.0.2.0/121", "::ffff:192.0.1.0/121"},
		{"2001:db8::1", "2001:db8:0:0:0:0:0:1", "2001:db8::2"},
		{"2001:db8::/32", "2001:DB8:ffff::", "2001:db9::"},
		{"fe80::/10", "fe80::1%eth0", "fec0::1%eth0"},
		{"192.0.2.1", "::ffff:192.0.2.1%eth0", "192.0.2.1%eth0"},
		{"::/0", "2001:db8::1", "192.0.2.1"},
		{"::/0", "::1", "::ffff:192.0.2.1"},
	} {
		l := list(t, tt.entry)
		require.Equal(t, 1, l.Len())
		require.True(t, has(t, l, tt.in), "%s holds %s", tt.entry, tt.in)
		require.False(t, has(t, l, tt.out), "%s does not hold %s", tt.entry, tt.out)
	}
}

func TestAnEntryThatIsWrongIsNamed(t *testing.T) {
	for entry, why := range map[string]string{
		"":                        "an entry must be",
		"=":                       "0 bytes",
		"=" + longKey:             "65537 bytes",
		"user:42":                 "an entry must be",
		"10.0.0.0/33":             "prefix length",
		"10.0.0.0/":               "ParsePrefix",
		"10.0.0/24":               "ParsePrefix",
		"10.0.0.01":               "leading zero",
		" 10.0.0.1":               "an entry must be",
		"10.1.2.3/8":              "10.0.0.0/8 or 10.1.2.3/32",
		"2001:db8::1/32":          "2001:db8::/32 or 2001:db8::1/128",
		"fe80::1%eth0":            "zone",
		"fe80::%eth0/64":          "zone",
		"::ffff:192.0.2.1%eth0":   "zone",
		"::ffff:0.0.0.0/95":       "/96",
		"64:ff9b::/64":            "/96",
		"::ffff:192.0.2.1/120":    "192.0.2.0/24 or 192.0.2.1/32",
		"192.0.2.1/24 # internal": "bad bits after slash",
	} {
		l, err := accesslist.NewList("192.0.2.1", entry, "also wrong")
		require.Nil(t, l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, entry)
		require.ErrorContains(t, err, fmt.Sprintf("entry 2, %.100q", entry))
		require.ErrorContains(t, err, why)
	}
}

var longKey = strings.Repeat("k", 64<<10+1)

func TestAListIsReadLineByLine(t *testing.T) {
	l, err := accesslist.ParseList(strings.NewReader("# the office\r\n" +
		"\t192.0.2.0/24 \r\n" +
		"2001:db8::1# one of its machines\n" +
		"\n" +
		"   # nothing\n" +
		"  =user #42  \n" +
		"=" + longKey[1:] + "\n" +
		"192.0.2.0/24"))
	require.NoError(t, err)
	require.Equal(t, 4, l.Len())
	for _, key := range []string{"192.0.2.9", "2001:db8::1", "user #42", longKey[1:]} {
		require.True(t, has(t, l, key), "%.20s", key)
	}
	l, err = accesslist.ParseList(strings.NewReader(""))
	require.NoError(t, err)
	require.Zero(t, l.Len())
}

func TestALineThatIsWrongIsNamed(t *testing.T) {
	_, err := accesslist.ParseList(strings.NewReader("# a\n\n10.0.0.0/8\n10.0.0.0/80 # b\n"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, `line 4, "10.0.0.0/80"`)
	_, err = accesslist.ParseList(strings.NewReader("10.0.0.0/8\n=" + longKey + longKey))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "line 2")
	failure := errors.New("the disk is gone")
	_, err = accesslist.ParseList(io.MultiReader(strings.NewReader("10.0.0.0/8\n10.0.0.1\n"), iotest.ErrReader(failure)))
	require.ErrorIs(t, err, failure)
	require.NotErrorIs(t, err, ratelimit.ErrInvalidOption)
	require.ErrorContains(t, err, "line 3")
}

func TestANilListIsEmpty(t *testing.T) {
	var none *accesslist.List
	for _, l := range []*accesslist.List{none, new(accesslist.List), list(t)} {
		require.Zero(t, l.Len())
		require.False(t, has(t, l, "192.0.2.1"))
	}
}

// The oracle compares with each prefix, one after the other.
func TestAListHoldsWhatItsPrefixesHold(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var entries []string
		var prefixes []netip.Prefix
		for range random.IntN(30) {
			p := randomPrefix(random)
			entries, prefixes = append(entries, p.String()), append(prefixes, p)
		}
		lim := allowing(t, list(t, entries...))
		for range 200 {
			a := randomAddr(random)
			want := false
			for _, p := range prefixes {
				want = want || p.Contains(a)
			}
			require.Equal(t, want, allow(t, lim, a.String()).Allowed, "%v in %v", a, entries)
		}
	}
}

// randomAddr returns an address in one of a few networks, so that prefixes and addresses meet.
func randomAddr(random *rand.Rand) netip.Addr {
	if random.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{10, byte(random.IntN(3)), byte(random.IntN(3)), byte(random.Uint32())})
	}
	a := [16]byte{0x20, 1, 0xd, 0xb8}
	a[4], a[9], a[15] = byte(random.IntN(3)), byte(random.IntN(3)), byte(random.Uint32())
	return netip.AddrFrom16(a)
}

func randomPrefix(random *rand.Rand) netip.Prefix {
	a := randomAddr(random)
	return netip.PrefixFrom(a, 8+random.IntN(a.BitLen()-7)).Masked()
}

func FuzzAKeyIsReadAsAnAddressAsByNetip(f *testing.F) {
	for _, key := range []string{
		"", "1", "1.2.3.4", "1.2.3.4%eth0", "1.2.3.04", "::", "::1%", "::1%a%b", "1::ffff:1.2.3.4", "%", "fe80::1%eth0", "::ffff:1.2.3.4%eth0",
		"user:42", "cafe:1", "2001:db8:0:0:0:0:0:1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255", "0000:0000:0000:0000:0000:0000:0000:00000", "1.2.3.4:80", "[::1]",
	} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		want, err := netip.ParseAddr(key)
		got, ok := accesslist.AddrOf(key)
		require.Equal(t, err == nil, ok)
		if ok {
			require.Equal(t, want.WithZone(""), got)
		}
	})
}

func FuzzAnEntryIsAListOrAnError(f *testing.F) {
	for _, entry := range []string{"=key", "10.0.0.0/8", "::ffff:1.2.3.4/97", "fe80::%1/64", "1.2.3.4/-1", "::/129"} {
		f.Add(entry)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		l, err := accesslist.NewList(entry)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
			return
		}
		require.Equal(t, 1, l.Len())
		key, exact := strings.CutPrefix(entry, "=")
		if !exact {
			key, _, _ = strings.Cut(entry, "/") // its first address
		}
		require.True(t, has(t, l, key))
	})
}
