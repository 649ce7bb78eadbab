package ratelimit

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// The level of a bucket, which the token bucket and the leaky bucket share: what
// was spent and has not been refilled, what was poured in and has not drained.
// It falls by Rate events each Period and is kept exactly, as whole + part/Period
// events: in one µs it falls by Rate/Period, so that it never needs a smaller
// fraction.
//
// In a State: At, the time of the level; Whole and Part, the level.

// bucketLevel is the level of s at now under l, and now itself, which is never
// before s.At.
func bucketLevel(s store.State, l store.Limit, now int64) (at, whole, part int64) {
	if s.Whole == 0 && s.Part == 0 {
		return now, 0, 0
	}
	whole, part = s.Whole, s.Part
	if whole >= l.Burst || s.Period != l.Period {
		whole, part = bucketConvert(s, l)
	}
	now = max(now, s.At)
	w, p := flow(now-s.At, l.Rate, l.Period)
	whole, part = subtract(whole, part, w, p, l.Period)
	return now, whole, part
}

// bucketConvert is the level of s, at s.At, as l counts. A level above the
// capacity is cut before time is credited: the other order would lock a key out
// until the old level has drained.
func bucketConvert(s store.State, l store.Limit) (whole, part int64) {
	most := int64(math.MaxInt64)
	if s.Whole >= l.Burst {
		if s.Whole < overdrawn {
			return l.Burst, 0
		}
		s.Whole -= overdrawn
		most = bucketMost(l) // no more than today's limit drains in 100 years
	}
	if s.Period != l.Period && s.Part > 0 {
		s.Whole, s.Part = s.Whole+1, 0
	}
	return min(s.Whole, most), s.Part
}

// flow is how many events drain in dt µs, as whole + part/period.
func flow(dt, rate, period int64) (whole, part int64) { return exact.MulDiv(dt, rate, period) }

// subtract is (whole + part/period) - (w + p/period), at least 0.
func subtract(whole, part, w, p, period int64) (int64, int64) {
	whole, part = whole-w, part-p
	if part < 0 {
		whole, part = whole-1, part+period
	}
	if whole < 0 {
		return 0, 0
	}
	return whole, part
}

// drainTime is how long a level takes to drain, in µs, rounded up.
func drainTime(whole, part int64, l store.Limit) int64 {
	return exact.MulDivUp(whole, l.Period, part, l.Rate)
}

// drainsWithin says whether a full bucket drains in at most limit µs.
func drainsWithin(l store.Limit, limit int64) bool {
	return exact.AtMost(l.Burst, l.Period, l.Rate, limit)
}

func bucketTTL(s store.State, l store.Limit) int64 { return drainTime(s.Whole&^overdrawn, s.Part, l) }

// bucketUsed is what is left of the level: it falls evenly from s.At to end.
func bucketUsed(s store.State, end, now int64) int64 {
	now = max(now, s.At)
	if now >= end {
		return 0
	}
	left, _ := exact.MulDiv(s.Whole&^overdrawn+1, end-now, end-s.At)
	return left
}

// chargedLevel is the level that c left behind, as a state: what drained from then
// until c.Due. over says whether it was past the capacity.
func chargedLevel(c store.Receipt, over bool) store.State {
	whole, part := flow(c.Due-c.At, c.Rate, c.Period)
	if whole > maxEvents { // c.Due is rounded up, and no level is above this
		whole, part = maxEvents, c.Period-1
	}
	if over {
		whole |= overdrawn
	}
	return store.State{At: c.At, Period: c.Period, Whole: whole, Part: part}
}

// leftOf is the level that c left behind. c says itself whether it was past the capacity. If
// it was, and s is not, others have been admitted since. At s.At the level was then so far
// below the Burst that an event fitted. c.Due may say otherwise, since what was charged
// before c may have been refunded.
func leftOf(c store.Receipt, s store.State, l store.Limit) store.State {
	left := chargedLevel(c, c.Overdrawn)
	if !c.Overdrawn || s.Whole >= overdrawn {
		return left
	}
	_, whole, part := bucketLevel(left, l, s.At)
	if whole >= l.Burst-1 {
		whole, part = l.Burst-1, 0
	}
	return store.State{At: s.At, Period: l.Period, Whole: whole, Part: part}
}

