package serve

import (
	"cmp"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/lease"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// metrics are those of a service. Their labels are of files, never of requests.
type metrics struct {
	of       *Service
	requests *prometheus.CounterVec // by domain and answer
	failures *prometheus.CounterVec // by domain and class
	loads    *prometheus.CounterVec // by result
}

func newMetrics(s *Service) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ratelimit", Subsystem: "serve", Name: name, Help: help}, labels)
	}
	return &metrics{
		of:       s,
		requests: vec("requests_total", "Requests, by the answer as a whole: ok, over_limit, invalid or error.", "domain", "answer"),
		failures: vec("store_failures_total", "Requests that were answered without the store, as on_failure says, by the class of the error.", "domain", "class"),
		loads:    vec("loads_total", "Times that files were read again because they had changed, by the result: ok or error.", "result"),
	}
}

// decided counts an answer.
func (m *metrics) decided(q *question, err error) {
	answer := "ok"
	switch {
	case errors.Is(err, errInvalid):
		answer = "invalid"
	case err != nil:
		answer = "error"
	case q.over:
		answer = "over_limit"
	}
	m.requests.WithLabelValues(domainLabel(q), answer).Inc()
}

// domainLabel is the domain if a file has it.
func domainLabel(q *question) string {
	if q == nil || q.domain == nil {
		return ""
	}
	return q.domain.name
}

// failed counts a failure of the store by its class (observe.ErrorClass), "breaker" while it was
// not asked.
func (m *metrics) failed(q *question) {
	m.failures.WithLabelValues(q.domain.name, cmp.Or(observe.ErrorClass(q.cause), "breaker")).Inc()
}

func (m *metrics) loaded(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.loads.WithLabelValues(result).Inc()
}

// Describe implements [prometheus.Collector].
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{s.metrics.requests, s.metrics.failures, s.metrics.loads, new(promlimit.Collector)} {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]. The metrics of rules are those of package promlimit:
// the label limiter is the place in the file, such as edge/path=/login/user.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{s.metrics.requests, s.metrics.failures, s.metrics.loads} {
		c.Collect(ch)
	}
	config := promlimit.Config{Fallbacks: map[string]*fallback.Limiter{"store": s.breaker}}
	for _, c := range s.now.Load().counters {
		config.Counters = append(config.Counters, c)
	}
	if mem, ok := s.store.(*memstore.Store); ok {
		config.Stores = map[string]*memstore.Store{"memory": mem}
	}
	config.Leases = s.leases()
	c, err := promlimit.NewCollector(config)
	if err != nil {
		s.log.Error("metrics", "error", err)
		return
	}
	c.Collect(ch)
}

// leases are those in use, by their life.
func (s *Service) leases() map[string]*lease.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]*lease.Store{}
	for f, st := range s.fronts {
		if l, ok := st.(*lease.Store); ok {
			all["lease "+f.lease.String()] = l
		}
	}
	return all
}

var (
	_ prometheus.Collector = (*Service)(nil)
)
