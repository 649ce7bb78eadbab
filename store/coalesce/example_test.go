package coalesce_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Concurrent calls of Allow on one key ask the store together. This saves round trips to Redis if a
// few keys are hot. In production, the store is a redisstore.Store.
func Example() {
	st, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	together, err := coalesce.New(st)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(together, ratelimit.PerDay(100), ratelimit.WithName("hot"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(context.Background(), "everybody")
	fmt.Println(r.Allowed, r.Remaining, err)
	// Output: true 99 <nil>
}
