package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
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
						benchmarkAllow(b, lim, seenKeys(b, lim, keys), outcome == "allowed")
					})
				}
			}
		}
	}
}

func benchmarkAllow(b *testing.B, lim ratelimit.Limiter, keys []string, allowed bool) {
	ctx := b.Context()
	decide := func(more func(i int) bool, first int) {
		for i, k := 0, first; more(i); i++ {
			if r, err := lim.Allow(ctx, keys[k]); err != nil || r.Allowed != allowed {
				b.Error("not as benchmarked")
				return
			}
			if k++; k == len(keys) {
				k = 0
			}
		}
	}
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		decide(func(i int) bool { return i < b.N }, 0)
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		var workers atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			// Each begins elsewhere, so that they meet only where there is one key.
			decide(func(int) bool { return pb.Next() }, int(workers.Add(1))*len(keys)/7%len(keys))
		})
	})
}

// seenKeys returns n keys in random order, of which lim has admitted one event each.
func seenKeys(b *testing.B, lim ratelimit.Limiter, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%012d", i)
	}
	rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var wg sync.WaitGroup
	const callers = 32
	for c := range callers {
		wg.Go(func() {
			for i := c; i < n; i += callers {
				if _, err := lim.Allow(b.Context(), keys[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return keys
}
