package memstore_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// families are sets of keys like those that programs make. key returns the ith key of a family,
// which differs from the others in a few bytes.
var families = []struct {
	name string
	key  func(i int) string
}{
	{"numbers", func(i int) string { return fmt.Sprint(i) }},
	{"wide numbers", func(i int) string { return fmt.Sprintf("%012d", i) }},
	{"large numbers", func(i int) string { return fmt.Sprint(1_700_000_000_000 + int64(i)) }},
	{"two letters", func(i int) string { return string([]byte{'A' + byte(i/32), 'A' + byte(i%32)}) }},
	{"a prefix of 5", func(i int) string { return fmt.Sprintf("user:%d", i) }},
	{"a prefix of 14", func(i int) string { return fmt.Sprintf("tenant:7:user:%d", i) }},
	{"a prefix of 40", func(i int) string { return fmt.Sprintf("%039d:%d", 0, i) }},
	{"a number first", func(i int) string { return fmt.Sprintf("%d/api/v1/login", i) }},
	{"a number between", func(i int) string { return fmt.Sprintf("GET /users/%04d/orders", i) }},
	{"IPv4, the last bytes", func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/256, i%256) }},
	{"IPv4, the first bytes", func(i int) string { return fmt.Sprintf("%d.%d.0.1", 1+i/256, i%256) }},
	{"IPv6, subnets", func(i int) string { return fmt.Sprintf("2001:db8:%x::/64", i) }},
	{"4 bytes of an address", func(i int) string { return string([]byte{192, 168, byte(i >> 8), byte(i)}) }},
	{"16 bytes of an address", func(i int) string {
		return string([]byte{32, 1, 13, 184, 0, 0, byte(i >> 8), byte(i), 0, 0, 0, 0, 0, 0, 0, 1})
	}},
	{"one or two bits of 8 bytes", func(i int) string { return fewBits(8, i) }},
	{"one or two bits of 16 bytes", func(i int) string { return fewBits(16, i) }},
	{"one or two bits of 80 bytes", func(i int) string { return fewBits(80, i) }},
	{"the space, and a number", func(i int) string { return string(append(word(spaceHi), word(uint64(i))...)) }},
	{"a number, and the space", func(i int) string { return string(append(word(uint64(i)), word(spaceLo)...)) }},
	{"one byte, repeated", func(i int) string { return strings.Repeat(string([]byte{byte(i)}), 1+i/256*8) }},
}

// space is the namespace of all hashes in these tests. Keys that begin or end with values that
// anyone can compute from it are distributed as well as others.
var (
	space            = store.NewNamespace(&store.Rule{Name: "any"}, "")
	spaceHi, spaceLo = space.ID()
)

