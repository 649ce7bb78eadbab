package httplimit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// perHour returns a limiter in memory.
func perHour(n int) ratelimit.Limiter {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(n), ratelimit.WithName("example"))
	if err != nil {
		log.Fatal(err)
	}
	return limiter
}

// show prints the status of each request.
func show(handler http.Handler, requests ...*http.Request) {
	for _, r := range requests {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Print(w.Code, " ")
	}
	fmt.Println()
}

var page = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// Behind trusted proxies, the client's address is in X-Forwarded-For. A client cannot forge it,
// because the field is read from the right, up to the first address that is not a proxy's.
func ExampleClientIP_trustedProxies() {
	limit := httplimit.Middleware(perHour(1), httplimit.WithKey(httplimit.ClientIP([]string{"10.0.0.7"})))
	from := func(forwarded string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.7:4567" // the proxy
		r.Header.Set("X-Forwarded-For", forwarded)
		return r
	}
	show(limit(page), from("192.0.2.1"), from("192.0.2.2"), from("203.0.113.9, 192.0.2.1"))
	// Output: 200 200 429
}

// Each client can have two requests in progress. Further requests are told to come back in 5 s.
func ExampleWithSlotRetryAfter() {
	store := ratelimit.Must(memstore.New()) // or a redisstore.Store, for several processes
	atOnce := ratelimit.Must(inflight.New(store, 2, time.Minute, ratelimit.WithName("at_once")))
	limit := httplimit.Middleware(atOnce, httplimit.WithSlotRetryAfter(5*time.Second))

	var server http.Handler
	server = limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		second, _, _ := inflight.Hold(r.Context(), atOnce, "192.0.2.1", 1) // like another request
		defer second.Release()
		third := httptest.NewRecorder()
		server.ServeHTTP(third, r)
		fmt.Println(third.Code, third.Header().Get("Retry-After"), third.Header().Get("RateLimit-Policy"))
	}))
	show(server, httptest.NewRequest(http.MethodGet, "/", nil))
	// Output:
	// 429 5 "at_once";q=2;qu="concurrent-requests"
	// 200
}

// At most 8 requests run at the same time, 100 more wait for up to 5 s, and all others are refused
// immediately.
func ExampleWithSlots_waiting() {
	store := ratelimit.Must(memstore.New()) // or a redisstore.Store, for several processes
	atOnce, err := inflight.New(store, 8, time.Minute, ratelimit.WithName("at_once"))
	if err != nil {
		log.Fatal(err)
	}
	limit := httplimit.Middleware(atOnce,
		httplimit.WithKey(httplimit.Global()),
		httplimit.WithSlots(inflight.WaitUpTo(5*time.Second), inflight.MaxWaiting(100)),
		httplimit.WithSlotRetryAfter(5*time.Second))

	slots := make([]*inflight.Slot, 8)
	for i := range slots { // like requests in progress
		slots[i], _, _ = inflight.Hold(context.Background(), atOnce, "global", 1)
	}
	time.AfterFunc(10*time.Millisecond, slots[0].Release)
	show(limit(page), httptest.NewRequest(http.MethodGet, "/", nil)) // 10 ms later
	// Output: 200
}

// estimate returns how many tokens a prompt and its answer usually take. The handler reads the body
// again.
func estimate(r *http.Request) int {
	prompt, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(prompt), r.Body))
	return 500 + len(prompt)/4
}

// Requests per minute, tokens per minute, and concurrent requests are decided together. A request
// is charged an estimate of its tokens, holds a slot, and settles the tokens that it has used.
func ExampleDecision_Slot() {
	store := ratelimit.Must(memstore.New()) // or a redisstore.Store, for several processes
	requests := ratelimit.Must(ratelimit.NewTokenBucket(store, ratelimit.PerMinute(60), ratelimit.WithName("requests"), ratelimit.CountCalls()))
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(store, ratelimit.PerMinute(10_000), ratelimit.WithName("tokens")))
	atOnce := ratelimit.Must(inflight.New(store, 8, time.Minute, ratelimit.WithName("at_once")))
	model := ratelimit.Must(ratelimit.NewAll(requests, tokens, atOnce))

	limit, err := httplimit.New(model, httplimit.WithCost(estimate), httplimit.WithContext())
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		used := 42 // of the model's answer
		d, ok := httplimit.FromContext(r.Context())
		if !ok {
			return // not limited
		}
		if err := d.Slot().Settle(r.Context(), used); err != nil {
			log.Print(err) // the estimate stays charged
		}
		left, _ := tokens.Peek(r.Context(), d.Key)
		fmt.Println(left.Remaining)
	}))
	show(handler, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("why?")))
	// Output:
	// 9958
	// 200
}

// Each issued API key has its own limit. The key is hashed before it is stored.
func ExampleAPIKey() {
	issued := map[string]bool{"key-of-ann": true, "key-of-bob": true}
	key := httplimit.APIKey("X-API-Key", httplimit.KnownKeys(func(_ *http.Request, key string) bool { return issued[key] }))
	limit := httplimit.Middleware(perHour(1), httplimit.WithKey(key))
	with := func(key string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-API-Key", key)
		return r
	}
	show(limit(page), with("key-of-ann"), with("key-of-ann"), with("key-of-bob"), with("invented"))
	// Output: 200 429 200 400
}

// Each route has a limit per client. The middleware wraps handlers of the mux, because the mux
// finds the route.
func ExampleRoute() {
	limit := httplimit.Middleware(perHour(1),
		httplimit.WithKey(httplimit.Combined(httplimit.Route(), httplimit.PeerIP())))
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", limit(page))
	mux.Handle("GET /search", limit(page))
	get := func(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }
	show(mux, get("/users/1"), get("/users/2"), get("/search"))
	// Output: 200 429 200
}

// An upload costs one event per KiB.
func ExampleWithCost() {
	limit := httplimit.Middleware(perHour(10), httplimit.WithCost(func(r *http.Request) int {
		return 1 + int(max(0, r.ContentLength)/1024)
	}))
	upload := func(bytes int) *http.Request {
		return httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", bytes)))
	}
	show(limit(page), upload(100), upload(8192), upload(100))
	// Output: 200 200 429
}

// Health checks are not limited.
func ExampleWithSkip() {
	limit := httplimit.Middleware(perHour(1), httplimit.WithSkip(func(r *http.Request) bool {
		return r.URL.Path == "/healthz"
	}))
	get := func(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }
	show(limit(page), get("/"), get("/healthz"), get("/healthz"), get("/"))
	// Output: 200 200 200 429
}

// Two requests per second to each host, and five to all hosts together. With a Burst of 1, each
// bucket sends at even intervals, even inside an All.
func ExampleNewTransport_perHostAndInAll() {
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	perHost, err := ratelimit.NewLeakyBucket(store, ratelimit.Limit{Rate: 2, Period: time.Second, Burst: 1},
		ratelimit.WithName("host"))
	if err != nil {
		log.Fatal(err)
	}
	allHosts, err := ratelimit.NewLeakyBucket(store, ratelimit.Limit{Rate: 5, Period: time.Second, Burst: 1},
		ratelimit.WithName("all hosts"),
		ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "all", nil }))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewAll(perHost, allHosts)
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httplimit.NewTransport(http.DefaultTransport, limiter, httplimit.WithRetries(3))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	server := httptest.NewServer(page)
	defer server.Close()
	began := time.Now()
	for range 3 {
		answer, err := client.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	fmt.Println("3 requests take a second:", time.Since(began) >= time.Second)
	// Output: 3 requests take a second: true
}
