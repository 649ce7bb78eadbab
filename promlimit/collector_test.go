package promlimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/plancache"
	"github.com/ratelimit-go/ratelimit/promlimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// failing is a store that fails while it is down.
type failing struct {
	store.Store
	down atomic.Bool
}

func (s *failing) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if s.down.Load() {
		return store.ErrUnavailable
	}
	return s.Store.Decide(ctx, requests, replies)
}

// service is a program with everything that a Collector reads.
type service struct {
	stats     lease.Stats // of the leased limiter
	store     *failing
	memory    *memstore.Store
	fallback  *fallback.Limiter
	atOnce    ratelimit.Limiter // of slots
	slots     *inflight.Counters
	limiter   ratelimit.Limiter // an observed fallback around two limits that are observed too
	collector *promlimit.Collector
	rounds    int // of traffic
}

func newService(t testing.TB) *service {
	t.Helper()
	memory, err := memstore.New(memstore.WithMaxKeys(20))
	require.NoError(t, err)
	s := &service{store: &failing{Store: memory}, memory: memory}
	burst, err := ratelimit.NewTokenBucket(s.store, ratelimit.Limit{Rate: 100, Period: time.Hour, Burst: 4}, ratelimit.WithName("burst"))
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(s.store, ratelimit.PerDay(1000), ratelimit.WithName("daily"))
	require.NoError(t, err)
	all, err := ratelimit.NewAll(burst, daily)
	require.NoError(t, err)
	inside, outside := observe.NewCounters("api/store"), observe.NewCounters("api")
	s.fallback, err = fallback.New(observed(t, all, inside), fallback.FailOpen(), fallback.WithBreaker(10, time.Second))
	require.NoError(t, err)
	waiter, err := throttle.NewWaiter(burst, time.Minute)
	require.NoError(t, err)
	s.limiter = observed(t, s.fallback, outside)
	another, err := memstore.New()
	require.NoError(t, err)
	leased, err := lease.New(another, time.Hour)
	require.NoError(t, err)
	window, err := ratelimit.NewFixedWindow(leased, ratelimit.PerDay(1000))
	require.NoError(t, err)
	for range 10 {
		_, err := window.Allow(t.Context(), "leased")
		require.NoError(t, err)
	}
	for range 2 {
		_, err := window.Allow(t.Context(), strings.Repeat("long", 100))
		require.NoError(t, err)
	}
	s.stats = leased.Stats()
	s.atOnce, err = inflight.New(another, 9, time.Minute)
	require.NoError(t, err)
	s.slots = new(inflight.Counters)
	s.collector, err = promlimit.NewCollector(promlimit.Config{
		Counters:  []*observe.Counters{inside, outside},
		Fallbacks: map[string]*fallback.Limiter{"api": s.fallback},
		Stores:    map[string]*memstore.Store{"memory": memory},
		Waiters:   map[string]*throttle.Waiter{"jobs": waiter},
		Leases:    map[string]*lease.Store{"fleet": leased},

		Limiters:   map[string]ratelimit.Limiter{"api": s.limiter},
		Transports: map[string]*httplimit.Transport{"partner": pausing(t)},
		Slots:      map[string]*inflight.Counters{"exports": s.slots},
		Plans:      map[string]func() plancache.Stats{"plans": planned(t).Stats},
	})
	require.NoError(t, err)
	return s
}

// planned returns a cache with two cached answers and two queries, one of which failed.
func planned(t testing.TB) *plancache.Cache[string] {
	t.Helper()
	down := errors.New("no database")
	plans, err := plancache.New(func(_ context.Context, key string) (string, error) {
		if key == "unknown" {
			return "", down
		}
		return "pro", nil
	}, time.Hour)
	require.NoError(t, err)
	for _, key := range []string{"ann", "ann", "ann"} {
		_, err = plans.Get(t.Context(), key)
		require.NoError(t, err)
	}
	_, err = plans.Get(t.Context(), "unknown")
	require.ErrorIs(t, err, down)
	return plans
}

