package plancache_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// users reads plans from the table users.
type users struct{ *sql.DB }

// planOf is asked for keys such as "user:ann" and "192.0.2.1".
func (u users) planOf(ctx context.Context, key string) (plan string, err error) {
	user, known := strings.CutPrefix(key, "user:")
	if !known {
		return "", nil // the limit of the constructor
	}
	err = u.QueryRowContext(ctx, "SELECT plan FROM users WHERE name = $1", user).Scan(&plan)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return plan, err
}

// Plans from a table of users, each queried at most once per minute.
func ExampleNew_database() {
	db, err := sql.Open("postgres", "postgres://localhost/service")
	if err != nil {
		log.Fatal(err)
	}
	plans, err := plancache.New(users{db}.planOf, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10),
		ratelimit.WithName("client"), ratelimit.WithTiers(plans.Get, map[string]ratelimit.Limit{"pro": ratelimit.PerMinute(1000)}))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(context.Background(), "user:ann")
	fmt.Println(r, err)
}

// One answer of the database has a plan with a rate and a quota. Each limit takes its own part of
// it.
func ExampleNew_severalLimits() {
	type plan struct{ rate, quota ratelimit.Limit }
	plans, err := plancache.New(func(context.Context, string) (plan, error) {
		return plan{ratelimit.PerSecond(10), ratelimit.PerMonth(5000)}, nil
	}, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	rateOf := func(ctx context.Context, key string) (ratelimit.Limit, error) {
		p, err := plans.Get(ctx, key)
		return p.rate, err
	}
	quotaOf := func(ctx context.Context, key string) (ratelimit.Limit, error) {
		p, err := plans.Get(ctx, key)
		return p.quota, err
	}
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	rate, err := ratelimit.NewTokenBucket(store, ratelimit.PerSecond(1), ratelimit.WithName("rate"), ratelimit.WithLimitFunc(rateOf))
	if err != nil {
		log.Fatal(err)
	}
	quota, err := ratelimit.NewFixedWindow(store, ratelimit.PerMonth(1), ratelimit.WithName("quota"), ratelimit.WithLimitFunc(quotaOf))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewAll(rate, quota)
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(context.Background(), "user:ann")
	if err != nil {
		log.Fatal(err)
	}
	for _, part := range r.Parts() {
		fmt.Println(part.Remaining, "of", part.Limit)
	}
	fmt.Println(plans.Stats().Queries, "query")
	// Output:
	// 9 of 10
	// 4999 of 5000
	// 1 query
}

// The database is down before it has answered for the key. Instead of an error, the limit given to
// the constructor applies.
func ExampleCache_Get() {
	ctx := context.Background()
	plans, err := plancache.New(func(context.Context, string) (string, error) {
		return "", errors.New("connection refused")
	}, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	planOrNone := func(ctx context.Context, key string) (string, error) {
		plan, err := plans.Get(ctx, key)
		if err != nil {
			plan = "" // while the database fails
		}
		return plan, nil
	}
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10),
		ratelimit.WithTiers(planOrNone, map[string]ratelimit.Limit{"pro": ratelimit.PerMinute(1000)}))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(ctx, "user:ann")
	fmt.Println(r.Limit, r.Remaining, err)
	fmt.Println(plans.Stats().Queries, "query,", plans.Stats().Failures, "failed")
	// Output:
	// 10 9 <nil>
	// 1 query, 1 failed
}
