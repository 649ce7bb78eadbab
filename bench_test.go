package ratelimit_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/bench"
	"github.com/ratelimit-go/ratelimit/internal/levels"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// BenchmarkAllow measures a decision through the Limiter interface, with the
// whole Result, as
//
//	BenchmarkAllow/<algorithm>/<store>/keys=<n>/<allowed or denied>/<serial or parallel>
//
// The keys are distinct, all of them have been seen before, and they come in
// random order. In the denied runs each key is at its limit. Compare the figures of
// one run: machines differ, and so do hours of the day.
//
//	go test -run '^$' -bench 'Allow/token_bucket/memory' -benchmem .
func BenchmarkAllow(b *testing.B) {
	stores := map[string]func(b *testing.B) store.Store{
		"memory": func(b *testing.B) store.Store {
			s, err := memstore.New()
			require.NoError(b, err)
			return s
		},
		"redis": func(b *testing.B) store.Store {
			s, err := redisstore.New(redistest.Start(b).Client(b), redisstore.WithTimeout(10*time.Second))
			require.NoError(b, err)
			return s
		},
	}
	limits := map[string]ratelimit.Limit{
		"allowed": {Rate: 1_000_000, Period: time.Millisecond}, // 1,000 a µs: more than any machine decides
		"denied":  ratelimit.PerDay(1),
	}
	for _, algorithm := range algorithms {
		for _, place := range []string{"memory", "redis"} {
			for _, keys := range []int{1, 10_000, 1_000_000} {
				for _, outcome := range []string{"allowed", "denied"} {
					b.Run(fmt.Sprintf("%s/%s/keys=%d/%s", algorithm, place, keys, outcome), func(b *testing.B) {
						lim := newLimiter(b, algorithm, stores[place](b), limits[outcome])
						bench.Allow(b, lim, bench.SeenKeys(b, lim, keys), outcome == "allowed")
					})
				}
			}
		}
	}
}

// BenchmarkGrowingLog measures decisions of a sliding log in memory that forgets nothing, on
// keys in turn. The number of decisions says how long the logs become:
//
//	go test -run '^$' -bench GrowingLog -benchtime 1000000x -count 10 .
func BenchmarkGrowingLog(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			lim := inMemory(b, "sliding_log", ratelimit.PerDay(1_000_000_000))
			keys, ctx := bench.SeenKeys(b, lim, n), b.Context()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if r, err := lim.Allow(ctx, keys[i%n]); err != nil || !r.Allowed {
					b.Fatal("not as benchmarked")
				}
			}
		})
	}
}

// BenchmarkAll measures decisions of an All of so many token buckets in memory, on one key. Read
// it as ratios to "1" of the same run, the least of several:
//
//	go test -run '^$' -bench 'All$' -count 10 .
func BenchmarkAll(b *testing.B) {
	for _, n := range []int{1, 2, 3} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s, err := memstore.New()
			require.NoError(b, err)
			limits := make([]ratelimit.Limit, n)
			for i := range limits {
				limits[i] = ratelimit.Limit{Rate: 1_000_000 * (i + 1), Period: time.Duration(i+1) * time.Millisecond}
			}
			lim := inMemory(b, "token_bucket", limits[0])
			if n > 1 {
				lim = levels.New(b, "token_bucket", s, "all", limits...)
			}
			bench.Allow(b, lim, []string{"user:42"}, true)
		})
	}
}

// BenchmarkObserve measures what an Observer adds to a decision of a token bucket in memory, on
// one key. Read it as differences to "none" of the same run, the least of several:
//
//	go test -run '^$' -bench Observe -count 10 .
func BenchmarkObserve(b *testing.B) {
	plain := func() ratelimit.Limiter {
		return inMemory(b, "token_bucket", ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond})
	}
	for _, c := range []struct {
		name string
		opts []ratelimit.Option
	}{
		{"none", nil},
		{"hook", []ratelimit.Option{ratelimit.WithObserver(saying(func() {}))}},
		{"counters", []ratelimit.Option{ratelimit.WithObserver(observe.NewCounters("api"))}},
		{"hook with latency", []ratelimit.Option{ratelimit.WithTimedObserver(saying(func() {}))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			bench.Allow(b, ratelimit.With(plain(), c.opts...), []string{"user:42"}, true)
		})
	}
}
