package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/eventlog"
	"github.com/ratelimit-go/ratelimit/store"
)

// SlidingLog keeps the time of each event that was admitted in the last Period. It admits n more events
// if that makes at most Rate events in the Period.
//
// Bound: at most Rate events in any interval of a Period, exactly.
//
// A key takes about 7 bytes per event of the last Period, or 14 per AllowN of several events, and in
// memory up to 240 bytes more.
//
// Use it if the limit is a contract: for logins, payments, or calls to a supplier that counts exactly.
// For large Rates, use [SlidingWindow] or [TokenBucket].
type SlidingLog struct{ limiter }

// NewSlidingLog returns a limiter that keeps the events of the last l.Period. l.Burst must be 0.
func NewSlidingLog(s store.Store, l Limit, opts ...Option) (*SlidingLog, error) {
	return built(new(SlidingLog), &slidingLog, s, l, opts)
}

// Allow implements [Limiter].
func (g *SlidingLog) Allow(ctx context.Context, key string) (res Result, err error) {
	err = g.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (g *SlidingLog) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = g.take(ctx, key, n, &res)
	return res, err
}

// A State of a slidingLog is a single entry, with its time in At and its events in Whole. Two entries
// or more are an [eventlog.Log].
var slidingLog = lua.Rule(store.Rule{
	Name:      "sliding_log",
	Step:      slidingLogStep,
	Available: windowAvailable,
	Refund:    slidingLogRefund,
	TTL:       func(s store.State, _ store.Limit) int64 { return s.Period },
	Used:      wholeUsed,
	NewLog:    eventlog.New,
	ParseLog:  eventlog.Parse,
	Report:    slidingLogReport,
	After:     afterY,
}, lua.Text("slidinglog_plain"), lua.Of("slidinglog"))

// slidingLogStep replies now, the number of events in the last Period, and ResetAfter. For a denial, it
// replies RetryAfter instead of now. A log replies the same.
func slidingLogStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	r := store.Reply{Outcome: store.AdmittedIf(n <= l.Rate), X: now}
	if s.Whole > 0 {
		r.X = max(now, s.At)
		if left := s.At + min(s.Period, l.Period) - r.X; left > 0 {
			r.Y, r.Z = s.Whole, s.At+l.Period-r.X
			if r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate); r.OK() {
				return store.State{}, r // a second entry needs a log
			}
			if n <= l.Rate {
				r.X = r.Z
			}
			return s, r
		}
	}
	return store.State{At: r.X, Period: l.Period, Whole: n}, r
}

func slidingLogRefund(s store.State, l store.Limit, now int64, c store.Receipt) store.State {
	if c.At == s.At && max(now, s.At) < s.At+min(s.Period, l.Period) {
		s.Whole -= min(c.N, s.Whole)
	}
	return s
}

func slidingLogReport(l store.Limit, r store.Reply, _, charged int64) store.Report {
	v := store.Report{Remaining: max(0, windowAvailable(l, r)-charged), Retry: r.X, Reset: r.Z}
	if charged > 0 {
		v.Reset = l.Period
	}
	return v
}
