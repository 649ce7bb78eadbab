package ratelimit

import "hash/maphash"

// keyHash stands for a key in what wrappers remember: 128 bits, so that two keys
// never meet. A key's own bytes may be many, and belong to the caller.
type keyHash struct{ hi, lo uint64 }

// keySeeds make the hashes of one wrapper its own.
type keySeeds struct{ hi, lo maphash.Seed }

func newKeySeeds() keySeeds { return keySeeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s keySeeds) hash(key string) keyHash {
	return keyHash{maphash.String(s.hi, key), maphash.String(s.lo, key)}
}
