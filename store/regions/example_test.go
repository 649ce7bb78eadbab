package regions_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/regions"
)

// Two regions share a limit of 6 per day. All calls arrive in the EU, which uses what the US does
// not. In production, each store is the redisstore.Store of its region.
func ExampleNew() {
	stores := make(map[string]store.Store)
	for _, region := range []string{"eu", "us"} {
		st, err := memstore.New()
		if err != nil {
			log.Fatal(err)
		}
		stores[region] = st
	}
	limiterOf := func(region string) (ratelimit.Limiter, *regions.Store) { // of a process in that region
		shared, err := regions.New(region, stores)
		if err != nil {
			log.Fatal(err)
		}
		limiter, err := ratelimit.NewFixedWindow(shared, ratelimit.PerDay(6), ratelimit.WithName("api"))
		if err != nil {
			log.Fatal(err)
		}
		return limiter, shared
	}
	eu, shared := limiterOf("eu")
	us, _ := limiterOf("us")

	ctx := context.Background()
	for range 7 {
		r, err := eu.Allow(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		p, err := us.Peek(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.Remaining, "of", r.Limit, "here,", p.Remaining, "there")
	}
	fmt.Printf("%+v\n", shared.Stats())
	// Output:
	// true 2 of 6 here, 3 there
	// true 1 of 6 here, 3 there
	// true 0 of 6 here, 3 there
	// true 1 of 6 here, 1 there
	// true 0 of 6 here, 1 there
	// true 0 of 6 here, 0 there
	// false 0 of 6 here, 0 there
	// {Fetches:3 Moved:3 Failed:0}
}
