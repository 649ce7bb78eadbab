package lease_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A limit that a whole fleet asks for often. Instead of a memstore it would be on Redis.
func Example() {
	store, err := memstore.New()
	if err != nil {
		panic(err)
	}
	leases, err := lease.New(store, 50*time.Millisecond)
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.NewFixedWindow(leases, ratelimit.PerHour(1_000_000))
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
	err = leases.Close(ctx) // gives back what is held
	fmt.Println(admitted, "admitted; few calls:", leases.Stats().Asked < 1000, err)
	// Output: 10000 admitted; few calls: true <nil>
}