// bucketRefund takes from the level what is still charged of c. Events drain in their order.
// So that is what is left now of the level that c left behind. It is nothing from c.Due on,
// and no more than is there. At and Period stay, so that the state lives no longer than
// before. Where today's Period is another one, only whole events are given back.
func bucketRefund(s store.State, l store.Limit, now int64, c store.Receipt) store.State {
	now, whole, part := bucketLevel(s, l, now)
	if now >= c.Due || c.At > s.At { // a state before the charge is another one
		return s
	}
	_, w, p := bucketLevel(leftOf(c, s, l), l, now)
	if w >= c.N {
		w, p = c.N, 0
	}
	if w > whole || w == whole && p >= part { // all that is there
		return store.State{}
	}
	owing := s.Whole & overdrawn
	switch {
	case owing > 0:
		s.Whole = min(s.Whole-overdrawn, bucketMost(l))
	case s.Whole >= l.Burst:
		s.Whole, s.Part = l.Burst, 0
	}
	if s.Period != l.Period {
		p = 0
	}
	s.Whole, s.Part = subtract(s.Whole, s.Part, w, p, s.Period)
	if s.Whole > 0 {
		s.Whole |= owing
	}
	return s
}

// overdrawn is added to the Whole of a level that was charged past the capacity, so that it
// is not clamped to the capacity. The level itself is below it.
const overdrawn = 1 << 31

// drainsBefore says whether a level drains in less than l.Before µs.
func drainsBefore(whole, part int64, l store.Limit) bool {
	w, p := flow(l.Before()-1, l.Rate, l.Period)
	return whole < w || whole == w && part <= p
}

// bucketOverdrawn is a level that may lie past the capacity.
func bucketOverdrawn(next store.State, l store.Limit, most int64) store.State {
	if next.Whole = min(next.Whole, most); next.Whole >= l.Burst {
		next.Whole += overdrawn
	}
	return next
}

// bucketMost is the most that a level may hold: what drains in 100 years. A full bucket does,
// so that it is never less than the Burst.
func bucketMost(l store.Limit) int64 {
	whole, _ := flow(maxRefill, l.Rate, l.Period)
	return min(whole, maxEvents)
}

// bucketHolds says whether a level past the capacity is one that a State may hold.
func bucketHolds(s store.State, l store.Limit) bool {
	whole := s.Whole
	if s.Part > 0 {
		whole++
	}
	return whole <= bucketMost(l)
}

// bucketReply reads a reply of either bucket: the level before the decision. (X is its
// time, as in all admissions.)
func bucketReply(r store.Reply) (whole, part int64) { return r.Y, r.Z }

func bucketAvailable(l store.Limit, r store.Reply) int64 {
	whole, part := bucketReply(r)
	room := l.Burst - whole
	if part > 0 { // an event that has not drained whole keeps its place
		room--
	}
	return max(0, room)
}

// bucketTaken fills res with bucketReport of a call without a turn. It takes the limit by
// pointer and calls nothing but the division, since each decision pays for it.
func bucketTaken(l *store.Limit, r store.Reply, n, charged int64, res *Result) {
	whole, part := bucketReply(r)
	room := l.Burst - whole
	if part > 0 {
		room--
	}
	room = max(0, room)
	res.Allowed, res.Limit, res.Remaining = r.OK(), int(l.Burst), int(max(0, room-charged))
	res.ResetAfter = time.Duration(exact.MulDivUp(whole+charged, l.Period, part, l.Rate)) * time.Microsecond
	switch {
	case r.OK():
	case n > l.Burst:
		res.RetryAfter = Never
	default:
		res.RetryAfter = time.Duration(exact.MulDivUp(whole+n-l.Burst, l.Period, part, l.Rate)) * time.Microsecond
	}
}

// bucketReport is what the reports of both buckets share.
func bucketReport(l store.Limit, r store.Reply, n, charged int64) store.Report {
	whole, part := bucketReply(r)
	room := bucketAvailable(l, r)
	v := store.Report{Remaining: max(0, room-charged), Reset: drainTime(whole+charged, part, l)}
	if !r.OK() && n > room && n <= l.Burst {
		v.Retry = drainTime(whole+n-l.Burst, part, l)
	}
	return v
}
