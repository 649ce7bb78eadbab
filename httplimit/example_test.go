package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Each client, identified by its address, can make two requests per hour.
func Example() {
	mem := ratelimit.Must(memstore.New()) // or redisstore.New(client)
	perClient := ratelimit.Must(httplimit.LimitByIP(mem, "web", ratelimit.PerHour(2)))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /search", func(http.ResponseWriter, *http.Request) {})
	handler := perClient(mux)

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/search", nil))
		fmt.Println(w.Code, "left:", w.Header().Get("X-RateLimit-Remaining"), w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 200 left: 1 "web";q=2;w=3600
	// 200 left: 0 "web";q=2;w=3600
	// 429 left: 0 "web";q=2;w=3600
}

// All processes together limit each client.
func ExampleLimitByIP() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	store := ratelimit.Must(redisstore.New(client))
	limit := ratelimit.Must(httplimit.LimitByIP(store, "hello", ratelimit.PerMinute(5)))

	http.Handle("/", limit(page))
}

// Any limiter can be used. This one refills continuously, and has a burst of two.
func ExampleMiddleware() {
	mem := ratelimit.Must(memstore.New())
	limit := ratelimit.Limit{Rate: 10, Period: time.Hour, Burst: 2}
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(mem, limit, ratelimit.WithName("web")))
	handler := httplimit.Middleware(limiter)(page)

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/search", nil))
		fmt.Println(w.Code, "left:", w.Header().Get("X-RateLimit-Remaining"), w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 200 left: 1 "web";q=2;w=720
	// 200 left: 0 "web";q=2;w=720
	// 429 left: 0 "web";q=2;w=720
}

// login returns the user whom an earlier middleware has authenticated and put into the context. A
// name that the client only claims, such as that of an unchecked Request.BasicAuth, would let it
// spend the limits of others, or have any number of its own.
type login struct{}

func currentUser(r *http.Request) string {
	user, _ := r.Context().Value(login{}).(string)
	return user
}

// A proxy with its own limit is in front of a backend that limits too. A ReverseProxy adds the
// backend's fields to those of the proxy, so that clients would read two limits. Of the backend's
// refusals, only Retry-After is kept.
func ExampleMiddleware_reverseProxy() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter := func(name string, rate int) ratelimit.Limiter {
		l, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(rate), ratelimit.WithName(name))
		if err != nil {
			log.Fatal(err)
		}
		return l
	}
	backend := httptest.NewServer(httplimit.Middleware(limiter("backend", 1000))(http.NotFoundHandler()))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	if err != nil {
		log.Fatal(err)
	}

	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	proxy.ModifyResponse = func(res *http.Response) error {
		for _, field := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
			res.Header.Del(field)
		}
		return nil
	}
	handler := httplimit.Middleware(limiter("proxy", 10))(proxy)

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code, w.Header().Values("RateLimit-Policy"), w.Header().Values("X-RateLimit-Limit"))
	// Output: 404 ["proxy";q=10;w=3600] [10]
}

// Scripts of another origin (CORS) can read the limits, and refusals too. The CORS handler is
// outside the middleware, so that preflight requests are not counted.
func ExampleMiddleware_crossOrigin() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	limited := httplimit.Middleware(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://app.example.com")
		w.Header().Set("Access-Control-Expose-Headers", "RateLimit, RateLimit-Policy, Retry-After")
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			w.Header().Set("Access-Control-Allow-Methods", "GET, POST")
			w.Header().Set("Access-Control-Allow-Headers", "X-API-Key, Content-Type")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		limited.ServeHTTP(w, r)
	})

	for _, method := range []string{http.MethodOptions, http.MethodGet, http.MethodGet} {
		r := httptest.NewRequest(method, "/", nil)
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", http.MethodGet)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(method, w.Code, w.Header().Get("Access-Control-Allow-Origin"), w.Header()["Ratelimit-Policy"])
	}
	// Output:
	// OPTIONS 204 https://app.example.com []
	// GET 200 https://app.example.com ["api";q=1;w=3600]
	// GET 429 https://app.example.com ["api";q=1;w=3600]
}

