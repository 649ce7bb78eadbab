package ratelimit

import (
	_ "embed"

	"github.com/ratelimit-go/ratelimit/store"
)

// FixedWindow counts the events of each window of Period, the windows being
// aligned to the Unix epoch in UTC: with a Period of an hour, a count starts
// again at each full hour. It admits n events if count + n <= Rate.
//
// Bound: at most Rate events in each window, and so at most 2·Rate within one
// Period that lies across an edge: the end of one window and the beginning of
// the next can both be full.
//
// A key costs one counter, whatever the Rate: some 60 bytes in memory and some
// 120 in Redis, from its first event in a window until the window ends.
//
// Use it for quotas that people can follow ("1,000 a day, from midnight UTC").
// Where the double burst at the edge hurts, use [SlidingWindow] at the same cost.
type FixedWindow struct{ limiter }

// NewFixedWindow returns a limiter that counts in windows of l.Period. l has no
// Burst. Its errors are [ErrInvalidLimit] and [ErrInvalidOption].
func NewFixedWindow(s store.Store, l Limit, opts ...Option) (*FixedWindow, error) {
	lim, err := newLimiter(&fixedWindow, s, l, opts)
	if err != nil {
		return nil, err
	}
	return &FixedWindow{lim}, nil
}

//go:embed scripts/fixedwindow.lua
var fixedWindowLua string

// fixedWindow keeps in a State: At, the start of the window; Whole, its count.
var fixedWindow = algorithm{
	rule: store.Rule{
		Name:   "fixed_window",
		Step:   fixedWindowStep,
		Refund: fixedWindowRefund,
		Life:   func(s store.State, _ store.Limit) int64 { return s.Period },
		Spend:  func(s store.State, end, now int64) int64 { return fixedWindowCount(s, min(now, end)) },
		Script: script(fixedWindowLua),
	},
	report: fixedWindowReport,
}

// fixedWindowStep replies now and the count.
func fixedWindowStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	if s.Whole > 0 {
		now = max(now, s.At)
	}
	count := min(fixedWindowCount(s, now), l.Rate)
	next := store.State{At: windowStart(now, l.Period), Period: l.Period, Whole: count + n}
	return next, store.Reply{OK: count+n <= l.Rate, X: now, Y: count}
}

// fixedWindowCount is what s counts at now: its window may have ended, or be of
// another Period than today's limit.
func fixedWindowCount(s store.State, now int64) int64 {
	if now >= s.At+s.Period {
		return 0
	}
	return s.Whole
}

func fixedWindowRefund(s store.State, _ store.Limit, _ int64, c store.Charge) store.State {
	if windowStart(c.At, s.Period) == s.At {
		s.Whole -= min(c.N, s.Whole)
	}
	return s
}

func fixedWindowReport(l store.Limit, r store.Reply, _, charged int64) verdict {
	now, count := r.X, r.Y+charged
	next := windowStart(now, l.Period) + l.Period - now // µs until the next window
	v := verdict{remaining: l.Rate - count, retry: next}
	if count > 0 {
		v.reset = next
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