// pausing returns a Transport that waits for one of its two servers.
func pausing(t testing.TB) *httplimit.Transport {
	t.Helper()
	transport, err := httplimit.NewTransport(refusing{}, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil))
	require.NoError(t, err)
	for _, host := range []string{"a.example", "b.example"} {
		res, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://"+host, nil))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	return transport
}

type refusing struct{}

func (refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Host == "a.example" {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	return w.Result(), nil
}

func observed(t testing.TB, l ratelimit.Limiter, c *observe.Counters) ratelimit.Limiter {
	t.Helper()
	l, err := observe.Around(l, c)
	require.NoError(t, err)
	return l
}

// traffic makes decisions of each kind: 10 admissions and 5 denials by the store, and 5 errors. It
// takes and releases a slot. The 20 states of a first round fill the memory, and those of a second
// round replace them.
func (s *service) traffic(t testing.TB) {
	t.Helper()
	s.rounds++
	ask := func(key, n int, allowed bool) {
		r, err := s.limiter.AllowN(t.Context(), fmt.Sprint("key ", s.rounds, key), n)
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
	}
	for i := range 10 {
		ask(i, 2, true)
	}
	for i := range 5 {
		ask(i, 5, false)
	}
	s.store.down.Store(true)
	for range 5 {
		ask(0, 1, true)
	}
	s.store.down.Store(false)
	s.hold(t, time.Hour).Release()
}

// hold holds a slot.
func (s *service) hold(t testing.TB, longest time.Duration) *inflight.Slot {
	t.Helper()
	slot, _, err := inflight.Hold(t.Context(), s.atOnce, "key", 1, inflight.CountIn(s.slots), inflight.Longest(longest))
	require.NoError(t, err)
	require.NotNil(t, slot)
	return slot
}

// registry returns a registry that checks the descriptions of a Collector.
func registry(t testing.TB, c prometheus.Collector) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	return r
}

// scrape returns what c exports to Prometheus: each series with its value.
func scrape(t testing.TB, c prometheus.Collector) (text string, series map[string]string) {
	t.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(registry(t, c), promhttp.HandlerOpts{}))
	defer server.Close()
	series = make(map[string]string)
	lines := get(server.URL)
	for _, line := range lines {
		if !strings.HasPrefix(line, "#") {
			i := strings.LastIndexByte(line, ' ')
			series[line[:i]] = line[i+1:]
		}
	}
	require.NotEmpty(t, series)
	return strings.Join(lines, "\n") + "\n", series
}

