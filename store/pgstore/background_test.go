package pgstore_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// A clock that panics may end the calls of callers, who may expect it. It does not end the process.
func TestAPanicOfTheClockInABackgroundRefund(t *testing.T) {
	proxy := pgtest.StartProxy(t, pgtest.Shared(t).Addr())
	var left atomic.Int64
	left.Store(math.MaxInt64)
	clock := pgstore.WithClock(func() time.Time {
		if left.Add(-1) < 0 {
			panic("planted")
		}
		return time.Now()
	})
	l := window(t, open(t, connect(t, pgtest.URL(proxy.Addr()), 4), clock), "n", 1000)
	for range 3 {
		take(t, l, "key")
	}
	proxy.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Allow(ctx, "key")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	left.Store(1) // for the call itself, and not for its refund
	proxy.Release()
	time.Sleep(2 * time.Second)
	require.Panics(t, func() { _, _ = l.Allow(t.Context(), "key") })
}
