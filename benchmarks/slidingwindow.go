package main

import "github.com/RussellLuo/slidingwindow"

// slidingWindowMap is github.com/RussellLuo/slidingwindow: a sliding window of two
// counters without keys. There is one per key in a mutex map, as for x/time/rate. Keys
// are never forgotten. Allow answers a bool and nothing else.
var slidingWindowMap = contestant{
	name: "slidingwindow, mutex map", module: "github.com/RussellLuo/slidingwindow", algorithm: "sliding window",
	open: func(w workload) (limiter, error) {
		q := w.quota()
		newWindow := func() (slidingwindow.Window, slidingwindow.StopFunc) { return slidingwindow.NewLocalWindow() }
		m := newMutexMap(func() *slidingwindow.Limiter {
			lim, _ := slidingwindow.NewLimiter(q.window, int64(q.events), newWindow)
			return lim
		})
		decide := func(key string) (bool, error) { return m.of(key).Allow(), nil }
		return limiter{decide, nothing}, nil
	},
}
