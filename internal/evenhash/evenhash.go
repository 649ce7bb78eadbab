// Package evenhash spreads keys evenly, and in the same way in every process and version. It is not
// secret: anyone who reads the code can choose keys that share a hash.
package evenhash

// Of returns the hash of key: FNV-1a (Fowler, Noll, Vo) in 64 bits, with the finalizer of MurmurHash3
// (Appleby). Without that, the last bytes of a key would hardly change the high bits of FNV-1a, and
// user:1 to user:9 would stay together.
func Of(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
