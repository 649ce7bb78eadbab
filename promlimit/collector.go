// Package promlimit exports the decisions of limiters to Prometheus. A [Collector] reads
// [observe.Counters] when it is scraped, so a decision costs nothing more:
//
//	collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{api}})
//	...
//	registry.MustRegister(collector)
//
// It exports the metrics below. Each of the Counters has at most 97 series, and no label is ever a
// key.
//
//	ratelimit_decisions_total{limiter,outcome,source}      calls that were decided
//	ratelimit_events_total{limiter,outcome}                the events that they asked for
//	ratelimit_denied_by_total{limiter,denied_by}           denials by the limit that denied
//	ratelimit_errors_total{limiter,class}                  calls that returned an error
//	ratelimit_headroom_ratio{limiter}                      histogram: share of the limit that admissions left
//	ratelimit_decision_duration_seconds{limiter}           histogram: duration of decisions, if it is measured
//	ratelimit_limit{limiter,policy}                        events that a limit admits at one instant
//	ratelimit_breaker_state{limiter,state}                 1 for the current state of a fallback, 0 for the others
//	ratelimit_store_keys{store}                            keys that a memstore holds
//	ratelimit_store_evictions_total{store}                 keys that a full memstore has forgotten
//	ratelimit_waiting{limiter}                             callers that sleep in a throttle.Waiter
//	ratelimit_pauses_total{limiter}                        times that a server made a Transport wait
//	ratelimit_paused{limiter}                              keys of a Transport that wait for their server
//	ratelimit_lease_calls_total{limiter,by}                decisions of a lease by "local", and calls by "store", "unleased" and "lost"
//	ratelimit_lease_events_total{limiter,fate}             events "granted", "lapsed", "given_back" and "overdrawn"
//	ratelimit_lease_held{limiter}                          events that this process holds
//	ratelimit_slot_held{limiter}                           slots that this process holds
//	ratelimit_slot_endings_total{limiter,reason}           slots that were "released", "too_long" or "forgotten"; "lost" ones are counted again when they end
//	ratelimit_slot_duration_seconds{limiter}               summary without quantiles: how long ended slots were held
//	ratelimit_plan_answers_total{plans,age}                cached answers of a plancache, "fresh" or "stale"
//	ratelimit_plan_queries_total{plans}                    queries of a plancache
//	ratelimit_plan_failures_total{plans}                   queries of a plancache that failed
//	ratelimit_plan_keys{plans}                             keys in a plancache
//
// An outcome is "allowed" or "denied", a source the String of a [ratelimit.Source], and a class the
// result of [observe.ErrorClass]. The directory of this package also contains alerts.yml, with
// alerting rules for Prometheus, and dashboard.json, a dashboard for Grafana.
package promlimit

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// Config lists what a [Collector] reads. The names in it become values of labels, so use few of
// them, and do not change them. If one of Limiters has several limits of the same name, the smallest
// is exported: give them names by [ratelimit.WithName] or [ratelimit.WithPolicyName].
type Config struct {
	Counters   []*observe.Counters               // with different names
	Limiters   map[string]ratelimit.Limiter      // by the label "limiter": limits that are the same for all keys
	Fallbacks  map[string]*fallback.Limiter      // by the label "limiter"
	Stores     map[string]*memstore.Store        // by the label "store"
	Waiters    map[string]*throttle.Waiter       // by the label "limiter"
	Leases     map[string]*lease.Store           // by the label "limiter"
	Transports map[string]*httplimit.Transport   // by the label "limiter"
	Slots      map[string]*inflight.Counters     // by the label "limiter"
	Plans      map[string]func() plancache.Stats // by the label "plans": the method Stats of a Cache
}

// Collector is a [prometheus.Collector]. It does not register itself. A registry can have only one
// Collector, unless they are registered with different labels by [prometheus.WrapRegistererWith].
//
// A scrape costs about 40 µs for each of the Counters, and does not delay decisions. A Collector is
// safe for concurrent use. Use [NewCollector] to create one.
type Collector struct {
	config Config
}

// NewCollector returns a Collector for c. It returns [ratelimit.ErrInvalidOption] if something in c
// is nil, if two Counters have the same name, or if a name is empty or not valid UTF-8. It also
// returns it if the limits of one of Limiters depend on the key.
func NewCollector(c Config) (*Collector, error) {
	c.Counters = slices.Clone(c.Counters)
	c.Fallbacks, c.Stores, c.Waiters, c.Leases = maps.Clone(c.Fallbacks), maps.Clone(c.Stores), maps.Clone(c.Waiters), maps.Clone(c.Leases)
	c.Limiters, c.Transports, c.Slots, c.Plans = maps.Clone(c.Limiters), maps.Clone(c.Transports), maps.Clone(c.Slots), maps.Clone(c.Plans)

	byName := make(map[string]*observe.Counters, len(c.Counters))
	for _, counters := range c.Counters {
		if counters == nil {
			return nil, fmt.Errorf("%w: Counters are nil", ratelimit.ErrInvalidOption)
		}
		name := counters.Snapshot().Limiter
		if byName[name] != nil {
			return nil, fmt.Errorf("%w: two Counters have the name %q", ratelimit.ErrInvalidOption, name)
		}
		byName[name] = counters
	}
	for _, err := range []error{
		check("Counters", byName, given), check("fallback", c.Fallbacks, given), check("store", c.Stores, given), check("Waiter", c.Waiters, given),
		check("lease", c.Leases, given), check("Transport", c.Transports, given), check("limiter", c.Limiters, known), check("slots", c.Slots, given),
		check("plancache", c.Plans, given),
	} {
		if err != nil {
			return nil, err
		}
	}
	return &Collector{c}, nil
}

