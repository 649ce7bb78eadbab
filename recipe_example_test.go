package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A ban of 15 minutes after six attempts at once, however often the key tries again.
func ExampleCharge_ban() {
	ctx, key := context.Background(), "user:42"
	bucket, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	for range 20 {
		r, err := bucket.Allow(ctx, key)
		if err == nil && !r.Allowed && r.RetryAfter <= time.Minute/5 { // longer: it is banned already
			_, err = ratelimit.Charge(ctx, bucket, key, 15*5)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	r, err := bucket.Peek(ctx, key)
	fmt.Println(r.RetryAfter, err)
	// Output: 15m12s <nil>
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

// A budget of requests and tokens a minute, and of tokens a day.
func ExamplePerCall_budget() {
	ctx, store := context.Background(), frozenMemory()
	requests, err := ratelimit.NewSlidingLog(store, ratelimit.PerMinute(60), ratelimit.WithName("requests"))
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10_000), ratelimit.WithName("tokens"))
	if err != nil {
		log.Fatal(err)
	}
	daily, err := ratelimit.NewFixedWindow(store, ratelimit.PerDay(200_000), ratelimit.WithName("daily"))
	if err != nil {
		log.Fatal(err)
	}
	perCall, err := ratelimit.PerCall(requests)
	if err != nil {
		log.Fatal(err)
	}
	budget, err := ratelimit.NewAll(perCall, tokens, daily)
	if err != nil {
		log.Fatal(err)
	}
	reserved, r, err := ratelimit.Reserve(ctx, budget, "user:42", 4000) // an estimate
	if err != nil || !r.Allowed {
		return
	}
	r, err = reserved.Settle(ctx, 3000) // what the model has used
	fmt.Println(r.Parts()[0].Remaining, r.Parts()[1].Remaining, r.Parts()[2].Remaining, err)
	// Output: 59 7000 197000 <nil>
}
