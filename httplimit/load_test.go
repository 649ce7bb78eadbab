package httplimit_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

// quiet is the log of servers whose handlers panic on purpose.
var quiet = log.New(io.Discard, "", 0)

func TestUnderLoadExactlyTheLimitPasses(t *testing.T) {
	const limit, clients, requests = 500, 16, 100
	for name, s := range map[string]store.Store{"in memory": memory(t), "on Redis": onRedis(t)} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(httplimit.Middleware(window(t, s, ratelimit.PerDay(limit)))(ok))
			defer server.Close()
			transport := &http.Transport{MaxIdleConnsPerHost: clients}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}

			var passed, refused, other atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range requests {
						switch code := status(client, server.URL); code {
						case http.StatusOK:
							passed.Add(1)
						case http.StatusTooManyRequests:
							refused.Add(1)
						default:
							other.Add(1)
						}
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, limit, passed.Load())
			require.EqualValues(t, clients*requests-limit, refused.Load())
			require.Zero(t, other.Load())
		})
	}
}

// status is the status of an answer, 0 if there is none.
func status(client *http.Client, url string) int {
	res, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func TestASecretIsNowhereButInItsRequest(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	down := ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)
	keys := map[string]httplimit.Key{
		"alone":    httplimit.APIKey("X-API-Key"),
		"first":    httplimit.First(httplimit.APIKey("X-API-Key"), httplimit.PeerIP()),
		"combined": httplimit.Combined(httplimit.APIKey("X-API-Key"), httplimit.PeerIP()),
		"bearer":   httplimit.APIKey("Authorization"),
		"hmac":     httplimit.APIKey("X-API-Key", httplimit.HashedWith([]byte("0123456789abcdef"))),
		"unknown":  httplimit.APIKey("X-API-Key", httplimit.KnownKeys(func(*http.Request, string) bool { return false })),
	}
	for name, k := range keys {
		for _, lim := range []ratelimit.Limiter{window(t, memory(t), ratelimit.PerHour(1)), down} {
			seen := &recorded{Limiter: lim}
			h := protect(t, seen, httplimit.WithKey(k), httplimit.WithContext(), httplimit.WithRefund(httplimit.Failed),
				httplimit.WithHeaders(httplimit.Legacy, httplimit.Draft10))
			for range 2 {
				r := with(with(get(alice), "X-API-Key", canary), "Authorization", "Bearer "+canary)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				var answer bytes.Buffer
				require.NoError(t, w.Result().Write(&answer))
				require.NotContains(t, answer.String(), canary, name)
			}
			require.NotContains(t, seen.keys, canary, name)
			_, err := k.Of(with(with(get(alice), "X-API-Key", canary), "Authorization", "Bearer "+canary))
			if err != nil {
				require.NotContains(t, err.Error(), canary)
			}
		}
	}
	require.NotContains(t, logged.String(), canary)
}

// recorded keeps the keys that a limiter was asked about.
type recorded struct {
	ratelimit.Limiter
	keys string
}

func (l *recorded) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	l.keys += key + "\n"
	return l.Limiter.AllowN(ctx, key, n)
}