func TestACollectorSaysWhatIsCounted(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	_, got := scrape(t, s.collector)
	for name, want := range map[string]string{
		`ratelimit_decisions_total{limiter="api",outcome="allowed",source="store"}`:           "10",
		`ratelimit_decisions_total{limiter="api",outcome="allowed",source="fail_open"}`:       "5",
		`ratelimit_decisions_total{limiter="api",outcome="denied",source="store"}`:            "5",
		`ratelimit_decisions_total{limiter="api",outcome="denied",source="fail_closed"}`:      "0",
		`ratelimit_decisions_total{limiter="api/store",outcome="allowed",source="store"}`:     "10",
		`ratelimit_decisions_total{limiter="api/store",outcome="allowed",source="fail_open"}`: "0",
		`ratelimit_events_total{limiter="api",outcome="allowed"}`:                             "25",
		`ratelimit_events_total{limiter="api",outcome="denied"}`:                              "25",
		`ratelimit_denied_by_total{denied_by="burst",limiter="api"}`:                          "5",
		`ratelimit_errors_total{class="unavailable",limiter="api/store"}`:                     "5",
		`ratelimit_errors_total{class="unavailable",limiter="api"}`:                           "0",
		`ratelimit_headroom_ratio_bucket{limiter="api",le="0"}`:                               "0",
		`ratelimit_headroom_ratio_bucket{limiter="api",le="0.4"}`:                             "0",
		`ratelimit_headroom_ratio_bucket{limiter="api",le="0.5"}`:                             "10",
		`ratelimit_headroom_ratio_bucket{limiter="api",le="1"}`:                               "10",
		`ratelimit_headroom_ratio_sum{limiter="api"}`:                                         "4.5",
		`ratelimit_headroom_ratio_count{limiter="api"}`:                                       "10",
		`ratelimit_decision_duration_seconds_count{limiter="api/store"}`:                      "20",
		`ratelimit_decision_duration_seconds_bucket{limiter="api/store",le="+Inf"}`:           "20",
		`ratelimit_breaker_state{limiter="api",state="closed"}`:                               "1",
		`ratelimit_breaker_state{limiter="api",state="open"}`:                                 "0",
		`ratelimit_breaker_state{limiter="api",state="half_open"}`:                            "0",
		`ratelimit_store_keys{store="memory"}`:                                                "20",
		`ratelimit_store_evictions_total{store="memory"}`:                                     "0",
		`ratelimit_waiting{limiter="jobs"}`:                                                   "0",
		`ratelimit_lease_calls_total{by="local",limiter="fleet"}`:                             fmt.Sprint(s.stats.Local),
		`ratelimit_lease_calls_total{by="store",limiter="fleet"}`:                             fmt.Sprint(s.stats.Asked - 2),
		`ratelimit_lease_calls_total{by="unleased",limiter="fleet"}`:                          "2",
		`ratelimit_lease_calls_total{by="lost",limiter="fleet"}`:                              "0",
		`ratelimit_lease_events_total{fate="granted",limiter="fleet"}`:                        fmt.Sprint(s.stats.Granted),
		`ratelimit_lease_events_total{fate="lapsed",limiter="fleet"}`:                         "0",
		`ratelimit_lease_events_total{fate="given_back",limiter="fleet"}`:                     "0",
		`ratelimit_lease_events_total{fate="overdrawn",limiter="fleet"}`:                      "0",
		`ratelimit_limit{limiter="api",policy="burst"}`:                                       "4",
		`ratelimit_limit{limiter="api",policy="daily"}`:                                       "1000",
		`ratelimit_pauses_total{limiter="partner"}`:                                           "1",
		`ratelimit_paused{limiter="partner"}`:                                                 "1",
		`ratelimit_plan_answers_total{age="fresh",plans="plans"}`:                             "2",
		`ratelimit_plan_answers_total{age="stale",plans="plans"}`:                             "0",
		`ratelimit_plan_queries_total{plans="plans"}`:                                         "2",
		`ratelimit_plan_failures_total{plans="plans"}`:                                        "1",
		`ratelimit_plan_keys{plans="plans"}`:                                                  "2",
		`ratelimit_lease_held{limiter="fleet"}`:                                               fmt.Sprint(s.stats.Held),
	} {
		require.Equal(t, want, got[name], name)
	}
	require.Contains(t, got, `ratelimit_decision_duration_seconds_count{limiter="api"}`)
}

func TestDurationsAreInSeconds(t *testing.T) {
	c := observe.NewCounters("api")
	for _, took := range []time.Duration{time.Millisecond, 700 * time.Millisecond, 2 * time.Second} {
		c.Decided(t.Context(), "key", 1, ratelimit.Result{Allowed: true}, nil, took)
	}
	collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{c}})
	require.NoError(t, err)
	_, got := scrape(t, collector)
	for le, want := range map[string]string{"5e-05": "0", "0.0005": "0", "0.001": "1", "0.5": "1", "1": "2", "+Inf": "3"} {
		require.Equal(t, want, got[`ratelimit_decision_duration_seconds_bucket{limiter="api",le="`+le+`"}`], le)
	}
	require.Equal(t, "2.701", got[`ratelimit_decision_duration_seconds_sum{limiter="api"}`])
}

