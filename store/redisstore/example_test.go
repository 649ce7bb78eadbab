package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// The client is the caller's, of any kind, and stays so. An error means that no
// decision is known.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer func() { _ = client.Close() }()
	shared, err := redisstore.New(client, redisstore.WithPrefix("shop"), redisstore.WithTimeout(20*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(10))
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
