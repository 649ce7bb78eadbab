package testkit

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// Hanging is a store whose calls last until its timeout, and fail.
type Hanging struct{ store.Store }

// Timeout is when its calls end.
func (Hanging) Timeout() time.Duration { return 160 * time.Millisecond }

func (h Hanging) hang() error {
	time.Sleep(h.Timeout())
	return store.ErrTimeout
}

// These take as long.
func (h Hanging) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, h.hang()
}

func (h Hanging) Decide(context.Context, []store.Request, []store.Reply) error { return h.hang() }

// NobodyWaitsForTwoCalls tests that who comes while a call of others is under way waits for that and for its
// own, and for both no longer than one may take. l is on a Hanging store. Call it in a bubble.
func NobodyWaitsForTwoCalls(t *testing.T, l ratelimit.Limiter) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			began := time.Now()
			_, err := l.Allow(t.Context(), "key")
			require.ErrorIs(t, err, store.ErrTimeout)
			require.LessOrEqual(t, time.Since(began), 175*time.Millisecond)
		})
	}
	wg.Wait()
	time.Sleep(time.Second) // the last call ends
}
