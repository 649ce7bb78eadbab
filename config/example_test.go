package config_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Limits come from a text, and the program finds the tier in the key.
func Example() {
	parsed, err := config.Parse([]byte(`
limiters:
  api:
    algorithm: sliding_window
    limit: 100/m
    tiers:
      free: 2/m
`))
	if err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiters, err := parsed.Build(mem, config.WithTierFunc(func(_ context.Context, key string) (string, error) {
		tier, _, _ := strings.Cut(key, ":")
		return tier, nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	api, err := limiters.Limiter("api")
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"free:42", "free:42", "free:42", "pro:7"} {
		r, err := api.Allow(context.Background(), key)
		fmt.Println(key, r.Allowed, r.Remaining, err)
	}
	// Output:
	// free:42 true 1 <nil>
	// free:42 true 0 <nil>
	// free:42 false 0 <nil>
	// pro:7 true 99 <nil>
}

// The error lists all mistakes, with line and column.
func ExampleError() {
	_, err := config.Parse([]byte(`
limiters:
  login:
    algorithm: fixed_window
    limit: 5/15 mins burst 3
  search:
    algorithm: token_bucket
    limits: 10/s
`))
	fmt.Println(err)
	// Output:
	// config: 5:12: limiter "login": limit: ratelimit: invalid limit: 5/15m burst 3: a fixed_window cannot have a burst
	// config: 8:13: limiter "search": limits: "10/s": want a list of 1 to 16 limits
}

// An operator raises a limit while the program runs. The key keeps what it has spent.
func ExampleLimiters_Update() {
	parse := func(text string) *config.Config {
		parsed, err := config.Parse([]byte(text))
		if err != nil {
			log.Fatal(err)
		}
		return parsed
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiters, err := parse(`{"limiters": {"mail": {"algorithm": "sliding_log", "limit": "2/d"}}}`).Build(mem)
	if err != nil {
		log.Fatal(err)
	}
	mail, err := limiters.Limiter("mail")
	if err != nil {
		log.Fatal(err)
	}
	send := func() {
		r, err := mail.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	send()
	send()
	send()
	if err := limiters.Update(parse(`{"limiters": {"mail": {"algorithm": "sliding_log", "limit": "5/d"}}}`)); err != nil {
		log.Fatal(err)
	}
	send()
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
	// true 2 <nil>
}
