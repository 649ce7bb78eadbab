package main

import (
	"math"
	"sync"
	"time"

	"github.com/go-chi/httprate"
)

// httprateCounter is github.com/go-chi/httprate's local counter: a sliding window of two
// counters in floating point, with two maps for all keys. Its decision is part of an HTTP
// handler (OnLimit), which also writes headers. Here the same calls, Status and then
// IncrementBy, are made under the same kind of mutex, without headers. Status answers a
// rate. It has no RetryAfter, and the window's end for ResetAfter. The maps are cleared
// when a window ends, and keep their size.
var httprateCounter = contestant{
	name: "httprate counter", module: "github.com/go-chi/httprate", algorithm: "sliding window", forgets: true,
	open: func(w workload) (limiter, error) {
		q := w.quota()
		counter := httprate.NewLocalLimitCounter(q.window)
		// With a counter of its own, the windows begin where Truncate puts them.
		lim := httprate.NewRateLimiter(q.events, q.window, httprate.WithLimitCounter(counter))
		var mu sync.Mutex
		decide := func(key string) (bool, error) {
			window := time.Now().UTC().Truncate(q.window)
			mu.Lock()
			defer mu.Unlock()
			_, spent, err := lim.Status(key)
			if err != nil || int(math.Round(spent))+1 > q.events {
				return false, err
			}
			return true, counter.IncrementBy(key, window, 1)
		}
		return limiter{decide, nothing}, nil
	},
}
