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

// metrics are those of a service. Their labels are of files, but for those of detailed, which are of
// requests too.
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

// maxDetailed is how many descriptors have metrics of their own. Each has at most two series.
const maxDetailed = 500

func newMetrics() *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ratelimit", Subsystem: "serve", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ratelimit", Subsystem: "serve", Name: name, Help: help})
	}
	return &metrics{
		asOnDisk: gauge("config_last_reload_successful", "1 if the files in force are those that were read last, 0 if those are missing or wrong."),
		loadedAt: gauge("config_last_reload_success_timestamp_seconds", "When the files in force were taken, as a Unix time."),
		seen:     map[string]bool{},
		detailed: vec("detailed_total", "Requests by the descriptor with its values, where a file wants that, and by its answer: ok or over_limit. After 500 descriptors the others are one, \"other\".", "descriptor", "answer"),
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
	if err != nil {
		return
	}
	for i := range q.parts {
		if p := &q.parts[i]; p.label != "" && (p.decided() || p.unlimited) {
			m.byValue(p)
		}
	}
}

// byValue counts the answer to a part by its values.
func (m *metrics) byValue(p *part) {
	m.mu.Lock()
	label := p.label
	if !m.seen[label] {
		if len(m.seen) < maxDetailed {
			m.seen[label] = true
		} else {
			label = "other" // which is no path: that has a slash
		}
	}
	m.mu.Unlock()
	answer := "ok"
	if p.over {
		answer = "over_limit"
	}
	m.detailed.WithLabelValues(label, answer).Inc()
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

// inForce notes whether the files that were read last are in force.
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

// own are the metrics of this package.
func (m *metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.detailed, m.failures, m.loads, m.asOnDisk, m.loadedAt}
}

// Describe implements [prometheus.Collector].
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range append(s.metrics.own(), new(promlimit.Collector)) {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]. The metrics of rules are those of package promlimit:
// the label limiter is the place in the file, such as edge/path=/login/user.
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
