package observe

import (
	"math/bits"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

// index finds the counters of keys by their hashes, which are evenly distributed. It is a hash
// table with linear probing, at most half full. A map would grow as keys come and go.
type index []*counter // its length is a power of 2

func newIndex(k int) index { return make(index, 1<<bits.Len(uint(2*k-1))) }

// home returns the slot where the search for id begins.
func (x index) home(id keyhash.Hash) int { return int(id.Lo & uint64(len(x)-1)) }

func (x index) next(i int) int { return (i + 1) & (len(x) - 1) }

// find returns the slot that holds id, or the slot where it would be inserted.
func (x index) find(id keyhash.Hash) int {
	i := x.home(id)
	for x[i] != nil && x[i].id != id {
		i = x.next(i)
	}
	return i
}

func (x index) of(id keyhash.Hash) *counter { return x[x.find(id)] }

// drop removes id, and moves counters behind it closer to their home slots.
func (x index) drop(id keyhash.Hash) {
	gap := x.find(id)
	for i := x.next(gap); x[i] != nil; i = x.next(i) {
		probed := (i - x.home(x[i].id)) & (len(x) - 1) // how far x[i] is from its home
		if probed >= (i-gap)&(len(x)-1) {
			x[gap], gap = x[i], i
		}
	}
	x[gap] = nil
}
