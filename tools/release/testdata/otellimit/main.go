// Instruments and spans of a program that has set up neither: nothing is told, and calls are
// decided.
package main

import (
	"context"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/otellimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	counters := observe.NewCounters("api")
	limiter, err := observe.Around(bucket, counters, otellimit.Spans("api"))
	if err != nil {
		log.Fatal(err)
	}
	registration, err := otellimit.Register(otellimit.Config{Counters: []*observe.Counters{counters}})
	if err != nil {
		log.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if r, err := limiter.Allow(context.Background(), "key"); err != nil || r.Allowed != want {
			log.Fatal(r, err)
		}
	}
	if err := registration.Unregister(); err != nil {
		log.Fatal(err)
	}
}
