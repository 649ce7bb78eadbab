package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/otellimit"
	"github.com/ratelimit-go/ratelimit/plancache"
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

// service is a program with everything that can be read.
type service struct {
	stats   lease.Stats // of the leased limiter
	store   *failing
	limiter ratelimit.Limiter // an observed fallback around two limits that are observed too
	config  otellimit.Config
}

func newService(t testing.TB) *service {
	t.Helper()
	memory, err := memstore.New(memstore.WithMaxKeys(20))
	require.NoError(t, err)
	s := &service{store: &failing{Store: memory}}
	burst, err := ratelimit.NewTokenBucket(s.store, ratelimit.Limit{Rate: 100, Period: time.Hour, Burst: 4}, ratelimit.WithName("burst"))
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(s.store, ratelimit.PerDay(1000), ratelimit.WithName("daily"))
	require.NoError(t, err)
	all, err := ratelimit.NewAll(burst, daily)
	require.NoError(t, err)
	inside, outside := observe.NewCounters("api/store"), observe.NewCounters("api")
	f, err := fallback.New(observed(t, all, inside), fallback.FailOpen())
	require.NoError(t, err)
	waiter, err := throttle.NewWaiter(burst, time.Minute)
	require.NoError(t, err)
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
	s.limiter = observed(t, f, outside, otellimit.Spans("api"))
	s.config = otellimit.Config{
		Counters:  []*observe.Counters{inside, outside},
		Fallbacks: map[string]*fallback.Limiter{"api": f},
		Stores:    map[string]*memstore.Store{"memory": memory},
		Waiters:   map[string]*throttle.Waiter{"jobs": waiter},
		Leases:    map[string]*lease.Store{"fleet": leased},

		Transports: map[string]*httplimit.Transport{"partner": pausing(t)},
		Limiters:   map[string]ratelimit.Limiter{"api": s.limiter},
		Plans:      map[string]func() plancache.Stats{"plans": planned(t).Stats},
	}
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

func observed(t testing.TB, l ratelimit.Limiter, observers ...ratelimit.Observer) ratelimit.Limiter {
	t.Helper()
	l, err := observe.Around(l, observers...)
	require.NoError(t, err)
	return l
}

// traffic makes 10 admissions and 5 denials by the store, and 5 errors that open the breaker.
func (s *service) traffic(t testing.TB) {
	t.Helper()
	ask := func(key, n int, allowed bool) {
		r, err := s.limiter.AllowN(t.Context(), fmt.Sprint("key ", key), n)
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
}

// register registers c with a reader of its own.
func register(t testing.TB, c otellimit.Config) (*metric.ManualReader, interface{ Unregister() error }) {
	t.Helper()
	reader := metric.NewManualReader()
	registration, err := otellimit.Register(c, otellimit.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	require.NoError(t, err)
	return reader, registration
}

// collect returns what reader reads, by the name of the metric and its attributes.
func collect(t testing.TB, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	all := make(map[string]int64)
	for _, scope := range data.ScopeMetrics {
		require.Equal(t, "github.com/ratelimit-go/ratelimit/otellimit", scope.Scope.Name)
		for _, m := range scope.Metrics {
			require.NotEmpty(t, m.Unit, m.Name)
			require.NotEmpty(t, m.Description, m.Name)
			for _, point := range points(m.Data) {
				name := m.Name + "{" + point.Attributes.Encoded(attribute.DefaultEncoder()) + "}"
				require.NotContains(t, all, name)
				all[strings.ReplaceAll(name, "ratelimit.", "")] = point.Value
			}
		}
	}
	return all
}

// points returns the data points of counters, or of a gauge. Seconds are rounded down.
func points(data metricdata.Aggregation) (all []metricdata.DataPoint[int64]) {
	switch data := data.(type) {
	case metricdata.Gauge[int64]:
		return data.DataPoints
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			all = append(all, metricdata.DataPoint[int64]{Attributes: p.Attributes, Value: int64(p.Value)})
		}
		return all
	}
	return data.(metricdata.Sum[int64]).DataPoints
}

func TestMetricsSayWhatIsCounted(t *testing.T) {
	s := newService(t)
	reader, _ := register(t, s.config)
	s.traffic(t)
	got := collect(t, reader)
	for name, want := range map[string]int64{
		"decisions{limiter=api,outcome=allowed,source=store}":       10,
		"decisions{limiter=api,outcome=allowed,source=fail_open}":   5,
		"decisions{limiter=api,outcome=denied,source=store}":        5,
		"decisions{limiter=api,outcome=denied,source=fail_closed}":  0,
		"decisions{limiter=api/store,outcome=allowed,source=store}": 10,
		"events{limiter=api,outcome=allowed}":                       25,
		"events{limiter=api,outcome=denied}":                        25,
		"denied_by{denied_by=burst,limiter=api}":                    5,
		"errors{error.type=unavailable,limiter=api/store}":          5,
		"errors{error.type=unavailable,limiter=api}":                0,
		"admissions{headroom=5,limiter=api}":                        10,
		"admissions{headroom=0,limiter=api}":                        0,
		"admissions{headroom=10,limiter=api}":                       0,
		"breaker.state{breaker.state=open,limiter=api}":             1,
		"breaker.state{breaker.state=closed,limiter=api}":           0,
		"breaker.state{breaker.state=half_open,limiter=api}":        0,
		"store.keys{store=memory}":                                  20,
		"store.evictions{store=memory}":                             0,
		"waiting{limiter=jobs}":                                     0,
		"lease.calls{lease.by=local,limiter=fleet}":                 s.stats.Local,
		"lease.calls{lease.by=store,limiter=fleet}":                 s.stats.Asked - 2,
		"lease.calls{lease.by=unleased,limiter=fleet}":              2,
		"lease.calls{lease.by=lost,limiter=fleet}":                  0,
		"lease.events{lease.fate=granted,limiter=fleet}":            s.stats.Granted,
		"lease.events{lease.fate=overdrawn,limiter=fleet}":          0,
		"pauses{limiter=partner}":                                   1,
		"paused{limiter=partner}":                                   1,
		"limit{limiter=api,policy=burst}":                           4,
		"limit{limiter=api,policy=daily}":                           1000,
		"plan.answers{plan.age=fresh,plans=plans}":                  2,
		"plan.answers{plan.age=stale,plans=plans}":                  0,
		"plan.queries{plans=plans}":                                 2,
		"plan.failures{plans=plans}":                                1,
		"plan.keys{plans=plans}":                                    2,
		"lease.held{limiter=fleet}":                                 int64(s.stats.Held),
	} {
		require.Contains(t, got, name)
		require.Equal(t, want, got[name], name)
	}
}

func TestWaitingCallersAndForgottenKeysAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New(memstore.WithMaxKeys(2))
		require.NoError(t, err)
		bucket, err := ratelimit.NewTokenBucket(memory, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1})
		require.NoError(t, err)
		waiter, err := throttle.NewWaiter(bucket, time.Minute)
		require.NoError(t, err)
		reader, _ := register(t, otellimit.Config{
			Stores:  map[string]*memstore.Store{"memory": memory},
			Waiters: map[string]*throttle.Waiter{"jobs": waiter},
		})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _ = waiter.Allow(t.Context(), "key") })
		}
		synctest.Wait()
		require.EqualValues(t, 3, collect(t, reader)["waiting{limiter=jobs}"])
		wg.Wait()
		require.Zero(t, collect(t, reader)["waiting{limiter=jobs}"])

		for i := range 10 {
			_, err := bucket.Allow(t.Context(), fmt.Sprint("key ", i))
			require.NoError(t, err)
		}
		require.EqualValues(t, 2, collect(t, reader)["store.keys{store=memory}"])
		require.NotZero(t, memory.Evicted())
		require.EqualValues(t, memory.Evicted(), collect(t, reader)["store.evictions{store=memory}"])
	})
}

func TestSlotsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New()
		require.NoError(t, err)
		atOnce, err := inflight.New(memory, 9, time.Minute)
		require.NoError(t, err)
		counters := new(inflight.Counters)
		reader, _ := register(t, otellimit.Config{Slots: map[string]*inflight.Counters{"exports": counters}})
		var slots []*inflight.Slot
		for _, longest := range []time.Duration{time.Hour, time.Hour, 2 * time.Second} {
			slot, _, err := inflight.Hold(t.Context(), atOnce, "key", 1, inflight.CountIn(counters), inflight.Longest(longest))
			require.NoError(t, err)
			slots = append(slots, slot)
		}
		time.Sleep(3 * time.Second)
		slots[0].Release()
		require.Equal(t, map[string]int64{
			"slot.held{limiter=exports}":                          1,
			"slot.endings{limiter=exports,slot.reason=released}":  1,
			"slot.endings{limiter=exports,slot.reason=too_long}":  1,
			"slot.endings{limiter=exports,slot.reason=lost}":      0,
			"slot.endings{limiter=exports,slot.reason=forgotten}": 0,
			"slot.duration{limiter=exports}":                      5,
		}, collect(t, reader))
		slots[1].Release()
	})
}

func TestTheTimeSpentWaitingIsAHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New()
		require.NoError(t, err)
		bucket, err := ratelimit.NewTokenBucket(memory, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1})
		require.NoError(t, err)
		waiter, err := throttle.NewWaiter(bucket, time.Minute)
		require.NoError(t, err)
		reader := metric.NewManualReader()
		durations, err := otellimit.Durations("jobs", otellimit.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
		require.NoError(t, err)
		durations.Decided(t.Context(), "key", 1, ratelimit.Result{}, nil, 0) // as by WithObserver
		limiter := observed(t, waiter, durations)
		for range 3 {
			r, err := limiter.Allow(t.Context(), "key")
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &all))
		m := all.ScopeMetrics[0].Metrics[0]
		require.Equal(t, "ratelimit.decision.duration", m.Name)
		require.Equal(t, "s", m.Unit)
		points := m.Data.(metricdata.Histogram[float64]).DataPoints
		require.Len(t, points, 1)
		require.EqualValues(t, 3, points[0].Count, "also one that took no time")
		require.InDelta(t, 2, points[0].Sum, 0.001, "a second each")
		require.Contains(t, points[0].Bounds, 30.0)

		durations.Decided(t.Context(), "key", 1, ratelimit.Result{}, nil, 1)
		durations.Decided(t.Context(), "key", 1, ratelimit.Result{}, ratelimit.ErrStore, 1)
		require.NoError(t, reader.Collect(t.Context(), &all))
		var outcomes []string
		for _, p := range all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Histogram[float64]).DataPoints {
			outcome, _ := p.Attributes.Value("ratelimit.outcome")
			outcomes = append(outcomes, outcome.AsString())
		}
		require.ElementsMatch(t, []string{"allowed", "denied", "error"}, outcomes)
	})
	for _, name := range []string{"", "\xff"} {
		_, err := otellimit.Durations(name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err := otellimit.Durations("jobs", nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

func TestUnregisterEndsTheReading(t *testing.T) {
	s := newService(t)
	reader, registration := register(t, s.config)
	require.NotEmpty(t, collect(t, reader))
	require.NoError(t, registration.Unregister())
	require.NoError(t, registration.Unregister())
	require.Empty(t, collect(t, reader))
}

func TestTheProviderIsTheGlobalOneUnlessGiven(t *testing.T) {
	before := otel.GetMeterProvider()
	defer otel.SetMeterProvider(before)
	reader := metric.NewManualReader()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	_, err := otellimit.Register(newService(t).config)
	require.NoError(t, err)
	require.NotEmpty(t, collect(t, reader))

	otel.SetMeterProvider(noop.NewMeterProvider())
	_, err = otellimit.Register(newService(t).config)
	require.NoError(t, err)
}

func TestConfigsThatCannotBeReadAreRefused(t *testing.T) {
	counters := func(names ...string) (c []*observe.Counters) {
		for _, name := range names {
			c = append(c, observe.NewCounters(name))
		}
		return c
	}
	for name, c := range map[string]otellimit.Config{
		"twins":          {Counters: counters("a", "b", "a")},
		"nil":            {Counters: []*observe.Counters{nil}},
		"no name":        {Counters: counters("")},
		"no UTF-8":       {Counters: counters("\xff")},
		"no fallback":    {Fallbacks: map[string]*fallback.Limiter{"a": nil}},
		"no limiter":     {Limiters: map[string]ratelimit.Limiter{"a": nil}},
		"a nil limiter":  {Limiters: map[string]ratelimit.Limiter{"a": (*ratelimit.TokenBucket)(nil)}},
		"no limit":       {Limiters: map[string]ratelimit.Limiter{"a": ratelimittest.Static(ratelimit.Result{}, nil)}},
		"no slots":       {Slots: map[string]*inflight.Counters{"a": nil}},
		"nameless slots": {Slots: map[string]*inflight.Counters{"": new(inflight.Counters)}},
		"no plans":       {Plans: map[string]func() plancache.Stats{"a": nil}},
		"nameless plans": {Plans: map[string]func() plancache.Stats{"": planned(t).Stats}},
		"no client":      {Transports: map[string]*httplimit.Transport{"a": nil}},
		"no store":       {Stores: map[string]*memstore.Store{"a": nil}},
		"nameless":       {Stores: map[string]*memstore.Store{"": new(memstore.Store)}},
		"no lease":       {Leases: map[string]*lease.Store{"a": nil}},
		"no waiter":      {Waiters: map[string]*throttle.Waiter{"a": nil}},
	} {
		_, err := otellimit.Register(c)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, name)
	}
	for _, opt := range []otellimit.Option{nil, otellimit.WithMeterProvider(nil)} {
		_, err := otellimit.Register(otellimit.Config{}, opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
	_, err := otellimit.Register(otellimit.Config{})
	require.NoError(t, err)
}

func TestTheConfigCanBeUsedAgain(t *testing.T) {
	config := otellimit.Config{Counters: []*observe.Counters{observe.NewCounters("a")}, Stores: map[string]*memstore.Store{}}
	reader, _ := register(t, config)
	before := collect(t, reader)
	config.Counters[0] = nil
	config.Stores["new"] = nil
	require.Equal(t, before, collect(t, reader))
}

func TestMetricsWhileDecisionsAreUnderWay(t *testing.T) {
	s := newService(t)
	reader, _ := register(t, s.config)
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
				}
			}
		})
	}
	before := make(map[string]int64)
	for range 100 {
		now := collect(t, reader)
		for name, n := range now {
			if strings.HasPrefix(name, "decisions") {
				require.GreaterOrEqual(t, n, before[name], name)
			}
		}
		before = now
	}
	close(done)
	wg.Wait()
	require.NotEmpty(t, before)
}

