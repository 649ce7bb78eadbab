package otellimit

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/metric"

	"github.com/ratelimit-go/ratelimit"
)

// durationBounds are in s: from a store in memory to a Redis far away, and then for callers that
// wait.
var durationBounds = []float64{
	.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
}

// Durations returns an Observer that records how long decisions take in the histogram
// ratelimit.decision.duration, in seconds, with the attributes limiter and outcome: "allowed",
// "denied" or "error". Around a [throttle.Waiter], it records how long callers wait:
//
//	limiter, err := observe.Around(waiter, durations)
//
// Use it with observe.Around or ratelimit.WithTimedObserver. With anything else no durations are
// measured, and it records nothing. A decision costs a call of the histogram, about 150 ns. The
// errors are those of [Register].
func Durations(limiter string, opts ...Option) (ratelimit.Observer, error) {
	if limiter == "" || !utf8.ValidString(limiter) {
		return nil, fmt.Errorf("%w: the name %q of a limiter is empty or not UTF-8", ratelimit.ErrInvalidOption, limiter)
	}
	provider, err := providerOf(opts)
	if err != nil {
		return nil, err
	}
	histogram, err := provider.Meter(scope).Float64Histogram("ratelimit.decision.duration",
		metric.WithUnit("s"), metric.WithDescription("How long decisions took, errors and waits included."),
		metric.WithExplicitBucketBoundaries(durationBounds...))
	if err != nil {
		return nil, err
	}
	d := &durations{histogram: histogram}
	for i, outcome := range []string{"allowed", "denied", "error"} {
		d.with[i] = []metric.RecordOption{metric.WithAttributes(attrLimiter.String(limiter), attrOutcome.String(outcome))}
	}
	return d, nil
}

type durations struct {
	histogram metric.Float64Histogram
	with      [3][]metric.RecordOption // allowed, denied, error
}

// Decided records how long a decision took.
func (d *durations) Decided(ctx context.Context, _ string, _ int, r ratelimit.Result, err error, took time.Duration) {
	with := d.with[0]
	switch {
	case took <= 0:
		return
	case err != nil:
		with = d.with[2]
	case !r.Allowed:
		with = d.with[1]
	}
	d.histogram.Record(ctx, took.Seconds(), with...)
}
