package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A decision about a key. An error is not a denial.
func Example() {
	ctx := context.Background()
	limiter, err := ratelimit.NewSlidingWindow(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("hello"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(ctx, "user:42")
	switch {
	case err != nil:
		// The store failed: no decision is known. Admit or refuse, as your service prefers.
	case !r.Allowed:
		// Come back after r.RetryAfter, which is exact.
	}
	fmt.Println(r.Allowed, r.Remaining)
	// Output: true 4
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

// Some keys have no limit, and some are blocked. Neither asks the store.
func ExampleUnlimited() {
	limits := map[string]ratelimit.Limit{"staff": ratelimit.Unlimited(), "banned": ratelimit.PerMinute(0)}
	limiter, err := ratelimit.NewFixedWindow(frozenMemory(), ratelimit.PerMinute(10), ratelimit.WithName("api"),
		ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			return limits[key], nil // the zero Limit means the constructor's
		}))
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"ann", "staff", "banned"} {
		r, err := limiter.AllowN(context.Background(), key, 10)
		fmt.Println(key, r.Allowed, r.Remaining, r.RetryAfter == ratelimit.Never, err)
	}
	// Output:
	// ann true 0 false <nil>
	// staff true 2147483647 false <nil>
	// banned false 0 true <nil>
}

// A violation costs more than a wait: a bucket of 5 a minute is charged 75 events more, so
// that it admits nothing for 15 minutes beyond.
func ExampleCharge() {
	ctx, key := context.Background(), "user:42"
	bucket, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	for range 6 {
		r, err := bucket.Allow(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		if !r.Allowed {
			_, err = ratelimit.Charge(ctx, bucket, key, 75)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	r, err := bucket.Peek(ctx, key)
	fmt.Println(r.RetryAfter, err)
	// Output: 15m12s <nil>
}

// Part of a limit is kept for important callers: the others have a limit of their own
// within the whole.
func ExampleNewAll_priority() {
	store := frozenMemory()
	total, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(10), ratelimit.WithName("total"))
	if err != nil {
		log.Fatal(err)
	}
	low, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(6), ratelimit.WithName("low"))
	if err != nil {
		log.Fatal(err)
	}
	others, err := ratelimit.NewAll(low, total)
	if err != nil {
		log.Fatal(err)
	}
	admitted := func(l ratelimit.Limiter) int {
		granted, _, err := ratelimit.AllowUpTo(context.Background(), l, "backend", 20)
		if err != nil {
			log.Fatal(err)
		}
		return granted
	}
	fmt.Println("others", admitted(others), "important", admitted(total))
	// Output: others 6 important 4
}

// As many as fit now: a batch is cut to what the limit has left.
func ExampleAllowUpTo() {
	limiter, err := ratelimit.NewSlidingWindow(frozenMemory(), ratelimit.Limit{Rate: 100, Period: time.Minute}, ratelimit.WithName("mail"))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		granted, _, err := ratelimit.AllowUpTo(context.Background(), limiter, "newsletter", 60)
		fmt.Println("send", granted, err)
	}
	// Output:
	// send 60 <nil>
	// send 40 <nil>
}

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

// A Ban around the limits of a login closes the door to who guesses on, for an hour and then longer.
func ExampleNewBan_login() {
	ctx, store := context.Background(), frozenMemory()
	perAttempt, err := ratelimit.NewSlidingLog(store, ratelimit.Limit{Rate: 5, Period: 15 * time.Minute}, ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	perAddress, err := ratelimit.NewSlidingLog(store, ratelimit.Limit{Rate: 20, Period: 15 * time.Minute}, ratelimit.WithName("login-address"))
	if err != nil {
		log.Fatal(err)
	}
	wrong, err := ratelimit.NewAll(perAttempt, perAddress)
	if err != nil {
		log.Fatal(err)
	}
	closing, err := ratelimit.NewBan(wrong, store, ratelimit.Penalty{
		Denials: 3, Within: 15 * time.Minute, For: time.Hour, Most: 24 * time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 8 {
		_, _ = closing.Allow(ctx, "192.0.2.1 ann")
	}
	r, err := closing.Peek(ctx, "192.0.2.1 ann")
	fmt.Println(r, err)
	// Output: denied (ban), retry after 1h0m0s <nil>
}