// spanned returns the attributes of a span in which do has run.
func spanned(t *testing.T, do func(context.Context)) map[string]any {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "span")
	do(ctx)
	span.End()
	require.Len(t, recorder.Ended(), 1, "no span of its own")
	all := make(map[string]any)
	for _, a := range recorder.Ended()[0].Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func TestASpanSaysWhatWasDecided(t *testing.T) {
	s := newService(t)
	ask := func(n int) map[string]any {
		return spanned(t, func(ctx context.Context) { _, _ = s.limiter.AllowN(ctx, "key", n) })
	}
	require.Equal(t, map[string]any{
		"ratelimit.limiter": "api", "ratelimit.outcome": "allowed", "ratelimit.source": "store",
	}, ask(4))
	denied := ask(1)
	require.InDelta(t, 36, denied["ratelimit.retry_after"], 1)
	delete(denied, "ratelimit.retry_after")
	require.Equal(t, map[string]any{
		"ratelimit.limiter": "api", "ratelimit.outcome": "denied", "ratelimit.source": "store", "ratelimit.denied_by": "burst",
	}, denied)
	require.NotContains(t, ask(5), "ratelimit.retry_after", "never")
	require.Equal(t, map[string]any{
		"ratelimit.limiter": "api", "ratelimit.outcome": "error", "ratelimit.error.type": "invalid",
	}, ask(0))
	s.store.down.Store(true)
	require.Equal(t, map[string]any{
		"ratelimit.limiter": "api", "ratelimit.outcome": "allowed", "ratelimit.source": "fail_open",
	}, ask(1))
}

