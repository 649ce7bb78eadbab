package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// emptied is a ResponseWriter whose header is emptied between requests.
type emptied struct{ header http.Header }

func (w *emptied) Header() http.Header         { return w.header }
func (w *emptied) Write(b []byte) (int, error) { return len(b), nil }
func (w *emptied) WriteHeader(int)             {}

// BenchmarkMiddleware is a request from the middleware to a handler that does nothing
// and back, without net/http's part of it.
func BenchmarkMiddleware(b *testing.B) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	ours := func(limit ratelimit.Limit, opts ...httplimit.ServerOption) http.Handler {
		mem, err := memstore.New()
		require.NoError(b, err)
		lim, err := ratelimit.NewSlidingWindow(mem, limit)
		require.NoError(b, err)
		return httplimit.Middleware(lim, opts...)(nothing)
	}
	slotted := func(opts ...httplimit.ServerOption) http.Handler {
		return httplimit.Middleware(slots(b, living(b), 8), opts...)(nothing)
	}
	much, little := ratelimit.PerHour(1<<31-1), ratelimit.PerDay(1)
	for _, c := range []struct {
		name    string
		handler http.Handler
		remote  string
	}{
		{"bare", nothing, "192.0.2.1:1234"},
		{"headers=default", ours(much), "192.0.2.1:1234"},
		{"headers=default/ipv6", ours(much), "[2001:db8::1]:1234"},
		{"headers=legacy", ours(much, httplimit.WithHeaders(httplimit.Legacy)), "192.0.2.1:1234"},
		{"headers=none", ours(much, httplimit.WithoutHeaders()), "192.0.2.1:1234"},
		{"context", ours(much, httplimit.WithContext()), "192.0.2.1:1234"},
		{"refund", ours(much, httplimit.WithRefund(httplimit.Failed)), "192.0.2.1:1234"},
		{"slot", slotted(), "192.0.2.1:1234"},
		{"slot/headers=none", slotted(httplimit.WithoutHeaders()), "192.0.2.1:1234"},
		{"denied", ours(little), "192.0.2.1:1234"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			w := &emptied{make(http.Header)}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = c.remote
			c.handler.ServeHTTP(w, r)
			for b.Loop() {
				clear(w.header)
				c.handler.ServeHTTP(w, r)
			}
		})
	}
}
