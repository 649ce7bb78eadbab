package redisstore

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/rested"
)

// A second store on a client adds no second hook, and a client that is gone is forgotten.
func TestAClientIsWatchedOnceAndForgotten(t *testing.T) {
	if !rested.CanLook {
		t.Skip("sockets cannot be looked at here")
	}
	use := func() weak.Pointer[redis.Client] {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		_, err := New(client)
		require.NoError(t, err)
		require.False(t, first(client), "it is watched")
		require.NoError(t, client.Close())
		return weak.Make(client)
	}
	client := use()
	require.Eventually(t, func() bool {
		runtime.GC()
		_, known := watchedClients.Load(client)
		return !known
	}, 10*time.Second, 10*time.Millisecond)
}
