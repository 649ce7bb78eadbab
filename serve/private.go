package serve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ratelimit-go/ratelimit/observe"
)

// patience is how long /readyz waits for the store.
const patience = 2 * time.Second

// Private returns a handler for operators. It shows keys only with [WithTopKeys]. Serve it on a
// port that only operators can reach.
//
//	/metrics   for Prometheus
//	/healthz   200 while the process runs
//	/readyz    200 if requests are decided on, 503 otherwise
//	/rules     the rules in force, as JSON
//	/limits    the rules with what they have decided, and the keys that are denied most and ask most: see [observe.Handler]
//
// ready returns whether the store answers. It is called for each request of /readyz, and may be
// nil. /readyz returns 503 until the store has answered once, because its address may be wrong. If
// the store fails later, /readyz returns 200 with a note, unless on_failure is error in every
// domain, so that nothing is decided.
func (s *Service) Private(ready func(context.Context) error) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(s, collectors.NewBuildInfoCollector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		var err error
		if ready != nil {
			err = ready(ctx)
		}
		switch {
		case err == nil:
			s.Answered()
			_, _ = fmt.Fprintln(w, "ready")
		case !s.joint.answered.Load():
			http.Error(w, fmt.Sprintf("the store has not answered yet: %v", err), http.StatusServiceUnavailable)
		case s.now.Load().answerAlone():
			_, _ = fmt.Fprintf(w, "ready, while the store fails and on_failure answers: %v\n", err)
		default:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /rules", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.now.Load().shown())
	})
	mux.HandleFunc("GET /limits", func(w http.ResponseWriter, r *http.Request) {
		now := s.now.Load()
		page := observe.Page{TopKeys: now.topKeys, Limits: map[string]string{}}
		for _, one := range now.shown() {
			page.Limits[one.Rule] = one.text()
		}
		for _, name := range slices.Sorted(maps.Keys(now.counters)) {
			page.Counters = append(page.Counters, now.counters[name])
		}
		observe.Handler(page).ServeHTTP(w, r)
	})
	return mux
}

// Answered reports that the store has answered, so that /readyz of [Service.Private] no longer
// doubts its address. Decisions and ready report it too.
func (s *Service) Answered() { s.joint.answered.Store(true) }

// shownRule is a rule in /rules.
type shownRule struct {
	Rule      string   `json:"rule"`
	Limit     string   `json:"limit"`
	Reserved  int      `json:"reserved,omitempty"`
	Algorithm string   `json:"algorithm"`
	Name      string   `json:"name,omitempty"`
	Replaces  []string `json:"replaces,omitempty"`
	Shadow    bool     `json:"shadow_mode,omitempty"`
	Quota     bool     `json:"quota_mode,omitempty"`
	Overdraws bool     `json:"charge_over_limit,omitempty"`
	File      string   `json:"file"`
}

// text returns a short description of the rule.
func (r *shownRule) text() string {
	text := r.Limit + " " + r.Algorithm
	if r.Reserved > 0 {
		text += fmt.Sprintf(" %d reserved", r.Reserved)
	}
	if r.Shadow {
		text += " shadow_mode"
	}
	if r.Quota {
		text += " quota_mode"
	}
	if r.Overdraws {
		text += " " + overLimit
	}
	return text
}

func (r *Rules) shown() []shownRule {
	all := make([]shownRule, len(r.rules))
	for i, one := range r.rules {
		all[i] = shownRule{one.path, one.limit.String(), one.reserved, one.algorithm, one.name, one.replaces, one.shadow, one.quota, one.overdraws, one.file}
	}
	return all
}
