package ratelimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/credit"
	"github.com/ratelimit-go/ratelimit/internal/see"
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
	if lim == nil || !credit.Has(lim.rule) {
		return 0, fmt.Errorf("%w: a %T takes back only events of a Result", ErrInvalidOption, l)
	}
	if key, err = lim.keyOf(ctx, key, n); err != nil {
		return 0, err
	}
	by, err := lim.limitOf(ctx, key)
	if err != nil || by.Rate <= 0 { // then nothing is counted
		return 0, err
	}
	r, err := see.Bottom(lim.store).Peek(ctx, lim.namespace, key, by, 1)
	if err != nil {
		return 0, err
	}
	if given = int(min(int64(n), credit.Most(lim.rule, by, r))); given == 0 {
		return 0, nil
	}
	made := store.NewReceipt(by, r.X, lim.rule.Report(by, r, 1, 1).Reset, int64(given))
	return given, lim.store.Refund(ctx, lim.namespace, key, by, credit.Receipt(lim.rule, by, made))
}
