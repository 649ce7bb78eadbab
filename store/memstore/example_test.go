package memstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// One store serves any number of limiters. Limiters share their counts only if they have the same
// algorithm, Period and name.
func Example() {
	mem := ratelimit.Must(memstore.New(memstore.WithMaxKeys(1_000_000))) // about 40 MB
	limiter := ratelimit.Must(ratelimit.NewSlidingWindow(mem, ratelimit.PerHour(2), ratelimit.WithName("api")))
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed)
	}
	fmt.Println("keys:", mem.Len())
	// Output:
	// true
	// true
	// false
	// keys: 1
}
