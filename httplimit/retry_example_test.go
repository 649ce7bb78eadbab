package httplimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// retryIn returns when to send a refused request again: after the time that the server gives, a day
// at most, plus up to half as long at random. With this jitter, clients that were refused together
// do not come back together.
func retryIn(refusal *http.Response, try int) time.Duration {
	wait := 100 * time.Millisecond << min(try, 9) // the server says nothing
	after := refusal.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(after, 10, 32); err == nil || errors.Is(err, strconv.ErrRange) {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		wait = time.Until(at)
	}
	wait = min(max(wait, 0), 24*time.Hour) // a server can say anything
	return wait + rand.N(wait/2+time.Millisecond)
}

// A client without a Transport waits as long as Retry-After says, plus a random time.
func ExampleMiddleware_retryAfter() {
	refusal := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"42"}}}
	wait := retryIn(refusal, 0)
	fmt.Println(42*time.Second <= wait && wait <= 64*time.Second)
	// Output: true
}

// TestAnyAnswerOfAServerIsABoundedWait that is neither below nothing nor above a day and a half.
func TestAnyAnswerOfAServerIsABoundedWait(t *testing.T) {
	const day = 24 * time.Hour
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for after, least := range map[string]time.Duration{
		"":                              100 * time.Millisecond,
		"soon":                          100 * time.Millisecond,
		"-1":                            100 * time.Millisecond,
		"0":                             0,
		"42":                            42 * time.Second,
		"99999999999":                   day,
		"99999999999999999999":          day,
		in(time.Hour):                   time.Hour - 2*time.Second,
		in(-time.Hour):                  0,
		"Fri, 31 Dec 9999 23:59:59 GMT": day,
	} {
		wait := retryIn(&http.Response{Header: http.Header{"Retry-After": {after}}}, 0)
		require.GreaterOrEqual(t, wait, least, after)
		require.LessOrEqual(t, wait, (least+2*time.Second)*3/2+time.Millisecond, after)
	}
}