func TestTheMeanOfHeadroomIsOffByATwentiethAtMost(t *testing.T) {
	for remaining := range 100 {
		c := observe.NewCounters("api")
		c.Decided(t.Context(), "key", 1, ratelimit.Result{Allowed: true, Limit: 100, Remaining: remaining}, nil, 0)
		collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{c}})
		require.NoError(t, err)
		families, err := registry(t, collector).Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "ratelimit_headroom_ratio" {
				require.InDelta(t, float64(remaining)/100, f.GetMetric()[0].GetHistogram().GetSampleSum(), 0.0501)
			}
		}
	}
}

func TestWaitingCallersAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New()
		require.NoError(t, err)
		bucket, err := ratelimit.NewTokenBucket(memory, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1})
		require.NoError(t, err)
		waiter, err := throttle.NewWaiter(bucket, time.Minute)
		require.NoError(t, err)
		collector, err := promlimit.NewCollector(promlimit.Config{Waiters: map[string]*throttle.Waiter{"jobs": waiter}})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _ = waiter.Allow(t.Context(), "key") })
		}
		synctest.Wait()
		require.EqualValues(t, 3, testutil.ToFloat64(collector))
		wg.Wait()
		require.Zero(t, testutil.ToFloat64(collector))
	})
}

func TestSlotsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		held, released := s.hold(t, time.Hour), s.hold(t, time.Hour)
		s.hold(t, 2*time.Second)
		time.Sleep(3 * time.Second)
		released.Release()
		defer held.Release()
		got, err := testutil.CollectAndFormat(s.collector, expfmt.TypeTextPlain, "ratelimit_slot_held", "ratelimit_slot_endings_total", "ratelimit_slot_duration_seconds")
		require.NoError(t, err)
		for _, want := range []string{
			`held{limiter="exports"} 1`,
			`endings_total{limiter="exports",reason="released"} 1`,
			`endings_total{limiter="exports",reason="too_long"} 1`,
			`endings_total{limiter="exports",reason="lost"} 0`,
			`endings_total{limiter="exports",reason="forgotten"} 0`,
			`duration_seconds_sum{limiter="exports"} 5`,
			`duration_seconds_count{limiter="exports"} 2`,
		} {
			require.Contains(t, string(got), "ratelimit_slot_"+want+"\n")
		}
	})
}

func TestAMemoryThatForgetsIsSeen(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	s.traffic(t)
	_, got := scrape(t, s.collector)
	require.Equal(t, "20", got[`ratelimit_store_keys{store="memory"}`])
	require.Equal(t, fmt.Sprint(s.memory.Evicted()), got[`ratelimit_store_evictions_total{store="memory"}`])
	require.NotZero(t, s.memory.Evicted())
}

func TestABreakerIsInOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		is := func(state string) {
			t.Helper()
			var want strings.Builder
			for _, one := range []string{"closed", "half_open", "open"} {
				fmt.Fprintf(&want, "ratelimit_breaker_state{limiter=\"api\",state=%q} %d\n", one, map[bool]int{one == state: 1}[true])
			}
			got, err := testutil.CollectAndFormat(s.collector, expfmt.TypeTextPlain, "ratelimit_breaker_state")
			require.NoError(t, err)
			_, rows, _ := strings.Cut(string(got), "gauge\n")
			require.Equal(t, want.String(), rows)
		}
		is("closed")
		s.store.down.Store(true)
		for range 10 {
			_, err := s.limiter.Allow(t.Context(), "key")
			require.NoError(t, err)
		}
		is("open")
		time.Sleep(time.Second)
		is("half_open")
		s.store.down.Store(false)
		_, err := s.limiter.Allow(t.Context(), "key")
		require.NoError(t, err)
		is("closed")
	})
}

