package storetest

import (
	"math/big"

	"github.com/ratelimit-go/ratelimit"
)

// A model is what an algorithm promises about one key, in exact fractions: each is in the file of its
// algorithm, and that of the two buckets in bucket.go. It knows nothing of how the library computes. judge.go
// derives each field of a Result from it.
//
// Times are Unix µs. n and all counts are events.

// model is one key. It answers two questions. Would n events be admitted at an instant? Is the
// key fresh then?
type model interface {
	// seen is the time that a reading of the clock counts as, if that may come late: no
	// earlier than the time of the last admission.
	seen(reading int64) int64
	// anchored is the key after the store's clock has been set back to reading. What is dated
	// later is moved to reading. The spend stays, and ages from there on.
	anchored(reading int64) model
	// fits reports whether n events would be admitted at t, n from 0.
	fits(l limit, t, n int64) bool
	// inTime reports whether n events would be admitted at t if their turn had to come
	// within d µs.
	inTime(l limit, t, n, d int64) bool
	// fresh reports whether the key is like a new one at t.
	fresh(l limit, t int64) bool
	// charge charges n events at t, whether they fit or not. It returns n, or fewer if
	// the state cannot hold as many.
	charge(l limit, t, n int64) (charged int64)
	// refund gives back what is still charged at t of n events of c.
	refund(l limit, t int64, c charge, n int64)
	// ended reports whether the key is fresh from t on under any limit: from ResetAfter
	// on, as it was at the last admission.
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

// charge is a past admission: n events under limit, at the instant at. due is at +
// ResetAfter.
type charge struct {
	at, due, n int64
	limit      limit
	reserved   int // by the limiter that admitted it
}

// most is the most events that a state holds.
const most = 1<<31 - 1

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// share is n·a/b.
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

// down is r rounded down to whole events, r from 0. Above what fits in an int64 it is the largest.
func down(r *big.Rat) int64 {
	if q := new(big.Int).Quo(r.Num(), r.Denom()); q.IsInt64() {
		return q.Int64()
	}
	return 1<<63 - 1
}

// up is r rounded up.
func up(r *big.Rat) int64 {
	if r.IsInt() {
		return down(r)
	}
	return down(r) + 1
}

// windowStart is the start of the window of period that contains t, t after 1970.
func windowStart(t, period int64) int64 { return t - t%period }

// windowEnd is its end.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }
