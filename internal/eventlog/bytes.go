package eventlog

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ratelimit-go/ratelimit/store"
)

// form is the first byte of an encoded log. The first byte of a state is 1; see
// [store.AppendState]. A new form needs another number.
const form = 2

// Ranges of the numbers in an encoded log.
const (
	minPeriod = 1_000
	maxPeriod = 10 * 365 * 24 * 3600 * 1e6
	maxTime   = 1 << 60    // µs: durations can be added without overflow
	maxEvents = maxRun / 2 // in a log: running counts are modulo maxRun
)

// AppendBinary implements [store.Log]. It appends
//
//	byte 2     the form
//	uvarint    the Period of the last Add, µs
//	varint     the time of the first entry, Unix µs; 0 if there is none
//
// and for each entry, oldest first,
//
//	uvarint    2·d for one event, or 2·d + 1 for several; d is the µs since the previous entry
//	uvarint    if there are several events: their number
//
// with the varints of encoding/binary. An event takes 3 bytes if it comes within a second of the
// previous one, and 4 bytes within two minutes. Entries that were cut are left out.
func (g *Log) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, form)
	b = binary.AppendUvarint(b, uint64(g.period))
	if g.over() {
		return binary.AppendVarint(b, 0), nil
	}
	n, i := g.firstAfter(g.cutoff)
	before := g.block(n).time(i)
	b = binary.AppendVarint(b, before)
	for ; n <= g.last(); n, i = g.following(n), 0 {
		for at := g.block(n); i < at.len(); i++ {
			b = appendEntry(b, at.time(i)-before, eventsBetween(at.through(i), at.through(i+1)))
			before = at.time(i)
		}
	}
	return b, nil
}

func appendEntry(b []byte, d, events int64) []byte {
	if events == 1 {
		return binary.AppendUvarint(b, uint64(d)<<1)
	}
	b = binary.AppendUvarint(b, uint64(d)<<1|1)
	return binary.AppendUvarint(b, uint64(events))
}

// Parse is the inverse of [Log.AppendBinary]. It returns [store.ErrCorrupt] if b is not a log, or
// if a number is out of range.
func Parse(b []byte) (store.Log, error) {
	g := new(Log)
	if !g.parse(b) {
		return nil, fmt.Errorf("%w: the value of %d bytes is not a log: %.64x", store.ErrCorrupt, len(b), b)
	}
	return g, nil
}

// parse fills g, which is empty.
func (g *Log) parse(b []byte) (ok bool) {
	if len(b) == 0 || b[0] != form {
		return false
	}
	b = b[1:]
	period, size := binary.Uvarint(b)
	if period < minPeriod || period > maxPeriod { // the period is 0 if there is none
		return false
	}
	b = b[size:]
	now, size := binary.Varint(b)
	if size <= 0 || now < -maxTime || now > maxTime {
		return false
	}
	g.period, g.cutoff = int64(period), now-1 // the entries hold nothing that was cut
	for b = b[size:]; len(b) > 0; {
		var d, events int64
		if d, events, b = parseEntry(b); events == 0 || d > maxTime-now || events > maxEvents-int64(g.total) {
			return false
		}
		now += d
		g.append(now, events)
	}
	return true
}

// parseEntry returns an entry and the bytes after it. events is 0 if b does not begin with an
// entry.
func parseEntry(b []byte) (d, events int64, rest []byte) {
	head, size := binary.Uvarint(b)
	if size <= 0 {
		return 0, 0, nil
	}
	d, events, b = int64(head>>1), 1, b[size:]
	if head&1 == 0 {
		return d, events, b
	}
	several, size := binary.Uvarint(b)
	if size <= 0 || several > math.MaxInt32 {
		return 0, 0, nil
	}
	return d, int64(several), b[size:]
}
