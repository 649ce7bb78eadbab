// Package bench measures limiters, for the benchmarks of several packages.
package bench

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

// Allow measures decisions of lim on keys in turn, by one caller and by one per processor. Every
// decision must be an admission if allowed is true, and a denial otherwise.
func Allow(b *testing.B, lim ratelimit.Limiter, keys []string, allowed bool) {
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
			// Each worker begins at another key, so that two meet only if there is a single key.
			decide(func(int) bool { return pb.Next() }, int(workers.Add(1))*len(keys)/7%len(keys))
		})
	})
}

// SeenKeys returns n keys in random order. lim has admitted one event of each.
func SeenKeys(b *testing.B, lim ratelimit.Limiter, n int) []string {
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
