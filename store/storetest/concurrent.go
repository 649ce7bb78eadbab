package storetest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

const goroutines = 64

// together calls f in several goroutines, each with its number.
func together(f func(g int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for g := range goroutines {
		all.Go(func() {
			<-start
			f(g)
		})
	}
	close(start)
	all.Wait()
}

func concurrentTakes(t testing.TB, s *suite, a algorithm) {
	for _, most := range []int{1, 7} { // largest costs
		k := s.bench(t).key(a.name, ratelimit.PerHour(500))
		var admitted, failed, leastDenied atomic.Int64
		leastDenied.Store(math.MaxInt64)
		together(func(g int) {
			for i := range 12 {
				n := 1 + (g+i)%most
				switch r, err := k.lim.AllowN(context.Background(), k.name, n); {
				case err != nil:
					failed.Add(1)
				case r.Allowed:
					admitted.Add(int64(n))
				default:
					for least := leastDenied.Load(); int64(n) < least && !leastDenied.CompareAndSwap(least, int64(n)); {
						least = leastDenied.Load()
					}
				}
			}
		})
		sum, left := admitted.Load(), int64(k.peek().Remaining)
		if failed.Load() > 0 || sum+left != 500 || left >= leastDenied.Load() || most == 1 && left > 0 {
			t.Fatalf("costs up to %d: %d failed, %d admitted, %d left, and %d denied",
				most, failed.Load(), sum, left, leastDenied.Load())
		}
	}
}

func concurrentRefunds(t testing.TB, s *suite, a algorithm) {
	k := s.bench(t).key(a.name, ratelimit.PerHour(500))
	queue := a.newModel().delays()
	var kept, failed atomic.Int64
	together(func(g int) {
		for i := range 8 {
			r, err := k.lim.AllowN(context.Background(), k.name, 3)
			if err != nil {
				failed.Add(1)
			}
			if !r.Allowed {
				continue
			}
			kept.Add(3)
			if queue || (g+i)%4 == 0 {
				continue // a queue refunds only its tail, and it is not known whose that is
			}
			if k.lim.Refund(context.Background(), k.name, r, 2) != nil {
				failed.Add(1)
			}
			kept.Add(-2)
		}
	})
	if r := k.peek(); failed.Load() > 0 || int64(r.Remaining) != 500-kept.Load() {
		t.Fatalf("%d failed; %d of 500 are kept, and %d remain", failed.Load(), kept.Load(), r.Remaining)
	}
}

// concurrentDecides charges events of two limits in every way that there is. No event may get lost, whichever limit a call
// names first.
func concurrentDecides(t testing.TB, s *suite, a algorithm) {
	const limit = 5000 // more than what is charged
	ctx, b := context.Background(), s.bench(t)
	var limiters [2]ratelimit.Limiter // not watched, because their Period is long
	for i := range limiters {
		l, err := ratelimit.New(a.name, b.store, ratelimit.PerHour(limit), ratelimit.WithName(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = l
	}
	first, second := ratelimit.Ask{Limiter: limiters[0], Key: "key", N: 1}, ratelimit.Ask{Limiter: limiters[1], Key: "key", N: 2}
	reserving := first
	reserving.Reserved = 1
	calls := []func() error{
		func() error { _, err := ratelimit.Decide(ctx, first, second); return err },
		func() error { _, err := ratelimit.Decide(ctx, second, first); return err },
		func() error { _, err := ratelimit.Decide(ctx, reserving); return err },
		func() error { _, _, err := ratelimit.AllowUpTo(ctx, limiters[0], "key", 1); return err },
		func() error { _, err := ratelimit.Charge(ctx, limiters[1], "key", 2); return err },
	}
	var failed atomic.Value
	together(func(g int) {
		for i := range 2 * len(calls) {
			if err := calls[(g+i)%len(calls)](); err != nil {
				failed.Store(err)
			}
		}
	})
	if err := failed.Load(); err != nil {
		t.Fatal(err)
	}
	for i, want := range [2]int{limit - 8*goroutines, limit - 12*goroutines} {
		if r, err := limiters[i].Peek(ctx, "key"); err != nil || r.Remaining != want {
			t.Fatalf("limit %d: %d of %d remain, want %d, %v", i, r.Remaining, limit, want, err)
		}
	}
}
