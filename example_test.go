package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
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

// A wrapper that lets the first denied event of a key through. A Refund of that does nothing, since
// the limiter inside has not charged it.
func ExampleNewAround() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	window, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	var warned sync.Map
	limiter, err := ratelimit.NewAround(window, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		r, err := c.Inside(ctx)
		if err == nil && !r.Allowed && !c.Peek {
			if _, again := warned.LoadOrStore(c.Key, true); !again {
				r.Allowed, r.RetryAfter = true, 0
			}
		}
		return r, err
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Charged(), err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}

// A decision about a key. An error is not a denial.
func Example() {
	ctx := context.Background()
	limiter, err := ratelimit.NewSlidingWindow(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("hello"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := limiter.Allow(ctx, "user:42")
	switch {
	case err != nil:
		// The store failed: no decision is known. Admit or refuse, as your service prefers.
	case !r.Allowed:
		// Retry after r.RetryAfter, which is exact. It is ratelimit.Never if waiting does not help.
	}
	fmt.Println(r.Allowed, r.Remaining)
	// Output: true 4
}

// Some keys have no limit, and some are blocked. Neither asks the store.
func ExampleUnlimited() {
	limits := map[string]ratelimit.Limit{"staff": ratelimit.Unlimited(), "banned": ratelimit.PerMinute(0)}
	limiter, err := ratelimit.NewFixedWindow(frozenMemory(), ratelimit.PerMinute(10), ratelimit.WithName("api"),
		ratelimit.WithLimitFunc(func(_ context.Context, key string) (ratelimit.Limit, error) {
			return limits[key], nil // the zero Limit means the constructor's
		}))
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"ann", "staff", "banned"} {
		r, err := limiter.AllowN(context.Background(), key, 10)
		fmt.Println(key, r.Allowed, r.Remaining, r.RetryAfter == ratelimit.Never, err)
	}
	// Output:
	// ann true 0 false <nil>
	// staff true 2147483647 false <nil>
	// banned false 0 true <nil>
}

// A violation costs more than a wait: a bucket of 5 a minute is charged 75 events more, so
// that it admits nothing for 15 minutes beyond.
func ExampleCharge() {
	ctx, key := context.Background(), "user:42"
	bucket, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.PerMinute(5), ratelimit.WithName("login"))
	if err != nil {
		log.Fatal(err)
	}
	for range 6 {
		r, err := bucket.Allow(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		if !r.Allowed {
			_, err = ratelimit.Charge(ctx, bucket, key, 75)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	r, err := bucket.Peek(ctx, key)
	fmt.Println(r.RetryAfter, err)
	// Output: 15m12s <nil>
}

// As many as fit now: a batch is cut to what the limit has left.
func ExampleAllowUpTo() {
	limiter, err := ratelimit.NewSlidingWindow(frozenMemory(), ratelimit.Limit{Rate: 100, Period: time.Minute}, ratelimit.WithName("mail"))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		granted, _, err := ratelimit.AllowUpTo(context.Background(), limiter, "newsletter", 60)
		fmt.Println("send", granted, err)
	}
	// Output:
	// send 60 <nil>
	// send 40 <nil>
}

// frozenMemory is a memory in which time stands still, so that the output is always
// the same.
func frozenMemory() *memstore.Store {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }))
	if err != nil {
		panic(err)
	}
	return mem
}

// Requests and the tokens that they cost: a call is charged to both limits, or to none.
func ExampleCountCalls() {
	mem := frozenMemory()
	requests, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(60), ratelimit.WithName("requests"), ratelimit.CountCalls())
	if err != nil {
		panic(err)
	}
	tokens, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(2000), ratelimit.WithName("tokens"))
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.NewAll(requests, tokens)
	if err != nil {
		panic(err)
	}
	for range 2 {
		r, err := limiter.AllowN(context.Background(), "user:42", 1200)
		if err != nil {
			panic(err)
		}
		fmt.Println(r.Allowed, r.DeniedBy(), r.Parts()[0].Remaining, r.Parts()[1].Remaining)
	}
	// Output:
	// true  59 800
	// false tokens 59 800
}

// Tokens of a language model: the answer's length is known when it is there.
func ExampleReserve() {
	ctx := context.Background()
	tokens, err := ratelimit.NewTokenBucket(frozenMemory(), ratelimit.Limit{Rate: 100, Period: time.Minute, Burst: 1000}, ratelimit.WithName("api"))
	if err != nil {
		panic(err)
	}
	reservation, r, err := ratelimit.Reserve(ctx, tokens, "user:42", 300)
	if err != nil {
		panic(err)
	}
	if !r.Allowed {
		return // come back after r.RetryAfter
	}
	fmt.Println("reserved, left:", r.Remaining)
	r, err = reservation.Settle(ctx, 1200) // 900 more than estimated
	if err != nil {
		panic(err)
	}
	fmt.Println("settled, left:", r.Remaining)
	r, err = tokens.Allow(ctx, "user:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(r.Allowed, r.RetryAfter)
	// Output:
	// reserved, left: 700
	// settled, left: 0
	// false 2m0.6s
}

// What middleware tells its clients: the name, the quota and the window of each limit
// that decides on a key.
func ExampleAppendPolicies() {
	mem := frozenMemory()
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 25}, ratelimit.WithName("burst"))
	if err != nil {
		panic(err)
	}
	daily, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1000), ratelimit.WithName("daily"))
	if err != nil {
		panic(err)
	}
	both, err := ratelimit.NewAll(bucket, daily)
	if err != nil {
		panic(err)
	}
	policies, err := ratelimit.AppendPolicies(context.Background(), nil, both, "user:42")
	if err != nil {
		panic(err)
	}
	for _, p := range policies {
		fmt.Printf("%q;q=%d;w=%v\n", p.Name, p.Quota, p.Window.Seconds())
	}
	// Output:
	// "burst";q=25;w=2.5
	// "daily";q=1000;w=86400
}

func ExampleStatic() {
	maintenance := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Hour}, nil)
	r, err := maintenance.Allow(context.Background(), "anybody")
	fmt.Println(r.Allowed, r.RetryAfter, err)
	// Output: false 1h0m0s <nil>
}

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

// A ban for wrong passwords, beside a limit of attempts. What that limit denies is no strike, since a
// right password may be denied too.
func ExampleBan_Strike() {
	ctx, store := context.Background(), frozenMemory()
	attempts, err := ratelimit.NewSlidingLog(store, ratelimit.PerMinute(20), ratelimit.WithName("attempts"))
	if err != nil {
		log.Fatal(err)
	}
	free, err := ratelimit.NewSlidingLog(store, ratelimit.Unlimited(), ratelimit.WithName("wrong-passwords"))
	if err != nil {
		log.Fatal(err)
	}
	var door *ratelimit.Ban // of the package, if handlers call Strike
	door, err = ratelimit.NewBan(free, store, ratelimit.Penalty{
		Denials: 10, Within: time.Hour, For: time.Hour, Most: 24 * time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewAll(door, attempts)
	if err != nil {
		log.Fatal(err)
	}
	heard := 0
	for range 12 {
		r, err := limiter.Allow(ctx, "ann")
		if err != nil {
			log.Fatal(err)
		}
		if r.Allowed { // the password is checked, and wrong
			heard++
			if _, err := door.Strike(ctx, "ann", 1); err != nil {
				log.Print(err) // it does not count
			}
		}
	}
	r, err := limiter.Peek(ctx, "ann")
	fmt.Println(heard, "guesses:", r, err)
	// Output: 10 guesses: denied by "ban" (ban), retry after 1h0m0s <nil>
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
