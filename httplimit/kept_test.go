package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// A limit function may ask a database: a request asks it once, whatever is made of the answer.
func TestARequestAsksALimitFunctionOnce(t *testing.T) {
	calls := 0
	limits := ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		calls++
		return ratelimit.PerMinute(1), nil
	})
	local := func(l ratelimit.Limiter) ratelimit.Limiter {
		f, err := fallback.New(l, fallback.FailLocal(1), fallback.WithBreaker(1, time.Hour))
		require.NoError(t, err)
		return f
	}
	two := func() ratelimit.Limiter {
		return ratelimittest.All(t,
			window(t, memory(t), ratelimit.PerHour(9), ratelimit.WithName("hour")),
			window(t, memory(t), ratelimit.PerMinute(9), limits))
	}
	for name, l := range map[string]ratelimit.Limiter{
		"alone":        window(t, memory(t), ratelimit.PerMinute(9), limits),
		"one of two":   two(),
		"fallback":     local(window(t, memory(t), ratelimit.PerMinute(9), limits)),
		"in an outage": local(window(t, down{}, ratelimit.PerMinute(9), limits)),
	} {
		t.Run(name, func(t *testing.T) {
			refunds := httplimit.WithRefund(func(int) bool { return false })
			h := httplimit.Middleware(l, refunds, httplimit.WithContext())(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Back") != "" {
					d, _ := httplimit.FromContext(r.Context())
					require.NoError(t, d.Refund(r.Context()))
				}
			}))
			for i, want := range []int{200, 200, 429} { // the first gives back, and the third is denied
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				if i == 0 {
					r.Header.Set("Back", "yes")
				}
				w := httptest.NewRecorder()
				calls = 0
				h.ServeHTTP(w, r)
				require.Equal(t, want, w.Code)
				require.Equal(t, 1, calls, "of request %d", i)
				require.Contains(t, w.Header().Get("RateLimit-Policy"), ";q=1;w=60", "the function's limit")
			}
		})
	}
}

// down is a store that fails.
type down struct{ store.Store }

func (down) Prepare(*store.Rule, store.Limit, bool) error { return nil }

func (down) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, ratelimit.ErrStore
}
