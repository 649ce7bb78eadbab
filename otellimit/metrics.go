package otellimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

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

const scope = "github.com/ratelimit-go/ratelimit/otellimit"

// Attributes of metrics and spans.
const (
	attrLimiter    = attribute.Key("ratelimit.limiter")
	attrOutcome    = attribute.Key("ratelimit.outcome")
	attrSource     = attribute.Key("ratelimit.source")
	attrDeniedBy   = attribute.Key("ratelimit.denied_by")
	attrHeadroom   = attribute.Key("ratelimit.headroom")
	attrRetryAfter = attribute.Key("ratelimit.retry_after")
	attrStore      = attribute.Key("ratelimit.store")
	attrState      = attribute.Key("ratelimit.breaker.state")
	attrBy         = attribute.Key("ratelimit.lease.by")
	attrFate       = attribute.Key("ratelimit.lease.fate")
	attrPolicy     = attribute.Key("ratelimit.policy")
	attrReason     = attribute.Key("ratelimit.slot.reason")
	attrPlans      = attribute.Key("ratelimit.plans")
	attrAge        = attribute.Key("ratelimit.plan.age")
	attrErrorType  = attribute.Key("error.type")
	attrSpanError  = attribute.Key("ratelimit.error.type") // the span itself may have no error
)

// Config lists what the metrics are read from. The names in it become values of attributes, so use
// few of them, and do not change them. If one of Limiters has several limits of the same name, the
// smallest is exported: give them names by [ratelimit.WithName] or [ratelimit.WithPolicyName].
type Config struct {
	Counters   []*observe.Counters               // with different names
	Fallbacks  map[string]*fallback.Limiter      // by the attribute ratelimit.limiter
	Stores     map[string]*memstore.Store        // by the attribute ratelimit.store
	Waiters    map[string]*throttle.Waiter       // by the attribute ratelimit.limiter
	Leases     map[string]*lease.Store           // by the attribute ratelimit.limiter
	Transports map[string]*httplimit.Transport   // by the attribute ratelimit.limiter
	Limiters   map[string]ratelimit.Limiter      // by the attribute ratelimit.limiter: limits that are the same for all keys
	Slots      map[string]*inflight.Counters     // by the attribute ratelimit.limiter
	Plans      map[string]func() plancache.Stats // by the attribute ratelimit.plans: the method Stats of a Cache
}

// Option configures [Register] and [Durations].
type Option func(*options) error

type options struct {
	provider metric.MeterProvider
}

// WithMeterProvider creates the instruments with p. The default is the global MeterProvider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(o *options) error {
		if p == nil {
			return fmt.Errorf("%w: WithMeterProvider(nil)", ratelimit.ErrInvalidOption)
		}
		o.provider = p
		return nil
	}
}

// Register creates instruments that read the elements of c when metrics are collected. Their scope
// is the import path of this package. To end this, call the Unregister method of the result. Call
// it before you register the same names again.
//
// By default, the SDK keeps 2,000 points of an instrument and merges all others into one with the
// attribute otel.metric.overflow. Each of the Counters has 14 points of ratelimit.decisions. For more
// than 142 Counters, create the provider with its option WithCardinalityLimit.
//
// Register returns [ratelimit.ErrInvalidOption] if an option or something in c is nil, if two
// Counters have the same name, or if a name is empty or not valid UTF-8. It also returns it if the
// limits of one of Limiters depend on the key. Errors of the provider are returned too.
func Register(c Config, opts ...Option) (metric.Registration, error) {
	c, err := c.checked()
	if err != nil {
		return nil, err
	}
	provider, err := providerOf(opts)
	if err != nil {
		return nil, err
	}
	meter := provider.Meter(scope)
	in, all, err := newInstruments(meter)
	if err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		in.observe(to, c)
		return nil
	}, all...)
}

// providerOf returns the provider that opts set, or the default.
func providerOf(opts []Option) (metric.MeterProvider, error) {
	o := options{provider: otel.GetMeterProvider()}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	return o.provider, nil
}

