// Package keyhash makes hashes that stand for keys in what wrappers remember: a key's own
// bytes may be many, and belong to the caller.
package keyhash

import (
	"hash/maphash"

	"github.com/ratelimit-go/ratelimit/store"
)

// Hash is 128 bits of a key, so that no two keys meet.
type Hash struct{ Hi, Lo uint64 }

// Seeds make the hashes of one wrapper its own. The zero Seeds cannot be used.
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

// After returns the hash of a list of keys with their limits: of those that before is of, and then of key.
func (s Seeds) After(before Hash, ns *store.Namespace, key string, l store.Limit) Hash {
	next := struct {
		before, key Hash
		limit       store.Limit
	}{before, s.In(ns, key), l}
	return Hash{maphash.Comparable(s.hi, next), maphash.Comparable(s.lo, next)}
}
