package ratelimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit/store"
)

// Credit gives back up to n events of key without the Result of their charge, whoever made it:
// where a wire has no receipt. given is how many, at most what is charged in the current window or
// level. Of a bucket the last event stays. With the Result at hand use Refund, which is exact.
//
// It takes two calls of the store. What others give back in between is not given back twice. l is
// a [FixedWindow], a [SlidingWindow] or a [TokenBucket], or else the error is [ErrInvalidOption].
func Credit(ctx context.Context, l Limiter, key string, n int) (given int, err error) {
	lim := coreOf(l)
	if lim == nil || lim.rule.Spent == nil || lim.rule.LastOnly || lim.rule.NewLog != nil {
		return 0, fmt.Errorf("%w: a %T takes back only events of a Result", ErrInvalidOption, l)
	}
	if key, err = lim.keyOf(ctx, key, n); err != nil {
		return 0, err
	}
	by, err := lim.limitOf(ctx, key)
	if err != nil || by.Rate <= 0 { // then nothing is counted
		return 0, err
	}
	r, err := bottom(lim.store).Peek(ctx, lim.namespace, key, by, 1)
	if err != nil {
		return 0, err
	}
	if given = min(n, lim.creditable(by, r)); given == 0 {
		return 0, nil
	}
	made := store.NewReceipt(by, r.X, lim.rule.Report(by, r, 1, 1).Reset, int64(given))
	return given, lim.credit(ctx, key, made, by)
}

// creditable is how many events of the key with the reply r can be given back without a receipt.
// The last event of a bucket cannot: see leftOf.
func (lim *limiter) creditable(by store.Limit, r store.Reply) int {
	switch {
	case lim.rule.Burst:
		return max(0, int(lim.rule.Spent(r))-1)
	case lim.rule == &slidingWindow && r.Y < 0: // counted in another Period
		return 0
	}
	if _, end := window(by, r.X); lim.rule == &fixedWindow && r.Y > 0 && r.X+r.Z != end { // counted by another calendar
		return 0
	}
	return int(lim.rule.Spent(r))
}

// credit is a Refund of c, which was charged on another store or is made up. What a bucket gives
// back does not depend on when that was: the receipt is that of a level older than the bucket's,
// and as high as any. (Of what refills in over 50 years it may give back less.)
func (lim *limiter) credit(ctx context.Context, key string, c store.Receipt, by store.Limit) error {
	if lim.rule.Burst {
		half := drainTime(bucketMost(by), 0, by) / 2
		c.At, c.Due, c.Rate, c.Period, c.Overdrawn = c.At-half, c.At+half, by.Rate, by.Period, true
	}
	return lim.store.Refund(ctx, lim.namespace, key, by, c)
}
