// Package evenhash spreads keys evenly, and the same in every process and version. It is not a secret: whoever
// reads this can choose keys that share a hash.
package evenhash

// Offset is where FNV-1a begins.
const Offset uint64 = 14695981039346656037

// Add continues FNV-1a (Fowler, Noll, Vo) from h, in 64 bits.
func Add(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Mix is the finalizer of MurmurHash3 (Appleby). Without it the last bytes of a key hardly
// change the high bits of FNV-1a, so that user:1 to user:9 would stay together.
func Mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
