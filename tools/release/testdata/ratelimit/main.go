// A limiter in memory: one event passes, and the next does not.
package main

import (
	"context"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		r, err := limiter.Allow(context.Background(), "user:42")
		if err != nil || r.Allowed != want {
			log.Fatal(r, err)
		}
	}
}
