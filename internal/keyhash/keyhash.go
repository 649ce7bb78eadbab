// Package keyhash makes hashes that stand for keys in the memory of wrappers. A key itself may be
// long, and its bytes belong to the caller.
package keyhash

import (
	"hash/maphash"

	"github.com/ratelimit-go/ratelimit/store"
)

// Hash is a 128-bit hash of a key, so that no two keys collide.
type Hash struct{ Hi, Lo uint64 }

// Seeds make the hashes of each wrapper different. The zero Seeds cannot be used.
type Seeds struct{ hi, lo maphash.Seed }

// New returns random Seeds.
func New() Seeds { return Seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

// Hash returns the hash of key.
func (s Seeds) Hash(key string) Hash {
	return Hash{maphash.String(s.hi, key), maphash.String(s.lo, key)}
}

// In returns the hash of a key of a namespace.
func (s Seeds) In(ns *store.Namespace, key string) Hash {
	h := s.Hash(key)
	hi, lo := ns.ID()
	return Hash{h.Hi ^ hi, h.Lo ^ lo}
}

// After returns the hash of a list of keys with their limits. before is the hash of all keys but
// the last, which is key.
func (s Seeds) After(before Hash, ns *store.Namespace, key string, l store.Limit) Hash {
	next := struct {
		before, key Hash
		limit       store.Limit
	}{before, s.In(ns, key), l}
	return Hash{maphash.Comparable(s.hi, next), maphash.Comparable(s.lo, next)}
}
