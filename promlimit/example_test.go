package promlimit_test

import (
	"bufio"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// A server that limits its clients and exports its decisions at /metrics.
func Example() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 10, Period: time.Hour, Burst: 3}, ratelimit.WithName("api"))
	if err != nil {
		log.Fatal(err)
	}
	open, err := fallback.New(bucket, fallback.FailOpen())
	if err != nil {
		log.Fatal(err)
	}
	counters := observe.NewCounters("api")
	limiter, err := observe.Around(open, counters)
	if err != nil {
		log.Fatal(err)
	}

	collector, err := promlimit.NewCollector(promlimit.Config{
		Counters:  []*observe.Counters{counters},
		Fallbacks: map[string]*fallback.Limiter{"api": open},
		Stores:    map[string]*memstore.Store{"memory": mem},
	})
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)

	limit, err := httplimit.New(limiter)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", limit(http.NotFoundHandler()))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := httptest.NewServer(mux)
	defer server.Close()

	for range 5 {
		get(server.URL)
	}
	for _, line := range get(server.URL + "/metrics") {
		if strings.HasPrefix(line, "ratelimit_decisions_total") && !strings.HasSuffix(line, " 0") {
			fmt.Println(line)
		}
	}
	// Output:
	// ratelimit_decisions_total{limiter="api",outcome="allowed",source="store"} 3
	// ratelimit_decisions_total{limiter="api",outcome="denied",source="store"} 2
}

// get returns the lines of a page.
func get(url string) (lines []string) {
	resp, err := http.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	for scanner := bufio.NewScanner(resp.Body); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return lines
}

// A server that runs at most two exports of a user at the same time, and shows how many are
// running.
func ExampleNewCollector_slots() {
	mem, err := memstore.New()
	if err != nil {
		log.Fatal(err)
	}
	exports, err := inflight.New(mem, 2, time.Minute, ratelimit.WithName("exports"))
	if err != nil {
		log.Fatal(err)
	}
	counters := new(inflight.Counters)
	limit := httplimit.Middleware(exports, httplimit.WithSlots(inflight.CountIn(counters))) // or an option of Hold

	collector, err := promlimit.NewCollector(promlimit.Config{Slots: map[string]*inflight.Counters{"exports": counters}})
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)

	export := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		families, err := registry.Gather()
		if err != nil {
			log.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "ratelimit_slot_held" {
				fmt.Println(f.GetMetric()[0].GetGauge().GetValue())
			}
		}
	})
	limit(export).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	// Output: 1
}
