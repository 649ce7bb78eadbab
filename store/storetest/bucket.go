package storetest

import (
	"math"
	"math/big"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file has what the two buckets have in common.

// tenYears is the longest Period.
const tenYears = 10 * 365 * 24 * time.Hour

// refillTooLong are limits whose buckets take more than 100 years to refill.
var refillTooLong = []ratelimit.Limit{
	{Rate: 1, Period: tenYears, Burst: 11},
	{Rate: 1, Period: tenYears / 10, Burst: math.MaxInt32},
	{Rate: 2, Period: tenYears / 10, Burst: 1 << 20},
}

// bucketBound returns burst + rate·(x+1)/period.
func bucketBound(l limit, x int64) int64 { return l.burst + refilled(l, x+1) }

// bucketDue returns burst + rate·us/period.
func bucketDue(l limit, us int64) int64 { return l.burst + refilled(l, us) }

// threePer100s drains an event in 33,333,333 1/3 µs. After 33,333,333 µs, the smallest possible
// part remains, 1/100,000,000 of an event.
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

// bucketModel is a level that rises with each event and falls by rate per period. For a token
// bucket it is the number of missing tokens, and for a leaky bucket it is the queue.
type bucketModel struct {
	queue bool // whether it is a leaky bucket

	level *big.Rat // events, at time; nil if there are none
	time  int64
	limit limit // of the last admission

	owing bool // whether it was charged past the capacity, so that the level is not reduced to it
}

func (m *bucketModel) seen(reading int64) int64 {
	if m.level == nil {
		return reading
	}
	return max(reading, m.time)
}

func (m *bucketModel) anchored(reading int64) model {
	moved := *m
	moved.time = min(m.time, reading)
	return &moved
}

// flow returns how many events drain in us µs.
func (l limit) flow(us int64) *big.Rat { return share(us, l.rate, l.period) }

// at returns the level at t under l. If the level is of another period, it is rounded up to whole
// events. It starts at no more than the capacity, and falls from there.
func (m *bucketModel) at(l limit, t int64) *big.Rat {
	if m.level == nil {
		return new(big.Rat)
	}
	level := m.level
	if m.limit.period != l.period {
		level = whole(up(level))
	}
	level = difference(cut(level, m.capacity(l), m.owing), l.flow(t-m.time))
	if level.Sign() < 0 {
		return new(big.Rat)
	}
	return level
}

// capacity returns the number of events to which a level is reduced under l.
func (m *bucketModel) capacity(l limit) int64 {
	if m.owing {
		return mostDrained(l)
	}
	return l.burst
}

// century is the longest time in which a level past the burst drains, in µs.
const century = 100 * 365 * 24 * 3600 * 1e6

// mostDrained returns how many events drain in 100 years, but no more than a state can hold.
func mostDrained(l limit) int64 { return min(down(l.flow(century)), most) }

// cut reduces a level to that many whole events. A level that is owing keeps its part of an event.
func cut(level *big.Rat, events int64, owing bool) *big.Rat {
	n := down(level)
	switch part := difference(level, whole(n)); {
	case n < events:
		return level
	case owing:
		return sum(whole(events), part)
	}
	return whole(events)
}

func (m *bucketModel) fits(l limit, t, n int64) bool {
	return sum(m.at(l, t), whole(n)).Cmp(whole(l.burst)) <= 0
}

// inTime reports whether the events in a queue before n events drain within d, or whether a token
// bucket gets its missing tokens within d.
func (m *bucketModel) inTime(l limit, t, n, d int64) bool {
	level := m.at(l, t)
	if m.queue {
		return m.fits(l, t, n) && level.Cmp(l.flow(d)) <= 0
	}
	level = sum(level, whole(n))
	return n <= l.burst && level.Cmp(sum(whole(l.burst), l.flow(d))) <= 0 && level.Cmp(whole(mostDrained(l))) <= 0
}

func (m *bucketModel) fresh(l limit, t int64) bool { return m.at(l, t).Sign() == 0 }

func (m *bucketModel) charge(l limit, t, n int64) int64 {
	n = min(n, mostDrained(l))
	fits, level := m.fits(l, t, n), m.at(l, t)
	if !fits {
		n = min(n, max(0, mostDrained(l)-down(level)))
	}
	m.level, m.time, m.limit = sum(level, whole(n)), t, l
	m.owing = !fits && m.level.Cmp(whole(l.burst)) >= 0
	return n
}

// refund refunds what remains of the level that c left behind, at most n. For a queue, it refunds
// only the tail. The level is still counted as before. In another period, it refunds whole events.
func (m *bucketModel) refund(l limit, t int64, c charge, n int64) {
	if m.level == nil || t >= c.due || c.at > m.time || m.queue && !m.isTail(l, c) {
		return
	}
	back := smaller(whole(n), m.leftOf(l, t, c))
	if m.at(l, t).Cmp(back) <= 0 {
		m.level, m.owing = nil, false
		return
	}
	if m.limit.period != l.period {
		back = whole(down(back))
	}
	m.level = difference(cut(m.level, m.capacity(l), m.owing), back)
	m.owing = m.owing && m.level.Cmp(whole(1)) >= 0
}

// behind returns the level that a charge left, according to its ResetAfter. That is rounded up to a
// µs, and no level is above what a state can hold.
func (c charge) behind(owing bool) *bucketModel {
	level := c.limit.flow(c.due - c.at)
	if down(level) > most {
		level = difference(whole(most+1), share(1, 1, c.limit.period))
	}
	return &bucketModel{level: level, time: c.at, limit: c.limit, owing: owing}
}

// overdrawn reports whether c left a level above the capacity.
func (c charge) overdrawn() bool {
	return c.limit.flow(c.due-c.at-1).Cmp(whole(c.limit.burst)) >= 0
}

// leftOf returns what remains at t of the level that c left behind. No limit reduces a level that
// is above the capacity. If others have been admitted since, there was room for an event.
func (m *bucketModel) leftOf(l limit, t int64, c charge) *big.Rat {
	behind := c.behind(c.overdrawn())
	if behind.owing && !m.owing {
		behind = &bucketModel{level: smaller(behind.at(l, m.time), whole(l.burst-1)), time: m.time, limit: l}
	}
	return behind.at(l, t)
}

// isTail reports whether nothing is queued behind the level that c left.
func (m *bucketModel) isTail(l limit, c charge) bool {
	return m.at(l, m.time).Cmp(c.behind(m.owing || c.overdrawn()).at(l, m.time)) <= 0
}

func (m *bucketModel) ended(t int64) bool {
	return m.level == nil || m.level.Cmp(m.limit.flow(t-m.time)) <= 0
}

func (m *bucketModel) delays() bool { return m.queue }
