package store

import (
	"encoding/binary"
	"fmt"
	"math"
)

// formState is the first byte of an encoded state. The first byte of a log is 2; see
// internal/eventlog. A new form needs a new number.
const formState = 1

// AppendState appends s, counted under l, to b, for [ParseState]. It appends about 20 bytes: the
// byte 1, s.At as a varint, and l.Rate, s.Period, s.Whole and s.Part as uvarints, as defined by
// package encoding/binary.
func AppendState(b []byte, s State, l Limit) []byte {
	b = append(b, formState)
	b = binary.AppendVarint(b, s.At)
	for _, n := range [...]int64{l.Rate, s.Period, s.Whole, s.Part} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// ParseState is the inverse of [AppendState]. The Limit it returns has only the Rate and Period
// under which the state was counted, as TTL of its [Rule] needs. It returns [ErrCorrupt] if b is
// not a state, or if a number is out of range.
func ParseState(b []byte) (State, Limit, error) {
	s, l, ok := parseState(b)
	if !ok {
		return State{}, Limit{}, fmt.Errorf("%w: the value of %d bytes is not a state: %.64x", ErrCorrupt, len(b), b)
	}
	return s, l, nil
}

func parseState(b []byte) (s State, l Limit, ok bool) {
	const (
		maxTime   = 1 << 60 // µs, so that durations can be added without an overflow
		minPeriod = 1_000
		maxPeriod = 10 * 365 * 24 * 3600 * 1e6
	)
	if len(b) == 0 || b[0] != formState {
		return s, l, false
	}
	at, size := binary.Varint(b[1:])
	if size <= 0 || at < -maxTime || at > maxTime {
		return s, l, false
	}
	b = b[1+size:]
	var fields [4]int64
	for i, most := range [...]uint64{math.MaxInt32, maxPeriod, math.MaxUint32, 1<<49 - 1} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > most {
			return s, l, false
		}
		fields[i], b = int64(n), b[size:]
	}
	l = Limit{Rate: fields[0], Period: fields[1]}
	s = State{At: at, Period: l.Period, Whole: fields[2], Part: fields[3]}
	return s, l, len(b) == 0 && l.Rate >= 1 && l.Period >= minPeriod
}
