package observe_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/bench"
	"github.com/ratelimit-go/ratelimit/observe"
)

type hook struct{}

func (hook) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) {}

// observers are the observers of this package, with none and one that does nothing for comparison.
func observers(b *testing.B) []struct {
	name     string
	observer ratelimit.Observer
} {
	top, err := observe.NewTopKeys(0)
	require.NoError(b, err)
	askers, err := observe.NewTopKeys(0, observe.WithAskers())
	require.NoError(b, err)
	exact, err := observe.NewExact(ratelimit.PerDay(1), 1)
	require.NoError(b, err)
	near, err := observe.NewNear(80, func(context.Context, string, ratelimit.Result) {})
	require.NoError(b, err)
	return []struct {
		name     string
		observer ratelimit.Observer
	}{
		{"nothing", nil},
		{"hook", hook{}},
		{"counters", observe.NewCounters("api")},
		{"top keys", top},
		{"askers too", askers},
		{"logger", observe.Logger(slog.New(slog.DiscardHandler))},
		{"near", near},
		{"exact 1%", exact},
	}
}

// BenchmarkObserved measures decisions of a token bucket in memory, on 10,000 keys, with each
// observer. Compare only the figures of the same run.
//
//	go test -run '^$' -bench Observed/allowed -benchmem ./observe
func BenchmarkObserved(b *testing.B) {
	limits := map[string]ratelimit.Limit{
		"allowed": {Rate: 1_000_000, Period: time.Millisecond}, // more than any machine decides
		"denied":  ratelimit.PerDay(1),
	}
	for _, outcome := range []string{"allowed", "denied"} {
		for _, o := range observers(b) {
			b.Run(outcome+"/"+o.name, func(b *testing.B) {
				limiter := inMemory(b, "token_bucket", limits[outcome])
				if o.observer != nil {
					limiter = observed(b, limiter, o.observer)
				}
				bench.Allow(b, limiter, bench.SeenKeys(b, limiter, 10_000), outcome == "allowed")
			})
		}
	}
}

// BenchmarkDecided measures observers alone.
//
//	go test -run '^$' -bench Decided -benchmem ./observe
func BenchmarkDecided(b *testing.B) {
	results := map[string]ratelimit.Result{
		"allowed": {Allowed: true, Limit: 100, Remaining: 42},
		"denied":  {Limit: 100, RetryAfter: time.Second},
	}
	for _, outcome := range []string{"allowed", "denied"} {
		for _, o := range observers(b)[1:] {
			b.Run(outcome+"/"+o.name, func(b *testing.B) {
				ctx, r := b.Context(), results[outcome]
				b.ReportAllocs()
				for b.Loop() {
					o.observer.Decided(ctx, "user:000000000042", 1, r, nil, 0)
				}
			})
		}
	}
}
