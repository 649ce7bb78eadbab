package main

import (
	"sync"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
)

// failsafeSyncMap is github.com/failsafe-go/failsafe-go's bursty rate limiter: a fixed window
// without keys, which begins when the limiter is made. There is one per key in a sync.Map. Keys are
// never forgotten. TryAcquirePermit answers a bool and nothing else.
var failsafeSyncMap = contestant{
	name: "failsafe-go, sync.Map", module: "github.com/failsafe-go/failsafe-go", algorithm: "fixed window",
	open: func(w workload) (limiter, error) {
		q := w.quota()
		var m sync.Map
		decide := func(key string) (bool, error) {
			lim, ok := m.Load(key)
			if !ok {
				lim, _ = m.LoadOrStore(key, ratelimiter.NewBursty[any](uint(q.events), q.window))
			}
			return lim.(ratelimiter.RateLimiter[any]).TryAcquirePermit(), nil
		}
		return limiter{decide, nothing}, nil
	},
}
