package observe_test

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/bench"
	"github.com/ratelimit-go/ratelimit/observe"
)

type hook struct{}

func (hook) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) {}

// BenchmarkObserved measures decisions with nobody looking, with an observer that does
// nothing, and with those of this package.
//
//	go test -run '^$' -bench Observed -benchmem ./observe
func BenchmarkObserved(b *testing.B) {
	for _, c := range []struct {
		name     string
		observer ratelimit.Observer
	}{
		{"nothing", nil},
		{"hook", hook{}},
		{"counters", observe.NewCounters("api")},
	} {
		b.Run(c.name, func(b *testing.B) {
			limit := ratelimit.Limit{Rate: 1_000_000, Period: time.Millisecond} // more than any machine decides
			limiter := observed(b, inMemory(b, "token_bucket", limit), c.observer)
			bench.Allow(b, limiter, bench.SeenKeys(b, limiter, 10_000), true)
		})
	}
}
