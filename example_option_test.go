package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Paying users have a limit of their own. The key says who it is; a service would
// look it up, or find it in ctx.
func ExampleWithLimitFunc() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	tiers := map[string]ratelimit.Limit{"user:7": ratelimit.PerMinute(1000)}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(60),
		ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			return tiers[key], nil // the zero Limit means the limiter's own
		}))
	if err != nil {
		log.Fatal(err)
	}

	for _, key := range []string{"user:7", "user:42"} {
		r, err := limiter.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, r.Remaining, "of", r.Limit)
	}
	// Output:
	// user:7 999 of 1000
	// user:42 59 of 60
}

// Limiters of one name share what a key has spent, so that a limit can be changed
// without a fresh start for all.
func ExampleWithName() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, limit := range []ratelimit.Limit{ratelimit.PerDay(100), ratelimit.PerDay(150)} {
		named, err := ratelimit.NewSlidingLog(mem, limit, ratelimit.WithName("downloads"))
		if err != nil {
			log.Fatal(err)
		}
		unnamed, err := ratelimit.NewSlidingLog(mem, limit)
		if err != nil {
			log.Fatal(err)
		}
		for _, limiter := range []*ratelimit.SlidingLog{named, unnamed} {
			r, err := limiter.AllowN(ctx, "user:42", 40)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%v %q remaining %d\n", limiter.Limit(), limiter.Name(), r.Remaining)
		}
	}
	// Output:
	// 100/d "downloads" remaining 60
	// 100/d "" remaining 60
	// 150/d "downloads" remaining 70
	// 150/d "" remaining 110
}

// One limit for each network of addresses, whatever the address.
func ExampleWithKeyFunc() {
	networkOf := func(_ context.Context, key string) (string, error) {
		addr, err := netip.ParseAddr(key)
		if err != nil {
			return "", err
		}
		return netip.PrefixFrom(addr, 24).Masked().String(), nil
	}
	limiter, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(2), ratelimit.WithName("network"),
		ratelimit.WithKeyFunc(networkOf))
	if err != nil {
		log.Fatal(err)
	}
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1"} {
		r, err := limiter.Allow(context.Background(), address)
		fmt.Println(address, r.Allowed, err)
	}
	// Output:
	// 192.0.2.1 true <nil>
	// 192.0.2.2 true <nil>
	// 192.0.2.3 false <nil>
	// 198.51.100.1 true <nil>
}

func ExampleWithTiers() {
	tierOf := func(_ context.Context, key string) (string, error) {
		plan, _, _ := strings.Cut(key, ":")
		return plan, nil
	}
	limiter, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(10), ratelimit.WithTiers(tierOf, map[string]ratelimit.Limit{
		"pro":   ratelimit.PerMinute(1000),
		"staff": ratelimit.Unlimited(),
	}))
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"free:ann", "pro:bob", "staff:cid"} {
		policies, err := limiter.AppendPolicies(context.Background(), nil, key)
		if err != nil {
			panic(err)
		}
		fmt.Println(key, policies[0].Limit, policies[0].Window)
	}
	// Output:
	// free:ann 10/m 1m0s
	// pro:bob 1000/m 1m0s
	// staff:cid unlimited 0s
}

// Services on one Redis that must not share counts have prefixes of their own.
func ExampleWithName_services() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	billing, err := redisstore.New(client, redisstore.WithPrefix("billing"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingWindow(billing, ratelimit.PerMinute(100), ratelimit.WithName("export"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limiter.Name())
	// Output: export
}

// customer is what billing knows of one.
type customer struct {
	plan ratelimit.Limit // such as PerMonth(10_000)
	day  int             // on which the month of its invoices begins
	zone *time.Location  // loaded once: LoadLocation reads a file
}

// Each customer is billed from a day of the month on, in a time zone of its own.
func ExampleLimit_From_billing() {
	paulo, err := time.LoadLocation("America/Sao_Paulo")
	if err != nil {
		log.Fatal(err) // the system has no zones: import _ "time/tzdata"
	}
	customers := map[string]customer{"acme": {ratelimit.PerMonth(10_000), 31, paulo}}
	limitOf := func(_ context.Context, key string) (ratelimit.Limit, error) {
		c, known := customers[key]
		if !known {
			return ratelimit.PerMonth(0), nil
		}
		return c.plan.From(c.day).In(c.zone), nil
	}
	now := time.Date(2026, time.February, 27, 12, 0, 0, 0, paulo)
	store, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	quota, err := ratelimit.NewFixedWindow(store, ratelimit.PerMonth(0), ratelimit.WithName("plan"), ratelimit.WithLimitFunc(limitOf))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r, err := quota.AllowN(context.Background(), "acme", 6_000)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r, now.Add(r.ResetAfter).Format(time.DateTime))
	}
	// Output:
	// allowed, 4000 of 10000 left, reset in 12h0m0s 2026-02-28 00:00:00
	// denied, 4000 of 10000 left, retry after 12h0m0s 2026-02-28 00:00:00
}
