package storetest

import (
	"math"
	"math/big"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// What the two buckets have in common.

// tenYears is the longest Period.
const tenYears = 10 * 365 * 24 * time.Hour

// refillTooLong are limits whose buckets take more than 100 years to refill.
var refillTooLong = []ratelimit.Limit{
	{Rate: 1, Period: tenYears, Burst: 11},
	{Rate: 1, Period: tenYears / 10, Burst: math.MaxInt32},
	{Rate: 2, Period: tenYears / 10, Burst: 1 << 20},
}

// bucketBound is burst + rate·(x+1)/period.
func bucketBound(l limit, x int64) int64 { return l.burst + refilled(l, x+1) }

// bucketDue is burst + rate·us/period.
func bucketDue(l limit, us int64) int64 { return l.burst + refilled(l, us) }

// threePer100s drains an event in 33,333,333 1/3 µs. After 33,333,333 of them the
// smallest part that there is remains: a 100,000,000th of an event.
var threePer100s = ratelimit.Limit{Rate: 3, Period: 100 * second}

var theLastPart = story{"the smallest part of an event holds its place, and can be given back", threePer100s, func(k *tiers) {
	k.at(0).take(1)
	charged := k.at(33_333_333 * microsecond).take(1)
	k.refund(charged, 1)
	k.has(2)
	k.resetsAfter(microsecond)
	k.refund(charged, 1)
	k.has(3)
	k.resetsAfter(0)
}}

var theLastPartIsWhole = story{"the smallest part of an event is a whole one in another period", threePer100s, func(k *tiers) {
	k.at(0).take(1)
	k.at(33_333_333 * microsecond).take(1)
	k.to(ratelimit.Limit{Rate: 3, Period: 300 * second}).resetsAfter(200 * second)
}}

var refundOfWhatDrainedFaster = story{"what has drained under a faster limit is not given back", ratelimit.PerDay(10), func(k *tiers) {
	charged := k.at(0).take(10)
	k.to(tenPerMinute).at(60 * minute).take(10)
	k.refund(charged, 10)
	k.has(0)
}}

// bucketModel is a level that rises with each event and falls by rate each period. It is
// what the token bucket lacks, and what the leaky bucket's queue holds.
type bucketModel struct {
	queue bool // leaky

	level        *big.Int // in 1/period events, as of time; nil is 0
	time         int64
	rate, period int64 // of the limit of the last admission

	owing bool // charged past the capacity, so that the level is not cut to it
}

// end is when the level is 0 under the limit of the last admission.
func (m *bucketModel) end() int64 {
	drained := new(big.Int).Add(m.level, big.NewInt(m.rate-1))
	return m.time + drained.Div(drained, big.NewInt(m.rate)).Int64()
}

func (m *bucketModel) seen(reading int64) int64 {
	if m.level == nil {
		return reading
	}
	return max(reading, m.time)
}

// at is the level at t in 1/l.period events. A level of another period is rounded up to
// whole events. It starts at no more than the burst, or what a state holds if it is
// owing, and falls from there.
func (m *bucketModel) at(l limit, t int64) *big.Int {
	if m.level == nil {
		return new(big.Int)
	}
	level := new(big.Int).Set(m.level)
	if m.period != l.period {
		level.Add(level, big.NewInt(m.period-1)).Div(level, big.NewInt(m.period))
		level.Mul(level, big.NewInt(l.period))
	}
	cut(level, l.period, m.capacity(l), m.owing)
	level.Sub(level, product(t-m.time, l.rate))
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}

// capacity is how many events a level is cut to under l.
func (m *bucketModel) capacity(l limit) int64 {
	if m.owing {
		return mostDrained(l)
	}
	return l.burst
}

// century is the longest that a level past the burst takes to drain, in µs.
const century = 100 * 365 * 24 * 3600 * 1e6

// mostDrained is how many events drain in 100 years, at most what a state holds.
func mostDrained(l limit) int64 {
	whole := product(l.rate, century)
	if whole.Div(whole, big.NewInt(l.period)); whole.Cmp(big.NewInt(most)) < 0 {
		return whole.Int64()
	}
	return most
}

// cut cuts a level in 1/period events to that many whole events. A level that is owing
// keeps its part of an event.
func cut(level *big.Int, period, events int64, owing bool) {
	whole, part := new(big.Int).DivMod(level, big.NewInt(period), new(big.Int))
	if full := big.NewInt(events); whole.Cmp(full) >= 0 {
		if !owing {
			part.SetInt64(0)
		} else if whole.Cmp(full) == 0 {
			return
		}
		level.Add(full.Mul(full, big.NewInt(period)), part)
	}
}

func (m *bucketModel) fits(l limit, t, n int64) bool {
	level := m.at(l, t)
	level.Add(level, product(n, l.period))
	return level.Cmp(product(l.burst, l.period)) <= 0
}

// inTime: a queue must drain in time what is before n events. A token bucket must get in
// time the tokens that are missing.
func (m *bucketModel) inTime(l limit, t, n, d int64) bool {
	level, turn := m.at(l, t), product(d, l.rate)
	if m.queue {
		return m.fits(l, t, n) && level.Cmp(turn) <= 0
	}
	level.Add(level, product(n, l.period))
	turn.Add(turn, product(l.burst, l.period))
	return n <= l.burst && level.Cmp(turn) <= 0 && level.Cmp(product(mostDrained(l), l.period)) <= 0
}

func (m *bucketModel) fresh(l limit, t int64) bool { return m.at(l, t).Sign() == 0 }

func (m *bucketModel) charge(l limit, t, n int64) int64 {
	n = min(n, mostDrained(l))
	fits, level, full := m.fits(l, t, n), m.at(l, t), product(l.burst, l.period)
	held := new(big.Int).Div(level, big.NewInt(l.period)).Int64()
	charged := min(n, max(0, mostDrained(l)-held))
	if fits {
		charged = n
	}
	level.Add(level, product(charged, l.period))
	m.level, m.time, m.rate, m.period = level, t, l.rate, l.period
	m.owing = !fits && level.Cmp(full) >= 0
	return charged
}

// refund gives back what is left of the level that c left behind, at most n. Of a queue
// it gives back only the tail. The level stays counted as it was. In another period, it
// gives back whole events.
func (m *bucketModel) refund(l limit, t int64, c charge, n int64) {
	if m.level == nil || t >= c.due || c.at > m.time {
		return
	}
	behind := bucketModel{level: product(c.due-c.at, c.limit.rate), time: c.at, rate: c.limit.rate, period: c.limit.period}
	if end := product(most+1, behind.period); behind.level.Cmp(end) >= 0 { // due is rounded up
		behind.level.Sub(end, big.NewInt(1))
	}
	if m.queue && !m.isTail(l, c, behind) {
		return
	}
	back := product(n, l.period)
	if left := m.leftOf(l, t, c, behind); left.Cmp(back) < 0 {
		back = left
	}
	if m.at(l, t).Cmp(back) <= 0 {
		m.level, m.owing = nil, false
		return
	}
	cut(m.level, m.period, m.capacity(l), m.owing)
	if m.period != l.period {
		back.Div(back, big.NewInt(l.period)).Mul(back, big.NewInt(m.period))
	}
	m.level.Sub(m.level, back)
	m.owing = m.owing && m.level.Cmp(big.NewInt(m.period)) >= 0
}

// leftOf is what is left at t of the level that c left behind. No limit cuts one above
// the capacity. If others have been admitted since, there was room for an event.
func (m *bucketModel) leftOf(l limit, t int64, c charge, behind bucketModel) *big.Int {
	behind.owing = c.overdrawn()
	if behind.owing && !m.owing {
		behind.level = behind.at(l, m.time)
		if room := product(l.burst-1, l.period); behind.level.Cmp(room) > 0 {
			behind.level = room
		}
		behind.time, behind.rate, behind.period, behind.owing = m.time, l.rate, l.period, false
	}
	return behind.at(l, t)
}

// overdrawn reports whether c left a level above the capacity.
func (c charge) overdrawn() bool {
	return product(c.due-c.at-1, c.limit.rate).Cmp(product(c.limit.burst, c.limit.period)) >= 0
}

// isTail reports whether nothing is queued behind the level that a charge left.
func (m *bucketModel) isTail(l limit, c charge, behind bucketModel) bool {
	behind.owing = m.owing || c.overdrawn()
	return m.at(l, m.time).Cmp(behind.at(l, m.time)) <= 0
}

func (m *bucketModel) ended(t int64) bool { return m.level == nil || t >= m.end() }

func (m *bucketModel) delays() bool { return m.queue }
