package main

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/otellimit"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// watch is what operators see of the limiters.
type watch struct {
	log    *slog.Logger
	page   observe.Page
	config promlimit.Config
}

func newWatch(log *slog.Logger, memory *memstore.Store) *watch {
	return &watch{
		log:  log,
		page: observe.Page{TopKeys: make(map[string]*observe.TopKeys)},
		config: promlimit.Config{
			Fallbacks: make(map[string]*fallback.Limiter),
			Stores:    map[string]*memstore.Store{"memory": memory},
		},
	}
}

// limiter returns l as it is told to clients: counted, logged, on the spans of a server that has
// some, and with the clients that it denies most.
func (w *watch) limiter(name string, l ratelimit.Limiter) (ratelimit.Limiter, error) {
	counters := w.counters(name)
	top, err := observe.NewTopKeys(0) // as many as it has by default
	if err != nil {
		return nil, err
	}
	w.page.TopKeys[name] = top
	logger := observe.Logger(w.log.With("limiter", name))
	return observe.Around(l, counters, top, logger, otellimit.Spans(name))
}

// store returns l as it is on Redis, before a fallback answers for it: its errors, and how long
// decisions take.
func (w *watch) store(name string, l ratelimit.Limiter) (ratelimit.Limiter, error) {
	return observe.Around(l, w.counters(name+"/store"))
}

func (w *watch) counters(name string) *observe.Counters {
	c := observe.NewCounters(name)
	w.page.Counters = append(w.page.Counters, c)
	w.config.Counters = append(w.config.Counters, c)
	return c
}

// changed logs what the breaker of a fallback does.
func (w *watch) changed(name string) func(fallback.State, time.Time) {
	return func(s fallback.State, since time.Time) {
		w.log.Warn("circuit breaker", "limiter", name, "state", s, "since", since)
	}
}

// handler has no limits, and shows keys. Serve it on an address that the public does not reach.
func (w *watch) handler() (http.Handler, error) {
	collector, err := promlimit.NewCollector(w.config)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /limits", observe.Handler(w.page))
	return mux, nil
}
