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
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	onItsOwnStore := func(name string, rate int) ratelimit.Limiter {
		mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
		require.NoError(t, err)
		lim, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(rate), ratelimit.WithName(name))
		require.NoError(t, err)
		return lim
	}
	for _, c := range []struct {
		first, second       int // rates
		rateLimit, violated string
	}{
		{1, 100, `"first";r=0;t=3600`, `["first"]`},
		{0, 100, `"first";r=0`, `["first"]`},
		{9, 1, `"first";r=8,"second";r=0;t=3600`, `["second"]`},
	} {
		all, err := ratelimit.NewAll(onItsOwnStore("first", c.first), onItsOwnStore("second", c.second))
		require.NoError(t, err)
		h := httplimit.Middleware(all)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w := httptest.NewRecorder()
		for range 2 {
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		}
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, c.rateLimit, w.Header().Get("RateLimit"))
		require.Contains(t, w.Body.String(), `"violated-policies":`+c.violated)
	}
}
