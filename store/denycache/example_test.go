package denycache_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// After a denial, the store is not asked again until the key may have room. In production, the
// store is a redisstore.Store. The rest is the same.
func ExampleNew() {
	st, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	cached, err := denycache.New(st, denycache.WithMaxAge(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(cached, ratelimit.PerDay(2), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 5 {
		r, err := limiter.Allow(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.Source())
	}
	if err := limiter.Reset(ctx, "user:42"); err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(ctx, "user:42")
	fmt.Println(r.Allowed, r.Source(), err)
	// Output:
	// true store
	// true store
	// false store
	// false deny_cache
	// false deny_cache
	// true store <nil>
}
