package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/store"
)

// TokenBucket holds up to Burst tokens per key. A bucket starts full, and is refilled continuously at
// Rate tokens per Period. It admits n events if it holds n tokens, and removes them. (GCRA is the same
// algorithm, described by times instead of tokens.)
//
// Bound: at most Burst + Rate·x/Period events in any interval x (in whole µs, rounded up), a full
// bucket and its refill.
//
// Events that [AllowWithin] admits ahead of time count at their scheduled time. If they are refunded, the
// bound is exceeded by at most the events that were refunded.
//
// A key takes about 40 bytes in memory and 150 in Redis, until the bucket is full again.
//
// Use it as the default: for limits of any size, for a sustained rate that allows bursts, and for
// costs. A client that asks for more than Rate gets all of Rate. If the limit must hold over any
// Period, use [SlidingLog]. If events must be spread out, use [LeakyBucket].
type TokenBucket struct{ limiter }

// NewTokenBucket returns a limiter with l.Burst tokens (0 means l.Rate) that are refilled at l.Rate per
// l.Period. The refill must take at most 100 years.
func NewTokenBucket(s store.Store, l Limit, opts ...Option) (*TokenBucket, error) {
	return built(new(TokenBucket), &tokenBucket, s, l, opts)
}

// Allow implements [Limiter].
func (b *TokenBucket) Allow(ctx context.Context, key string) (res Result, err error) {
	err = b.take(ctx, key, 1, &res)
	return res, err
}

// AllowN implements [Limiter].
func (b *TokenBucket) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = b.take(ctx, key, n, &res)
	return res, err
}

// tokenBucket keeps what is missing from a full bucket as a level of internal/bucket.
var tokenBucket = lua.Rule(store.Rule{
	Name:      "token_bucket",
	Step:      tokenBucketStep,
	Available: bucket.Available,
	Overdrawn: bucket.Overdraw,
	Refund:    bucket.Refund,
	TTL:       bucket.TTL,
	Used:      bucket.Used,
	Burst:     true,
	Report:    tokenBucketReport,
	After:     afterY,
	Spent:     spentY,
}, lua.Plain("bucket_plain"), lua.Of("bucket", "tokenbucket", "state"))

// tokenBucketStep decides on n events. Its reply has the time in X, and the missing tokens in Y and Z.
func tokenBucketStep(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
	if 0 < s.Whole && s.Whole < l.Burst && s.Period == l.Period && l.Before() == 0 { // fast path: what Level and Available say of most states, without calling them
		now = max(now, s.At)
		w, p := bucket.Drained(now-s.At, l.Rate, l.Period)
		missing, part := bucket.Subtract(s.Whole, s.Part, w, p, l.Period)
		tokens := l.Burst - missing
		if part > 0 {
			tokens--
		}
		return store.State{At: now, Period: l.Period, Whole: missing + n, Part: part},
			store.Reply{Outcome: store.AdmittedIf(n <= tokens), X: now, Y: missing, Z: part}
	}
	now, missing, part := bucket.Level(s, l, now)
	tokens := l.Burst - missing
	if part > 0 { // a token that is not whole yet
		tokens--
	}
	next := store.State{At: now, Period: l.Period, Whole: missing + n, Part: part}
	r := store.Reply{Outcome: store.AdmittedIf(n <= tokens), X: now, Y: missing, Z: part}
	if !r.OK() && l.Before() > 0 && n <= l.Burst && bucket.DrainsBefore(next.Whole-l.Burst, part, l) && bucket.Holds(next, l) {
		r.Outcome = store.Admitted
		next.Whole += bucket.Debt
	}
	return next, r
}

// tokenBucketReport adds turns to the report: the turn of an event that found too few tokens comes when
// they have been refilled.
func tokenBucketReport(l store.Limit, r store.Reply, n, charged int64) store.Report {
	v := bucket.Report(l, r, n, charged)
	missing, part := r.Y, r.Z
	switch {
	case l.Before() == 0 || n > l.Burst || n <= bucket.Available(l, r):
	case r.OK():
		v.Delay = bucket.DrainTime(missing+n-l.Burst, part, l)
	default:
		v.Retry -= l.Before() - 1
		if past := missing + n - bucket.Most(l); past >= 0 { // no level holds that many
			v.Retry = max(v.Retry, bucket.DrainTime(past, part, l))
		}
	}
	return v
}
