package otellimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/otellimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Metrics are read from Counters when they are collected. A real program has an exporter instead of
// the reader.
func Example() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Hour, Burst: 3}, ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	counters := observe.NewCounters("api")
	limiter, err := observe.Around(bucket, counters, otellimit.Spans("api"))
	if err != nil {
		log.Fatal(err)
	}

	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	registration, err := otellimit.Register(otellimit.Config{
		Counters: []*observe.Counters{counters},
		Stores:   map[string]*memstore.Store{"memory": mem},
	}, otellimit.WithMeterProvider(provider))
	if err != nil {
		log.Fatal(err)
	}
	defer registration.Unregister()

	ctx := context.Background()
	for range 5 {
		if _, err := limiter.Allow(ctx, "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		log.Fatal(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name == "ratelimit.decisions" {
			for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
				if point.Value > 0 {
					outcome, _ := point.Attributes.Value("ratelimit.outcome")
					fmt.Println(outcome.AsString(), point.Value)
				}
			}
		}
	}
	// Unordered output:
	// allowed 3
	// denied 2
}

// The span of a request shows the decision of its limiter.
func ExampleSpans() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(0), ratelimit.WithName("api"),
		ratelimit.WithObserver(otellimit.Spans("api")))
	if err != nil {
		log.Fatal(err)
	}

	recorder := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(recorder)).Tracer("shop")
	ctx, span := tracer.Start(context.Background(), "GET /")
	if _, err := limiter.Allow(ctx, "user:42"); err != nil {
		log.Fatal(err)
	}
	span.End()

	for _, attribute := range recorder.Ended()[0].Attributes() {
		fmt.Println(attribute.Key, attribute.Value.AsString())
	}
	// Output:
	// ratelimit.limiter api
	// ratelimit.outcome denied
	// ratelimit.source zero_rate
}
