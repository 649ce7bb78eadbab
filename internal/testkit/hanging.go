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

// Hanging is a store whose calls fail after its timeout.
type Hanging struct{ store.Store }

// Timeout returns how long a call takes.
func (Hanging) Timeout() time.Duration { return 160 * time.Millisecond }

func (h Hanging) hang() error {
	time.Sleep(h.Timeout())
	return store.ErrTimeout
}

// Take fails after the timeout.
func (h Hanging) Take(context.Context, *store.Namespace, string, store.Limit, int64) (store.Reply, error) {
	return store.Reply{}, h.hang()
}

func (h Hanging) Decide(context.Context, []store.Request, []store.Reply) error { return h.hang() }

// NobodyWaitsForTwoCalls tests that a caller that arrives during a call of others waits for that call and its
// own no longer than one call may take. l must be on a Hanging store. Run it in a synctest bubble.
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
