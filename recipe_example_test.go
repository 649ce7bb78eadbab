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

// banning is a bucket of 5 a minute that bans a key for 15 minutes when it denies.
type banning struct{ ratelimit.Limiter }

func (b banning) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := b.Limiter.AllowN(ctx, key, n)
	if err != nil || r.Allowed || r.RetryAfter > time.Minute/5 { // longer: it is banned already
		return r, err
	}
	if _, err := ratelimit.Charge(ctx, b.Limiter, key, 15*5); err != nil {
		return r, err
	}
	return b.Peek(ctx, key) // a denial, with the time until the end of the ban
}

func (b banning) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return b.AllowN(ctx, key, 1)
}

func (b banning) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	return ratelimit.AppendPolicies(ctx, dst, b.Limiter, key)
}

// A ban of 15 minutes after six requests at once, however often the client tries again.
func ExampleCharge_ban() {
	bucket, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	handler := httplimit.Middleware(banning{bucket})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 8 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
		fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 200  "login";q=5;w=60
	// 200  "login";q=5;w=60
	// 200  "login";q=5;w=60
	// 200  "login";q=5;w=60
	// 200  "login";q=5;w=60
	// 429 912 "login";q=5;w=60
	// 429 912 "login";q=5;w=60
	// 429 912 "login";q=5;w=60
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
