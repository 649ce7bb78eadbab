// A collector: one call passes, the next does not, and both are counted.
package main

import (
	"context"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.PerHour(1), ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	counters := observe.NewCounters("api")
	limiter, err := observe.Around(bucket, counters)
	if err != nil {
		log.Fatal(err)
	}
	collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{counters}})
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	for range 2 {
		if _, err := limiter.Allow(context.Background(), "key"); err != nil {
			log.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	calls := 0.0
	for _, family := range families {
		if family.GetName() == "ratelimit_decisions_total" {
			for _, series := range family.GetMetric() {
				calls += series.GetCounter().GetValue()
			}
		}
	}
	if calls != 2 {
		log.Fatal(calls)
	}
}
