package throttle_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// A request waits up to a tenth of a second for its permit. If it would take longer, the request is
// denied immediately.
func ExampleNewWaiter() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 50, Period: time.Second, Burst: 1}, ratelimit.WithName("jobs"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttle.NewWaiter(bucket, 100*time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 3 {
		r, err := limiter.Allow(ctx, "user:42") // the second and third sleep some 20 ms
		fmt.Println(r.Allowed, err)
	}
	r, err := limiter.AllowN(ctx, "user:42", 10)
	fmt.Println(r.Allowed, r.RetryAfter == ratelimit.Never, err)
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// false true <nil>
}

// The first three requests per hour are served immediately, and each later one a second later than
// the one before. The caller must wait for r.Delay, or use ratelimit.Wait.
func ExampleNewSlowdown() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	count, err := ratelimit.NewSlidingLog(mem, ratelimit.PerHour(1000), ratelimit.WithName("jobs"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := throttle.NewSlowdown(count, throttle.Slow{Free: 3, Step: time.Second, Max: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}

	for range 6 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Delay, err)
	}
	// Output:
	// true 0s <nil>
	// true 0s <nil>
	// true 0s <nil>
	// true 1s <nil>
	// true 2s <nil>
	// true 2s <nil>
}

// A download of 48 KiB at 64 KiB per second: the first 32 KiB are read immediately.
func ExampleNewWriter() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.Limit{Rate: 64 << 10, Period: time.Second, Burst: 32 << 10} // bytes
	limiter, err := ratelimit.NewTokenBucket(mem, limit, ratelimit.WithName("download"))
	if err != nil {
		log.Fatal(err)
	}

	began := time.Now()
	w, err := throttle.NewWriter(context.Background(), io.Discard, limiter, "user:42")
	if err != nil {
		log.Fatal(err)
	}
	n, err := io.Copy(w, strings.NewReader(strings.Repeat("x", 48<<10)))
	fmt.Println(n, err, time.Since(began) >= 240*time.Millisecond)
	// Output: 49152 <nil> true
}
