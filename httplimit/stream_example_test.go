package httplimit_test

import (
	"fmt"
	"io"
	"iter"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// streaming is a gateway that sends the answer of a model while the model writes it.
type streaming struct {
	limiter ratelimit.Limiter
	answer  func(prompt string) iter.Seq[string] // one token at a time
}

func (g streaming) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, prompt := r.Header.Get("X-User"), r.FormValue("prompt") // the user is checked by a proxy
	reserved, result, err := ratelimit.Reserve(r.Context(), g.limiter, user, 2000)
	if err != nil {
		httplimit.WriteError(w, err)
		return
	}
	d := httplimit.NewDecision(r.Context(), g.limiter, user, result)
	httplimit.SetHeaders(w.Header(), d) // they show what the estimate has left
	if !result.Allowed {
		httplimit.WriteProblem(w, d)
		return
	}
	used := len(strings.Fields(prompt))
	defer func() { // also after a panic, and after the client has hung up
		if _, err := reserved.Settle(r.Context(), max(1, used)); err != nil {
			log.Print(err) // the estimate stays charged
		}
	}()
	flush := http.NewResponseController(w)
	for token := range g.answer(prompt) {
		used++
		if _, err := io.WriteString(w, token); err != nil || flush.Flush() != nil {
			return // the client has hung up
		}
	}
}

// The tokens of a streamed answer are settled when the stream ends, however it ends.
func ExampleNewDecision_stream() {
	store, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := ratelimit.NewTokenBucket(store, ratelimit.PerHour(10_000), ratelimit.WithName("tokens"))
	if err != nil {
		log.Fatal(err)
	}
	gateway := streaming{tokens, func(string) iter.Seq[string] { return slices.Values([]string{"forty", "-", "two"}) }}

	r := httptest.NewRequest(http.MethodPost, "/?prompt=why+not", nil)
	r.Header.Set("X-User", "ann")
	w := httptest.NewRecorder()
	gateway.ServeHTTP(w, r)
	left, err := tokens.Peek(r.Context(), "ann")
	fmt.Println(w.Body, "left before:", w.Header().Get("X-RateLimit-Remaining"), "after:", left.Remaining, err)
	// Output: forty-two left before: 8000 after: 9995 <nil>
}

// Users are known by their login, and all others by their address, which the load balancer 10.0.0.7 adds.
func ExampleClientIP_usersFirst() {
	key := httplimit.First(
		httplimit.User(currentUser),
		httplimit.ClientIP([]string{"10.0.0.7"}), // without a login
	)
	limit, err := httplimit.New(perHour(1), httplimit.WithKey(key))
	if err != nil {
		log.Fatal(err)
	}
	from := func(address string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.7:4567" // the load balancer
		r.Header.Set("X-Forwarded-For", address)
		return r
	}
	show(limit(page), from("192.0.2.1"), from("192.0.2.2"), from("192.0.2.1"))
	// Output: 200 200 429
}
