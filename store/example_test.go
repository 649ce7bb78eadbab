package store_test

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// counting is a store that wraps another one. Methods that it does not define are those of the
// other.
type counting struct {
	store.Store
	takes int
}

func (c *counting) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	c.takes++
	return c.Store.Take(ctx, ns, key, l, n)
}

// A store that wraps another store can count calls, or avoid some of them. (This one is for a
// single goroutine.)
func Example() {
	counted := &counting{Store: ratelimit.Must(memstore.New())}
	limiter := ratelimit.Must(ratelimit.NewSlidingWindow(counted, ratelimit.PerHour(2), ratelimit.WithName("api")))
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, err)
	}
	fmt.Println("calls:", counted.takes)
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// calls: 3
}