func TestNamesNeedNotBeUTF8(t *testing.T) {
	memory, err := memstore.New()
	require.NoError(t, err)
	daily, err := ratelimit.NewFixedWindow(memory, ratelimit.PerDay(1))
	require.NoError(t, err)
	counters := observe.NewCounters("api")
	counters.Expect("\xff", `"\xff"`, "caf\xe9")
	limiter := observed(t, daily, counters, otellimit.Spans("\xff"))
	said := spanned(t, func(ctx context.Context) { _, _ = limiter.Allow(ctx, "key") })
	require.Equal(t, `"\xff"`, said["ratelimit.limiter"])
	reader, _ := register(t, otellimit.Config{Counters: []*observe.Counters{counters}})
	require.Contains(t, collect(t, reader), `denied_by{denied_by="caf\\xe9",limiter=api}`)
}

func TestASpanThatDoesNotRecordCostsNoAllocation(t *testing.T) {
	spans := otellimit.Spans("api")
	_, unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test").Start(t.Context(), "span")
	for _, ctx := range []context.Context{t.Context(), trace.ContextWithSpan(t.Context(), unsampled)} {
		for _, err := range []error{nil, errors.New("failed")} {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				spans.Decided(ctx, "key", 1, ratelimit.Result{}, err, 0)
			}))
		}
	}
}

