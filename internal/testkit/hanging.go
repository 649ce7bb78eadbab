package testkit

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// Hanging is a store whose calls for the key "key" fail after its timeout, as in a cluster of which one server hangs.
type Hanging struct{ store.Store }

// Timeout returns how long a call takes.
func (Hanging) Timeout() time.Duration { return 160 * time.Millisecond }

// hung is the key of calls that fail.
const hung = "key"

func (h Hanging) hang() error {
	time.Sleep(h.Timeout())
	return store.ErrTimeout
}

// Take fails after the timeout.
func (h Hanging) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if key != hung {
		return h.Store.Take(ctx, ns, key, l, n)
	}
	return store.Reply{}, h.hang()
}

// Decide fails after the timeout.
func (h Hanging) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if requests[0].Key != hung {
		return h.Store.Decide(ctx, requests, replies)
	}
	return h.hang()
}

// NobodyWaitsForTwoCalls tests that a caller that arrives during a call of others waits for that call and its
// own no longer than one call may take, although calls for other keys are answered. l must be on a Hanging store. Run it
// in a synctest bubble.
func NobodyWaitsForTwoCalls(t *testing.T, l ratelimit.Limiter) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			began := time.Now()
			_, err := l.Allow(t.Context(), hung)
			require.ErrorIs(t, err, store.ErrTimeout)
			require.LessOrEqual(t, time.Since(began), 175*time.Millisecond)
		})
	}
	for i := range 400 {
		time.Sleep(time.Millisecond)
		_, err := l.Allow(t.Context(), "other "+strconv.Itoa(i))
		require.NoError(t, err)
	}
	wg.Wait()
	time.Sleep(time.Second) // the last call ends
}
