package httplimit_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// A Ban of networks asks the context for the client's address.
func TestABanMayHaveTheKeyOfTheAddress(t *testing.T) {
	s := memory(t)
	var found []string
	network := ratelimit.WithKeyFunc(func(ctx context.Context, key string) (string, error) {
		addr, ok := clientaddr.FromContext(ctx)
		if ok {
			found = append(found, addr.String())
		}
		return key, nil
	})
	ban, err := ratelimit.NewBan(window(t, s, ratelimit.PerMinute(1)), s, ratelimit.Penalty{Denials: 2, Within: time.Minute, For: time.Minute}, network)
	require.NoError(t, err)
	h := httplimit.Middleware(ban)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) // of 192.0.2.1
	require.Equal(t, []string{"192.0.2.1"}, found)
}

func TestABanHasAProblemTypeOfItsOwn(t *testing.T) {
	for name, s := range map[string]store.Store{"memory": memory(t), "redis": onRedis(t)} {
		perClient := window(t, s, ratelimit.PerMinute(1), ratelimit.WithName("client"))
		ban, err := ratelimit.NewBan(perClient, s, ratelimit.Penalty{Denials: 2, Within: time.Minute, For: 15 * time.Minute})
		require.NoError(t, err)
		other := window(t, s, ratelimit.PerMinute(100), ratelimit.WithName("other"))
		for _, l := range []ratelimit.Limiter{ban, ratelimittest.All(t, other, ban)} { // banned in the second from the start
			h := httplimit.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			for i, want := range []string{"", "quota-exceeded", "abnormal-usage-detected", "abnormal-usage-detected"} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				if l != ban {
					want = "abnormal-usage-detected"
				}
				if want == "" {
					require.Equal(t, http.StatusOK, w.Code)
					require.Equal(t, `"client";r=0;t=60`, w.Header().Get("RateLimit"))
					continue
				}
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				var problem struct {
					Type       string
					Detail     string
					RetryAfter int
				}
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
				require.Equal(t, "https://iana.org/assignments/http-problem-types#"+want, problem.Type, "%s, %d", name, i)
				if want == "abnormal-usage-detected" {
					require.Equal(t, "The client is banned. Try again in 900 s.", problem.Detail)
					require.Equal(t, 900, problem.RetryAfter)
					require.Equal(t, "900", w.Header().Get("Retry-After"))
				}
			}
		}
	}
}
