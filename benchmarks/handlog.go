package main

import (
	"sync"
	"time"
)

// handLog is a sliding log as services write it by hand: a slice of times for each key, in a mutex
// map. Keys are never forgotten. It has the limit of our SlidingLog, so that events leave. It
// answers a bool and nothing else.
var handLog = contestant{
	name: "sliding log by hand, mutex map", algorithm: "sliding log",
	open: func(w workload) (limiter, error) {
		l := ourLimit("sliding_log", w)
		m := newMutexMap(func() *timesLog { return new(timesLog) })
		decide := func(key string) (bool, error) { return m.of(key).allow(l.Rate, l.Period), nil }
		return limiter{decide, nothing}, nil
	},
}

type timesLog struct {
	mu    sync.Mutex
	times []time.Time
}

func (g *timesLog) allow(rate int, period time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	gone := 0
	for gone < len(g.times) && now.Sub(g.times[gone]) >= period {
		gone++
	}
	g.times = g.times[gone:]
	if len(g.times) >= rate {
		return false
	}
	g.times = append(g.times, now)
	return true
}
