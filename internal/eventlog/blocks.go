package eventlog

import "sort"

// last returns the number of the newest block.
func (g *Log) last() int64 { return g.number + int64(len(g.older)) }

// block returns the block with number n, or nil if n is in the range of an earlier block. Above the
// last number, it returns the newest block.
func (g *Log) block(n int64) *block {
	switch i := n - g.number; {
	case i >= int64(len(g.older)):
		return &g.tail
	case g.older[i] != nil:
		return &g.older[i].block
	}
	return nil
}

// lowbit returns the largest power of 2 that divides n.
func lowbit(n int64) int64 { return n & -n }

// covering returns the number of the block whose range contains n. It is below g.number if that block
// was forgotten.
func (g *Log) covering(n int64) int64 {
	for n >= g.number && g.block(n) == nil {
		n -= lowbit(n)
	}
	return n
}

// following returns the number of the next block after n.
func (g *Log) following(n int64) int64 {
	for n++; g.block(n) == nil; {
		n += lowbit(n)
	}
	return n
}

// later returns the first number, above g.number, of a block that begins later than t, or
// g.last()+1 if there is none.
func (g *Log) later(t int64) int64 {
	return g.number + 1 + int64(sort.Search(len(g.older), func(i int) bool {
		n := g.covering(g.number + 1 + int64(i))
		return n >= g.number && g.block(n).base > t
	}))
}

// living returns the block of the first event later than t, and the running count before that
// event. For t, see firstAfter.
func (g *Log) living(t int64) (b int64, gone uint64) {
	if t < g.firstAt {
		return g.number, g.gone
	}
	b, i := g.firstAfter(t)
	return b, g.block(b).through(i)
}

// firstAfter returns the block and the entry of the first event later than t. t must be before the
// newest event and not before cutoff. If the block has no such entry, i is one past its end.
func (g *Log) firstAfter(t int64) (b int64, i int) {
	// The entry is nearly always one of the first after the dead ones.
	if oldest := g.block(g.number); oldest != nil {
		for i, most := int(oldest.first), min(int(oldest.first)+4, oldest.len()); i < most; i++ {
			if oldest.time(i) > t {
				return g.number, i
			}
		}
	}
	b = g.covering(g.later(t) - 1)
	if b >= g.number {
		if i = g.block(b).after(t); i < g.block(b).len() || b == g.last() {
			return b, i
		}
	}
	return g.following(max(b, g.number)), 0
}

// back returns the back of block n. It is 0 for the newest block, which has none.
func (g *Log) back(n int64) uint64 {
	if n < g.last() {
		return g.older[n-g.number].back
	}
	return 0
}

// missing returns how many events were refunded from block b and the blocks after it.
func (g *Log) missing(b int64) (sum uint64) {
	if b <= g.refunded {
		for last := g.last(); b < last; b += lowbit(b) {
			sum += g.back(b)
		}
	}
	return sum
}
