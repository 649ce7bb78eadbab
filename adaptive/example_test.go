package adaptive_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// The limit follows a load. In production, use adaptive.CPU() or another signal, which is read
// twice per second. In this example, the load is always too high, and is read more often.
func ExampleNew() {
	overload := func() float64 { return 0.95 }
	limit, err := adaptive.New(ratelimit.PerMinute(100), ratelimit.PerMinute(1000), overload,
		adaptive.WithInterval(time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(1000),
		ratelimit.WithName("api"), ratelimit.WithLimitFunc(limit.ForKey))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	first, err := limiter.Allow(ctx, "user:42")
	if err != nil {
		log.Fatal(err)
	}
	last := first
	for last.Limit > 100 {
		time.Sleep(time.Millisecond)
		if last, err = limiter.Allow(ctx, "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(first.Limit, "shrank to", last.Limit)
	// Output:
	// 1000 shrank to 100
}

// 5 of at most 10 requests are in progress. A handler calls Start, and defers Done.
func ExampleInFlight() {
	requests, err := adaptive.NewInFlight(10)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := adaptive.New(ratelimit.PerSecond(100), ratelimit.PerSecond(1000), requests.Load)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limit.Current())

	for range 5 {
		requests.Start()
		defer requests.Done()
	}
	requests.Load() // a mean begins
	time.Sleep(time.Millisecond)
	fmt.Println(requests.Load())
	// Output:
	// 1000/s
	// 0.5
}

// The number of slots follows how long the calls of a service take: at least 4, at most 64.
func ExampleLatency() {
	latency, err := adaptive.NewLatency(40 * time.Millisecond) // twice what a call needs
	if err != nil {
		log.Fatal(err)
	}
	limit, err := adaptive.New(ratelimit.PerSecond(4), ratelimit.PerSecond(64), latency.Load)
	if err != nil {
		log.Fatal(err)
	}
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	slots, err := inflight.New(store, 64, time.Minute, ratelimit.WithName("backend"), ratelimit.WithLimitFunc(limit.ForKey))
	if err != nil {
		log.Fatal(err)
	}

	slot, r, err := inflight.Hold(context.Background(), slots, "backend", 1)
	if err != nil || !r.Allowed {
		log.Fatal(r, err)
	}
	start := time.Now()
	// ... the call
	latency.Observe(time.Since(start))
	slot.Release()
	fmt.Println(r.Limit, "at once")
	// Output:
	// 64 at once
}
