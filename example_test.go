package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A count starts again with each window, here with each full minute, so that both
// sides of an edge can be full.
func ExampleNewFixedWindow() {
	now := time.Date(2026, 1, 1, 12, 0, 59, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerMinute(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 2 {
		r, err := limiter.AllowN(ctx, "user:42", 100)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(now.Format(time.TimeOnly), r.Allowed, "remaining", r.Remaining, "reset after", r.ResetAfter)
		now = now.Add(r.ResetAfter)
	}
	// Output:
	// 12:00:59 true remaining 0 reset after 1s
	// 12:01:00 true remaining 0 reset after 1m0s
}

// The events of the last window fade in the course of this one: there is no burst
// at the edge.
func ExampleNewSlidingWindow() {
	now := time.Date(2026, 1, 1, 12, 0, 59, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingWindow(mem, ratelimit.PerMinute(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	if _, err := limiter.AllowN(ctx, "user:42", 100); err != nil {
		log.Fatal(err)
	}
	for _, wait := range []time.Duration{time.Second, 15 * time.Second, 30 * time.Second} {
		now = now.Add(wait)
		r, err := limiter.Peek(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(now.Format(time.TimeOnly), "remaining", r.Remaining)
	}
	// Output:
	// 12:01:00 remaining 0
	// 12:01:15 remaining 25
	// 12:01:45 remaining 75
}

// An event counts for exactly one Period from its own time on.
func ExampleNewSlidingLog() {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := start
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingLog(mem, ratelimit.PerMinute(3), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for _, second := range []int{10, 20, 55, 65, 70, 75, 80} {
		now = start.Add(time.Duration(second) * time.Second)
		r, err := limiter.Allow(ctx, "login:frank")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(now.Format(time.TimeOnly), r.Allowed, "retry after", r.RetryAfter)
	}
	// Output:
	// 12:00:10 true retry after 0s
	// 12:00:20 true retry after 0s
	// 12:00:55 true retry after 0s
	// 12:01:05 false retry after 5s
	// 12:01:10 true retry after 0s
	// 12:01:15 false retry after 5s
	// 12:01:20 true retry after 0s
}

// A full bucket is spent at once, and refilled at the rate. An event may cost
// several tokens.
func ExampleNewTokenBucket() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 50}
	limiter, err := ratelimit.NewTokenBucket(mem, limit, ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for _, cost := range []int{45, 10, 10} {
		r, err := limiter.AllowN(ctx, "user:42", cost)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(cost, r.Allowed, "remaining", r.Remaining, "retry after", r.RetryAfter)
		now = now.Add(r.RetryAfter)
	}
	// Output:
	// 45 true remaining 5 retry after 0s
	// 10 false remaining 5 retry after 500ms
	// 10 true remaining 0 retry after 0s
}

// Events that come at once are admitted to a queue, and Delay is their turn. Who
// sleeps it, or uses Wait, has a constant rate.
func ExampleNewLeakyBucket() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 3}, ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 4 {
		r, err := limiter.Allow(ctx, "printer")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, "delay", r.Delay)
	}
	// Output:
	// true delay 0s
	// true delay 100ms
	// true delay 200ms
	// false delay 0s
}

// Algorithms and limits come from a configuration file.
func ExampleNew() {
	config := `[
		{"name": "search", "algorithm": "token_bucket", "limit": "10/s burst 20"},
		{"name": "signup", "algorithm": "sliding_log",  "limit": "5/15m"}
	]`
	var rules []struct {
		Name, Algorithm string
		Limit           ratelimit.Limit
	}
	if err := json.Unmarshal([]byte(config), &rules); err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}

	for _, rule := range rules {
		limiter, err := ratelimit.New(rule.Algorithm, mem, rule.Limit, ratelimit.WithName(rule.Name))
		if err != nil {
			log.Fatal(err)
		}
		r, err := limiter.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rule.Name, rule.Limit, r.Allowed, "remaining", r.Remaining)
	}
	// Output:
	// search 10/s burst 20 true remaining 19
	// signup 5/15m true remaining 4
}

// Wait blocks until the event is admitted: the loop sends no faster than the limit.
func ExampleWait() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.Every(5*time.Millisecond), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for _, mail := range []string{"first", "second", "third"} {
		if _, err := ratelimit.Wait(ctx, limiter, "mails", 1); err != nil {
			log.Fatal(err)
		}
		fmt.Println("send the", mail)
	}
	// Output:
	// send the first
	// send the second
	// send the third
}

// Wait does not wait for what would come too late.
func ExampleWait_deadline() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 2 {
		_, err := ratelimit.Wait(ctx, limiter, "report", 1)
		fmt.Println(errors.Is(err, ratelimit.ErrWouldExceedDeadline), "and the context's error is", ctx.Err())
	}
	// Output:
	// false and the context's error is <nil>
	// true and the context's error is <nil>
}

