package eventlog

import (
	"encoding/binary"
	"slices"
	"sort"
)

const (
	blockLen = 64 // entries in a block

	// An entry begins with 6 bytes of time, counted from the block's base. In a wide block, 6 bytes
	// for the events follow: the number of events in the block up to and including the entry. In a
	// narrow block, each entry is one event.
	narrow, wide = 6, 12
	maxOffset    = 1 << 48 // µs, about 8.9 years
	maxRun       = 1 << 48 // running counts wrap to 0 here
)

// block is a run of entries.
type block struct {
	base  int64  // the origin of the entries' times, Unix µs
	run   uint64 // the running count of events before the block
	gone  uint64 // number of events that were cut from the front of the block
	data  []byte // the entries, big endian
	width int32  // narrow or wide
	first int32  // in the oldest block: number of entries that are not later than the log's cutoff, or a smaller number
}

// begin makes b an empty block for an entry of n events at base. It keeps b's memory.
func (b *block) begin(base int64, run uint64, n int64) {
	*b = block{base: base, run: run, width: narrow, data: b.data[:0]}
	if n > 1 {
		b.width = wide
	}
}

// eventsBetween returns how many events lie between two running counts.
func eventsBetween(from, to uint64) int64 { return int64((to - from) % maxRun) }

func (b *block) len() int {
	if b.width == wide { // division by a constant is fast
		return len(b.data) / wide
	}
	return len(b.data) / narrow
}

func (b *block) full() bool { return len(b.data) == blockLen*int(b.width) }

// time returns the time of entry i.
func (b *block) time(i int) int64 { return b.base + int64(uint48(b.data[i*int(b.width):])) }

// through returns the running count after the first i entries.
func (b *block) through(i int) uint64 {
	if i == 0 || b.width == narrow {
		return b.run + b.gone + uint64(i)
	}
	return b.run + uint48(b.data[(i-1)*wide+narrow:])
}

// after returns the first entry later than t, or b.len() if there is none.
func (b *block) after(t int64) int {
	return sort.Search(b.len(), func(i int) bool { return b.time(i) > t })
}

// fits reports whether n events at t can be an entry of b.
func (b *block) fits(t, n int64) bool {
	return !b.full() && t-b.base < maxOffset && (n == 1 || b.width == wide)
}

func (b *block) add(t, n int64) {
	if len(b.data) == cap(b.data) { // grow to 4, 8, 16, 32, 64 entries; append would grow beyond a full block
		b.data = append(make([]byte, 0, max(4*int(b.width), 2*len(b.data))), b.data...)
	}
	b.data = appendUint48(b.data, uint64(t-b.base))
	if b.width == wide {
		before := b.through(len(b.data)/wide) - b.run
		b.data = appendUint48(b.data, before+uint64(n))
	}
}

// cut drops the first n entries.
func (b *block) cut(n int) {
	b.gone = b.through(n) - b.run
	b.data = b.data[:copy(b.data, b.data[n*int(b.width):])]
}

// take removes at most n events of the instant at from b, last entries first, and examines at most
// most entries. It returns how many events it removed, how many entries it examined, and whether
// the block before may have more.
func (b *block) take(at, n int64, most int) (events int64, examined int, more bool) {
	to := b.after(at)
	i, kept := to, to // entries up to kept stay, the last of them in part
	for i > 0 && events < n && to-i < most && b.time(i-1) == at {
		has := eventsBetween(b.through(i-1), b.through(i))
		if kept = i - 1; has > n-events {
			has, kept = n-events, i
			putUint48(b.data[(i-1)*wide+narrow:], b.through(i)-b.run-uint64(has))
		}
		events += has
		i--
	}
	if b.width == wide {
		for j := to; j < b.len(); j++ {
			putUint48(b.data[j*wide+narrow:], b.through(j+1)-b.run-uint64(events))
		}
	}
	b.data = slices.Delete(b.data, kept*int(b.width), to*int(b.width))
	return events, to - i, i == 0
}

func uint48(p []byte) uint64 {
	return uint64(binary.BigEndian.Uint16(p))<<32 | uint64(binary.BigEndian.Uint32(p[2:]))
}

func putUint48(p []byte, v uint64) {
	binary.BigEndian.PutUint16(p, uint16(v>>32))
	binary.BigEndian.PutUint32(p[2:], uint32(v))
}

func appendUint48(p []byte, v uint64) []byte {
	p = binary.BigEndian.AppendUint16(p, uint16(v>>32))
	return binary.BigEndian.AppendUint32(p, uint32(v))
}
