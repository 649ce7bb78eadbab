package redischeck_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A Ring gives the keys of a lost shard to the others, where they have spent nothing. Run finds that, unless the Ring's
// HeartbeatFn keeps the shard, as Run advises: then the calls for its keys fail, and those for other keys go on.
func TestARingThatLosesAShardForgetsItsCounts(t *testing.T) {
	stays := func(context.Context, *redis.Client) bool { return true }
	asks := func(ctx context.Context, c *redis.Client) bool { return c.Ping(ctx).Err() == nil }
	for _, c := range []struct {
		name    string
		shards  int
		alive   func(context.Context, *redis.Client) bool
		forgets bool
	}{
		{"default", 2, nil, true},
		{"asks itself", 2, asks, true},
		{"as Run advises", 2, stays, false},
		{"one shard", 1, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addrs, servers := map[string]string{}, []*redistest.Server{}
			for i := range c.shards {
				servers = append(servers, redistest.Start(t))
				addrs[string(rune('a'+i))] = servers[i].Addr()
			}
			ring := redis.NewRing(&redis.RingOptions{
				Addrs: addrs, HeartbeatFn: c.alive, HeartbeatFrequency: 5 * time.Millisecond,
				ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
			})
			t.Cleanup(func() { _ = ring.Close() })
			require.Equal(t, c.forgets, strings.Contains(found(t, ring), "if a shard of this Ring is lost"))

			timeout := 10 * time.Second
			allow := func(key string) (bool, error) {
				l, err := ratelimit.NewTokenBucket(newStore(t, ring, redisstore.WithTimeout(timeout)), ratelimit.PerDay(1))
				require.NoError(t, err)
				r, err := l.Allow(t.Context(), key)
				return r.Allowed, err
			}
			keys := strings.Split("abcdefghijklmnop", "") // one shard has all of them by a chance of 1 in 32,768
			for _, key := range keys {
				admitted, err := allow(key)
				require.NoError(t, err)
				require.True(t, admitted)
			}
			servers[0].Kill()
			if c.forgets {
				require.Eventually(t, func() bool { return ring.Len() == c.shards-1 }, 10*time.Second, time.Millisecond)
			} else { // each call for a lost key takes so long
				timeout = 50 * time.Millisecond
			}
			again, failed := 0, 0
			for _, key := range keys {
				admitted, err := allow(key)
				switch {
				case err != nil:
					require.ErrorIs(t, err, store.ErrStore)
					failed++
				case admitted:
					again++
				}
			}
			require.Equal(t, c.forgets, again > 0, "%d are admitted again", again)
			require.True(t, c.forgets || failed > 0)
		})
	}
}

// settings is what is found about the client of a store whose servers do not answer.
func settings(t *testing.T, s *redisstore.Store) string {
	t.Helper()
	list, err := redischeck.Run(t.Context(), s)
	require.ErrorIs(t, err, store.ErrUnavailable)
	return strings.Join(list, "\n")
}

func TestADialTimeoutThatOutlastsAFailoverIsFound(t *testing.T) {
	t.Parallel()
	found := func(dial time.Duration) string {
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, DialTimeout: dial,
		})
		defer client.Close()
		return settings(t, newStore(t, client))
	}
	require.Contains(t, found(0), "DialTimeout is 5s") // go-redis' default
	require.NotContains(t, found(500*time.Millisecond), "DialTimeout")
	plain := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer plain.Close()
	require.NotContains(t, settings(t, newStore(t, plain)), "DialTimeout")
}

func TestOptionsOverTLSThatMakeCallsWaitAreFound(t *testing.T) {
	t.Parallel()
	waits := "may wait until its deadline"
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	old := &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}
	for _, cluster := range []bool{false, true} {
		for name, c := range map[string]struct {
			options redis.UniversalOptions
			wait    bool
		}{
			"TLS":             {redis.UniversalOptions{TLSConfig: config}, true},
			"TLS, protocol 2": {redis.UniversalOptions{TLSConfig: config, Protocol: 2}, false},
			"TLS 1.2":         {redis.UniversalOptions{TLSConfig: old}, false},
			"plain":           {redis.UniversalOptions{}, false},
		} {
			t.Run(fmt.Sprint(name, ", cluster ", cluster), func(t *testing.T) {
				t.Parallel() // each waits for a server that is not there
				c.options.Addrs, c.options.ContextTimeoutEnabled, c.options.IsClusterMode = []string{"127.0.0.1:1"}, true, cluster
				client := redis.NewUniversalClient(&c.options)
				defer client.Close()
				require.Equal(t, c.wait, strings.Contains(settings(t, newStore(t, client)), waits))
			})
		}
	}
	t.Run("Ring", func(t *testing.T) {
		t.Parallel()
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, TLSConfig: config})
		defer ring.Close()
		require.Contains(t, settings(t, newStore(t, ring)), waits)
	})
}
