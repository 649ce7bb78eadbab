package redisstore_test

import (
	"fmt"
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
	client := redistest.Shared(t).Client(t)
	storetest.Run(t, onServer(client), storetest.Traces(effort.Of(12, 40)), storetest.ExpiresInRealTime())
}

func TestConformanceOnMiniredis(t *testing.T) {
	client := redistest.Mini(t).Client(t)
	storetest.Run(t, onServer(client), storetest.Traces(effort.Of(3, 12)))
}

var prefixes atomic.Int64

// onServer opens stores on one server, each of a prefix of its own.
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
