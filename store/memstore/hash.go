package memstore

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/ratelimit-go/ratelimit/store"
)

// hash is the hash of a key. A store keeps 96 bits of it, so that two keys do not collide: with 16
// million keys, the odds of a collision are 1 in 2^49.
type hash struct{ hi, lo uint64 }

// secret makes the hashes of each store different. An attacker who does not know it can neither
// find two keys with the same hash nor fill one table.
type secret struct{ hi, lo lane }

// lane computes one half of a hash, as wyhash does. A step takes 16 bytes: it masks each half of
// them with a secret word, multiplies the halves, and folds the product. The two lanes have only
// the key in common.
type lane struct{ start, middle, last uint64 }

func newSecret() secret {
	return secret{
		hi: lane{rand.Uint64(), rand.Uint64(), rand.Uint64()},
		lo: lane{rand.Uint64(), rand.Uint64(), rand.Uint64()},
	}
}

// hash returns the hash of key in ns. For a key of 17 bytes it takes 5 ns; two calls to
// hash/maphash take 11.
func (s *secret) hash(ns *store.Namespace, key string) hash {
	p, length := []byte(key), uint64(len(key))
	hi, lo := ns.ID()
	hi, lo = hi^s.hi.start, lo^s.lo.start
	for len(p) > 16 {
		x, y := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		hi, lo = fold(hi^x, s.hi.middle^y), fold(lo^y, s.lo.middle^x)
		p = p[16:]
	}
	x, y := ends(p)
	return hash{s.hi.finish(hi^x, y, length), s.lo.finish(lo^y, x, length)}
}

// finish multiplies twice. After a single multiplication, keys that differ in few digits differ in
// few patterns. With one secret in 20, the bits that choose a table and a slot were then unevenly
// distributed.
func (l *lane) finish(x, y, length uint64) uint64 {
	hi, lo := bits.Mul64(x, y^l.last)
	return fold(lo^l.start^length, hi^l.middle)
}

// ends returns the up to 16 bytes of p as two words.
func ends(p []byte) (x, y uint64) {
	switch n := len(p); {
	case n >= 8:
		return binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[n-8:])
	case n >= 4:
		return uint64(binary.LittleEndian.Uint32(p)), uint64(binary.LittleEndian.Uint32(p[n-4:]))
	case n > 0:
		return uint64(p[0])<<16 | uint64(p[n/2])<<8 | uint64(p[n-1]), 0
	}
	return 0, 0
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// home returns the first slot to search for h in a table of this size. It uses other bits than the
// tree of tables and the tag.
func (h hash) home(size int) int {
	i, _ := bits.Mul64(h.lo, uint64(size))
	return int(i)
}

// tag returns a byte of the hash, never 0.
func (h hash) tag() uint8 { return max(uint8(h.lo), 1) }