func TestInvalidLabelsAreRefused(t *testing.T) {
	counters := func(names ...string) (c []*observe.Counters) {
		for _, name := range names {
			c = append(c, observe.NewCounters(name))
		}
		return c
	}
	memory, err := memstore.New()
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(memory, ratelimit.PerDay(1))
	require.NoError(t, err)
	byKey, err := ratelimit.NewFixedWindow(memory, ratelimit.PerDay(1), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
		panic("it is not asked")
	}))
	require.NoError(t, err)
	for name, c := range map[string]promlimit.Config{
		"twins":            {Counters: counters("a", "b", "a")},
		"nil":              {Counters: []*observe.Counters{nil}},
		"no name":          {Counters: counters("")},
		"no UTF-8":         {Counters: counters("\xff")},
		"no fallback":      {Fallbacks: map[string]*fallback.Limiter{"a": nil}},
		"no store":         {Stores: map[string]*memstore.Store{"a": nil}},
		"nameless":         {Stores: map[string]*memstore.Store{"": new(memstore.Store)}},
		"not a label":      {Waiters: map[string]*throttle.Waiter{"\xff": new(throttle.Waiter)}},
		"no waiter":        {Waiters: map[string]*throttle.Waiter{"a": nil}},
		"no lease":         {Leases: map[string]*lease.Store{"a": nil}},
		"no plans":         {Plans: map[string]func() plancache.Stats{"a": nil}},
		"nameless plans":   {Plans: map[string]func() plancache.Stats{"": planned(t).Stats}},
		"no slots":         {Slots: map[string]*inflight.Counters{"a": nil}},
		"nameless slots":   {Slots: map[string]*inflight.Counters{"": new(inflight.Counters)}},
		"no client":        {Transports: map[string]*httplimit.Transport{"a": nil}},
		"no limiter":       {Limiters: map[string]ratelimit.Limiter{"a": nil}},
		"a nil limiter":    {Limiters: map[string]ratelimit.Limiter{"a": (*ratelimit.TokenBucket)(nil)}},
		"no limit":         {Limiters: map[string]ratelimit.Limiter{"a": ratelimittest.Static(ratelimit.Result{}, nil)}},
		"limits by key":    {Limiters: map[string]ratelimit.Limiter{"a": byKey}},
		"a nameless limit": {Limiters: map[string]ratelimit.Limiter{"": daily}},
		"nameless, too":    {Waiters: map[string]*throttle.Waiter{"": new(throttle.Waiter)}},
	} {
		collector, err := promlimit.NewCollector(c)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
		require.Nil(t, collector, name)
	}
	empty, err := promlimit.NewCollector(promlimit.Config{})
	require.NoError(t, err)
	for _, c := range []*promlimit.Collector{empty, new(promlimit.Collector)} {
		require.Zero(t, testutil.CollectAndCount(c))
	}
}

// A rate over time must see the first denials.
func TestALimitHasASeriesBeforeItDenies(t *testing.T) {
	_, got := scrape(t, newService(t).collector)
	for _, limit := range []string{"burst", "daily"} {
		for _, limiter := range []string{"api", "api/store"} {
			require.Equal(t, "0", got[fmt.Sprintf("ratelimit_denied_by_total{denied_by=%q,limiter=%q}", limit, limiter)])
		}
	}
}

// The first two names look the same when they are quoted.
func TestALimitMayHaveAnyName(t *testing.T) {
	c := observe.NewCounters("api")
	c.Expect("\xff", `"\xff"`, "caf\xe9", "a\x00b", `q"uote`, "other")
	collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{c}})
	require.NoError(t, err)
	_, got := scrape(t, collector)
	require.Equal(t, "0", got[`ratelimit_denied_by_total{denied_by="\"caf\\xe9\"",limiter="api"}`])
	require.Equal(t, "0", got[`ratelimit_denied_by_total{denied_by="\"\\xff\"",limiter="api"}`])
}

func TestTheConfigCanBeUsedAgain(t *testing.T) {
	config := promlimit.Config{Counters: []*observe.Counters{observe.NewCounters("a")}, Stores: map[string]*memstore.Store{}}
	collector, err := promlimit.NewCollector(config)
	require.NoError(t, err)
	before := testutil.CollectAndCount(collector)
	config.Counters[0] = nil
	config.Stores["new"] = nil
	require.Equal(t, before, testutil.CollectAndCount(collector))
}

