package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// frozenMemory is a memory in which time stands still, so that the output is always
// the same.
func frozenMemory() *memstore.Store {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }))
	if err != nil {
		panic(err)
	}
	return mem
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

// Requests and the tokens that they cost: a call is charged to both limits, or to none.
func ExampleCountCalls() {
	mem := frozenMemory()
	requests, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(60), ratelimit.WithName("requests"), ratelimit.CountCalls())
	if err != nil {
		panic(err)
	}
	tokens, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(2000), ratelimit.WithName("tokens"))
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.NewAll(requests, tokens)
	if err != nil {
		panic(err)
	}
	for range 2 {
		r, err := limiter.AllowN(context.Background(), "user:42", 1200)
		if err != nil {
			panic(err)
		}
		fmt.Println(r.Allowed, r.DeniedBy(), r.Parts()[0].Remaining, r.Parts()[1].Remaining)
	}
	// Output:
	// true  59 800
	// false tokens 59 800
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

// Tokens of a language model: the answer's length is known when it is there.
func ExampleReserve() {
	ctx := context.Background()
	tokens, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.Limit{Rate: 100, Period: time.Minute, Burst: 1000}, ratelimit.WithName("api"))
	if err != nil {
		panic(err)
	}
	reservation, r, err := ratelimit.Reserve(ctx, tokens, "user:42", 300)
	if err != nil {
		panic(err)
	}
	if !r.Allowed {
		return // come back after r.RetryAfter
	}
	fmt.Println("reserved, left:", r.Remaining)
	r, err = reservation.Settle(ctx, 1200) // 900 more than estimated
	if err != nil {
		panic(err)
	}
	fmt.Println("settled, left:", r.Remaining)
	r, err = tokens.Allow(ctx, "user:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(r.Allowed, r.RetryAfter)
	// Output:
	// reserved, left: 700
	// settled, left: 0
	// false 2m0.6s
}

// What middleware tells its clients: the name, the quota and the window of each limit
// that decides on a key.
func ExampleAppendPolicies() {
	mem := frozenMemory()
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 25}, ratelimit.WithName("burst"))
	if err != nil {
		panic(err)
	}
	daily, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1000), ratelimit.WithName("daily"))
	if err != nil {
		panic(err)
	}
	both, err := ratelimit.NewAll(bucket, daily)
	if err != nil {
		panic(err)
	}
	policies, err := ratelimit.AppendPolicies(context.Background(), nil, both, "user:42")
	if err != nil {
		panic(err)
	}
	for _, p := range policies {
		fmt.Printf("%q;q=%d;w=%v\n", p.Name, p.Quota, p.Window.Seconds())
	}
	// Output:
	// "burst";q=25;w=2.5
	// "daily";q=1000;w=86400
}

func ExampleStatic() {
	maintenance := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Hour}, nil)
	r, err := maintenance.Allow(context.Background(), "anybody")
	fmt.Println(r.Allowed, r.RetryAfter, err)
	// Output: false 1h0m0s <nil>
}
