package ratelimit

import (
	"context"
	"math/bits"

	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// SlidingWindow counts the events of a key in the current and the previous window of length Period,
// aligned to the Unix epoch, in UTC. It assumes that the events of the previous window were spread
// evenly. At time e after the start of the current window, it admits n events if
//
//	prev·(Period-e) + (cur+n)·Period <= Rate·Period
//
// computed in integers, without rounding. The formula is [Cloudflare's].
//
// Bound: at most Rate·(1 + x/Period) events in any interval x. If the events of the previous window
// came at its end, nearly 2·Rate events can fall into one interval of a Period.
//
// Clients that ask for more than Rate get less than Rate, because the events admitted in the previous
// window still count in the current one. They get Rate-1 events per Period, or one event in every two
// Periods if the Rate is 1. That is 50% of a Rate of 1 or 2, 67% of 3, 80% of 5, 90% of 10 and 99% of 100.
//
// A key takes about 40 bytes in memory and 150 in Redis, for up to two Periods.
//
// Use it for Rates of 100 or more, if bursts at the edge of two Periods should be rarer than with
// [TokenBucket]. For smaller Rates, and as the default, use TokenBucket. If the limit must hold over any
// Period, use [SlidingLog].
//
// [Cloudflare's]: https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
type SlidingWindow struct{ limiter }

// NewSlidingWindow returns a limiter that counts in two windows of l.Period. l.Burst must be 0.
func NewSlidingWindow(s store.Store, l Limit, opts ...Option) (*SlidingWindow, error) {
	return built(new(SlidingWindow), &slidingWindow, s, l, opts)
}

// Allow implements [Limiter].
func (w *SlidingWindow) Allow(ctx context.Context, key string) (res Result, err error) {
	err = w.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (w *SlidingWindow) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = w.take(ctx, key, n, &res)
	return res, err
}

// A State of a slidingWindow has the time of the last admission in At, the count of its window in Whole,
// and the count of the window before in Part.
var slidingWindow = lua.Rule(store.Rule{
	Name:      "sliding_window",
	Step:      slidingWindowStep,
	Available: slidingWindowAvailable,
	Overdrawn: windowOverdrawn,
	Refund:    slidingWindowRefund,
	TTL:       slidingWindowTTL,
	Used:      slidingWindowUsed,
	Report:    slidingWindowReport,
	After:     afterZ,
	Spent:     spentZ,
}, lua.Plain("slidingwindow_plain"), lua.Of("slidingwindow", "state"))

// slidingWindowStep replies now and the counts of the previous and the current window. If these were
// counted in another Period, it replies now (for a denial RetryAfter), -1 - ResetAfter, and one count.
// Counts may be above the Rate, as in a fixed window. The previous count then weighs as much as the Rate.
func slidingWindowStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	r, weighing := store.Reply{X: now}, int64(0)
	if s.Whole > 0 || s.Part > 0 {
		r.X = max(now, s.At)
		if s.Period != l.Period {
			return slidingWindowConvert(s, l, r.X, n)
		}
		prev, cur, left := roll(s, r.X)
		r.Y, r.Z = prev, cur
		weighing = weight(min(prev, l.Rate), left, l.Period)
	}
	r.Outcome = store.AdmittedIf(weighing+r.Z+n <= l.Rate)
	return store.State{At: r.X, Period: l.Period, Whole: r.Z + n, Part: r.Y}, r
}

// slidingWindowConvert is the step of a state that was counted in another Period. The events that still
// weigh go into the window of the new Period in which they were written, and end with it. Otherwise, a
// key that is denied, and therefore not written, would keep its weight under the old Period.
func slidingWindowConvert(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	end := min(s.At+slidingWindowTTL(s, l), windowEnd(s.At, l.Period))
	count := weightOf(s, l, end, now)
	r := store.Reply{Outcome: store.AdmittedIf(count+n <= l.Rate), X: now, Y: -1 - max(0, end-now), Z: count}
	if !r.OK() {
		early, late := now, end // early is too early, and late is late enough unless n is above the Rate
		for late-early > 1 {
			t := early + (late-early)/2
			if weightOf(s, l, end, t)+n <= l.Rate {
				late = t
			} else {
				early = t
			}
		}
		r.X = late - now
	}
	return store.State{At: now, Period: l.Period, Whole: count + n}, r
}

