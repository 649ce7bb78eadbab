package lease_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A whole fleet often asks for this limit. In production, the store would be on Redis instead of a
// memstore.
func Example() {
	store, err := memstore.New()
	if err != nil {
		panic(err)
	}
	leases, err := lease.New(store, 50*time.Millisecond)
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.NewFixedWindow(leases, ratelimit.PerHour(1_000_000), ratelimit.WithName("fleet"))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	admitted := 0
	for range 10_000 {
		r, err := limiter.Allow(ctx, "tenant:7")
		if err == nil && r.Allowed {
			admitted++
		}
	}
	err = leases.Close(ctx) // releases what is held
	fmt.Println(admitted, "admitted; few calls:", leases.Stats().Asked < 1000, err)
	// Output: 10000 admitted; few calls: true <nil>
}

// Workers of a queue wait for their turn under one limit of all processes. On Redis, a lease saves
// them most of the calls.
func ExampleNew_workers() {
	store, err := memstore.New() // in several processes: redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	leases, err := lease.New(store, 50*time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(leases, ratelimit.PerSecond(1000), ratelimit.WithName("jobs"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	jobs := make(chan int)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for job := range jobs {
				if _, err := ratelimit.Wait(ctx, limiter, "supplier", 1); err != nil {
					log.Println("put back", job, err) // its turn does not come in time
				}
			}
		})
	}
	for job := range 100 {
		jobs <- job
	}
	close(jobs)
	workers.Wait()
	fmt.Println("done", leases.Close(context.WithoutCancel(ctx))) // releases what is held
	// Output: done <nil>
}
