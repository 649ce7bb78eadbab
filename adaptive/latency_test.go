package adaptive_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestLatencyIsTheMeanSinceTheLastReading(t *testing.T) {
	l, err := adaptive.NewLatency(40 * time.Millisecond)
	require.NoError(t, err)
	require.True(t, math.IsNaN(l.Load()), "no call yet")
	l.Observe(10 * time.Millisecond)
	l.Observe(30 * time.Millisecond)
	require.Equal(t, 0.5, l.Load())
	require.True(t, math.IsNaN(l.Load()), "none since")
	l.Observe(-time.Second)
	require.Zero(t, l.Load())
	l.Observe(80 * time.Millisecond)
	require.Equal(t, 2.0, l.Load())
	for range 2 { // such as time.Since of the zero time: their sum exceeds the range of a Duration
		l.Observe(math.MaxInt64)
	}
	require.Greater(t, l.Load(), 1e11)
}

func TestALatencyIsMadeByItsConstructor(t *testing.T) {
	for _, full := range []time.Duration{0, -1, math.MinInt64} {
		l, err := adaptive.NewLatency(full)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.Nil(t, l)
	}
	for _, l := range []*adaptive.Latency{nil, new(adaptive.Latency)} {
		l.Observe(time.Second)
		require.True(t, math.IsNaN(l.Load()))
	}
}

// A service handles 10 calls at the same time at full speed; beyond that, each call takes
// proportionally longer. Of 50 callers that ask again and again, as many get in as the service can
// handle.
func TestSlotsFollowWhatAServiceCanBear(t *testing.T) {
	const capacity, callers, fast = 10, 50, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		latency, err := adaptive.NewLatency(2 * fast)
		require.NoError(t, err)
		limit, err := adaptive.New(ratelimit.PerSecond(4), ratelimit.PerSecond(callers), latency.Load)
		require.NoError(t, err)
		slots, err := inflight.New(ratelimit.Must(memstore.New()), callers, time.Minute, ratelimit.WithLimitFunc(limit.ForKey))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer func() { stop(); all.Wait() }()
		var running, most atomic.Int64
		for i := range callers {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			all.Go(func() {
				for ctx.Err() == nil {
					slot, _, err := inflight.Hold(context.WithoutCancel(ctx), slots, "service", 1)
					if err != nil {
						t.Error(err)
						return
					}
					if slot != nil {
						now := running.Add(1)
						took := time.Duration(float64(fast) * max(1, float64(now)/capacity) * (0.9 + 0.2*rng.Float64()))
						time.Sleep(took)
						running.Add(-1)
						most.Store(max(most.Load(), now))
						latency.Observe(took)
						slot.Release()
					}
					time.Sleep(time.Duration(rng.IntN(int(fast))))
				}
			})
		}
		time.Sleep(15 * time.Second)
		for range 10 {
			most.Store(0)
			time.Sleep(time.Second)
			now := int(most.Load())
			require.GreaterOrEqual(t, now, capacity, "the service is used")
			require.LessOrEqual(t, now, 2*capacity, "calls take at most twice as long")
		}
	})
}
