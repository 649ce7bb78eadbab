package accesslist_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// The office is never limited, except one machine. A network is denied until the lists are
// replaced.
func ExampleNew() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	allow, err := accesslist.NewList("192.0.2.0/24")
	if err != nil {
		log.Fatal(err)
	}
	deny, err := accesslist.ParseList(strings.NewReader(`
		192.0.2.66        # deny wins
		2001:db8::/32
		=user:666         # a key, this text included
	`))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := accesslist.New(bucket, accesslist.WithLists(accesslist.Lists{Allow: allow, Deny: deny}))
	if err != nil {
		log.Fatal(err)
	}

	ask := func(key string) {
		r, err := limiter.Allow(context.Background(), key)
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	ask("192.0.2.1")
	ask("192.0.2.66")
	ask("2001:db8::1")
	ask("203.0.113.1")
	limiter.Replace(accesslist.Lists{Allow: allow})
	ask("2001:db8::1")
	// Output:
	// true 2147483647 <nil>
	// false 0 <nil>
	// false 0 <nil>
	// true 99 <nil>
	// true 99 <nil>
}
