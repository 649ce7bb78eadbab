package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Two routes have a limit in common, also while Redis is down: their local limiters count in
// one memory.
func ExampleAll_routes() {
	onRedis := frozenMemory() // say
	general, err := ratelimit.NewTokenBucket(onRedis, ratelimit.PerMinute(100), ratelimit.WithName("general"))
	if err != nil {
		log.Fatal(err)
	}
	search, err := ratelimit.NewTokenBucket(onRedis, ratelimit.PerMinute(10), ratelimit.WithName("search"))
	if err != nil {
		log.Fatal(err)
	}
	both, err := ratelimit.NewAll(general, search)
	if err != nil {
		log.Fatal(err)
	}
	local, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	safe := func(l ratelimit.Limiter) ratelimit.Limiter {
		limiter, err := fallback.New(l, fallback.FailLocal(3).On(local)) // 3 instances
		if err != nil {
			log.Fatal(err)
		}
		return limiter
	}
	home, searches := safe(general), safe(both)
	for _, limiter := range []ratelimit.Limiter{home, searches} {
		r, err := limiter.AllowN(context.Background(), "user:42", 10)
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	// Output:
	// true 90 <nil>
	// true 0 <nil>
}

// Two a second and 1,000 an hour. One name is enough for both, since the Period is part of where
// they count. People read the names of the policies.
func ExampleNewAll_levels() {
	mem := frozenMemory()
	second, err := ratelimit.NewFixedWindow(mem, ratelimit.PerSecond(2), ratelimit.WithName("api"), ratelimit.WithPolicyName("api/s"))
	if err != nil {
		panic(err)
	}
	hour, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(1000), ratelimit.WithName("api"), ratelimit.WithPolicyName("api/h"))
	if err != nil {
		panic(err)
	}
	both, err := ratelimit.NewAll(second, hour)
	if err != nil {
		panic(err)
	}
	for range 3 {
		r, err := both.Allow(context.Background(), "user:42")
		if err != nil {
			panic(err)
		}
		fmt.Println(r.Allowed, r.Remaining, r.DeniedBy(), r.RetryAfter)
	}
	// Output:
	// true 1  0s
	// true 0  0s
	// false 0 api/s 1s
}

// A limit per user and one for all users of a company: both admit, or none is
// charged.
func ExampleNewAll() {
	mem := frozenMemory()
	perUser, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(3), ratelimit.WithName("user"))
	if err != nil {
		panic(err)
	}
	companyOf := func(_ context.Context, user string) (string, error) {
		_, domain, _ := strings.Cut(user, "@")
		return domain, nil
	}
	perCompany, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(4), ratelimit.WithName("company"), ratelimit.WithKeyFunc(companyOf))
	if err != nil {
		panic(err)
	}
	both, err := ratelimit.NewAll(perUser, perCompany)
	if err != nil {
		panic(err)
	}
	for _, user := range []string{"ann@example.com", "bob@example.com"} {
		r, err := both.AllowN(context.Background(), user, 3)
		if err != nil {
			panic(err)
		}
		fmt.Println(user, r.Allowed, r.DeniedBy(), r.Parts()[0].Remaining, r.Parts()[1].Remaining)
	}
	// Output:
	// ann@example.com true  0 1
	// bob@example.com false company 3 1
}

// A request of a key, and its tokens of the key's organization, in one decision. A limit on tokens
// of a model is on trial. Afterwards the tokens that were not used are given back.
func ExampleDecide() {
	ctx, mem := context.Background(), frozenMemory()
	limiter := func(name string, l ratelimit.Limit) *ratelimit.TokenBucket {
		b, err := ratelimit.NewTokenBucket(mem, l, ratelimit.WithName(name))
		if err != nil {
			panic(err)
		}
		return b
	}
	requests, tokens := limiter("requests", ratelimit.PerMinute(60)), limiter("tokens", ratelimit.PerMinute(2000))
	trial := limiter("trial", ratelimit.PerMinute(500))
	asks := []ratelimit.Ask{
		{Limiter: requests, Key: "key:7", N: 1},
		{Limiter: tokens, Key: "org:3", N: 900},
		{Limiter: trial, Key: "model:x", N: 900, Shadow: true},
	}
	r, err := ratelimit.Decide(ctx, asks...)
	if err != nil {
		panic(err)
	}
	for i, part := range r.Parts() {
		fmt.Println(asks[i].Key, part.Allowed, part.Remaining)
	}
	asks[0].N, asks[1].N, asks[2].N = 0, 300, 0
	if err := ratelimit.GiveBack(ctx, r, asks...); err != nil {
		panic(err)
	}
	left, err := tokens.Peek(ctx, "org:3")
	fmt.Println(r.Allowed, left.Remaining, err)
	// Output:
	// key:7 true 59
	// org:3 true 1100
	// model:x false 500
	// true 1400 <nil>
}
