package eventlog

import "github.com/ratelimit-go/ratelimit/store"

// Refund implements [store.Log]. It takes from the last entry of an instant first, and from no more
// entries than a block has.
func (g *Log) Refund(l store.Limit, now int64, c store.Receipt) {
	if g.empty() {
		return
	}
	now = max(now, g.newest)
	if c.At <= max(now-l.Period, g.cutoff) || c.At > g.newest || g.End() <= now {
		return
	}
	left, most, more := c.N, blockLen, true
	for b := g.covering(g.later(c.At) - 1); more && left > 0 && most > 0 && b >= g.number; {
		var events int64
		var examined int
		events, examined, more = g.block(b).take(c.At, left, most)
		left, most = left-events, most-examined
		switch {
		case events == 0:
		case b == g.last():
			if !g.shrink() {
				return
			}
		default:
			g.count(b, uint64(events))
			g.refunded = max(g.refunded, b)
			if g.block(b).len() == 0 {
				b = g.merge(b)
			}
		}
		b = g.covering(min(b, g.last()+1) - 1)
	}
	g.newest, g.total = g.tail.time(g.tail.len()-1), g.tail.through(g.tail.len())
}

// count adds n to what is missing from block b.
func (g *Log) count(b int64, n uint64) {
	for ; b >= g.number; b -= lowbit(b) {
		g.older[b-g.number].back += n
	}
}

// shrink drops empty blocks from the end, so that the newest block has entries. It returns false if
// no block has any.
func (g *Log) shrink() bool {
	for g.tail.len() == 0 {
		b := g.covering(g.last() - 1)
		if b < g.number {
			g.chain = alone
			return false
		}
		tail := g.block(b)
		g.count(b, -uint64(eventsBetween(tail.through(tail.len()), g.tail.through(0))))
		g.tail, g.refunded = *tail, min(g.refunded, b-1)
		clear(g.older[b-g.number:])
		g.older = g.older[:b-g.number]
	}
	return true
}

// merge joins block b, which has become empty, with empty neighbors, and returns the number of the
// joined block.
func (g *Log) merge(b int64) int64 {
	empty := func(n, span int64) bool { // reports whether an empty block has that range
		if n < g.number {
			return false
		}
		at := g.block(n)
		return at != nil && at.len() == 0 && (span == 1 || g.block(n+span/2) == nil)
	}
	for span := int64(1); ; span *= 2 {
		start := b - b%(2*span)
		if !empty(start, span) || !empty(start+span, span) {
			return b
		}
		g.older[start+span-g.number] = nil
		b = start
	}
}
