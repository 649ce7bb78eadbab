package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
)

// throttledMemory is github.com/throttled/throttled: GCRA over a store with get and
// compare-and-swap. Its Result has our Limit, Remaining, RetryAfter and ResetAfter. It
// has no Delay and no refund. The memory store is the one without a cap, which is faster
// and never forgets.
//
// After ten lost swaps a call is an error, and many callers on one key do reach that.
// Here the limit is higher, because otherwise the cell of one key in parallel could fail.
var throttledMemory = contestant{
	name: "throttled", module: "github.com/throttled/throttled/v2", algorithm: "GCRA",
	open: func(w workload) (limiter, error) {
		s, err := memstore.NewCtx(0)
		if err != nil {
			return limiter{}, err
		}
		return openThrottled(s, w)
	},
}

// throttledOnRedis takes two round trips: TIME with GET, then a script that swaps.
var throttledOnRedis = redisContestant{
	name: "throttled", module: "github.com/throttled/throttled/v2",
	swaps: true,
	open: func(client *redis.Client, w workload) (limiter, error) {
		s, err := goredisstore.NewCtx(client, "throttled:")
		if err != nil {
			return limiter{}, err
		}
		return openThrottled(s, w)
	},
}

func openThrottled(s throttled.GCRAStoreCtx, w workload) (limiter, error) {
	lim, err := newThrottled(s, w)
	if err != nil {
		return limiter{}, err
	}
	ctx := context.Background()
	decide := func(key string) (bool, error) {
		limited, _, err := lim.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}
	return limiter{decide, nothing}, nil
}

func newThrottled(s throttled.GCRAStoreCtx, w workload) (*throttled.GCRARateLimiterCtx, error) {
	q := w.quota()
	lim, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(1, q.each),
		MaxBurst: q.events - 1,
	})
	if err != nil {
		return nil, err
	}
	lim.SetMaxCASAttemptsLimit(10_000)
	return lim, nil
}