func TestLintFindsNothing(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	problems, err := testutil.CollectAndLint(s.collector)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// TestScrapesWhileDecisionsAreUnderWay checks that each histogram is consistent, and that no
// counter decreases.
func TestScrapesWhileDecisionsAreUnderWay(t *testing.T) {
	s := newService(t)
	r := registry(t, s.collector)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					_, _ = s.limiter.AllowN(t.Context(), fmt.Sprint(worker, i%100), 1+i%3)
					s.store.down.Store(i%50 == 0)
				}
			}
		})
	}
	before := make(map[string]float64)
	for range 200 {
		families, err := r.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if h := m.GetHistogram(); h != nil {
					var last uint64
					for _, b := range h.GetBucket() {
						require.GreaterOrEqual(t, b.GetCumulativeCount(), last)
						last = b.GetCumulativeCount()
					}
					require.GreaterOrEqual(t, h.GetSampleCount(), last)
				}
				if m.GetCounter() != nil {
					name := f.GetName() + m.String()[:strings.Index(m.String(), "counter")]
					require.GreaterOrEqual(t, m.GetCounter().GetValue(), before[name])
					before[name] = m.GetCounter().GetValue()
				}
			}
		}
	}
	close(done)
	wg.Wait()
	require.NotEmpty(t, before)
}

func TestCountersHaveAtMost97Series(t *testing.T) {
	memory, err := memstore.New()
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(memory, ratelimit.PerDay(1), ratelimit.WithName("b"))
	require.NoError(t, err)
	c := observe.NewCounters("api")
	for i := range 100 {
		never, err := ratelimit.NewFixedWindow(memory, ratelimit.PerDay(0), ratelimit.WithName("a"), ratelimit.WithPolicyName(fmt.Sprint(i)))
		require.NoError(t, err)
		all, err := ratelimit.NewAll(never, daily)
		require.NoError(t, err)
		_, err = observed(t, all, c).Allow(t.Context(), "key")
		require.NoError(t, err)
	}
	for source := ratelimit.SourceStore; source <= ratelimit.SourceBan; source++ {
		for _, allowed := range []bool{true, false} {
			r := ratelimit.Result{Allowed: allowed, Limit: 1}
			c.Decided(t.Context(), "key", 1, r.WithMark(ratelimit.NewMark(t, source, nil)), nil, 0)
		}
	}
	collector, err := promlimit.NewCollector(promlimit.Config{Counters: []*observe.Counters{c}})
	require.NoError(t, err)
	_, got := scrape(t, collector)
	require.Len(t, got, 97)
}

func TestNoLabelIsAKey(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	before := testutil.CollectAndCount(s.collector)
	for i := range 1000 {
		_, err := s.limiter.Allow(t.Context(), fmt.Sprint("key ", i))
		require.NoError(t, err)
	}
	require.Equal(t, before, testutil.CollectAndCount(s.collector))
	_, got := scrape(t, s.collector)
	for series := range got {
		require.NotContains(t, series, "key ")
	}
}

// In any order, so that both exporters show the same.
func TestOfLimitsOfOneNameTheSmallestIsShown(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	daily := ratelimit.Must(ratelimit.NewFixedWindow(mem, ratelimit.PerDay(5000), ratelimit.WithName("api")))
	minute := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("api")))
	for _, parts := range [][]ratelimit.Limiter{{daily, minute}, {minute, daily}} {
		all := ratelimit.Must(ratelimit.NewAll(parts...))
		collector, err := promlimit.NewCollector(promlimit.Config{Limiters: map[string]ratelimit.Limiter{"a": all}})
		require.NoError(t, err)
		_, got := scrape(t, collector)
		require.Equal(t, "100", got[`ratelimit_limit{limiter="a",policy="api"}`])
	}
}