// Behind a load balancer at 10.0.0.7, a client is identified by its API key, by its login, or else
// by its address. Each has its own limit.
func ExampleFirst() {
	issued := map[string]bool{"secret-of-acme": true}
	key := httplimit.First(
		httplimit.APIKey("X-API-Key", httplimit.KnownKeys(func(_ *http.Request, key string) bool { return issued[key] })),
		httplimit.User(currentUser),
		httplimit.ClientIP([]string{"10.0.0.7"}, httplimit.IPv6Prefix(56)),
	)

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.7:4242"
	r.Header.Set("X-Forwarded-For", "192.0.2.66, 2001:db8:1:2:3::4")
	fmt.Println(key.Of(r))
	r.SetBasicAuth("ann", "a guess") // which nobody has checked
	fmt.Println(key.Of(r))
	r = r.WithContext(context.WithValue(r.Context(), login{}, "ann"))
	fmt.Println(key.Of(r))
	r.Header.Set("X-API-Key", "secret-of-acme")
	fmt.Println(key.Of(r))
	// Output:
	// 2001:db8:1::/56 <nil>
	// 2001:db8:1::/56 <nil>
	// user:ann <nil>
	// apikey:x-api-key:o1CqNLr-tUMlRM7QTKQ0OypG0jnOuPD0up5xp9MH_rI <nil>
}

// A host can make 2 requests per hour, and its network, a /24 or a /48, can make 3. Both are
// decided together: a request that one limit denies is not charged to the other.
func ExampleMiddleware_hostAndNetwork() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	network := func(ctx context.Context, _ string) (string, error) {
		addr, _ := clientaddr.FromContext(ctx)
		bits := 48
		if addr.Is4() {
			bits = 24
		}
		p, err := addr.Prefix(bits)
		return p.String(), err
	}
	hosts, err := ratelimit.NewSlidingLog(mem, ratelimit.PerHour(2), ratelimit.WithName("host"))
	if err != nil {
		log.Fatal(err)
	}
	networks, err := ratelimit.NewSlidingLog(mem, ratelimit.PerHour(3), ratelimit.WithName("network"), ratelimit.WithKeyFunc(network))
	if err != nil {
		log.Fatal(err)
	}
	both, err := ratelimit.NewAll(hosts, networks)
	if err != nil {
		log.Fatal(err)
	}
	limit := httplimit.Middleware(both, httplimit.WithKey(httplimit.ClientIP([]string{"10.0.0.7"})))
	handler := limit(http.NotFoundHandler())

	for _, client := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.7:4242"
		r.Header.Set("X-Forwarded-For", client)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(client, w.Code, "left:", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 192.0.2.1 404 left: 1
	// 192.0.2.1 404 left: 0
	// 192.0.2.1 429 left: 0
	// 192.0.2.2 404 left: 0
	// 192.0.2.3 429 left: 0
	// 198.51.100.1 404 left: 1
}

// Each route has its own limit, and paying users have a higher limit on the first route.
func ExampleWithKey_routesAndTiers() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	user := httplimit.User(currentUser)
	paying := map[string]bool{"user:ann": true}
	tier := func(_ context.Context, key string) (ratelimit.Limit, error) {
		if paying[key] {
			return ratelimit.PerHour(1000), nil
		}
		return ratelimit.Limit{}, nil // the constructor's
	}
	searches, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("search"), ratelimit.WithLimitFunc(tier))
	if err != nil {
		log.Fatal(err)
	}
	exports, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(2), ratelimit.WithName("export"))
	if err != nil {
		log.Fatal(err)
	}
	answer := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	mux := http.NewServeMux()
	mux.Handle("GET /search/{term}", httplimit.Middleware(searches, httplimit.WithKey(user))(answer))
	mux.Handle("POST /export", httplimit.Middleware(exports, httplimit.WithKey(user))(answer))
	mux.Handle("GET /healthz", answer)

	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/search/go", nil),
		httptest.NewRequest(http.MethodPost, "/export", nil),
		httptest.NewRequest(http.MethodGet, "/healthz", nil),
	} {
		for _, name := range []string{"ann", "bob"} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), login{}, name)))
			fmt.Println(r.URL.Path, name, "has", w.Header()["Ratelimit-Policy"])
		}
	}
	// Output:
	// /search/go ann has ["search";q=1000;w=3600]
	// /search/go bob has ["search";q=10;w=3600]
	// /export ann has ["export";q=2;w=86400]
	// /export bob has ["export";q=2;w=86400]
	// /healthz ann has []
	// /healthz bob has []
}

