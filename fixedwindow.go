package ratelimit

import (
	"context"
	_ "embed"

	"github.com/ratelimit-go/ratelimit/store"
)

// FixedWindow counts the events of each window of Period. Windows are aligned to the Unix
// epoch in UTC: with a Period of an hour, the count starts again at each full hour. It
// admits n events if count + n <= Rate.
//
// Bound: at most Rate events in each window. Within a Period across an edge it is at most
// 2·Rate: the end of one window and the beginning of the next can both be full.
//
// A key costs one counter, whatever the Rate. That is some 60 bytes in memory and some 150
// in Redis, until the window ends.
//
// Use it for quotas that people can follow ("1,000 a day, from midnight UTC"). Where the
// double burst at the edge hurts, use [SlidingWindow] at the same cost.
type FixedWindow struct{ limiter }

// NewFixedWindow returns a limiter that counts in windows of l.Period. l has no
// Burst. Its errors are [ErrInvalidLimit] and [ErrInvalidOption].
func NewFixedWindow(s store.Store, l Limit, opts ...Option) (*FixedWindow, error) {
	w := new(FixedWindow)
	if err := w.build(w, &fixedWindow, s, l, opts); err != nil {
		return nil, err
	}
	return w, nil
}

// Allow is AllowN of 1.
func (w *FixedWindow) Allow(ctx context.Context, key string) (res Result, err error) {
	err = w.decide(ctx, key, 1, take, nil, &res)
	return res, err
}

// AllowN decides on n events at once: all are admitted and charged, or none.
func (w *FixedWindow) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = w.decide(ctx, key, n, take, nil, &res)
	return res, err
}

//go:embed scripts/fixedwindow_plain.lua
var fixedWindowPlainLua string

//go:embed scripts/fixedwindow.lua
var fixedWindowLua string

// fixedWindow keeps in a State: At, the time of the last admission; Whole, the
// count of its window.
var fixedWindow = algorithm{
	rule: store.Rule{
		Name:        "fixed_window",
		Step:        fixedWindowStep,
		Available:   windowAvailable,
		Overdrawn:   windowOverdrawn,
		Refund:      fixedWindowRefund,
		TTL:         func(s store.State, _ store.Limit) int64 { return windowEnd(s.At, s.Period) - s.At },
		Used:        wholeUsed,
		Script:      script(plainCase(fixedWindowPlainLua), fixedWindowLua, stateLua),
		JointScript: jointScript,
		BatchScript: batchScript,
	},
	report: fixedWindowReport,
	after:  afterY,
	spent:  spentY,
}

// fixedWindowStep replies now, the count, and for how long it counts. The count may
// be above the Rate: what was charged past it, or under a higher one, stays counted, so
// that a Refund of some of it opens no room.
func fixedWindowStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	r := store.Reply{X: now}
	if s.Whole > 0 {
		r.X = max(now, s.At)
		end := windowEnd(s.At, l.Period)
		if s.Period != l.Period { // it counts until its window ends in either
			end = min(end, windowEnd(s.At, s.Period))
		}
		if r.X < end {
			r.Y, r.Z = s.Whole, end-r.X
		}
	}
	r.OK = r.Y+n <= l.Rate
	return store.State{At: r.X, Period: l.Period, Whole: r.Y + n}, r
}

func fixedWindowRefund(s store.State, _ store.Limit, _ int64, c store.Receipt) store.State {
	if c.Period == s.Period && windowStart(c.At, s.Period) == windowStart(s.At, s.Period) {
		s.Whole -= min(c.N, s.Whole)
	}
	return s
}

// wholeUsed is that of a fixed window and of one entry of a log: all, until the end.
func wholeUsed(s store.State, end, now int64) int64 {
	if now >= end {
		return 0
	}
	return s.Whole
}

// windowReply reads a reply of a fixed window: the time of the decision, the count before
// it, and for how long, in µs, that counts. A log's has the count at the same place.
func windowReply(r store.Reply) (now, count, left int64) { return r.X, r.Y, r.Z }

// windowAvailable is that of a fixed window and of a log.
func windowAvailable(l store.Limit, r store.Reply) int64 {
	_, count, _ := windowReply(r)
	return max(0, l.Rate-count)
}

// windowOverdrawn is a count that may lie past the Rate.
func windowOverdrawn(next store.State, _ store.Limit, most int64) store.State {
	next.Whole = min(next.Whole, most)
	return next
}

func fixedWindowReport(l store.Limit, r store.Reply, _, charged int64) verdict {
	now, _, left := windowReply(r)
	v := verdict{remaining: max(0, windowAvailable(l, r)-charged), retry: left, reset: left}
	if charged > 0 {
		v.reset = windowEnd(now, l.Period) - now
	}
	return v
}

// windowStart is the start of the window of period in which t lies, both in µs.
// It rounds down before 1970 too.
func windowStart(t, period int64) int64 {
	e := t % period
	if e < 0 {
		e += period
	}
	return t - e
}

// windowEnd is the end of that window, and the start of the next.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }
