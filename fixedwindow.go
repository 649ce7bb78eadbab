package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/store"
)

// FixedWindow counts the events of a key in windows of length Period, and admits n events if count + n
// <= Rate. The windows are aligned to the Unix epoch, in UTC. Only a FixedWindow can count by calendar
// ([PerWeek], [PerMonth], [Limit.In], [Limit.From]).
//
// Bound: at most Rate events in each window. Across the edge of two windows, at most 2·Rate in any
// interval of a Period (for a calendar, of its shortest window).
//
// A key takes about 40 bytes in memory and 150 in Redis, until its window ends.
//
// Use it for quotas that users can follow, or are billed by. If nobody needs to follow the windows, use
// [TokenBucket].
type FixedWindow struct{ limiter }

// NewFixedWindow returns a limiter that counts in windows of l.Period, or by the calendar of l. l.Burst
// must be 0.
func NewFixedWindow(s store.Store, l Limit, opts ...Option) (*FixedWindow, error) {
	return built(new(FixedWindow), &fixedWindow, s, l, opts)
}

// Allow implements [Limiter].
func (w *FixedWindow) Allow(ctx context.Context, key string) (res Result, err error) {
	err = w.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (w *FixedWindow) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = w.take(ctx, key, n, &res)
	return res, err
}

// A State of a fixedWindow has the time of the last admission in At, the count of its window in Whole,
// and, for a calendar, the end of that window in Part: see windowPart.
var fixedWindow = lua.Rule(store.Rule{
	Name:      "fixed_window",
	Step:      fixedWindowStep,
	Available: windowAvailable,
	Overdrawn: windowOverdrawn,
	Refund:    fixedWindowRefund,
	TTL:       func(s store.State, _ store.Limit) int64 { return ownEnd(s) - s.At },
	Used:      wholeUsed,
	Report:    fixedWindowReport,
	After:     afterY,
	Spent:     spentY,
}, lua.Plain("fixedwindow_plain"), lua.Of("fixedwindow", "state"))

// fixedWindowStep replies now, the count, and how long it counts. The count may be above the
// Rate, because events charged beyond it, or under a higher Rate, stay counted. A Refund of some of
// them therefore makes no room.
func fixedWindowStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	if c := l.Calendar(); c != nil {
		return calendarStep(s, l, c, now, n)
	}
	r := store.Reply{X: now}
	if s.Whole > 0 {
		r.X = max(now, s.At)
		end := windowEnd(s.At, l.Period)
		if s.Period != l.Period || s.Part > 0 { // the count ends with the window of either Period, whichever ends first
			end = min(end, ownEnd(s))
		}
		if r.X < end {
			r.Y, r.Z = s.Whole, end-r.X
		}
	}
	r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate)
	return store.State{At: r.X, Period: l.Period, Whole: r.Y + n}, r
}

// calendarStep is fixedWindowStep under l's calendar c. Events that were counted before the window of now
// began no longer count in it.
func calendarStep(s store.State, l store.Limit, c *store.Calendar, now, n int64) (store.State, store.Reply) {
	r := store.Reply{X: now}
	if s.Whole > 0 {
		r.X = max(now, s.At)
	}
	start, end := c.Window(r.X)
	if s.Whole > 0 && s.At >= start {
		if until := min(end, ownEnd(s)); r.X < until {
			r.Y, r.Z = s.Whole, until-r.X
		}
	}
	r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate)
	return store.State{At: r.X, Period: l.Period, Whole: r.Y + n, Part: windowPart(end)}, r
}

// A Part is the end of a calendar's window in Unix seconds, which all edges are, plus partOf1970, so
// that it is above 0. The Part stays when a store moves At.
const partOf1970 = 1 << 41

func windowPart(end int64) int64 { return end/1e6 + partOf1970 }

// longer is the most by which a calendar's window can exceed its Period, in µs.
const longer = 2 * 24 * 3600 * 1e6

// ownEnd returns the end of the window in which s was counted. If a store has moved At back, it returns the
// latest end that a window can have.
func ownEnd(s store.State) int64 {
	if s.Part > 0 {
		return min(s.Part-partOf1970, (s.At+s.Period+longer)/1e6) * 1e6
	}
	return windowEnd(s.At, s.Period)
}

// fixedWindowRefund refunds only in the window of the charge, which ends at c.Due. The charge may have
// been counted by another calendar, whose window had the same end and an earlier start.
func fixedWindowRefund(s store.State, l store.Limit, _ int64, c store.Receipt) store.State {
	end := ownEnd(s)
	if c.Period != s.Period || c.Due != end || s.Part == 0 && c.At < end-s.Period { // c was charged in a longer window, such as a day of 25 hours
		return s
	}
	if s.Part > 0 && l.Calendar() != nil && l.Period == s.Period {
		start, last := l.Window(end - 1)
		if last == end && c.At < start && start <= s.At {
			return s
		}
	}
	if s.Whole -= min(c.N, s.Whole); s.Whole == 0 {
		s.Part = 0
	}
	return s
}

// wholeUsed returns the used events of a fixed window, or of one entry of a log: all of them until
// the end.
func wholeUsed(s store.State, end, now int64) int64 {
	if now >= end {
		return 0
	}
	return s.Whole
}

// windowAvailable returns the available events of a rule whose replies have the count in Y.
func windowAvailable(l store.Limit, r store.Reply) int64 { return max(0, l.Rate-r.Y) }

// windowOverdrawn returns the state of a count that may be above the Rate, but not above most.
func windowOverdrawn(next store.State, _ store.Limit, most int64) store.State {
	next.Whole = min(next.Whole, most)
	return next
}

func fixedWindowReport(l store.Limit, r store.Reply, _, charged int64) store.Report {
	v := store.Report{Remaining: max(0, windowAvailable(l, r)-charged), Retry: r.Z, Reset: r.Z}
	if charged > 0 {
		_, end := l.Window(r.X)
		v.Reset = end - r.X
	}
	return v
}

// windowStart returns the start of the window of period in which t lies, all in µs.
// It rounds down before 1970 too.
func windowStart(t, period int64) int64 {
	e := t % period
	if e < 0 {
		e += period
	}
	return t - e
}

// windowEnd returns the end of that window, which is the start of the next.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }
