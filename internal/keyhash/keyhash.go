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

// After returns the hash of a list: of what before is of, and then r, but for its number of events.
func (s Seeds) After(before Hash, r *store.Request) Hash {
	next := struct {
		before, key Hash
		limit       store.Limit
		op          store.Op
	}{before, s.In(r.Namespace, r.Key), r.Limit, r.Op}
	return Hash{maphash.Comparable(s.hi, next), maphash.Comparable(s.lo, next)}
}
