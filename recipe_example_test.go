package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A ban of 15 minutes for three denials in 10, however often the client tries again. The next one
// within a day takes 30 minutes, and so on.
func ExampleNewBan() {
	store := frozenMemory()
	bucket, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(5), ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewBan(bucket, store, ratelimit.Penalty{
		Denials: 3, Within: 10 * time.Minute, // three denials in 10 minutes
		For: 15 * time.Minute, Most: 24 * time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := httplimit.Middleware(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 9 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
		fmt.Print(w.Code, w.Header()["Retry-After"], " ")
	}
	// Output: 200 [] 200 [] 200 [] 200 [] 200 [] 429 [12] 429 [12] 429 [900] 429 [900]
}

// Services on one Redis that must not share counts have prefixes of their own.
func ExampleWithName_services() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	billing, err := redisstore.New(client, redisstore.WithPrefix("billing"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingWindow(billing, ratelimit.PerMinute(100), ratelimit.WithName("export"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limiter.Name())
	// Output: export
}

// A budget of requests and tokens a minute, and of tokens a day.
func ExampleCountCalls_budget() {
	ctx, store := context.Background(), frozenMemory()
	requests, err := ratelimit.NewSlidingLog(store, ratelimit.PerMinute(60), ratelimit.WithName("requests"), ratelimit.CountCalls())
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10_000), ratelimit.WithName("tokens"))
	if err != nil {
		log.Fatal(err)
	}
	daily, err := ratelimit.NewFixedWindow(store, ratelimit.PerDay(200_000), ratelimit.WithName("daily"))
	if err != nil {
		log.Fatal(err)
	}
	budget, err := ratelimit.NewAll(requests, tokens, daily)
	if err != nil {
		log.Fatal(err)
	}
	reserved, r, err := ratelimit.Reserve(ctx, budget, "user:42", 4000) // an estimate
	if err != nil || !r.Allowed {
		return
	}
	r, err = reserved.Settle(ctx, 3000) // what the model has used
	fmt.Println(r.Parts()[0].Remaining, r.Parts()[1].Remaining, r.Parts()[2].Remaining, err)
	// Output: 59 7000 197000 <nil>
}

// customer is what billing knows of one.
type customer struct {
	plan ratelimit.Limit // such as PerMonth(10_000)
	day  int             // on which the month of its invoices begins
	zone *time.Location  // loaded once: LoadLocation reads a file
}

// Each customer is billed from a day of the month on, in a time zone of its own.
func ExampleLimit_From_billing() {
	paulo, err := time.LoadLocation("America/Sao_Paulo")
	if err != nil {
		log.Fatal(err) // the system has no zones: import _ "time/tzdata"
	}
	customers := map[string]customer{"acme": {ratelimit.PerMonth(10_000), 31, paulo}}
	limitOf := func(_ context.Context, key string) (ratelimit.Limit, error) {
		c, known := customers[key]
		if !known {
			return ratelimit.PerMonth(0), nil
		}
		return c.plan.From(c.day).In(c.zone), nil
	}
	now := time.Date(2026, time.February, 27, 12, 0, 0, 0, paulo)
	store, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	quota, err := ratelimit.NewFixedWindow(store, ratelimit.PerMonth(0), ratelimit.WithName("plan"), ratelimit.WithLimitFunc(limitOf))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r, err := quota.AllowN(context.Background(), "acme", 6_000)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r, now.Add(r.ResetAfter).Format(time.DateTime))
	}
	// Output:
	// allowed, 4000 of 10000 left, reset in 12h0m0s 2026-02-28 00:00:00
	// denied, 4000 of 10000 left, retry after 12h0m0s 2026-02-28 00:00:00
}
