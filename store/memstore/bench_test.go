package memstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func BenchmarkTake(b *testing.B) {
	for _, n := range []int{1, 10_000, 1_000_000} {
		keys := keyNames(n)
		rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			s := newStore(b)
			ns, ctx := store.NewNamespace(window, "b"), context.Background()
			for _, key := range keys {
				s.Take(ctx, ns, key, plenty, 1)
			}
			rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Take(ctx, ns, keys[i], plenty, 1)
				if i++; i == n {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("keys=%d/parallel", n), func(b *testing.B) {
			s := newStore(b)
			ns, ctx := store.NewNamespace(window, "b"), context.Background()
			for _, key := range keys {
				s.Take(ctx, ns, key, plenty, 1)
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(n); pb.Next(); {
					s.Take(ctx, ns, keys[i], plenty, 1)
					if i++; i == n {
						i = 0
					}
				}
			})
		})
	}
}

// BenchmarkNewKey measures the cost of a new key, including growth and splits.
func BenchmarkNewKey(b *testing.B) {
	const n = 1_000_000
	keys := keyNames(n)
	ns, ctx := store.NewNamespace(window, "b"), context.Background()
	for range b.N {
		s := newStore(b)
		for _, key := range keys {
			s.Take(ctx, ns, key, plenty, 1)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/key")
}

// BenchmarkMemory reports bytes per key and the time of a forced collection.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000, 600_000, 800_000, 1_000_000, 1_300_000, 1_700_000, 2_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ns, ctx := store.NewNamespace(window, "b"), context.Background()
			for range b.N {
				before := heap()
				s := newStore(b)
				for i := range n {
					s.Take(ctx, ns, "user:"+strconv.Itoa(i), plenty, 1)
				}
				b.ReportMetric(float64(heap()-before)/float64(n), "B/key")
				start := time.Now()
				runtime.GC()
				b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "gc-ms")
				runtime.KeepAlive(s)
			}
		})
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	return keys
}

func newStore(tb testing.TB, opts ...memstore.Option) *memstore.Store {
	tb.Helper()
	s, err := memstore.New(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}
