package redisstore_test

import (
	"fmt"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
	"github.com/ratelimit-go/ratelimit/store/storetest"
)

func TestConformanceOnRedis(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	storetest.Run(t, onServer(client), storetest.Traces(effort.Of(1, 4, 40)), storetest.ExpiresInRealTime())
}

// Miniredis replaces a missing redis-server. With one, it is only for the night, because it is ten times as slow.
func TestConformanceOnMiniredis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err == nil {
		effort.NeedLong(t)
	}
	client := redistest.Mini(t).Client(t)
	storetest.Run(t, onServer(client), storetest.Traces(effort.Of(2, 4, 12)))
}

var prefixes atomic.Int64

// onServer opens stores on one server, each with its own prefix.
func onServer(client redis.UniversalClient) storetest.Open {
	return func(t testing.TB, clock func() time.Time) store.Store {
		s, err := redisstore.New(client,
			redisstore.WithPrefix(fmt.Sprintf("conformance%d", prefixes.Add(1))),
			redisstore.WithTimeout(10*time.Second),
			redisstore.WithClock(clock))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}
