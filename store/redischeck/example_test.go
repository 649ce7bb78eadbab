package redischeck_test

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Call Run at the start of a service, for its log. No finding is a reason not to start.
func ExampleRun() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	shared, err := redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	findings, err := redischeck.Run(ctx, shared)
	for _, finding := range findings {
		log.Print("rate limits: ", finding)
	}
	if err != nil {
		log.Print("rate limits: not all servers could be checked: ", err)
	}
}
