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
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch d, ok := httplimit.FromContext(r.Context()); {
				case r.Header.Get("Back") == "":
				case ok:
					require.NoError(t, d.Refund(r.Context()))
				default:
					w.WriteHeader(http.StatusInternalServerError)
				}
			})
			refunds := httplimit.WithRefund(httplimit.Failed)
			byHandler, byStatus := httplimit.Middleware(l, refunds, httplimit.WithContext())(handler), httplimit.Middleware(l, refunds)(handler)
			for i, want := range []int{200, 500, 200, 429} { // the first two give back, and the last is denied
				r, h := httptest.NewRequest(http.MethodGet, "/", nil), byHandler
				if i < 2 {
					r.Header.Set("Back", "yes")
				}
				if i == 1 {
					h = byStatus
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
