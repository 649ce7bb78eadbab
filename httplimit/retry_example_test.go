package httplimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// retryIn is when to send a refused request again: after what the server says, and at random
// up to half as long again, so that clients refused together do not come back together.
func retryIn(refusal *http.Response, try int) time.Duration {
	wait := 100 * time.Millisecond << min(try, 9) // the server says nothing
	if seconds, err := strconv.Atoi(refusal.Header.Get("Retry-After")); err == nil {
		wait = time.Duration(seconds) * time.Second
	}
	return wait + rand.N(wait/2+time.Millisecond)
}

// A client without a Transport waits as long as Retry-After says, and a random time more.
func ExampleMiddleware_retryAfter() {
	refusal := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"42"}}}
	wait := retryIn(refusal, 0)
	fmt.Println(42*time.Second <= wait && wait <= 64*time.Second)
	// Output: true
}
