package main

import (
	"context"

	"github.com/sethvargo/go-limiter/memorystore"
)

// goLimiter is github.com/sethvargo/go-limiter's memory store. Its bucket is refilled at
// the ticks of an interval that starts with the key, so it is a fixed window per key. It
// answers limit, remaining and the time of the reset. It has no RetryAfter, and a window
// for ResetAfter. A goroutine sweeps idle keys.
//
// At a tick it refills by interval/tokens, in ns: a bucket of 10^9 tokens a second gets
// one token back each second. The window here is a year, without a tick.
var goLimiter = contestant{
	name: "go-limiter", module: "github.com/sethvargo/go-limiter", algorithm: "fixed window", forgets: true,
	open: func(w workload) (limiter, error) {
		q := w.quota()
		s, err := memorystore.New(&memorystore.Config{
			Tokens:        uint64(q.events),
			Interval:      q.window,
			SweepInterval: q.window,
			SweepMinTTL:   q.window,
		})
		if err != nil {
			return limiter{}, err
		}
		ctx := context.Background()
		return limiter{
			decide: func(key string) (bool, error) {
				_, _, _, ok, err := s.Take(ctx, key)
				return ok, err
			},
			close: func() { _ = s.Close(ctx) },
		}, nil
	},
}
