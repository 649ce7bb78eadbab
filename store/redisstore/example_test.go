package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Two processes with one limit. The example has a server of its own, which needs no Redis.
func Example() {
	server := ratelimit.Must(miniredis.Run())
	defer server.Close()
	for _, process := range []string{"a", "b"} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer func() { _ = client.Close() }()
		shared := ratelimit.Must(redisstore.New(client))
		limiter := ratelimit.Must(ratelimit.NewTokenBucket(shared, ratelimit.PerHour(3), ratelimit.WithName("api")))
		for range 2 {
			r, err := limiter.Allow(context.Background(), "user:42")
			fmt.Println(process, r.Allowed, r.Remaining, err)
		}
	}
	// Output:
	// a true 2 <nil>
	// a true 1 <nil>
	// b true 0 <nil>
	// b false 0 <nil>
}

// The client is the caller's, of any kind, and stays open. An error means that no
// decision is known.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer func() { _ = client.Close() }()
	shared, err := redisstore.New(client, redisstore.WithPrefix("shop"), redisstore.WithTimeout(20*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(10), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	switch r, err := limiter.Allow(context.Background(), "user:42"); {
	case errors.Is(err, ratelimit.ErrStore):
		fmt.Println("Redis does not answer: let the event through, or refuse it")
	case err != nil:
		log.Fatal(err)
	case !r.Allowed:
		fmt.Println("come back after", r.RetryAfter)
	}
}

// Call Ready at the start of a service whose Redis is some milliseconds away, after its
// limiters are made. Then the first requests need not wait for connections.
func ExampleStore_Ready() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	shared, err := redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	if err := shared.Ready(context.Background()); err != nil {
		log.Print("rate limits: ", err) // calls fail until the server is there
	}
	serve(limiter)
}

func serve(ratelimit.Limiter) {}

// On a cluster, the keys of all users share 64 hash tags, so that a master decides on many calls in one script.
func ExampleWithHashTags() {
	addrs := []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	store, err := redisstore.New(client, redisstore.WithHashTags(64))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(10))
	fmt.Println(limiter.Limit(), err)
	// Output: 10/s <nil>
}
