package regions_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/regions"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A limit of 6 a day is shared by two regions. All calls come to the EU, which takes what the
// US does not use. In production each store is a redisstore.Store of its region.
func ExampleNew() {
	var shares [2]ratelimit.Limiter
	for i := range shares {
		st, err := memstore.New()
		if err != nil {
			log.Fatal(err)
		}
		shares[i], err = ratelimit.NewFixedWindow(st, ratelimit.PerDay(3), ratelimit.WithName("api"))
		if err != nil {
			log.Fatal(err)
		}
	}
	eu, us := shares[0], shares[1]
	limiter, err := regions.New(eu, []ratelimit.Limiter{us})
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 7 {
		r, err := limiter.Allow(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		p, err := us.Peek(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.Remaining, "here,", p.Remaining, "there")
	}
	fmt.Printf("%+v\n", limiter.Stats())
	// Output:
	// true 2 here, 3 there
	// true 1 here, 3 there
	// true 0 here, 3 there
	// true 1 here, 1 there
	// true 0 here, 1 there
	// true 0 here, 0 there
	// false 0 here, 0 there
	// {Fetches:3 Moved:3 Failed:0}
}
