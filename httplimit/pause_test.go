package httplimit_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestAPauseIsToldWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retryAfter := func(s string) answer { return answer{429, map[string]string{"Retry-After": s}} }
		sup := &supplier{answers: []answer{fine, retryAfter("30"), retryAfter("90"), {status: 429}, fine}}
		var told []string
		tr := transport(t, sup, plenty(t), httplimit.WithOnPause(func(key string, d time.Duration, field string) {
			told = append(told, fmt.Sprint(key, " ", d, " ", field))
		}))
		pauses := func() string { return fmt.Sprint(tr.Pauses()) }

		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Empty(t, told)
		require.Equal(t, "0 0", pauses())
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Equal(t, []string{"host:a.example:80 30s Retry-After"}, told)
		require.Equal(t, "1 1", pauses())
		require.NoError(t, call(t, tr, "http://b.example/"))
		require.Equal(t, "host:b.example:80 1m0s Retry-After", told[1], "as long as the server is believed")
		require.Equal(t, "2 2", pauses())
		time.Sleep(30 * time.Second)
		require.Equal(t, "2 1", pauses(), "one is over")
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Equal(t, "2 1", pauses(), "a refusal without a time is no pause")
		time.Sleep(30 * time.Second)
		require.Equal(t, "2 0", pauses())
	})
}

func TestAPauseThatIsMadeLongerIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "10"}}, {429, map[string]string{"Retry-After": "20"}}}}
		told := 0
		tr := transport(t, slow{sup, time.Second}, plenty(t), httplimit.WithOnPause(func(string, time.Duration, string) { told++ }))
		done := make(chan error, 2)
		for range 2 { // both are sent before the first answer
			go func() { done <- call(t, tr, "http://a.example/") }()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, 1, told)
		begun, now := tr.Pauses()
		require.EqualValues(t, 1, begun)
		require.Equal(t, 1, now)
	})
}

// inOrder is a server that refuses the fifth request, and remembers the order of all.
type inOrder struct {
	mu   sync.Mutex
	sent []string
}

func (s *inOrder) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, r.URL.Path[1:])
	res := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: r}
	if len(s.sent) == 5 {
		res.StatusCode = http.StatusTooManyRequests
		res.Header.Set("Retry-After", "2")
	}
	return res, nil
}

// The limiters admit one request after the other. Requests admitted at the same instant are sent in
// any order.
func TestAfterAPauseRequestsGoOnInTheirOrder(t *testing.T) {
	burst := func(n int) ratelimit.Limit { return ratelimit.Limit{Rate: 10, Period: time.Second, Burst: n} }
	for name, limiter := range map[string]func(store.Store) (ratelimit.Limiter, error){
		"leaky bucket, Burst 1": func(s store.Store) (ratelimit.Limiter, error) { return ratelimit.NewLeakyBucket(s, burst(1)) },
		"leaky bucket":          func(s store.Store) (ratelimit.Limiter, error) { return ratelimit.NewLeakyBucket(s, burst(10)) },
		"token bucket, Burst 1": func(s store.Store) (ratelimit.Limiter, error) { return ratelimit.NewTokenBucket(s, burst(1)) },
		"token bucket":          func(s store.Store) (ratelimit.Limiter, error) { return ratelimit.NewTokenBucket(s, burst(10)) },
		"slots": func(s store.Store) (ratelimit.Limiter, error) {
			rate, err := ratelimit.NewLeakyBucket(s, burst(1))
			require.NoError(t, err)
			slots, err := inflight.New(s, 3, time.Minute)
			require.NoError(t, err)
			return ratelimit.NewAll(rate, slots)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := memstore.New()
				require.NoError(t, err)
				l, err := limiter(s)
				require.NoError(t, err)
				server := new(inOrder)
				tr := transport(t, server, l, httplimit.WithRetries(1))
				want := []string{"0", "1", "2", "3", "4"} // and then the fourth again
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() { assert.NoError(t, call(t, tr, fmt.Sprint("http://a.example/", i))) })
					time.Sleep(2 * time.Millisecond)
					if i >= 4 {
						want = append(want, fmt.Sprint(i))
					}
				}
				all.Wait()
				require.Equal(t, want, server.sent)
			})
		})
	}
}