func word(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// fewBits returns n bytes with one or two bits set.
func fewBits(n, i int) string {
	b, bits := make([]byte, n), 8*n
	b[i%bits/8] ^= 1 << (i % 8)
	if apart := i / bits; apart > 0 {
		i += apart
		b[i%bits/8] ^= 1 << (i % 8)
	}
	return string(b)
}

// uses are the values that tables read from a hash, each a number below 64.
var uses = []struct {
	name string
	of   func(h memstore.Hashed) uint64
}{
	{"table", func(h memstore.Hashed) uint64 { return h.Hi() >> 58 }},
	{"table of the second node", func(h memstore.Hashed) uint64 { return h.Hi() >> 52 % 64 }},
	{"table of the third node", func(h memstore.Hashed) uint64 { return h.Hi() >> 46 % 64 }},
	{"place in the largest table", func(h memstore.Hashed) uint64 { return uint64(h.Home(memstore.MaxSlots)) * 64 / memstore.MaxSlots }},
	{"slot among 64 neighbours", func(h memstore.Hashed) uint64 { return uint64(h.Home(memstore.MaxSlots)) % 64 }},
	{"slot of a small table", func(h memstore.Hashed) uint64 { return uint64(h.Home(64)) }},
	{"lower bits of the tag", func(h memstore.Hashed) uint64 { return h.Tag() % 64 }},
	{"upper bits of the tag", func(h memstore.Hashed) uint64 { return h.Tag() / 4 }},
	{"table and slot", func(h memstore.Hashed) uint64 { return h.Hi()>>61*8 + h.Lo()>>61 }},
	{"table and tag", func(h memstore.Hashed) uint64 { return h.Hi()>>61*8 + h.Tag()%8 }},
	{"slot and tag", func(h memstore.Hashed) uint64 { return h.Lo()>>61*8 + h.Tag()%8 }},
}

// TestKeysSpreadEvenlyWithEverySecret counts the keys of each family in the 64 cells of each use.
// It adds up the squares of the deviations from the average, divided by the average. For an even
// distribution, the sum is about 63; a sum of 180 or more occurs once in 10^12 times.
func TestKeysSpreadEvenlyWithEverySecret(t *testing.T) {
	const keys, cells = 1024, 64
	secrets := effort.Of(100, 400, 2500) / scale
	for _, family := range families {
		seen := map[string]bool{}
		var names [keys]string
		for i := range names {
			names[i] = family.key(i)
			seen[names[i]] = true
		}
		if len(seen) != keys {
			t.Fatalf("%s: %d different keys, want %d", family.name, len(seen), keys)
		}
		uneven := make([]int, len(uses))
		for number := range secrets {
			secret := memstore.SecretOf(number)
			var counts [16][cells]int
			for _, name := range names {
				h := secret.Hash(space, name)
				for u := range uses {
					counts[u][uses[u].of(h)]++
				}
			}
			for u := range uses {
				squares := 0
				for _, n := range counts[u] {
					squares += (n - keys/cells) * (n - keys/cells)
				}
				if squares > 180*keys/cells {
					uneven[u]++
				}
			}
		}
		for u, n := range uneven {
			if n > 0 {
				t.Errorf("%s, %s: uneven with %d of %d secrets", family.name, uses[u].name, n, secrets)
			}
		}
	}
}

// TestEachByteOfAKeyCounts changes each byte of a key to every other value, one at a time, and the
// key's length.
func TestEachByteOfAKeyCounts(t *testing.T) {
	for number := range max(1, effort.Of(1, 2, 5)/scale) {
		secret := memstore.SecretOf(number)
		var shorter memstore.Hashed
		for length := 1; length <= 100; length++ {
			key := []byte(strings.Repeat("x", length))
			whole := secret.Hash(space, string(key))
			if whole.Hi() == shorter.Hi() || whole.Lo() == shorter.Lo() {
				t.Fatalf("secret %d: a key of %d bytes is as one of %d", number, length-1, length)
			}
			shorter = whole
			for i := range key {
				for other := range 256 {
					key[i] = byte(other)
					if h := secret.Hash(space, string(key)); other != 'x' && (h.Hi() == whole.Hi() || h.Lo() == whole.Lo()) {
						t.Fatalf("secret %d: byte %d of a key of %d bytes does not count", number, i, length)
					}
				}
				key[i] = 'x'
			}
		}
	}
}

// TestShortKeysHaveHashesOfTheirOwn tries bytes at the ends of their range, because the bytes of a
// word of the hash may overlap.
func TestShortKeysHaveHashesOfTheirOwn(t *testing.T) {
	secret, known, keys := memstore.SecretOf(1), map[memstore.Hashed]string{}, []string{""}
	for len(keys[0]) < 4 {
		var longer []string
		for _, key := range keys {
			for _, b := range []byte{0, 1, 2, 0x7f, 0x80, 0xfe, 0xff} {
				longer = append(longer, key+string([]byte{b}))
			}
		}
		for _, key := range longer {
			h := secret.Hash(space, key)
			if other, ok := known[h]; ok {
				t.Errorf("%q and %q have one hash", key, other)
			}
			known[h] = key
		}
		keys = longer
	}
}

// TestEachStoreHashesInItsOwnWay compares the hashes of two stores.
func TestEachStoreHashesInItsOwnWay(t *testing.T) {
	a, b := newStore(t).Hash(space, "k"), newStore(t).Hash(space, "k")
	if a.Hi() == b.Hi() || a.Lo() == b.Lo() {
		t.Errorf("%x and %x", a, b)
	}
}
