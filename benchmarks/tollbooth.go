package main

import (
	"time"

	"github.com/didip/tollbooth/v7"
	tollboothlimiter "github.com/didip/tollbooth/v7/limiter"
)

// tollboothBuckets is github.com/didip/tollbooth/v7: a copy of x/time/rate per key in an
// expiring map under one mutex. LimitReached answers a bool; what is left is a second
// call. A bucket expires a fixed time after it was made, even if it is in use. That is 10
// years by default, and the window in the idle and latency cells. An expired bucket is
// removed when it is the oldest and a new key comes.
var tollboothBuckets = contestant{
	name: "tollbooth", module: "github.com/didip/tollbooth/v7", algorithm: "token bucket",
	open: func(w workload) (limiter, error) {
		q := w.quota()
		var ttl time.Duration // 0 is the default
		if w.outcome == brief {
			ttl = q.window
		}
		lim := tollbooth.NewLimiter(1/q.each.Seconds(), &tollboothlimiter.ExpirableOptions{DefaultExpirationTTL: ttl})
		lim.SetBurst(q.events)
		decide := func(key string) (bool, error) { return !lim.LimitReached(key), nil }
		return limiter{decide, nothing}, nil
	},
}
