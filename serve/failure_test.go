package serve_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

func memory(t testing.TB) store.Store {
	t.Helper()
	c := newClock()
	return ratelimit.Must(memstore.New(memstore.WithClock(c.now)))
}

const failing = `
descriptors:
	- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: never, rate_limit: {unit: minute, requests_per_unit: 0}}
	- {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
	- {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
checks:
	NAME: [{user: header X-User}]
`

// unreachable is a store that refuses connections.
func unreachable(t *testing.T) *serve.Stored {
	t.Helper()
	st, err := serve.Open("redis://127.0.0.1:1", "rl", 50*time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// While the store fails each domain answers as its on_failure says, also of shadows and quotas
// alone, and before and after the breaker opens.
func TestAStoreThatFails(t *testing.T) {
	t.Parallel()
	var files []string
	for _, how := range []string{"open", "closed", "error"} {
		files = append(files, "domain: "+how+"\non_failure: "+how+strings.ReplaceAll(failing, "NAME", how))
	}
	st := unreachable(t)
	require.Error(t, st.Ready(t.Context()))
	s, err := serve.New(st.Store, rules(t, files...), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	for range 10 {
		for _, descriptors := range []string{"user=a", "user=a|trial=b", "quota=a", "quota=a|quota=b", "user=a -1", "user=a 0"} {
			req := request(strings.Split(descriptors, "|")...)
			req.Domain = "error"
			_, err := s.ShouldRateLimit(t.Context(), req)
			require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", descriptors, err)
			req.Domain = "open"
			answer, err := s.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, "OK"+strings.Repeat(", OK", len(req.GetDescriptors())), short(answer))
		}
		req := request("user=a", "trial=b", "unknown=c")
		req.Domain = "closed"
		answer, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, "OVER, OVER, OK, OK", short(answer))
		req = request("user=a", "never=b")
		req.Domain = "open"
		answer, err = s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, "OVER, OK, OVER", short(answer), "a limit of 0 needs no store")
	}
	for path, want := range map[string]int{"open": 204, "closed": 429, "error": 503} {
		r := httptest.NewRequest(http.MethodGet, "/check/"+path, nil)
		r.Header.Set("X-User", "a")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		require.Equal(t, want, w.Code)
		require.Equal(t, want == 429, w.Header().Get("Retry-After") != "", path)
	}
	page := get(t, s.Private(st.Ready), "/metrics")
	require.Contains(t, page, `ratelimit_serve_store_failures_total{class="unavailable",domain="error"} `)
	require.Contains(t, page, `ratelimit_breaker_state{limiter="store",state="open"} 1`)
	w := httptest.NewRecorder()
	s.Private(st.Ready).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

// A caller that goes away is none that the store has failed.
func TestACallerThatGoesAway(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.ShouldRateLimit(ctx, request("user=a"))
	require.Equal(t, codes.Canceled, status.Code(err))
}

// A domain's store block stands before Redis, and the answers are the same.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	st, err := serve.Open("redis://"+server, "edge", time.Minute)
	require.NoError(t, err)
	defer st.Close()
	require.NoError(t, st.Ready(t.Context()))
	for _, block := range []string{"", "store: {lease: 50ms}\n", "store: {deny_cache: true}\n", "store: {deny_cache: true, coalescing: true}\n", "store: {coalescing: true}\n"} {
		file := block + `domain: edge` + strings.TrimSpace(block) + `
descriptors:
	- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
`
		file = strings.Replace(file, strings.TrimSpace(block)+"\ndesc", "\ndesc", 1)
		s, err := serve.New(st.Store, rules(t, file))
		require.NoError(t, err)
		name := "user=" + strings.NewReplacer(" ", "", ",", ".").Replace(strings.TrimSpace(block))
		for i, want := range []string{"OK, OK 2/3", "OK, OK 1/3", "OK, OK 0/3", "OVER, OVER 0/3", "OVER, OVER 0/3"} {
			require.Contains(t, short(ask(t, s, name)), want, "%s %d", block, i)
		}
		require.NoError(t, s.Close(t.Context()))
	}
	for _, address := range []string{"http://x", "redis://user:secret@h:x", "redis+cluster://h?x=y", "redis://h?master_name=m&x=y", ""} {
		_, err := serve.Open(address, "rl", time.Second)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, address)
		require.NotContains(t, err.Error(), "secret")
	}
}
