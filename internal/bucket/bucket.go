// Package bucket implements the level that the token bucket and the leaky bucket have in common. In
// a token bucket, it is the events that were spent and not refilled. In a leaky bucket, it is the
// events that were poured in and have not drained.
//
// The level falls by Rate events per Period. It is stored exactly, as whole + part/Period events:
// in one µs it falls by Rate/Period, so it never needs a smaller fraction. In a State, At is the
// time of the level, and Whole and Part are the level. In a Reply, X is its time, and Y and Z are
// the level before the decision.
package bucket

import (
	"math"

	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// MaxRefill is the longest time in which a bucket refills, in µs.
const MaxRefill = 100 * 365 * 24 * 3600 * 1e6

// Debt is added to the Whole of a level that was charged beyond the capacity, so that it is
// not clamped to the capacity. The level itself is below Debt.
const Debt = 1 << 31

// Level returns the level of s at now under l: what is charged, less what has drained, which is how
// a token bucket refills. at is now, but never before s.At.
func Level(s store.State, l store.Limit, now int64) (at, whole, part int64) {
	if s.Whole == 0 && s.Part == 0 {
		return now, 0, 0
	}
	whole, part = s.Whole, s.Part
	if whole >= l.Burst || s.Period != l.Period {
		whole, part = convert(s, l)
	}
	now = max(now, s.At)
	w, p := Drained(now-s.At, l.Rate, l.Period)
	whole, part = Subtract(whole, part, w, p, l.Period)
	return now, whole, part
}

// convert returns the level of s, at s.At, as l counts. A level above the capacity is cut before
// time is credited, because the other order would lock a key out until the old level has drained.
func convert(s store.State, l store.Limit) (whole, part int64) {
	most := int64(math.MaxInt64)
	if s.Whole >= l.Burst {
		if s.Whole < Debt {
			return l.Burst, 0
		}
		s.Whole -= Debt
		most = Most(l) // no more than the current limit drains in 100 years
	}
	if s.Period != l.Period && s.Part > 0 {
		s.Whole, s.Part = s.Whole+1, 0
	}
	return min(s.Whole, most), s.Part
}

// Drained returns how many events drain in dt µs, as whole + part/period.
func Drained(dt, rate, period int64) (whole, part int64) { return exact.MulDiv(dt, rate, period) }

// Subtract returns (whole + part/period) - (w + p/period), but at least 0.
func Subtract(whole, part, w, p, period int64) (int64, int64) {
	whole, part = whole-w, part-p
	if part < 0 {
		whole, part = whole-1, part+period
	}
	if whole < 0 {
		return 0, 0
	}
	return whole, part
}

// DrainTime returns how long a level takes to drain, in µs, rounded up.
func DrainTime(whole, part int64, l store.Limit) int64 {
	return exact.MulDivUp(whole, l.Period, part, l.Rate)
}

// DrainsWithin reports whether a full bucket drains in at most limit µs.
func DrainsWithin(l store.Limit, limit int64) bool {
	return exact.AtMost(l.Burst, l.Period, l.Rate, limit)
}

// TTL returns how long the level of s takes to drain.
func TTL(s store.State, l store.Limit) int64 { return DrainTime(s.Whole&^Debt, s.Part, l) }

// Used returns what is left of the level, which falls evenly from s.At to end.
func Used(s store.State, end, now int64) int64 {
	now = max(now, s.At)
	if now >= end {
		return 0
	}
	left, _ := exact.MulDiv(s.Whole&^Debt+1, end-now, end-s.At)
	return left
}

// Charged returns the level after the charge of c, as a state: the events that drain from then
// until c.Due. over means that the level was beyond the capacity.
func Charged(c store.Receipt, over bool) store.State {
	whole, part := Drained(c.Due-c.At, c.Rate, c.Period)
	if whole > math.MaxInt32 { // c.Due is rounded up, and no level is above this
		whole, part = math.MaxInt32, c.Period-1
	}
	if over {
		whole |= Debt
	}
	return store.State{At: c.At, Period: c.Period, Whole: whole, Part: part}
}

// leftOf returns the level after the charge of c. c records whether it was beyond the capacity. If
// it was, but s is not, other events have been admitted since. At s.At, the level was then so far
// below the Burst that an event fitted. c.Due may contradict this, because events charged before c
// may have been refunded.
func leftOf(c store.Receipt, s store.State, l store.Limit) store.State {
	left := Charged(c, c.Overdrawn)
	if !c.Overdrawn || s.Whole >= Debt {
		return left
	}
	_, whole, part := Level(left, l, s.At)
	if whole >= l.Burst-1 {
		whole, part = l.Burst-1, 0
	}
	return store.State{At: s.At, Period: l.Period, Whole: whole, Part: part}
}

// Refund takes from the level the part of c that is still charged. Events drain in their order, so
// this part is what is left now of the level after the charge of c. It is nothing from c.Due on,
// and never more than the current level. At and Period do not change, so the state ends no later
// than before. If the current Period is a different one, only whole events are refunded.
func Refund(s store.State, l store.Limit, now int64, c store.Receipt) store.State {
	now, whole, part := Level(s, l, now)
	if now >= c.Due || c.At > s.At { // the state that was charged is gone
		return s
	}
	_, w, p := Level(leftOf(c, s, l), l, now)
	if w >= c.N {
		w, p = c.N, 0
	}
	if w > whole || w == whole && p >= part { // nothing else is charged
		return store.State{}
	}
	owing := s.Whole & Debt
	switch {
	case owing > 0:
		s.Whole = min(s.Whole-Debt, Most(l))
	case s.Whole >= l.Burst:
		s.Whole, s.Part = l.Burst, 0
	}
	if s.Period != l.Period {
		p = 0
	}
	s.Whole, s.Part = Subtract(s.Whole, s.Part, w, p, s.Period)
	if s.Whole > 0 {
		s.Whole |= owing
	}
	return s
}

// DrainsBefore reports whether a level drains in less than l.Before µs.
func DrainsBefore(whole, part int64, l store.Limit) bool {
	w, p := Drained(l.Before()-1, l.Rate, l.Period)
	return whole < w || whole == w && part <= p
}

// Overdraw returns the state for a level that may be beyond the capacity.
func Overdraw(next store.State, l store.Limit, most int64) store.State {
	if next.Whole = min(next.Whole, most); next.Whole >= l.Burst {
		next.Whole += Debt
	}
	return next
}

// Most returns the maximum level: the events that drain in 100 years. A full bucket drains within
// that time, so Most is never less than the Burst.
func Most(l store.Limit) int64 {
	whole, _ := Drained(MaxRefill, l.Rate, l.Period)
	return min(whole, math.MaxInt32)
}

// Holds reports whether a State may hold a level beyond the capacity.
func Holds(s store.State, l store.Limit) bool {
	whole := s.Whole
	if s.Part > 0 {
		whole++
	}
	return whole <= Most(l)
}

// Available returns how many events there is room for.
func Available(l store.Limit, r store.Reply) int64 {
	whole, part := r.Y, r.Z
	room := l.Burst - whole
	if part > 0 { // an event that has only partly drained keeps its place
		room--
	}
	return max(0, room)
}

// Report returns the parts of the report that both buckets have in common.
func Report(l store.Limit, r store.Reply, n, charged int64) store.Report {
	whole, part := r.Y, r.Z
	room := Available(l, r)
	v := store.Report{Remaining: max(0, room-charged), Reset: DrainTime(whole+charged, part, l)}
	if !r.OK() && n > room && n <= l.Burst {
		v.Retry = DrainTime(whole+n-l.Burst, part, l)
	}
	return v
}
