package observe_test

import (
	"context"
	"expvar"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// newLimiter returns a limiter of three events per day with the given observers.
func newLimiter(observers ...ratelimit.Observer) ratelimit.Limiter {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(3), ratelimit.WithName("api"),
		ratelimit.WithObserver(observers...))
	if err != nil {
		log.Fatal(err)
	}
	return limiter
}

// ask calls limiter for each of the keys.
func ask(limiter ratelimit.Limiter, keys ...string) {
	for _, key := range keys {
		if _, err := limiter.Allow(context.Background(), key); err != nil {
			log.Fatal(err)
		}
	}
}

func ExampleCounters() {
	counters := observe.NewCounters("api")
	ask(newLimiter(counters), "ann", "ann", "ann", "ann", "bob")

	for _, d := range counters.Snapshot().Decisions {
		if d.Calls > 0 {
			fmt.Println(d.Outcome, "by", d.Source, d.Calls)
		}
	}
	// Output:
	// allowed by store 4
	// denied by store 1
}

// Counters are an expvar.Var. Package expvar shows them under /debug/vars.
func ExampleCounters_String() {
	counters := observe.NewCounters("api")
	var published expvar.Var = counters // by expvar.Publish("ratelimit", counters)

	fmt.Println(published.String()[:16])
	// Output: {"limiter":"api"
}

func ExampleTopKeys() {
	top, err := observe.NewTopKeys(0)
	if err != nil {
		log.Fatal(err)
	}
	limiter := newLimiter(top)
	ask(limiter, "ann", "ann", "ann", "ann", "bob")
	for range 100 {
		ask(limiter, "mallory")
	}

	for _, row := range top.Top(10).Keys {
		fmt.Println(row.Key, row.Count)
	}
	// Output:
	// mallory 97
	// ann 1
}

// Keys of httplimit.APIKey are hashes. Whoever issued the API keys can find the owner of a hash.
func ExampleTopKeys_owners() {
	top, err := observe.NewTopKeys(0)
	if err != nil {
		log.Fatal(err)
	}
	limiter := newLimiter(top)
	ofMallory, err := httplimit.HashedAPIKey("X-API-Key", "key-of-mallory") // the key that httplimit.APIKey("X-API-Key") counts
	if err != nil {
		log.Fatal(err)
	}
	for range 100 {
		ask(limiter, ofMallory)
	}

	issued := map[string]string{"key-of-ann": "ann", "key-of-mallory": "mallory"} // by API key
	owners := map[string]string{}
	for key, owner := range issued {
		hashed, err := httplimit.HashedAPIKey("X-API-Key", key)
		if err != nil {
			log.Fatal(err)
		}
		owners[hashed] = owner
	}
	for _, row := range top.Top(10).Keys {
		fmt.Println(row.Count, "denials of", owners[row.Key])
	}
	// Output: 97 denials of mallory
}

// This example compares all keys with an exact log. On a busy server, choose a few percent.
func ExampleExact() {
	exact, err := observe.NewExact(ratelimit.PerDay(3), 100)
	if err != nil {
		log.Fatal(err)
	}
	ask(newLimiter(exact), "ann", "ann", "ann", "ann", "bob")

	s := exact.Snapshot()
	fmt.Println(s.Beyond, "of", s.Admitted, "admissions beyond,", s.Needless, "of", s.Denied, "denials needless")
	// Output: 0 of 4 admissions beyond, 0 of 1 denials needless
}

func ExampleLogger() {
	l := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTimes}))
	limiter := newLimiter(observe.Logger(l.With("limiter", "api")))
	ask(limiter, "ann", "ann", "ann", "ann", "ann", "ann")
	// Output: level=INFO msg="ratelimit: denied" limiter=api key=ann n=1 limit=3 source=store
}