// Callers can wait for 250 ms. Who would have to wait longer learns it at once, and takes
// no place in the queue.
func ExampleAllowWithin() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewLeakyBucket(mem, ratelimit.PerSecond(10), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for range 4 {
		r, err := ratelimit.AllowWithin(ctx, limiter, "printer", 1, 250*time.Millisecond)
		switch {
		case err != nil:
			log.Fatal(err)
		case r.Allowed:
			fmt.Println("print after", r.Delay)
		default:
			fmt.Println("busy, ask again after", r.RetryAfter)
		}
	}
	// Output:
	// print after 0s
	// print after 100ms
	// print after 200ms
	// busy, ask again after 50ms
}

// Paying users have a limit of their own. The key says who it is; a service would
// look it up, or find it in ctx.
func ExampleWithLimitFunc() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	tiers := map[string]ratelimit.Limit{"user:7": ratelimit.PerMinute(1000)}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(60),
		ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			return tiers[key], nil // the zero Limit means the limiter's own
		}))
	if err != nil {
		log.Fatal(err)
	}

	for _, key := range []string{"user:7", "user:42"} {
		r, err := limiter.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, r.Remaining, "of", r.Limit)
	}
	// Output:
	// user:7 999 of 1000
	// user:42 59 of 60
}

// Limiters of one name share what a key has spent, so that a limit can be changed
// without a fresh start for all.
func ExampleWithName() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, limit := range []ratelimit.Limit{ratelimit.PerDay(100), ratelimit.PerDay(150)} {
		named, err := ratelimit.NewSlidingLog(mem, limit, ratelimit.WithName("downloads"))
		if err != nil {
			log.Fatal(err)
		}
		unnamed, err := ratelimit.NewSlidingLog(mem, limit)
		if err != nil {
			log.Fatal(err)
		}
		for _, limiter := range []*ratelimit.SlidingLog{named, unnamed} {
			r, err := limiter.AllowN(ctx, "user:42", 40)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%v %q remaining %d\n", limiter.Limit(), limiter.Name(), r.Remaining)
		}
	}
	// Output:
	// 100/d "downloads" remaining 60
	// 100/d "" remaining 60
	// 150/d "downloads" remaining 70
	// 150/d "" remaining 110
}

// A page can show what is left without spending any of it.
func ExampleLimiter_Peek() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingLog(mem, ratelimit.PerDay(20), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	if _, err := limiter.AllowN(ctx, "user:42", 5); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r, err := limiter.Peek(ctx, "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Remaining, "of", r.Limit, "are left")
	}
	// Output:
	// 15 of 20 are left
	// 15 of 20 are left
}

// An upload is charged before it is made, and what failed of it is given back.
func ExampleLimiter_Refund() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewSlidingLog(mem, ratelimit.PerDay(20), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	charged, err := limiter.AllowN(ctx, "user:42", 12)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("12 files, remaining", charged.Remaining)

	if err := limiter.Refund(ctx, "user:42", charged, 2); err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Peek(ctx, "user:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("2 of them failed, remaining", r.Remaining)
	// Output:
	// 12 files, remaining 8
	// 2 of them failed, remaining 10
}

// A worker asks for as many jobs as it can hold, and takes what fits.
func ExampleTokenBucket_AllowUpTo() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerDay(25), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}

	for range 4 {
		granted, r, err := limiter.AllowUpTo(context.Background(), "jobs", 10)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(granted, "granted, remaining", r.Remaining)
	}
	// Output:
	// 10 granted, remaining 15
	// 10 granted, remaining 5
	// 5 granted, remaining 0
	// 0 granted, remaining 0
}

// lenient is a limiter around another one, which lets the first denied event of a key
// through.
type lenient struct {
	ratelimit.Limiter
	seen sync.Map
	mark *ratelimit.Mark
}

func newLenient(l ratelimit.Limiter) *lenient {
	lim := &lenient{Limiter: l}
	lim.mark = ratelimit.NewMark(lim, ratelimit.SourceStore, nil)
	return lim
}

func (l *lenient) Allow(ctx context.Context, key string) (ratelimit.Result, error) {
	return l.AllowN(ctx, key, 1)
}

func (l *lenient) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := l.Limiter.AllowN(ctx, key, n)
	if err != nil || r.Allowed {
		return r, err
	}
	if _, again := l.seen.LoadOrStore(key, true); !again {
		r.Allowed, r.RetryAfter = true, 0
		r = r.WithMark(l.mark) // nothing was charged for it
	}
	return r, nil
}

func (l *lenient) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if _, _, mine := charged.Unmark(l); mine {
		return nil
	}
	return l.Limiter.Refund(ctx, key, charged, n)
}

// A limiter of one's own around another one marks what it makes of a Result, and knows it
// again in Refund.
func ExampleMark() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	window, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	limiter, ctx := newLenient(window), context.Background()
	for range 3 {
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(r.Allowed, r.Charged(), err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}