// BenchmarkSpans measures Spans alone, with several contexts.
//
//	go test -run '^$' -bench . -benchmem
func BenchmarkSpans(b *testing.B) {
	recording := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()))
	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	start := func(p *sdktrace.TracerProvider) context.Context {
		ctx, _ := p.Tracer("bench").Start(b.Context(), "span")
		return ctx
	}
	for _, c := range []struct {
		name string
		ctx  context.Context
	}{{"no span", b.Context()}, {"not recording", start(unsampled)}, {"recording", start(recording)}} {
		b.Run(c.name, func(b *testing.B) {
			spans := otellimit.Spans("api")
			for b.Loop() {
				spans.Decided(c.ctx, "key", 1, ratelimit.Result{Allowed: true}, nil, 0)
			}
		})
	}
}

// BenchmarkCollect measures a collection, for several numbers of limiters.
func BenchmarkCollect(b *testing.B) {
	for _, limiters := range []int{1, 10, 100} {
		b.Run(fmt.Sprint("limiters=", limiters), func(b *testing.B) {
			var config otellimit.Config
			for i := range limiters {
				config.Counters = append(config.Counters, observe.NewCounters(fmt.Sprint("limiter ", i)))
			}
			reader, _ := register(b, config)
			var data metricdata.ResourceMetrics
			for b.Loop() {
				if err := reader.Collect(b.Context(), &data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// foreign is a limiter of another package, whose policy has a name that is not UTF-8.
type foreign struct{ ratelimit.Limiter }

func (foreign) AppendPolicies(_ context.Context, dst []ratelimit.Policy, _ string) ([]ratelimit.Policy, error) {
	return append(dst, ratelimit.Policy{Name: "caf\xe9", Quota: 1}), nil
}

// An exporter drops all spans of a batch if an attribute is not UTF-8.
func TestTheNameOfALimitThatDeniesIsUTF8(t *testing.T) {
	day := ratelimit.Must(ratelimit.NewFixedWindow(ratelimit.Must(memstore.New()), ratelimit.PerDay(1)))
	denies := foreign{ratelimittest.Static(ratelimit.Result{RetryAfter: 1}, nil)}
	all := ratelimit.Must(ratelimit.NewAll(day, denies))
	l := ratelimit.Must(observe.Around(all, otellimit.Spans("api")))
	said := spanned(t, func(ctx context.Context) { _, _ = l.Allow(ctx, "key") })
	name, _ := said["ratelimit.denied_by"].(string)
	require.Equal(t, `"caf\xe9"`, name)
}

// In any order, so that both exporters show the same.
func TestOfLimitsOfOneNameTheSmallestIsShown(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	daily := ratelimit.Must(ratelimit.NewFixedWindow(mem, ratelimit.PerDay(5000), ratelimit.WithName("api")))
	minute := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(100), ratelimit.WithName("api")))
	for _, parts := range [][]ratelimit.Limiter{{daily, minute}, {minute, daily}} {
		all := ratelimit.Must(ratelimit.NewAll(parts...))
		reader, _ := register(t, otellimit.Config{Limiters: map[string]ratelimit.Limiter{"a": all}})
		require.Contains(t, slices.Collect(maps.Values(collect(t, reader))), int64(100))
	}
}
