// A middleware on Redis, behind a fallback. Nobody is there at that address, and it is not asked.
package main

import (
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	s, err := redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(s, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	open, err := fallback.New(limiter, fallback.FailOpen())
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(open)
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/", limit(http.NotFoundHandler()))
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
}
