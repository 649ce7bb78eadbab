// Package evenhash spreads keys evenly, and in the same way in every process and version. It is not
// secret: anyone who reads the code can choose keys that share a hash.
package evenhash

// Offset is the initial value of FNV-1a.
const Offset uint64 = 14695981039346656037

// Add continues FNV-1a (Fowler, Noll, Vo) from h, in 64 bits.
func Add(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Mix is the finalizer of MurmurHash3 (Appleby). Without it, the last bytes of a key would hardly
// change the high bits of FNV-1a, and user:1 to user:9 would stay together.
func Mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
