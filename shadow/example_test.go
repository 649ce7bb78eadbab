package shadow_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A new limit is tried out: what it would deny is told and let through, until it is
// enforced, first for a few of the keys and in the end for all of them.
func ExampleNew() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	window, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(2))
	if err != nil {
		log.Fatal(err)
	}
	report := func(_ context.Context, key string, n int, r ratelimit.Result, err error) {
		switch {
		case err != nil:
			fmt.Println("no decision on", key, err)
		case !r.Allowed:
			fmt.Printf("%d of %s would be over the limit of %d\n", n, key, r.Limit)
		}
	}
	limiter, err := shadow.New(window, report)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 3 {
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	for _, percent := range []float64{5, 100} {
		if err := limiter.SetEnforcement(percent); err != nil {
			log.Fatal(err)
		}
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(percent, r.Allowed, r.Remaining, err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// 1 of user:42 would be over the limit of 2
	// true 0 <nil>
	// 1 of user:42 would be over the limit of 2
	// 5 true 0 <nil>
	// 1 of user:42 would be over the limit of 2
	// 100 false 0 <nil>
}