// Users who have used 80% of a day's quota are notified once.
func ExampleNear() {
	near, err := observe.NewNear(80, func(_ context.Context, key string, r ratelimit.Result) {
		fmt.Printf("%s has used %d of %d\n", key, r.Limit-r.Remaining, r.Limit)
	})
	if err != nil {
		log.Fatal(err)
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(10), ratelimit.WithObserver(near))
	if err != nil {
		log.Fatal(err)
	}
	for range 12 {
		_, _ = limiter.Allow(context.Background(), "user:42")
	}
	// Output: user:42 has used 8 of 10
}

// The page is for operators. Serve it on a port of its own.
func ExampleHandler() {
	counters := observe.NewCounters("api")
	top, err := observe.NewTopKeys(0)
	if err != nil {
		log.Fatal(err)
	}
	ask(newLimiter(counters, top), "ann", "ann", "ann", "ann", "bob")
	page := observe.Handler(observe.Page{
		Counters: []*observe.Counters{counters},
		TopKeys:  map[string]*observe.TopKeys{"api": top},
	})
	// go http.ListenAndServe("localhost:9090", page)

	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 application/json
}

// eachDenial logs each denial.
type eachDenial struct{ *slog.Logger }

func (l eachDenial) Decided(ctx context.Context, key string, n int, r ratelimit.Result, err error, _ time.Duration) {
	if err == nil && !r.Allowed {
		l.InfoContext(ctx, "denied", "limit", r.DeniedBy(), "source", r.Source(), "key", key, "n", n, "retry_after", r.RetryAfter)
	}
}

// A custom observer that logs each denial.
func ExampleAround() {
	all, err := ratelimit.NewAll(newLimiter(observe.NewCounters("api"))) // and other limits
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTimes}))
	limiter, err := observe.Around(all, eachDenial{logger})
	if err != nil {
		log.Fatal(err)
	}
	ask(limiter, "ann", "ann", "ann", "ann", "ann")
	// Output:
	// level=INFO msg=denied limit=api source=store key=ann n=1
	// level=INFO msg=denied limit=api source=store key=ann n=1
}

// withoutTimes removes the parts that differ from run to run.
func withoutTimes(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "retry_after" {
		return slog.Attr{}
	}
	return a
}

// Two limits on Redis decide together, and a fallback covers both. The Counters and the Logger
// inside the fallback see the errors of Redis, and those outside it see the decisions that clients
// get. In this example, no Redis is running.
func ExampleCounters_fallback() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	shared, err := redisstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	perUser, err := ratelimit.NewTokenBucket(shared, ratelimit.PerMinute(5), ratelimit.WithName("user"))
	if err != nil {
		log.Fatal(err)
	}
	total, err := ratelimit.NewTokenBucket(shared, ratelimit.PerSecond(100), ratelimit.WithName("total"))
	if err != nil {
		log.Fatal(err)
	}
	all, err := ratelimit.NewAll(perUser, total)
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler) // or slog.Default()
	inner, outer := observe.NewCounters("api/store"), observe.NewCounters("api")
	onRedis, err := observe.Around(all, inner, observe.Logger(logger.With("limiter", "api/store")))
	if err != nil {
		log.Fatal(err)
	}
	onChange := func(s fallback.State, _ time.Time) { fmt.Println("circuit breaker:", s) }
	safe, err := fallback.New(onRedis, fallback.FailOpen(), fallback.WithOnChange(onChange))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := observe.Around(safe, outer, observe.Logger(logger.With("limiter", "api")))
	if err != nil {
		log.Fatal(err)
	}

	ask(limiter, "ann", "ann", "ann", "ann", "ann", "ann")
	for _, e := range inner.Snapshot().Errors {
		if e.Calls > 0 {
			fmt.Println("errors:", e.Class, e.Calls)
		}
	}
	for _, d := range outer.Snapshot().Decisions {
		if d.Calls > 0 {
			fmt.Println(d.Outcome, "by", d.Source, d.Calls)
		}
	}
	// Output:
	// circuit breaker: open
	// errors: unavailable 5
	// allowed by fail_open 6
}