// check returns an error if an element of named is invalid, or its name is not a valid label value.
func check[T any](what string, named map[string]T, wrong func(T) string) error {
	for name, it := range named {
		switch reason := wrong(it); {
		case reason != "":
			return fmt.Errorf("%w: the %s %q %s", ratelimit.ErrInvalidOption, what, name, reason)
		case name == "" || !utf8.ValidString(name):
			return fmt.Errorf("%w: the name %q of a %s is empty or not UTF-8", ratelimit.ErrInvalidOption, name, what)
		}
	}
	return nil
}

// given returns what is wrong with a pointer or a function, or "".
func given[T any](it T) string {
	if reflect.ValueOf(it).IsNil() {
		return "is nil"
	}
	return ""
}

func known(l ratelimit.Limiter) string {
	if _, err := observe.Around(l, new(observe.Counters)); err != nil {
		return "is nil"
	}
	if len(limitsOf(l)) == 0 {
		return "has no limit that is the same for all keys"
	}
	return ""
}

// limitsOf returns the limits of l by their names, if they do not depend on the key. Of several with
// one name, it returns the smallest.
func limitsOf(l ratelimit.Limiter) map[string]int {
	policies, _ := ratelimit.AppendPolicies(context.Background(), nil, l, "") // a limit function is not called for ""
	quotas := make(map[string]int, len(policies))
	for _, p := range policies {
		name := strings.ToValidUTF8(p.Name, "?")
		if least, found := quotas[name]; !found || p.Quota < least {
			quotas[name] = p.Quota
		}
	}
	return quotas
}

var (
	limits    = desc("limit", "Events that a limit admits at one instant.", "limiter", "policy")
	decisions = desc("decisions_total", "Calls of a limiter that were decided.", "limiter", "outcome", "source")
	events    = desc("events_total", "Events that the decided calls of a limiter asked for.", "limiter", "outcome")
	deniedBy  = desc("denied_by_total", "Calls that were denied, by the limit that denied.", "limiter", "denied_by")
	failed    = desc("errors_total", "Calls of a limiter that ended with an error.", "limiter", "class")
	headroom  = desc("headroom_ratio", "Share of the limit that admissions left, in tenths. The sum is an estimate.", "limiter")
	durations = desc("decision_duration_seconds", "How long decisions took, errors included.", "limiter")
	breaker   = desc("breaker_state", "1 for the current state of a fallback's circuit breaker, 0 for the others.", "limiter", "state")
	keys      = desc("store_keys", "Keys that a memory holds, some of them idle.", "store")
	evictions = desc("store_evictions_total", "Keys with spend in force that a full memory has forgotten.", "store")
	waiting   = desc("waiting", "Callers that sleep until a limiter admits them.", "limiter")
	pauses    = desc("pauses_total", "Times that a server made the requests of a client wait.", "limiter")
	paused    = desc("paused", "Keys of a client that wait as long as their server said.", "limiter")

	leaseCalls  = desc("lease_calls_total", "Decisions without the store, and calls of it: with an answer, for keys that cannot be leased, without an answer.", "limiter", "by")
	leaseEvents = desc("lease_events_total", "Events of leases, by what has become of them.", "limiter", "fate")
	leaseHeld   = desc("lease_held", "Events that leases hold now.", "limiter")

	slotHeld     = desc("slot_held", "Slots that this process holds.", "limiter")
	slotEndings  = desc("slot_endings_total", "Slots by how they have ended. A lost one ends in another way later.", "limiter", "reason")
	slotDuration = desc("slot_duration_seconds", "How long slots were held that have ended.", "limiter")

	planAnswers  = desc("plan_answers_total", "Answers from memory in place of a database: fresh ones, and older ones since it failed.", "plans", "age")
	planQueries  = desc("plan_queries_total", "Queries of plans, failed ones included.", "plans")
	planFailures = desc("plan_failures_total", "Queries of plans that failed.", "plans")
	planKeys     = desc("plan_keys", "Keys whose plans are remembered.", "plans")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_"+name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		limits, decisions, events, deniedBy, failed, headroom, durations, breaker, keys, evictions, waiting, pauses, paused,
		leaseCalls, leaseEvents, leaseHeld, slotHeld, slotEndings, slotDuration,
		planAnswers, planQueries, planFailures, planKeys,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, counters := range c.config.Counters {
		collect(ch, counters.Snapshot())
	}
	for name, l := range c.config.Limiters {
		for policy, quota := range limitsOf(l) {
			gauge(ch, limits, float64(quota), name, policy)
		}
	}
	for name, f := range c.config.Fallbacks {
		now, _ := f.State()
		for _, state := range []fallback.State{fallback.StateClosed, fallback.StateOpen, fallback.StateHalfOpen} {
			is := 0.0
			if state == now {
				is = 1
			}
			gauge(ch, breaker, is, name, state.String())
		}
	}
	for name, s := range c.config.Stores {
		gauge(ch, keys, float64(s.Len()), name)
		counter(ch, evictions, float64(s.Evicted()), name)
	}
	for name, w := range c.config.Waiters {
		gauge(ch, waiting, float64(w.Waiting()), name)
	}
	for name, t := range c.config.Transports {
		begun, now := t.Pauses()
		counter(ch, pauses, float64(begun), name)
		gauge(ch, paused, float64(now), name)
	}
	for name, l := range c.config.Leases {
		collectLease(ch, name, l.Stats())
	}
	for name, slots := range c.config.Slots {
		collectSlots(ch, name, slots.Stats())
	}
	for name, stats := range c.config.Plans {
		s := stats()
		counter(ch, planAnswers, float64(s.Hits), name, "fresh")
		counter(ch, planAnswers, float64(s.Stale), name, "stale")
		counter(ch, planQueries, float64(s.Queries), name)
		counter(ch, planFailures, float64(s.Failures), name)
		gauge(ch, planKeys, float64(s.Keys), name)
	}
}

