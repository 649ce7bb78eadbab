// Package exact multiplies and divides integers without intermediate rounding. Its counterpart in
// Lua is muldiv in scripts/common.lua.
package exact

import (
	"math"
	"math/bits"
	"time"
)

// MulDiv returns a·b/c, rounded down, and the remainder. All arguments are 0 or more, and c is
// above 0. A quotient that does not fit into an int64 becomes the largest int64, with an arbitrary
// remainder.
func MulDiv(a, b, c int64) (q, r int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	switch {
	case hi == 0 && lo < uint64(c): // the usual case, and a division is slow
		return 0, int64(lo)
	case hi >= uint64(c): // over 2^64
		return math.MaxInt64, 0
	}
	quo, rem := bits.Div64(hi, lo, uint64(c))
	return int64(min(quo, math.MaxInt64)), int64(rem)
}

// Most is the largest quotient of MulDivUp, about 146,000 years in µs, to which a time can still be
// added.
const Most = 1 << 62

// MulDivUp returns (a·b+d)/c, rounded up, but at most Most. All arguments are 0 or more, and c is
// above 0.
func MulDivUp(a, b, d, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(d), 0)
	if hi += carry; hi >= uint64(c) {
		return Most
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if r > 0 {
		q++
	}
	return int64(min(q, Most))
}

// AtMost reports whether a·b is at most c·d. All arguments are 0 or more.
func AtMost(a, b, c, d int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	most, least := bits.Mul64(uint64(c), uint64(d))
	return hi < most || hi == most && lo <= least
}

// WholeMicros returns d rounded up to whole µs, or d if there is no such Duration.
func WholeMicros(d time.Duration) time.Duration {
	if d > math.MaxInt64-time.Microsecond { // d comes from a limiter without a longest Delay
		return d
	}
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