// Users are limited by their names, and all users from one network are denied. The server is behind
// a load balancer in 10.0.0.7.
func ExampleWithClientAddr() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	perUser, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(100), ratelimit.WithName("user"))
	if err != nil {
		log.Fatal(err)
	}
	deny, err := accesslist.NewList("2001:db8::/32")
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := accesslist.New(perUser, accesslist.WithLists(accesslist.Lists{Deny: deny}))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	handler := httplimit.Middleware(limiter,
		httplimit.WithKey(httplimit.User(currentUser)),
		httplimit.WithClientAddr(httplimit.ClientIP([]string{"10.0.0.7"})),
	)(mux)

	for _, client := range []string{"192.0.2.1", "2001:db8::1"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.7:4242"
		r.Header.Set("X-Forwarded-For", client)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), login{}, "ann")))
		fmt.Println(client, w.Code, w.Header()["Ratelimit"])
	}
	// Output:
	// 192.0.2.1 200 ["user";r=99;t=36]
	// 2001:db8::1 403 []
}

// The tiers of API keys are stored by the hashes of the keys, which are the keys of the limiter.
func ExampleHashedAPIKey() {
	issued := map[string]string{"secret-of-acme": "paying", "secret-of-ann": "free"} // tiers
	tiers := make(map[string]string)
	for key, tier := range issued {
		hashed, err := httplimit.HashedAPIKey("X-API-Key", key)
		if err != nil {
			log.Fatal(err)
		}
		tiers[hashed] = tier
	}
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("api"), ratelimit.WithTiers(
		func(_ context.Context, key string) (string, error) { return tiers[key], nil },
		map[string]ratelimit.Limit{"paying": ratelimit.PerHour(1000), "free": ratelimit.PerHour(100)}))
	if err != nil {
		log.Fatal(err)
	}
	known := httplimit.KnownKeys(func(_ *http.Request, key string) bool { return issued[key] != "" })
	handler := httplimit.Middleware(limiter, httplimit.WithKey(httplimit.First(
		httplimit.APIKey("X-API-Key", known), httplimit.PeerIP())))(http.NotFoundHandler())

	for _, key := range []string{"secret-of-acme", "secret-of-ann", "invented"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-API-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(key, w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// secret-of-acme "api";q=1000;w=3600
	// secret-of-ann "api";q=100;w=3600
	// invented "api";q=10;w=3600
}

// The cost of a response, and what is left after it, are known only at its end. They follow the
// body in a trailer.
func ExampleSetHeaders() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(3600), ratelimit.WithName("tokens"))
	if err != nil {
		log.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, key := r.Context(), "user:ann"
		reserved, result, err := ratelimit.Reserve(ctx, tokens, key, 10) // an estimate
		if err != nil {
			httplimit.WriteError(w, err)
			return
		}
		if !result.Allowed {
			d := httplimit.NewDecision(ctx, tokens, key, result)
			httplimit.SetHeaders(w.Header(), d)
			httplimit.WriteProblem(w, d)
			return
		}
		n, _ := fmt.Fprint(w, "a long answer")
		if result, err = reserved.Settle(ctx, n); err != nil {
			return
		}
		trailer := make(http.Header)
		httplimit.SetHeaders(trailer, httplimit.NewDecision(ctx, tokens, key, result), httplimit.Draft10)
		for name, values := range trailer {
			w.Header()[http.TrailerPrefix+name] = values
		}
	})

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Body)
	fmt.Println(w.Result().Trailer.Get("RateLimit-Policy"), w.Result().Trailer.Get("RateLimit"))
	// Output:
	// a long answer
	// "tokens";q=3600;w=3600 "tokens";r=3587;t=13
}

// A request over the limit gets the previous response again, if there is one.
func ExampleWithDeniedHandler() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(1), ratelimit.WithName("web"))
	if err != nil {
		log.Fatal(err)
	}
	var cache sync.Map // of answers by path
	weather := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report := "sunny in " + strings.TrimPrefix(r.URL.Path, "/") // after asking the satellite
		cache.Store(r.URL.Path, report)
		fmt.Fprint(w, report)
	})
	handler := httplimit.Middleware(limiter, httplimit.WithDeniedHandler(
		func(w http.ResponseWriter, r *http.Request, _ http.Handler, d httplimit.Decision) {
			report, ok := cache.Load(r.URL.Path)
			if !ok {
				httplimit.WriteProblem(w, d)
				return
			}
			w.Header().Del("Retry-After")
			w.Header().Set("Warning", `110 - "Response is Stale"`)
			fmt.Fprint(w, report)
		}))(weather)

	for _, path := range []string{"/oslo", "/oslo", "/rome"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code == http.StatusOK {
			fmt.Println(w.Code, w.Body, w.Header()["Warning"])
		} else {
			fmt.Println(w.Code, w.Header().Get("Content-Type"))
		}
	}
	// Output:
	// 200 sunny in oslo []
	// 200 sunny in oslo [110 - "Response is Stale"]
	// 429 application/problem+json
}

