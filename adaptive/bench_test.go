package adaptive_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/adaptive"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// BenchmarkForKey measures what an adaptive limit adds to a decision while no reading is due.
// BenchmarkAllow measures a decision in memory without it and with it.
//
//	go test -run '^$' -bench . -benchmem ./adaptive
func BenchmarkForKey(b *testing.B) {
	l := newLimit(b, constant(0.7))
	ctx := b.Context()
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = l.ForKey(ctx, "key")
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = l.ForKey(ctx, "key")
			}
		})
	})
}

func BenchmarkAllow(b *testing.B) {
	most := ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond}
	limit, err := adaptive.New(ratelimit.Limit{Rate: 500_000, Period: time.Millisecond}, most, constant(0.9))
	require.NoError(b, err)
	for name, opts := range map[string][]ratelimit.Option{
		"constant": nil,
		"adaptive": {ratelimit.WithLimitFunc(limit.ForKey)},
	} {
		mem, err := memstore.New()
		require.NoError(b, err)
		lim, err := ratelimit.NewTokenBucket(mem, most, opts...)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, err := lim.Allow(b.Context(), "key"); err != nil || !r.Allowed {
					b.Fatal("not as benchmarked")
				}
			}
		})
	}
}

func BenchmarkSignals(b *testing.B) {
	latency, err := adaptive.SchedulerLatency(time.Millisecond)
	require.NoError(b, err)
	f := newInFlight(b, 10)
	for name, signal := range map[string]func() float64{"CPU": adaptive.CPU(), "SchedulerLatency": latency, "InFlight": f.Load} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				signal()
			}
		})
	}
	b.Run("Start and Done", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.Start()
			f.Done()
		}
	})
}
