package main

import (
	"sync"

	"golang.org/x/time/rate"
)

// golang.org/x/time/rate is a token bucket in floating point without keys. Its users put
// one Limiter per key into a map; here are the two usual maps. Keys are never forgotten.
// Allow answers a bool: there is no Remaining, RetryAfter or ResetAfter.
//
// rate.Inf, which skips the bucket, is not used.
var (
	xTimeRateMutex = contestant{
		name: "x/time/rate, mutex map", module: "golang.org/x/time", algorithm: "token bucket",
		open: func(w workload) (limiter, error) {
			m := newMutexMap(func() *rate.Limiter { return newRateLimiter(w) })
			decide := func(key string) (bool, error) { return m.of(key).Allow(), nil }
			return limiter{decide, nothing}, nil
		},
	}
	xTimeRateSyncMap = contestant{
		name: "x/time/rate, sync.Map", module: "golang.org/x/time", algorithm: "token bucket",
		open: func(w workload) (limiter, error) {
			var m sync.Map
			decide := func(key string) (bool, error) {
				lim, ok := m.Load(key)
				if !ok {
					lim, _ = m.LoadOrStore(key, newRateLimiter(w))
				}
				return lim.(*rate.Limiter).Allow(), nil
			}
			return limiter{decide, nothing}, nil
		},
	}
)

func newRateLimiter(w workload) *rate.Limiter {
	q := w.quota()
	return rate.NewLimiter(rate.Every(q.each), q.events)
}