func collectLease(ch chan<- prometheus.Metric, name string, s lease.Stats) {
	counter(ch, leaseCalls, float64(s.Local), name, "local")
	counter(ch, leaseCalls, float64(s.Asked-s.Unleased-s.Lost), name, "store")
	counter(ch, leaseCalls, float64(s.Unleased), name, "unleased")
	counter(ch, leaseCalls, float64(s.Lost), name, "lost")
	counter(ch, leaseEvents, float64(s.Granted), name, "granted")
	counter(ch, leaseEvents, float64(s.Lapsed), name, "lapsed")
	counter(ch, leaseEvents, float64(s.GivenBack), name, "given_back")
	counter(ch, leaseEvents, float64(s.Overdrawn), name, "overdrawn")
	gauge(ch, leaseHeld, float64(s.Held), name)
}

func collectSlots(ch chan<- prometheus.Metric, name string, s inflight.Stats) {
	gauge(ch, slotHeld, float64(s.Held), name)
	counter(ch, slotEndings, float64(s.Released), name, "released")
	counter(ch, slotEndings, float64(s.Lost), name, "lost")
	counter(ch, slotEndings, float64(s.TooLong), name, "too_long")
	counter(ch, slotEndings, float64(s.Forgotten), name, "forgotten")
	ch <- prometheus.MustNewConstSummary(slotDuration, uint64(s.Released+s.TooLong+s.Forgotten), s.Took.Seconds(), nil, name)
}

// collect sends the numbers of one Counters.
func collect(ch chan<- prometheus.Metric, s observe.Snapshot) {
	asked := make(map[string]int64, 2)
	for _, d := range s.Decisions {
		counter(ch, decisions, float64(d.Calls), s.Limiter, d.Outcome, d.Source)
		asked[d.Outcome] += d.Events
	}
	for outcome, n := range asked {
		counter(ch, events, float64(n), s.Limiter, outcome)
	}
	for _, d := range s.DeniedBy {
		counter(ch, deniedBy, float64(d.Calls), s.Limiter, d.Name)
	}
	for _, e := range s.Errors {
		counter(ch, failed, float64(e.Calls), s.Limiter, e.Class)
	}
	ch <- headroomOf(s)
	if s.Durations.Count > 0 {
		ch <- durationsOf(s)
	}
}

// headroomOf returns the histogram of headroom. The exact headroom is not known, only the tenth
// that contains it. The sum uses the middle of the tenth, so the mean is off by at most 0.05.
func headroomOf(s observe.Snapshot) prometheus.Metric {
	var count uint64
	var sum float64
	buckets := make(map[float64]uint64, len(s.Headroom))
	for i, n := range s.Headroom {
		count += uint64(n)
		sum += float64(n) * max(float64(i)-0.5, 0) / 10
		buckets[float64(i)/10] = count
	}
	return prometheus.MustNewConstHistogram(headroom, count, sum, buckets, s.Limiter)
}

func durationsOf(s observe.Snapshot) prometheus.Metric {
	var count uint64
	buckets := make(map[float64]uint64, len(s.Durations.Buckets))
	for _, b := range s.Durations.Buckets {
		count += uint64(b.Count)
		buckets[b.Bound.Seconds()] = count
	}
	return prometheus.MustNewConstHistogram(durations, uint64(s.Durations.Count), s.Durations.Sum.Seconds(), buckets, s.Limiter)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

var _ prometheus.Collector = (*Collector)(nil)
