package shadow_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// In an All with an enforced limit, clients see only that limit, whatever the shadow decides.
func TestATrialBesideARealLimitDoesNotShow(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	trial := levels.New(t, "fixed_window", mem, "api", ratelimit.PerHour(2), ratelimit.PerMinute(1))
	lim, _ := limiter(t, trial)
	real := inMemory(t, "token_bucket", ratelimit.PerHour(100))
	alone := inMemory(t, "token_bucket", ratelimit.PerHour(100))
	both, err := ratelimit.NewAll(lim, real)
	require.NoError(t, err)
	serve := func(l ratelimit.Limiter) http.Header {
		middleware, err := httplimit.New(l)
		require.NoError(t, err)
		w := httptest.NewRecorder()
		middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Header()
	}
	for i := range 5 {
		r := allowN(t, both, 1)
		require.Equal(t, 100, r.Limit)
		require.Equal(t, 99-i, r.Remaining)
		require.Len(t, r.Parts(), 2)
		require.NoError(t, both.Refund(t.Context(), "key", r, 1))
		require.Equal(t, 99-i, allowN(t, both, 1).Remaining)
	}
	left := peek(t, trial).Parts()
	require.Zero(t, left[1].Remaining, "what was not denied was charged, and not what was given back")
	require.Equal(t, 1, left[0].Remaining)
	for range 5 {
		require.Equal(t, serve(alone), serve(both))
	}
}
