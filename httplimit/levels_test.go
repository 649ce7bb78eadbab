package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestEachOfSeveralLimitsIsTold(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	require.NoError(t, err)
	levels, err := ratelimit.NewLevels("fixed_window", mem, ratelimit.PerSecond(2), ratelimit.PerHour(3))
	require.NoError(t, err)
	h := httplimit.Middleware(levels)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}

	w := ask()
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, `"2/s";q=2;w=1,"3/h";q=3;w=3600`, w.Header().Get("RateLimit-Policy"))
	require.Equal(t, `"2/s";r=1;t=1,"3/h";r=2;t=3600`, w.Header().Get("RateLimit"))
	require.Equal(t, "1", w.Header().Get("X-RateLimit-Remaining"))

	require.Equal(t, http.StatusOK, ask().Code)
	w = ask()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Equal(t, `"2/s";r=0;t=1,"3/h";r=1`, w.Header().Get("RateLimit"), "the hour has room, and was not charged")
	require.Contains(t, w.Body.String(), `"violated-policies":["2/s"]`)

	now = now.Add(time.Second)
	require.Equal(t, http.StatusOK, ask().Code)
	w = ask()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "3599", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), `"violated-policies":["3/h"]`)
}

func TestALimitThatWasNotAskedIsNotTold(t *testing.T) {
	limit := func(l ratelimit.Limit, title string) ratelimit.Limiter {
		mem, err := memstore.New() // one each, so that they are asked one after the other
		require.NoError(t, err)
		lim, err := ratelimit.NewTokenBucket(mem, l, ratelimit.WithTitle(title))
		require.NoError(t, err)
		return lim
	}
	for _, blocking := range []ratelimit.Limit{{Rate: 1, Period: time.Hour, Burst: 1}, ratelimit.PerDay(0)} {
		both, err := ratelimit.NewAll(limit(blocking, "user"), limit(ratelimit.PerDay(100), "everybody"))
		require.NoError(t, err)
		h := httplimit.Middleware(both)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w := httptest.NewRecorder()
		for w.Code != http.StatusTooManyRequests {
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		}
		require.Contains(t, w.Header().Get("RateLimit-Policy"), "everybody")
		require.Contains(t, w.Header().Get("RateLimit"), `"user";r=0`)
		require.NotContains(t, w.Header().Get("RateLimit"), "everybody")
		require.Contains(t, w.Body.String(), `"violated-policies":["user"]`)
	}
}
