package main

import (
	"context"
	"log"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
)

func main() {
	s, err := memorystore.New(&memorystore.Config{Tokens: 1, Interval: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		_, _, _, ok, err := s.Take(context.Background(), "user:42")
		if err != nil || ok != want {
			log.Fatal(ok, err)
		}
	}
}
