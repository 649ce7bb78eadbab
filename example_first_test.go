package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Others may use what important calls leave, but for 20 events that stay ready for these.
func ExampleWithReserved() {
	store := frozenMemory()
	limit := ratelimit.PerMinute(600)
	important, err := ratelimit.NewTokenBucket(store, limit, ratelimit.WithName("supplier"))
	if err != nil {
		log.Fatal(err)
	}
	others, err := ratelimit.NewTokenBucket(store, limit, ratelimit.WithName("supplier"), ratelimit.WithReserved(20))
	if err != nil {
		log.Fatal(err)
	}

	admitted := func(l ratelimit.Limiter) int {
		granted, _, err := ratelimit.AllowUpTo(context.Background(), l, "supplier", 1000)
		if err != nil {
			log.Fatal(err)
		}
		return granted
	}
	fmt.Println("others", admitted(others), "important", admitted(important))
	// Output: others 580 important 20
}

// A month's quota is spent first, and then credits that were bought. Only a purchase raises the credits.
func ExampleNewFirst() {
	ctx := context.Background()
	store := frozenMemory()
	bought := map[string]int{"ann": 3} // in a database

	plan, err := ratelimit.NewFixedWindow(store, ratelimit.PerMonth(2), ratelimit.WithName("plan"))
	if err != nil {
		log.Fatal(err)
	}
	balance := func(_ context.Context, key string) (ratelimit.Limit, error) {
		return ratelimit.Limit{Rate: bought[key], Period: 3650 * 24 * time.Hour}, nil
	}
	credits, err := ratelimit.NewFixedWindow(store, ratelimit.Limit{Rate: 1, Period: 3650 * 24 * time.Hour},
		ratelimit.WithName("credits"), ratelimit.WithLimitFunc(balance))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFirst(plan, credits)
	if err != nil {
		log.Fatal(err)
	}

	for i := range 7 {
		if i == 6 {
			bought["ann"] += 10
		}
		r, err := limiter.Allow(ctx, "ann")
		if err != nil {
			log.Fatal(err)
		}
		from := "denied"
		for _, part := range r.Parts() {
			if part.Charged() > 0 {
				from = part.Name()
			}
		}
		fmt.Println(from, r.Remaining)
	}
	// Output:
	// plan 1
	// plan 0
	// credits 2
	// credits 1
	// credits 0
	// denied 0
	// credits 9
}

// Tenants share 100 requests per second. Each has a share of its own, and may use what the others leave.
func ExampleNewFirst_shares() {
	ctx := context.Background()
	store := frozenMemory()
	tenants := 4

	everybody := ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "everybody", nil })
	whole := ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 150} // all shares, and 50 that are lent at once
	total, err := ratelimit.NewTokenBucket(store, whole, ratelimit.WithName("total"), everybody)
	if err != nil {
		log.Fatal(err)
	}
	lent, err := ratelimit.NewTokenBucket(store, whole, ratelimit.WithName("total"), everybody, ratelimit.WithReserved(100))
	if err != nil {
		log.Fatal(err)
	}
	share, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(100/tenants), ratelimit.WithName("share"))
	if err != nil {
		log.Fatal(err)
	}
	own, err := ratelimit.NewAll(share, total)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFirst(own, lent)
	if err != nil {
		log.Fatal(err)
	}

	for _, tenant := range []string{"greedy", "modest"} {
		admitted := 0
		for range 200 {
			r, err := limiter.Allow(ctx, tenant)
			if err != nil {
				log.Fatal(err)
			}
			if r.Allowed {
				admitted++
			}
		}
		fmt.Println(tenant, admitted)
	}
	// Output:
	// greedy 50
	// modest 25
}

// The next supplier is asked when the first one has had its calls.
func ExampleNewFirst_route() {
	ctx := context.Background()
	store := frozenMemory()
	cheap, err := ratelimit.NewTokenBucket(store, ratelimit.PerHour(2), ratelimit.WithName("cheap"))
	if err != nil {
		log.Fatal(err)
	}
	fast, err := ratelimit.NewTokenBucket(store, ratelimit.PerHour(1), ratelimit.WithName("fast"))
	if err != nil {
		log.Fatal(err)
	}
	models, err := ratelimit.NewFirst(cheap, fast)
	if err != nil {
		log.Fatal(err)
	}

	for range 4 {
		r, err := models.Allow(ctx, "model")
		if err != nil {
			log.Fatal(err)
		}
		to := "none: try again later"
		for _, part := range r.Parts() {
			if part.Charged() > 0 {
				to = part.Name()
			}
		}
		fmt.Println(to)
	}
	// Output:
	// cheap
	// cheap
	// fast
	// none: try again later
}

// What a month leaves is there in the next one, up to half of a month's quota.
func ExampleNewTokenBucket_rollover() {
	store := frozenMemory()
	quota, err := ratelimit.NewTokenBucket(store,
		ratelimit.Limit{Rate: 1000, Period: 30 * 24 * time.Hour, Burst: 1500}, ratelimit.WithName("quota"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := quota.AllowN(context.Background(), "ann", 1500)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Allowed, r.ResetAfter.Round(24*time.Hour))
	// Output: true 1080h0m0s
}
