package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/store"
)

// taken is result for a Take under the constructor's limit.
func (lim *limiter) taken(res *Result, r store.Reply, n, charged int64) {
	if !lim.rule.Burst || r.Plain() {
		lim.result(res, lim.integers, r, n, charged)
		return
	}
	bucketTaken(&lim.integers, r, n, charged, res)
	if lim.rule == &leakyBucket && r.OK() {
		res.Delay = time.Duration(bucket.DrainTime(r.Y, r.Z, lim.integers)) * time.Microsecond
	}
	res.addReceipt(lim.integers, r.X, charged)
}

// bucketTaken fills res as [bucket.Report] would for a call without a turn. It takes the limit by pointer
// and calls only the division, because every decision pays for it.
func bucketTaken(l *store.Limit, r store.Reply, n, charged int64, res *Result) {
	whole, part := r.Y, r.Z
	room := l.Burst - whole
	if part > 0 {
		room--
	}
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

// result makes res from the reply to a request for n events, of which charged were charged.
func (lim *limiter) result(res *Result, l store.Limit, r store.Reply, n, charged int64) {
	res.report(r.Report(lim.rule, l, n, charged), r.OK(), n, lim.capacity(&l))
	res.addReceipt(l, r.X, charged)
	if r.Plain() {
		res.mark = markOf(r.Outcome)
		if !res.Allowed && r.X == store.Never {
			res.RetryAfter = Never
		}
	}
}

// overdrawn makes res from the reply to an OpOverdraw.
func (lim *limiter) overdrawn(res *Result, req *store.Request, r store.Reply) {
	n := req.N
	r.Outcome |= store.Admitted
	if spent := lim.rule.Spent; spent != nil && !r.Plain() { // only as many as the state could hold were charged
		n = min(n, max(0, req.Most-spent(r)))
	}
	lim.result(res, req.Limit, r, n, n)
	if n == 0 { // the state was full, but was written: report its last event as this one
		res.report(lim.rule.Report(req.Limit, lim.rule.After(r, -1), 1, 1), true, 1, req.Limit.Burst)
		res.Delay = 0
	}
}

// mostOf returns the most events that a state can hold.
func mostOf(rule *store.Rule, l store.Limit) int64 {
	if rule.Burst {
		return bucket.Most(l)
	}
	return maxEvents
}

// capacity returns the most events that fit at one instant: the Burst, or the Rate of a ban, whose Burst is a time.
func (lim *limiter) capacity(l *store.Limit) int64 {
	if lim.rule == &ban {
		return l.Rate
	}
	return l.Burst
}

// afterY and afterZ are the After functions of rules whose replies count the spend in Y, or in Z.
func afterY(r store.Reply, n int64) store.Reply {
	r.Y += n
	return r
}

func afterZ(r store.Reply, n int64) store.Reply {
	r.Z += n
	return r
}

// spentY and spentZ are the Spent functions of the same rules.
func spentY(r store.Reply) int64 { return r.Y }

func spentZ(r store.Reply) int64 { return r.Z }
