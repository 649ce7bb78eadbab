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

// Months differ in length, so a constant w would be wrong. The rest of the current month is in t.
func TestFieldsOfACalendarHaveNoWindow(t *testing.T) {
	now := time.Date(2026, time.February, 27, 0, 0, 0, 0, time.UTC)
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	require.NoError(t, err)
	lim, err := ratelimit.NewFixedWindow(mem, ratelimit.PerMonth(2), ratelimit.WithName("plan"))
	require.NoError(t, err)
	handler := httplimit.Middleware(lim, httplimit.WithHeaders(httplimit.Draft10))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, want := range []string{`"plan";r=1;t=172800`, `"plan";r=0;t=172800`, `"plan";r=0;t=172800`} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, `"plan";q=2`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, want, w.Header().Get("RateLimit"))
	}
}
