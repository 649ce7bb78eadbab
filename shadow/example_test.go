package shadow_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A new limit is tried out: denials are reported, but the events are admitted. Then the limit is
// enforced, first for a few keys and finally for all of them.
func ExampleNew() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	window, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(2), ratelimit.WithName("trial"))
	if err != nil {
		log.Fatal(err)
	}
	reported := make(chan string, 10)
	report := func(_ context.Context, key string, n int, r ratelimit.Result, err error) {
		switch {
		case err != nil:
			reported <- fmt.Sprint("no decision on ", key, err)
		case !r.Allowed:
			reported <- fmt.Sprintf("%d of %s would be over the limit of %d", n, key, r.Limit)
		}
	}
	limiter, err := shadow.New(window, report)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 3 {
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(r.Allowed, err)
	}
	fmt.Println(<-reported)
	for _, percent := range []float64{5, 100} {
		if err := limiter.SetEnforcement(percent); err != nil {
			log.Fatal(err)
		}
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(percent, r.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// 1 of user:42 would be over the limit of 2
	// 5 true <nil>
	// 100 false <nil>
}

// A limit is enforced for one key in ten, and its denials are logged for all keys.
func ExampleWithEnforcement() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	strict, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(2), ratelimit.WithName("strict"))
	if err != nil {
		log.Fatal(err)
	}
	trial, err := shadow.New(strict, func(_ context.Context, key string, n int, r ratelimit.Result, err error) {
		if err == nil && !r.Allowed {
			log.Printf("the new limit would deny %s: %v", key, r)
		}
	}, shadow.WithEnforcement(10))
	if err != nil {
		log.Fatal(err)
	}
	enforced := 0
	for i := range 10_000 {
		if trial.Enforced(fmt.Sprint("user:", i)) {
			enforced++
		}
	}
	fmt.Println("about a tenth:", enforced > 900 && enforced < 1100)
	// Output: about a tenth: true
}
