package promlimit_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// BenchmarkDecision measures a decision on one key in memory: without an observer, with Counters,
// and with Counters in a registry.
//
//	go test -run '^$' -bench . -benchmem
func BenchmarkDecision(b *testing.B) {
	for _, c := range []struct {
		name              string
		counts, collected bool
	}{{"nothing", false, false}, {"counters", true, false}, {"collected", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			memory, err := memstore.New()
			require.NoError(b, err)
			limiter := ratelimit.Limiter(nil)
			limiter, err = ratelimit.NewTokenBucket(memory, ratelimit.PerSecond(1_000_000_000))
			require.NoError(b, err)
			counters := observe.NewCounters("api")
			if c.counts {
				limiter = observed(b, limiter, counters)
			}
			if c.collected {
				collect(b, counters)
			}
			ctx := b.Context()
			for b.Loop() {
				if r, err := limiter.Allow(ctx, "key"); err != nil || !r.Allowed {
					b.Fatal(r, err)
				}
			}
		})
	}
}

// BenchmarkGather measures a scrape, without its text, for several numbers of limiters.
func BenchmarkGather(b *testing.B) {
	for _, limiters := range []int{1, 10, 100} {
		b.Run(fmt.Sprint("limiters=", limiters), func(b *testing.B) {
			var counters []*observe.Counters
			for i := range limiters {
				counters = append(counters, observe.NewCounters(fmt.Sprint("limiter ", i)))
			}
			r := collect(b, counters...)
			for b.Loop() {
				if _, err := r.Gather(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// collect returns a registry that has been scraped once.
func collect(b *testing.B, counters ...*observe.Counters) *prometheus.Registry {
	b.Helper()
	collector, err := promlimit.NewCollector(promlimit.Config{Counters: counters})
	require.NoError(b, err)
	r := prometheus.NewRegistry()
	require.NoError(b, r.Register(collector))
	_, err = r.Gather()
	require.NoError(b, err)
	return r
}
