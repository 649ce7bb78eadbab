// Package testkit is shared by tests of several packages of this module: limiters and stores in one
// line, the calls that tests make, and stores that fail or count. Package ratelimittest has what
// tests of users need.
package testkit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// Start is a round time, so that windows begin there.
var Start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// RedisServer is a store on a real Redis server.
func RedisServer(t testing.TB, opts ...redisstore.Option) store.Store {
	t.Helper()
	return OnRedis(t, redistest.Shared(t).Client(t), opts...)
}

// OnRedis returns a store for the test alone, with a long timeout for busy machines.
func OnRedis(t testing.TB, client redisstore.Client, opts ...redisstore.Option) store.Store {
	t.Helper()
	opts = append([]redisstore.Option{redisstore.WithPrefix(redistest.Prefix(t)), redisstore.WithTimeout(10 * time.Second)}, opts...)
	s, err := redisstore.New(client, opts...)
	require.NoError(t, err)
	return s
}

// OnEachStore runs a test for each algorithm on memory and on Redis, both with a clock that the
// test moves.
func OnEachStore(t *testing.T, test func(t *testing.T, algorithm string, s store.Store, c *ratelimittest.Clock)) {
	t.Helper()
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		t.Run(algorithm+" in memory", func(t *testing.T) {
			c := NewClock()
			test(t, algorithm, Memory(t, c), c)
		})
		t.Run(algorithm+" on Redis", func(t *testing.T) {
			c := NewClock()
			test(t, algorithm, RedisServer(t, redisstore.WithClock(c.Now)), c)
		})
	}
}

// HasBurst reports whether an algorithm takes a Burst, which is the case if its spend drains, as in
// a bucket.
func HasBurst(algorithm string) bool {
	return ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 2}.ValidateFor(algorithm) == nil
}

// InMemory returns a limiter on a store of its own, which uses the test's time.
func InMemory(t testing.TB, algorithm string, l ratelimit.Limit, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	mem, err := memstore.New()
	require.NoError(t, err)
	return ratelimittest.New(t, algorithm, mem, l, opts...)
}

// Failover returns a limiter that wraps l, with a policy for store failures.
func Failover(t testing.TB, l ratelimit.Limiter, p fallback.Answer, opts ...fallback.Option) *fallback.Limiter {
	t.Helper()
	f, err := fallback.New(l, p, opts...)
	require.NoError(t, err)
	return f
}

func Allow(t testing.TB, lim ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := lim.Allow(t.Context(), key)
	require.NoError(t, err)
	return r
}

func AllowN(t testing.TB, lim ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := lim.AllowN(t.Context(), "key", n)
	require.NoError(t, err)
	return r
}

// Admitted returns how many of the given number of tries lim admits at one instant.
func Admitted(t testing.TB, lim ratelimit.Limiter, tries int) (n int) {
	t.Helper()
	for range tries {
		if AllowN(t, lim, 1).Allowed {
			n++
		}
	}
	return n
}

// EachStore runs a test on memory and on a real Redis.
func EachStore(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		test(t, s)
	})
	t.Run("redis", func(t *testing.T) { test(t, OnRedis(t, redistest.Shared(t).Client(t))) })
}

// Calls returns how many calls of a command the servers of client have received.
func Calls(t *testing.T, client redis.UniversalClient, command string) (n int) {
	t.Helper()
	var mu sync.Mutex
	count := func(ctx context.Context, c *redis.Client) error {
		_, rest, found := strings.Cut(c.Info(ctx, "commandstats").Val(), "cmdstat_"+command+":calls=")
		if !found {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		var here int
		_, err := fmt.Sscanf(rest, "%d,", &here)
		n += here
		return err
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		require.NoError(t, cluster.ForEachMaster(t.Context(), count))
	} else {
		require.NoError(t, count(t.Context(), client.(*redis.Client)))
	}
	return n
}

func Peek(t testing.TB, lim ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := lim.Peek(t.Context(), key)
	require.NoError(t, err)
	return r
}

func Overcharge(t *testing.T, l ratelimit.Limiter, n int) ratelimit.Result {
	t.Helper()
	r, err := l.(ratelimit.Charger).Charge(t.Context(), "key", n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return r
}

// InBubble runs test with a limiter whose clock is the bubble's.
func InBubble(t *testing.T, algorithm string, l ratelimit.Limit, test func(t *testing.T, lim ratelimit.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New()
		require.NoError(t, err)
		test(t, ratelimittest.New(t, algorithm, s, l))
	})
}

// Wait returns how long Wait takes.
func Wait(t *testing.T, ctx context.Context, lim ratelimit.Limiter, n int) (time.Duration, ratelimit.Result, error) {
	t.Helper()
	began := time.Now()
	r, err := ratelimit.Wait(ctx, lim, "key", n)
	return time.Since(began), r, err
}

// NewClock returns a clock that stands still at Start.
func NewClock() *ratelimittest.Clock { return ratelimittest.NewClock(Start) }

// Memory returns a store in memory that uses c.
func Memory(t testing.TB, c *ratelimittest.Clock) store.Store {
	t.Helper()
	return c.Memory(t)
}

// OnEachServer runs a test on memory, Redis and miniredis, with a clock of the test.
func OnEachServer(t *testing.T, test func(t *testing.T, s store.Store, c *ratelimittest.Clock)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		c := NewClock()
		test(t, Memory(t, c), c)
	})
	t.Run("Redis", func(t *testing.T) {
		c := NewClock()
		test(t, RedisServer(t, redisstore.WithClock(c.Now)), c)
	})
	t.Run("miniredis", func(t *testing.T) {
		c := NewClock()
		test(t, OnRedis(t, redistest.Mini(t).Client(t), redisstore.WithClock(c.Now)), c)
	})
}

// Parts returns a Part without a Limiter for each of results.
func Parts(results ...ratelimit.Result) []ratelimit.Part {
	parts := make([]ratelimit.Part, len(results))
	for i, r := range results {
		parts[i].Result = r
	}
	return parts
}
