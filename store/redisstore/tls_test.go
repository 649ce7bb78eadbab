package redisstore_test

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// overTLS runs a test over TLS. It uses a client that does not
// keep to deadlines by itself and one that does.
func overTLS(t *testing.T, server *redistest.TLSServer, test func(t *testing.T, client *redis.Client, opts ...redisstore.Option)) {
	t.Helper()
	for name, contextTimeouts := range map[string]bool{"a clone": false, "ContextTimeoutEnabled": true} {
		options := server.TLSOptions()
		options.Protocol = 2 // see package redischeck
		options.ContextTimeoutEnabled = contextTimeouts
		client := redis.NewClient(options)
		t.Cleanup(func() { _ = client.Close() })
		t.Run(name, func(t *testing.T) { test(t, client) })
	}
}

func TestOverTLSTheLimitIsExact(t *testing.T) {
	t.Parallel()
	overTLS(t, redistest.StartTLS(t), func(t *testing.T, client *redis.Client, opts ...redisstore.Option) {
		s, ns := newStore(t, client, opts...), spaceOf(t, "token_bucket")
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range 20 {
					r, err := s.Take(context.Background(), ns, "k", year(500), 1)
					if err != nil {
						t.Error(err)
					}
					if r.OK() {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 500, admitted.Load())
	})
}

func TestOverTLSCallsOfAFrozenServerReturnInTime(t *testing.T) {
	const timeout = 50 * time.Millisecond
	server := redistest.StartTLS(t)
	overTLS(t, server, func(t *testing.T, client *redis.Client, opts ...redisstore.Option) {
		ns := spaceOf(t, "token_bucket")
		_, err := newStore(t, client).Take(t.Context(), ns, "k", year(100), 1)
		require.NoError(t, err)
		s, err := redisstore.New(client, append(opts, redisstore.WithTimeout(timeout))...)
		require.NoError(t, err)
		server.Freeze()
		requireInTime(t, "the store's timeout", func() time.Duration {
			return worst(16, 3, func() time.Duration {
				start := time.Now()
				_, err := s.Take(context.Background(), ns, "k", year(100), 1)
				took := time.Since(start)
				requireStoreTimeout(t, err)
				return took - timeout
			})
		})
		server.Thaw()
		require.Eventually(t, func() bool {
			_, err := s.Take(context.Background(), ns, "k", year(100), 1)
			return err == nil
		}, 5*time.Second, time.Millisecond)
	})
}

// With RESP3 some fail, or all, in some of the runs.
func TestOverTLSConnectionsMadeAheadCanBeUsed(t *testing.T) {
	t.Parallel()
	const ahead = 20
	server := redistest.StartTLS(t)
	change := map[string]func(o *redis.Options){
		"RESP2":   func(o *redis.Options) { o.Protocol = 2 },
		"TLS 1.2": func(o *redis.Options) { o.TLSConfig.MaxVersion = tls.VersionTLS12 },
	}
	for name, change := range change {
		for range 5 {
			options := server.TLSOptions()
			options.MinIdleConns = ahead
			change(options)
			client := redis.NewClient(options)
			require.NoError(t, client.Ping(t.Context()).Err())
			require.Eventually(t, func() bool { return client.PoolStats().IdleConns >= ahead }, 10*time.Second, time.Millisecond)
			for range ahead {
				_, err := newStore(t, client, redisstore.WithTimeout(time.Second)).Take(t.Context(), space, "k", limit, 1)
				require.NoError(t, err, name)
			}
			require.NoError(t, client.Close())
		}
	}
}

func TestAServerThatIsNotTrustedIsUnavailable(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	options := redistest.StartTLS(t).TLSOptions()
	options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // the system's roots
	options.DialerRetries = 1
	client := redis.NewClient(options)
	defer client.Close()
	_, err := newStore(t, client, redisstore.WithTimeout(5*time.Second)).Take(t.Context(), space, "k", limit, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "certificate")
}
