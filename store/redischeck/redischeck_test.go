package redischeck_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redischeck"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func newStore(t testing.TB, client redisstore.Client, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	opts = append([]redisstore.Option{redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(20 * time.Second)}, opts...)
	s, err := redisstore.New(client, opts...)
	require.NoError(t, err)
	return s
}

// found is what is found, as one text.
func found(t testing.TB, client redisstore.Client, opts ...redisstore.Option) string {
	t.Helper()
	list, err := redischeck.Run(t.Context(), newStore(t, client, opts...))
	require.NoError(t, err)
	for _, finding := range list {
		require.Regexp(t, `^[^ ]+: .*\.$`, finding)
	}
	return strings.Join(list, "\n")
}

// limiterOn returns a limiter of so many events a day.
func limiterOn(t testing.TB, s store.Store, n int) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.NewTokenBucket(s, ratelimit.PerDay(n))
	require.NoError(t, err)
	return l
}

func TestRunReturnsByItsDeadline(t *testing.T) {
	effort.NeedFull(t)
	t.Parallel()
	server := redistest.StartCluster(t, 1, 0).Masters[0]
	one := func() *redis.Client { return server.Client(t) }
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}, HeartbeatFrequency: time.Hour})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	async, err := one().AsyncAutoPipeline()
	require.NoError(t, err)
	blocking, err := one().AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = ring.Close(), cluster.Close() })
	for name, client := range map[string]redisstore.Client{
		"Client": one(), "Ring": ring, "ClusterClient": cluster, "AutoPipeliner": async, "blocking": blocking,
		"unknown": struct{ redisstore.Client }{one()},
	} {
		s := newStore(t, client)
		_, err := limiterOn(t, s, 1).Allow(t.Context(), "k")
		require.NoError(t, err)
		server.Freeze()
		var list []string
		inTime := false
		for range 5 { // a busy machine may be late now and then
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			begun := time.Now()
			list, err = redischeck.Run(ctx, s)
			cancel()
			require.Equal(t, context.DeadlineExceeded, err, name)
			if inTime = time.Since(begun) < 900*time.Millisecond; inTime { // a command by itself has a second
				break
			}
		}
		require.True(t, inTime, name)
		require.NotEmpty(t, list, "what is known without the server: %s", name)
		server.Thaw()
	}
	server.Kill()
	_, err = redischeck.Run(t.Context(), newStore(t, server.Client(t)))
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

func TestRunDisturbsNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s := newStore(t, client)
	l := limiterOn(t, s, 4)
	for range 3 {
		_, err := l.Allow(t.Context(), "k")
		require.NoError(t, err)
		list, err := redischeck.Run(t.Context(), s)
		require.NoError(t, err)
		require.Empty(t, list)
	}
	r, err := l.Peek(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 1, r.Remaining)
	require.EqualValues(t, 1, client.DBSize(t.Context()).Val())
	// Keys that may not be removed expire.
	user := userOf(t, server, "~* +evalsha +eval +time +get +set +pexpire +llen +lindex +lset +rpush +lpop +ltrim")
	require.Contains(t, found(t, user), "may not run DEL, UNLINK")
	require.Eventually(t, func() bool { return client.DBSize(t.Context()).Val() == 1 }, 10*time.Second, 10*time.Millisecond)
}

func TestAStoreThatNewHasNotMadeIsAnError(t *testing.T) {
	_, err := redischeck.Run(t.Context(), new(redisstore.Store))
	require.ErrorIs(t, err, store.ErrStore)
	require.ErrorContains(t, err, "not made by")
}

// The servers behind some clients are not known.
func TestServersThatAreNotKnown(t *testing.T) {
	t.Parallel()
	gone := redistest.Start(t)
	gone.Kill()
	queue, err := redis.NewClient(&redis.Options{Addr: gone.Addr()}).AsyncAutoPipeline()
	require.NoError(t, err)
	defer queue.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": gone.Addr()}, HeartbeatFrequency: time.Millisecond})
	defer ring.Close()
	require.Eventually(t, func() bool { return ring.Len() == 0 }, time.Minute, time.Millisecond)
	for name, client := range map[string]redisstore.Client{"auto-pipeliner": queue, "a ring whose shards are down": ring} {
		_, err := redischeck.Run(t.Context(), newStore(t, client))
		require.ErrorIs(t, err, store.ErrUnavailable, name)
	}
}
