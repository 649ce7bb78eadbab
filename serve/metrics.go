package serve

import (
	"cmp"
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// metrics are the metrics of a service. Their labels come from files, except those of detailed,
// which also come from requests.
type metrics struct {
	requests *prometheus.CounterVec // by domain and answer
	detailed *prometheus.CounterVec // by descriptor and answer
	failures *prometheus.CounterVec // by domain and class
	loads    *prometheus.CounterVec // by result
	asOnDisk prometheus.Gauge       // 1 or 0
	loadedAt prometheus.Gauge       // Unix time

	mu   sync.Mutex      // protects seen
	seen map[string]bool // descriptors of detailed, at most maxDetailed
}

// maxDetailed is how many descriptors have their own metrics. Each has at most two series.
const maxDetailed = 500

func newMetrics() *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ratelimit", Subsystem: "serve", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ratelimit", Subsystem: "serve", Name: name, Help: help})
	}
	return &metrics{
		asOnDisk: gauge("config_last_reload_successful", "1 if the files that were read last are in force, 0 if they are missing or invalid."),
		loadedAt: gauge("config_last_reload_success_timestamp_seconds", "When the files in force took effect, as a Unix time."),
		seen:     map[string]bool{},
		detailed: vec("detailed_total", "Requests by the descriptor with its values, if a file asks for that, and by its answer: ok or over_limit. All descriptors after the first 500 are counted as one, \"other\".", "descriptor", "answer"),
		requests: vec("requests_total", "Requests, by the answer as a whole: ok, over_limit, invalid or error.", "domain", "answer"),
		failures: vec("store_failures_total", "Requests that on_failure decided without the store, by the class of the error.", "domain", "class"),
		loads:    vec("loads_total", "How often changed files were read again, by the result: ok or error.", "result"),
	}
}

// decided counts a response.
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
	if err != nil {
		return
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.label != "" && (p.decided() || p.unlimited) {
			m.byValue(p)
		}
	}
}

// byValue counts the answer for a part by its values.
func (m *metrics) byValue(p *part) {
	m.mu.Lock()
	label := p.label
	if !m.seen[label] {
		if len(m.seen) < maxDetailed {
			m.seen[label] = true
		} else {
			label = "other" // cannot be a path, because a path contains a slash
		}
	}
	m.mu.Unlock()
	answer := "ok"
	if p.over {
		answer = "over_limit"
	}
	m.detailed.WithLabelValues(label, answer).Inc()
}

// domainLabel returns the domain if a file defines it, and otherwise "".
func domainLabel(q *question) string {
	if q == nil || q.domain == nil {
		return ""
	}
	return q.domain.name
}

// failed counts a failure of the store by its class (observe.ErrorClass), or as "breaker" if the
// store was not asked.
func (m *metrics) failed(q *question) {
	m.failures.WithLabelValues(q.domain.name, cmp.Or(observe.ErrorClass(q.cause), "breaker")).Inc()
}

// inForce records whether the files that were read last are in force.
func (m *metrics) inForce(err error) {
	if err != nil {
		m.asOnDisk.Set(0)
		return
	}
	m.asOnDisk.Set(1)
}

func (m *metrics) loaded(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.loads.WithLabelValues(result).Inc()
}

// own returns the metrics of this package.
func (m *metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.detailed, m.failures, m.loads, m.asOnDisk, m.loadedAt}
}

// Describe implements [prometheus.Collector].
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range append(s.metrics.own(), new(promlimit.Collector)) {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]. The metrics of rules are those of package promlimit.
// Their label limiter is the rule's path in the file, such as edge/path=/login/user.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.own() {
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

// leases returns the leases in use, by their TTL.
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