// weightOf returns the weight at now, under l, of a state that was counted in another Period and that
// ends at end.
func weightOf(s store.State, l store.Limit, end, now int64) int64 {
	if now >= end {
		return 0
	}
	prev, cur, left := roll(s, max(now, s.At))
	return cur + weight(min(prev, l.Rate), left, s.Period)
}

// roll returns the counts of s in the previous and the current window of now, and how many µs are left
// of the current one. now is not before s.At.
func roll(s store.State, now int64) (prev, cur, left int64) {
	since := now - windowStart(s.At, s.Period)
	switch {
	case since < s.Period:
		return s.Part, s.Whole, s.Period - since
	case since < 2*s.Period:
		return s.Whole, 0, 2*s.Period - since
	}
	return 0, 0, 0
}

// weight returns how many of prev events still count when left µs are left of the current window,
// rounded up. All other terms are whole numbers, so the rounded weight decides as the exact one does.
func weight(prev, left, period int64) int64 {
	if prev == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(prev), uint64(left)) // not exact.MulDiv, to save a call in every decision
	whole, part := bits.Div64(hi, lo, uint64(period))
	if part > 0 {
		whole++
	}
	return int64(whole)
}

func slidingWindowRefund(s store.State, _ store.Limit, _ int64, c store.Receipt) store.State {
	if c.Period != s.Period {
		return s
	}
	switch windowStart(s.At, s.Period) - windowStart(c.At, s.Period) {
	case 0:
		s.Whole -= min(c.N, s.Whole)
	case s.Period:
		s.Part -= min(c.N, s.Part)
	}
	return s
}

func slidingWindowTTL(s store.State, _ store.Limit) int64 {
	life := windowEnd(s.At, s.Period) - s.At
	if s.Whole > 0 {
		life += s.Period
	}
	return life
}

func slidingWindowUsed(s store.State, end, now int64) int64 {
	if now >= end {
		return 0
	}
	prev, cur, left := roll(s, max(now, s.At))
	return cur + weight(prev, left, s.Period)
}

// slidingWindowReply reads a reply: the time of the decision, and the counts of the previous
// and the current window before it. If they were counted in another Period, all events are in cur.
func slidingWindowReply(r store.Reply) (now, prev, cur int64, converted bool) {
	return r.X, max(0, r.Y), r.Z, r.Y < 0
}

func slidingWindowAvailable(l store.Limit, r store.Reply) int64 {
	now, prev, cur, _ := slidingWindowReply(r)
	return max(0, l.Rate-cur-weight(min(prev, l.Rate), windowEnd(now, l.Period)-now, l.Period))
}

func slidingWindowReport(l store.Limit, r store.Reply, n, charged int64) store.Report {
	now, prev, cur, converted := slidingWindowReply(r)
	if converted && charged == 0 {
		return store.Report{Remaining: max(0, l.Rate-cur), Retry: r.X, Reset: -1 - r.Y}
	}
	prev, cur = min(prev, l.Rate), cur+charged
	next := windowEnd(now, l.Period) - now // µs until the next window
	v := store.Report{Remaining: max(0, l.Rate-cur-weight(prev, next, l.Period))}
	switch {
	case cur > 0:
		v.Reset = next + l.Period
	case prev > 0:
		v.Reset = next
	}
	switch {
	case r.OK() || n > l.Rate:
	case cur+n <= l.Rate: // in this window, once enough of prev has left
		v.Retry = next - lightEnough(prev, l.Rate-cur-n, l.Period)
	default: // in the next window, where cur is prev
		v.Retry = next + l.Period - lightEnough(min(cur, l.Rate), l.Rate-n, l.Period)
	}
	return v
}

// lightEnough returns how many µs of a window may be left so that prev events weigh at most room: the
// greatest left with prev·left <= room·period. prev is above room.
func lightEnough(prev, room, period int64) int64 {
	left, _ := exact.MulDiv(room, period, prev)
	return left
}
