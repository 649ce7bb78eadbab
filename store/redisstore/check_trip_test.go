package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

func TestCheckSaysWhatTheTimeoutMeansAtThisDistance(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		trip, timeout time.Duration
		says          string // "" for nothing
	}{
		{trip: ms, timeout: 50 * ms},
		{trip: 25 * ms, timeout: 50 * ms},
		{trip: 26 * ms, timeout: 50 * ms, says: "Call Ready at the start, or set WithTimeout to at least 78ms"},
		{trip: 45 * ms, timeout: 50 * ms, says: "Call Ready"},
		{trip: 46 * ms, timeout: 50 * ms, says: "none is answered in time. Set WithTimeout to at least 138ms"},
		{trip: 46 * ms, timeout: 150 * ms},
	} {
		found := redisstore.CheckTrip(c.trip, c.timeout)
		if c.says == "" {
			require.Empty(t, found, "%v, %v", c.trip, c.timeout)
			continue
		}
		require.Len(t, found, 1)
		require.Contains(t, found[0], c.says)
	}

	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(60 * ms)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	s, err := redisstore.New(client, redisstore.WithTimeout(50*ms)) // which gets no answer
	require.NoError(t, err)
	found, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Contains(t, found[0], "none is answered in time")
}