// Only failed logins count, ten per hour from one address.
func ExampleWithRefund() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("web"))
	if err != nil {
		log.Fatal(err)
	}
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "correct" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintln(w, "welcome")
	})
	handler := httplimit.Middleware(limiter, httplimit.WithRefund(httplimit.Successful))(login)

	for _, password := range []string{"correct", "correct", "guess", "guess"} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.SetBasicAuth("ann", password)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		left, err := limiter.Peek(context.Background(), "192.0.2.1")
		fmt.Println(w.Code, left.Remaining, err)
	}
	// Output:
	// 200 10 <nil>
	// 200 10 <nil>
	// 401 9 <nil>
	// 401 8 <nil>
}

// The handler knows that the password is correct, so it refunds the charge itself.
func ExampleDecision_Refund() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(10), ratelimit.WithName("web"))
	if err != nil {
		log.Fatal(err)
	}
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "correct" {
			http.Redirect(w, r, "/login?again", http.StatusSeeOther) // counted, though it is no error
			return
		}
		if d, ok := httplimit.FromContext(r.Context()); ok {
			if err := d.Refund(r.Context()); err != nil {
				log.Print(err) // the charge stands
			}
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
	})
	handler := httplimit.Middleware(limiter, httplimit.WithContext())(login)

	for _, password := range []string{"correct", "correct", "guess", "guess"} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.SetBasicAuth("ann", password)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		left, err := limiter.Peek(context.Background(), "192.0.2.1")
		fmt.Println(w.Code, left.Remaining, err)
	}
	// Output:
	// 303 10 <nil>
	// 303 10 <nil>
	// 303 9 <nil>
	// 303 8 <nil>
}

// The decision of the limit is in the context of the request.
func ExampleFromContext() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerDay(100), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	handler := httplimit.Middleware(limiter, httplimit.WithContext())(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			d, ok := httplimit.FromContext(r.Context())
			fmt.Println(ok, d.Limiter(), d.Key, d.Result.Remaining, d.Policies[0].Window == 24*time.Hour)
		}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	// Output: true api 192.0.2.1 99 true
}

// Calls stay within the ten per second that a supplier allows, and wait when its responses ask for
// that.
func ExampleNewTransport() {
	supplier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer supplier.Close()

	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(10), ratelimit.WithName("web"))
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httplimit.NewTransport(nil, limiter)
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Transport: transport, Timeout: 5 * time.Second}

	res, err := client.Get(supplier.URL)
	if err != nil {
		log.Fatal(err)
	}
	_ = res.Body.Close()
	fmt.Println(res.StatusCode)
	_, err = client.Get(supplier.URL) // has to wait for 30 s, which is longer than the timeout
	fmt.Println(errors.Is(err, ratelimit.ErrWouldExceedDeadline))
	// Output:
	// 429
	// true
}

// The server reports with the second response that nothing is left, so the third request is not
// sent, and not refused.
func ExampleWithRemaining() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	quota, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(2), ratelimit.WithName("server"))
	if err != nil {
		log.Fatal(err)
	}
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	supplier := httptest.NewServer(httplimit.Middleware(quota)(ok))
	defer supplier.Close()

	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerSecond(10), ratelimit.WithName("web"))
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httplimit.NewTransport(http.DefaultTransport, limiter,
		httplimit.WithRemaining(), httplimit.WithMaxPause(time.Hour),
		httplimit.WithOnPause(func(_ string, d time.Duration, field string) {
			fmt.Println("pause of", d.Round(time.Minute), "by", field)
		}))
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Transport: transport, Timeout: 5 * time.Second}
	for range 3 {
		res, err := client.Get(supplier.URL)
		if errors.Is(err, ratelimit.ErrWouldExceedDeadline) {
			fmt.Println("not sent")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		_ = res.Body.Close()
		fmt.Println(res.StatusCode, res.Header.Get("X-RateLimit-Remaining"), "left")
	}
	// Output:
	// 200 1 left
	// pause of 30m0s by Ratelimit
	// 200 0 left
	// not sent
}

// Other libraries count each path separately. Route counts all paths of one pattern together.
func ExamplePath() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	key := httplimit.Combined(httplimit.PeerIP(), httplimit.Path())
	handler := httplimit.Middleware(limiter, httplimit.WithKey(key))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, target := range []string{"/users/1", "/users/2", "//users/./1"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		fmt.Println(target, w.Code)
	}
	// Output:
	// /users/1 200
	// /users/2 200
	// //users/./1 429
}
