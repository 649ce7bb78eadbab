package ratelimittest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// newHandler is the program under test. It takes the limiter as an argument, so that a test can pass another one.
func newHandler(limiter ratelimit.Limiter) (http.Handler, error) {
	limit, err := httplimit.New(limiter)
	if err != nil {
		return nil, err
	}
	return limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })), nil
}

// get returns the answer to a request from 192.0.2.1, the address of each request of httptest.
func get(t *testing.T, limiter ratelimit.Limiter) *httptest.ResponseRecorder {
	t.Helper()
	handler, err := newHandler(limiter)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w
}

func TestADenialIsAnswered(t *testing.T) {
	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: time.Minute}, nil)
	answer := get(t, denies)
	require.Equal(t, http.StatusTooManyRequests, answer.Code)
	require.Equal(t, "60", answer.Header().Get("Retry-After"))
}

func TestAnOutageIsAnswered(t *testing.T) {
	fails := ratelimittest.Static(ratelimit.Result{}, store.ErrUnavailable)
	require.Equal(t, http.StatusServiceUnavailable, get(t, fails).Code)

	open, err := fallback.New(fails, fallback.FailOpen())
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, get(t, open).Code)
}

func TestTheSixthRequestIsDenied(t *testing.T) {
	clock := ratelimittest.NewClock(time.Now())
	limiter := ratelimittest.New(t, "token_bucket", clock.Memory(t), ratelimit.PerMinute(5))
	for range 5 {
		require.Equal(t, http.StatusNoContent, get(t, limiter).Code)
	}
	require.Equal(t, http.StatusTooManyRequests, get(t, limiter).Code)

	clock.Advance(12 * time.Second) // the time of one token
	require.Equal(t, http.StatusNoContent, get(t, limiter).Code)
}

func TestTheSecondMailWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ratelimittest.New(t, "token_bucket", ratelimit.Must(memstore.New()), ratelimit.PerMinute(1))
		began := time.Now()
		for range 2 {
			_, err := ratelimit.Wait(t.Context(), limiter, "mails", 1)
			require.NoError(t, err)
		}
		require.Equal(t, time.Minute, time.Since(began)) // without sleeping for it
	})
}

func TestCountsAreOnRedis(t *testing.T) {
	server, now := miniredis.RunT(t), time.Now()
	server.SetTime(now) // it stands still
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	shared := ratelimit.Must(redisstore.New(client, redisstore.WithTimeout(5*time.Second))) // machines for tests are slow
	limiter := ratelimittest.New(t, "token_bucket", shared, ratelimit.PerMinute(1))
	require.Equal(t, http.StatusNoContent, get(t, limiter).Code)
	require.Equal(t, http.StatusTooManyRequests, get(t, limiter).Code)

	server.SetTime(now.Add(time.Minute))
	require.Equal(t, http.StatusNoContent, get(t, limiter).Code)
}
