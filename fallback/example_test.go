package fallback_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Three instances of a service share a limit on Redis. While an instance cannot reach Redis, as
// here, where nothing listens, it admits a third of the limit.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	shared := ratelimit.Must(redisstore.New(client))
	limit := ratelimit.Limit{Rate: 90, Period: time.Minute, Burst: 6}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(shared, limit, ratelimit.WithName("api")))
	limiter := ratelimit.Must(fallback.New(bucket, fallback.FailLocal(3)))

	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, r.Source(), err)
	}
	// Output:
	// true 1 local <nil>
	// true 0 local <nil>
	// false 0 local <nil>
}

// A service that must not be less available than Redis admits everything in an outage. A service
// that protects something denies everything.
func ExampleFailOpen() {
	down, err := ratelimit.NewTokenBucket(broken{}, ratelimit.PerSecond(10), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	for _, policy := range []fallback.Answer{fallback.FailOpen(), fallback.FailClosed()} {
		limiter, err := fallback.New(down, policy)
		if err != nil {
			log.Fatal(err)
		}
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Source(), r.RetryAfter, err)
	}
	// Output:
	// true fail_open 0s <nil>
	// false fail_closed 1s <nil>
}

// The local limiter can be any limiter, such as a stricter one.
func ExampleFailTo() {
	down, err := ratelimit.NewTokenBucket(broken{}, ratelimit.PerSecond(10), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	strict, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(2), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := fallback.New(down, fallback.FailTo(strict))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.AllowN(context.Background(), "user:42", 2)
	fmt.Println(r.Allowed, r.Remaining, r.Source(), err)
	// Output: true 0 local <nil>
}