// checked returns a copy of c, or an error if something in c cannot be read.
func (c Config) checked() (Config, error) {
	c.Counters = slices.Clone(c.Counters)
	c.Fallbacks, c.Stores, c.Waiters, c.Leases = maps.Clone(c.Fallbacks), maps.Clone(c.Stores), maps.Clone(c.Waiters), maps.Clone(c.Leases)
	c.Transports, c.Limiters, c.Slots, c.Plans = maps.Clone(c.Transports), maps.Clone(c.Limiters), maps.Clone(c.Slots), maps.Clone(c.Plans)

	byName := make(map[string]*observe.Counters, len(c.Counters))
	for _, counters := range c.Counters {
		if counters == nil {
			return c, fmt.Errorf("%w: Counters are nil", ratelimit.ErrInvalidOption)
		}
		name := counters.Snapshot().Limiter
		if byName[name] != nil {
			return c, fmt.Errorf("%w: two Counters have the name %q", ratelimit.ErrInvalidOption, name)
		}
		byName[name] = counters
	}
	for _, err := range []error{
		check("Counters", byName, given), check("fallback", c.Fallbacks, given), check("store", c.Stores, given), check("Waiter", c.Waiters, given),
		check("lease", c.Leases, given), check("Transport", c.Transports, given), check("limiter", c.Limiters, known), check("slots", c.Slots, given),
		check("plancache", c.Plans, given),
	} {
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// check returns an error if an element of named is invalid, or its name is not a valid attribute
// value.
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

type instruments struct {
	decisions, events, deniedBy, errors, admissions, evictions    metric.Int64ObservableCounter
	leaseCalls, leaseEvents, pauses, slotEndings                  metric.Int64ObservableCounter
	planAnswers, planQueries, planFailures                        metric.Int64ObservableCounter
	breaker, keys, waiting, leaseHeld, paused, planKeys, slotHeld metric.Int64ObservableUpDownCounter
	limit                                                         metric.Int64ObservableGauge
	slotDuration                                                  metric.Float64ObservableCounter
}

// newInstruments returns the instruments, also as a list.
func newInstruments(m metric.Meter) (in *instruments, all []metric.Observable, err error) {
	counter := func(name, unit, about string) metric.Int64ObservableCounter {
		c, failed := m.Int64ObservableCounter("ratelimit."+name, metric.WithUnit(unit), metric.WithDescription(about))
		all, err = append(all, c), errors.Join(err, failed)
		return c
	}
	upDown := func(name, unit, about string) metric.Int64ObservableUpDownCounter {
		c, failed := m.Int64ObservableUpDownCounter("ratelimit."+name, metric.WithUnit(unit), metric.WithDescription(about))
		all, err = append(all, c), errors.Join(err, failed)
		return c
	}
	in = &instruments{
		decisions:  counter("decisions", "{decision}", "Calls of a limiter that were decided."),
		events:     counter("events", "{event}", "Events that the decided calls of a limiter asked for."),
		deniedBy:   counter("denied_by", "{decision}", "Calls that were denied, by the limit that denied."),
		errors:     counter("errors", "{error}", "Calls of a limiter that ended with an error."),
		admissions: counter("admissions", "{decision}", "Calls that were admitted, by the tenths of the limit that they left."),
		evictions:  counter("store.evictions", "{key}", "Keys with spend in force that a full memory has forgotten."),
		breaker:    upDown("breaker.state", "1", "1 for the current state of a fallback's circuit breaker, 0 for the others."),
		keys:       upDown("store.keys", "{key}", "Keys that a memory holds, some of them idle."),
		waiting:    upDown("waiting", "{caller}", "Callers that sleep until a limiter admits them."),
		pauses:     counter("pauses", "{pause}", "Times that a server made the requests of a client wait."),
		paused:     upDown("paused", "{key}", "Keys of a client that wait as long as their server said."),

		leaseCalls:  counter("lease.calls", "{call}", "Decisions without the store, and calls of it: with an answer, for keys that cannot be leased, without an answer."),
		leaseEvents: counter("lease.events", "{event}", "Events of leases, by what has become of them."),
		leaseHeld:   upDown("lease.held", "{event}", "Events that leases hold now."),

		slotHeld:    upDown("slot.held", "{slot}", "Slots that this process holds."),
		slotEndings: counter("slot.endings", "{slot}", "Slots by how they have ended. A lost one ends in another way later."),

		planAnswers:  counter("plan.answers", "{answer}", "Answers from memory in place of a database: fresh ones, and older ones since it failed."),
		planQueries:  counter("plan.queries", "{query}", "Queries of plans, failed ones included."),
		planFailures: counter("plan.failures", "{query}", "Queries of plans that failed."),
		planKeys:     upDown("plan.keys", "{key}", "Keys whose plans are remembered."),
	}
	limit, failed := m.Int64ObservableGauge("ratelimit.limit", metric.WithUnit("{event}"), metric.WithDescription("Events that a limit admits at one instant."))
	in.limit = limit // a gauge, because several processes share one limit
	err = errors.Join(err, failed)
	duration, failed := m.Float64ObservableCounter("ratelimit.slot.duration", metric.WithUnit("s"), metric.WithDescription("The sum of the times that slots were held which have ended."))
	in.slotDuration = duration
	return in, append(all, limit, duration), errors.Join(err, failed)
}

// observe records the current values.
func (in *instruments) observe(to metric.Observer, c Config) {
	for _, counters := range c.Counters {
		in.observeCounters(to, counters.Snapshot())
	}
	for name, f := range c.Fallbacks {
		now, _ := f.State()
		for _, state := range []fallback.State{fallback.StateClosed, fallback.StateOpen, fallback.StateHalfOpen} {
			is := int64(0)
			if state == now {
				is = 1
			}
			to.ObserveInt64(in.breaker, is, metric.WithAttributes(attrLimiter.String(name), attrState.String(state.String())))
		}
	}
	for name, s := range c.Stores {
		with := metric.WithAttributes(attrStore.String(name))
		to.ObserveInt64(in.keys, int64(s.Len()), with)
		to.ObserveInt64(in.evictions, int64(s.Evicted()), with)
	}
	for name, w := range c.Waiters {
		to.ObserveInt64(in.waiting, int64(w.Waiting()), metric.WithAttributes(attrLimiter.String(name)))
	}
	for name, t := range c.Transports {
		begun, now := t.Pauses()
		with := metric.WithAttributes(attrLimiter.String(name))
		to.ObserveInt64(in.pauses, begun, with)
		to.ObserveInt64(in.paused, int64(now), with)
	}
	for name, l := range c.Leases {
		in.observeLease(to, attrLimiter.String(name), l.Stats())
	}
	for name, l := range c.Limiters {
		for policy, quota := range limitsOf(l) {
			to.ObserveInt64(in.limit, int64(quota), metric.WithAttributes(attrLimiter.String(name), attrPolicy.String(policy)))
		}
	}
	for name, slots := range c.Slots {
		in.observeSlots(to, attrLimiter.String(name), slots.Stats())
	}
	for name, stats := range c.Plans {
		in.observePlans(to, attrPlans.String(name), stats())
	}
}

func (in *instruments) observePlans(to metric.Observer, plans attribute.KeyValue, s plancache.Stats) {
	to.ObserveInt64(in.planAnswers, s.Hits, metric.WithAttributes(plans, attrAge.String("fresh")))
	to.ObserveInt64(in.planAnswers, s.Stale, metric.WithAttributes(plans, attrAge.String("stale")))
	to.ObserveInt64(in.planQueries, s.Queries, metric.WithAttributes(plans))
	to.ObserveInt64(in.planFailures, s.Failures, metric.WithAttributes(plans))
	to.ObserveInt64(in.planKeys, int64(s.Keys), metric.WithAttributes(plans))
}

func (in *instruments) observeSlots(to metric.Observer, limiter attribute.KeyValue, s inflight.Stats) {
	endings := func(reason string, n int64) {
		to.ObserveInt64(in.slotEndings, n, metric.WithAttributes(limiter, attrReason.String(reason)))
	}
	endings("released", s.Released)
	endings("lost", s.Lost)
	endings("too_long", s.TooLong)
	endings("forgotten", s.Forgotten)
	to.ObserveInt64(in.slotHeld, s.Held, metric.WithAttributes(limiter))
	to.ObserveFloat64(in.slotDuration, s.Took.Seconds(), metric.WithAttributes(limiter))
}

func (in *instruments) observeLease(to metric.Observer, limiter attribute.KeyValue, s lease.Stats) {
	calls := func(by string, n int64) {
		to.ObserveInt64(in.leaseCalls, n, metric.WithAttributes(limiter, attrBy.String(by)))
	}
	calls("local", s.Local)
	calls("store", s.Asked-s.Unleased-s.Lost)
	calls("unleased", s.Unleased)
	calls("lost", s.Lost)
	events := func(fate string, n int64) {
		to.ObserveInt64(in.leaseEvents, n, metric.WithAttributes(limiter, attrFate.String(fate)))
	}
	events("granted", s.Granted)
	events("lapsed", s.Lapsed)
	events("given_back", s.GivenBack)
	events("overdrawn", s.Overdrawn)
	to.ObserveInt64(in.leaseHeld, int64(s.Held), metric.WithAttributes(limiter))
}

// observeCounters records the numbers of one Counters.
func (in *instruments) observeCounters(to metric.Observer, s observe.Snapshot) {
	limiter := attrLimiter.String(s.Limiter)
	asked := make(map[string]int64, 2)
	for _, d := range s.Decisions {
		to.ObserveInt64(in.decisions, d.Calls, metric.WithAttributes(limiter, attrOutcome.String(d.Outcome), attrSource.String(d.Source)))
		asked[d.Outcome] += d.Events
	}
	for outcome, n := range asked {
		to.ObserveInt64(in.events, n, metric.WithAttributes(limiter, attrOutcome.String(outcome)))
	}
	for _, d := range s.DeniedBy {
		to.ObserveInt64(in.deniedBy, d.Calls, metric.WithAttributes(limiter, attrDeniedBy.String(d.Name)))
	}
	for _, e := range s.Errors {
		to.ObserveInt64(in.errors, e.Calls, metric.WithAttributes(limiter, attrErrorType.String(e.Class)))
	}
	for tenth, n := range s.Headroom {
		to.ObserveInt64(in.admissions, n, metric.WithAttributes(limiter, attrHeadroom.Int(tenth)))
	}
}
