package ratelimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// five is what regions ask of the limiter, a *five.Limiter[Result]. It is nil if that is counted
// by another key, or counts calls.
func (lim *limiter) five() any {
	if lim.keyFunc != nil || lim.calls {
		return nil
	}
	return &five.Limiter[Result]{
		Algorithm: lim.rule.Name,
		Limit:     lim.integers,
		Within:    func(by store.Limit, d time.Duration) store.Limit { return limitWithin(lim.rule, by, d) },
		LimitOf:   lim.limitOf,
		By:        lim.by,
		Space:     lim.space(),
		Look:      lim.look,
		Credit:    lim.credit,
	}
}

// space is what the limiter shares with others that have the same state.
func (lim *limiter) space() any {
	if lim.bottom == nil {
		return nil
	}
	hi, lo := lim.namespace.ID()
	return struct {
		store  store.Store
		hi, lo uint64
	}{lim.bottom, hi, lo}
}

// look tells how a key of a window or a token bucket stands. The last event of a bucket cannot
// be credited: see leftOf.
func (lim *limiter) look(ctx context.Context, key string, by store.Limit) (l five.Look, err error) {
	r, err := bottom(lim.store).Peek(ctx, lim.namespace, key, by, 1) // which tells what it counts
	if err != nil {
		return l, err
	}
	l.Left, l.Credit = int(r.Available(lim.rule, by)), int(lim.rule.Spent(r))
	switch {
	case lim.rule.Burst:
		l.Credit = max(0, l.Credit-1)
	case lim.rule == &slidingWindow && r.Y < 0: // counted in another Period
		l.Credit = 0
	default:
		var end int64
		if l.Window, end = window(by, r.X); lim.rule == &fixedWindow && r.Y > 0 && r.X+r.Z != end { // counted by another calendar
			l.Credit = 0
		}
	}
	return l, nil
}

// credit is a Refund of what debit has charged on another store. What a bucket gives back
// does not depend on when that was: the receipt is that of a level older than the bucket's, and
// as high as any. (Of what refills in over 50 years it may give back less.)
func (lim *limiter) credit(ctx context.Context, key string, debit Result, n int, by store.Limit) error {
	c := debit.receipt(int64(n))
	if lim.rule.Burst {
		half := drainTime(bucketMost(by), 0, by) / 2
		c.At, c.Due, c.Rate, c.Period, c.Overdrawn = c.At-half, c.At+half, by.Rate, by.Period, true
	}
	return lim.store.Refund(ctx, lim.namespace, key, by, c)
}

var operations = [...]operation{five.Take: take, five.TakeUpTo: takeUpTo}

// by decides by a limit, and tells the observers.
func (lim *limiter) by(ctx context.Context, op five.Operation, key string, n int, by store.Limit) (r Result, err error) {
	since := lim.now()
	err = lim.decide(ctx, key, n, operations[op], &by, &r)
	lim.tell(ctx, key, n, &r, err, since)
	return r, err
}
