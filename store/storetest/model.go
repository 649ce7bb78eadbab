package storetest

import (
	"math/big"

	"github.com/ratelimit-go/ratelimit"
)

// A model is the promise of an algorithm about one key, in exact fractions. Each is in the file of
// its algorithm, and that of the two buckets in bucket.go. It does not share code with the library.
// judge.go derives each field of a Result from it.
//
// Times are in Unix µs. n and all counts are events.

// model is a key. What it is asked most is whether n events would be admitted at an instant, and whether
// the key is fresh then.
type model interface {
	// seen returns the time that a reading of the clock counts as if readings may come late: no
	// earlier than the time of the last admission.
	seen(reading int64) int64
	// anchored returns the key after the store's clock has been set back to reading. What is dated
	// later moves to reading. The spend stays, and ages from there.
	anchored(reading int64) model
	// fits reports whether n events would be admitted at t, n from 0.
	fits(l limit, t, n int64) bool
	// inTime reports whether n events would be admitted at t if they may wait for at most d µs.
	inTime(l limit, t, n, d int64) bool
	// fresh reports whether the key is like a new one at t.
	fresh(l limit, t int64) bool
	// charge charges n events at t, whether they fit or not. It returns n, or fewer if
	// the state cannot hold as many.
	charge(l limit, t, n int64) (charged int64)
	// refund refunds what is still charged at t of n events of c.
	refund(l limit, t int64, c charge, n int64)
	// ended reports whether the key is fresh from t on under any limit, which it is after the
	// ResetAfter of the last admission.
	ended(t int64) bool
	// delays reports whether an admitted event waits until the key would be fresh.
	delays() bool
}

// limit is a limit in integers, the period in µs, with its burst filled in.
type limit struct {
	rate, period, burst int64
	civil               // of a calendar
}

func integers(l ratelimit.Limit) limit {
	i := limit{int64(l.Rate), l.Period.Microseconds(), int64(l.Burst), civilOf(l)}
	if i.burst == 0 {
		i.burst = i.rate
	}
	return i
}

// charge is a past admission of n events under limit, at the instant at. due is at + ResetAfter.
type charge struct {
	at, due, n int64
	limit      limit
	reserved   int // by the limiter that admitted it
}

// most is the largest number of events that a state can hold.
const most = 1<<31 - 1

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// share returns n·a/b.
func share(n, a, b int64) *big.Rat {
	product := new(big.Int).Mul(big.NewInt(n), big.NewInt(a))
	return new(big.Rat).SetFrac(product, big.NewInt(b))
}

func sum(a, b *big.Rat) *big.Rat        { return new(big.Rat).Add(a, b) }
func difference(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }

func smaller(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// down returns r rounded down to whole events. r must be 0 or more. If the result does not fit into
// an int64, it is the largest int64.
func down(r *big.Rat) int64 {
	if q := new(big.Int).Quo(r.Num(), r.Denom()); q.IsInt64() {
		return q.Int64()
	}
	return 1<<63 - 1
}

// up returns r rounded up.
func up(r *big.Rat) int64 {
	if r.IsInt() {
		return down(r)
	}
	return down(r) + 1
}

// windowStart returns the start of the window of period that contains t, which is after 1970.
func windowStart(t, period int64) int64 { return t - t%period }

// windowEnd returns the end of that window.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }
