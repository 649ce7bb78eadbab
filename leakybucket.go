package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/store"
)

// LeakyBucket is a queue of Burst places per key that drains at Rate events per Period. It admits n
// events if the queue has room for all of them. Delay is the time until their place in the queue comes
// up: sleep for it, or use [Wait].
//
// Bound: at most Burst + Rate·x/Period events in any interval x (in whole µs, rounded up). If every
// caller sleeps for its Delay, the events are spaced Period/Rate apart.
//
// Refund refunds events only while they are the last in the queue, so callers that cannot wait should
// use [AllowWithin]. Refund a charge as a whole, because if it is refunded in parts, a place may be given
// to two events.
//
// A key takes about 40 bytes in memory and 150 in Redis, until the queue is empty.
//
// Use it to call a service that needs a steady pace. If nobody sleeps, use [TokenBucket].
type LeakyBucket struct{ limiter }

// NewLeakyBucket returns a limiter whose queue has l.Burst places (0 means l.Rate) and drains at l.Rate
// per l.Period. A full queue must drain in at most 100 years.
func NewLeakyBucket(s store.Store, l Limit, opts ...Option) (*LeakyBucket, error) {
	return built(new(LeakyBucket), &leakyBucket, s, l, opts)
}

// Allow implements [Limiter].
func (b *LeakyBucket) Allow(ctx context.Context, key string) (res Result, err error) {
	err = b.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (b *LeakyBucket) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = b.take(ctx, key, n, &res)
	return res, err
}

// leakyBucket keeps the queue as a level of internal/bucket.
var leakyBucket = lua.Rule(store.Rule{
	Name:      "leaky_bucket",
	Step:      leakyBucketStep,
	Available: bucket.Available,
	Overdrawn: bucket.Overdraw,
	Refund:    leakyBucketRefund,
	TTL:       bucket.TTL,
	Used:      bucket.Used,
	Burst:     true,
	Report:    leakyBucketReport,
	After:     afterY,
	Spent:     spentY,
	LastOnly:  true,
}, lua.Plain("bucket_plain"), lua.Of("bucket", "leakybucket", "state"))

// leakyBucketStep decides on n events. Its reply has the time in X, and the queue before them in Y and Z.
func leakyBucketStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	now, queue, part := bucket.Level(s, l, now)
	places := queue + n
	if part > 0 { // an event that has only partly drained keeps its place
		places++
	}
	next := store.State{At: now, Period: l.Period, Whole: queue + n, Part: part}
	ok := places <= l.Burst && (l.Before() == 0 || bucket.DrainsBefore(queue, part, l))
	return next, store.Reply{Outcome: store.AdmittedIf(ok), X: now, Y: queue, Z: part}
}

// leakyBucketRefund refunds only the tail of the queue. The charge c is the tail if the queue now
// holds no more than what is left of the level right after c. Events that came later and were
// refunded leave no trace except the time of the state.
func leakyBucketRefund(s store.State, l store.Limit, now int64, c store.Receipt) store.State {
	_, whole, part := bucket.Level(s, l, s.At)
	_, w, p := bucket.Level(bucket.Charged(c, c.Overdrawn || s.Whole >= bucket.Debt), l, s.At) // to compare like with like
	if w < whole || w == whole && p < part {
		return s
	}
	return bucket.Refund(s, l, now, c)
}

func leakyBucketReport(l store.Limit, r store.Reply, n, charged int64) store.Report {
	v := bucket.Report(l, r, n, charged)
	queue, part := r.Y, r.Z
	switch {
	case r.OK():
		v.Delay = bucket.DrainTime(queue, part, l)
	case l.Before() > 0: // there must be room, and the turn must be near enough
		v.Retry = max(v.Retry, bucket.DrainTime(queue, part, l)-(l.Before()-1))
	}
	return v
}
