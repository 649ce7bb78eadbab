package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// A pause of 100 ms is shorter than the default timeout: a server that forks, or a process
// whose goroutines wait for a processor, costs no call.
func TestAShortPauseOfTheServerCostsNoCall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s, err := redisstore.New(client)
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	served := func() bool {
		require.NoError(t, client.Do(t.Context(), "client", "pause", 100, "all").Err())
		_, err := s.Take(context.Background(), space, "k", limit, 1)
		return err == nil
	}
	require.Eventually(t, served, 10*time.Second, time.Millisecond) // a busy machine may pause too
}

// The nearer of the store's timeout and the caller's deadline ends a call. A fallback counts
// only the store's as a failure, so a late deadline does not put that off.
func TestTheNearerOfTimeoutAndDeadlineEndsACall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := redisstore.New(server.Client(t))
	require.NoError(t, err)
	require.NoError(t, s.Ready(t.Context()))
	server.Freeze()
	defer server.Thaw()
	take := func(deadline time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		_, err := s.Take(ctx, space, "k", limit, 1)
		return err
	}
	require.ErrorIs(t, take(time.Hour), store.ErrTimeout)
	require.Equal(t, context.DeadlineExceeded, take(20*time.Millisecond))
}
