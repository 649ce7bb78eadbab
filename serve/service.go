package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/serve/internal/clientip"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Service decides by [Rules] on one store. It is a [pb.RateLimitServiceServer]. [Service.Handler]
// does the same over HTTP, and [Service.Private] is for operators. All methods are safe for
// concurrent use.
//
// A circuit breaker (package fallback) protects the store. While it is open, requests are answered
// immediately according to on_failure of their domain. on_failure also decides if the store does
// not answer in time for a call's deadline. On a Redis Cluster, each server has a breaker of its own.
// Use [New] to create a Service.
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	store    store.Store
	local    store.Store // for on_failure: local
	settled  *fallback.Limiter
	headers  *Headers // nil if there are none
	metadata bool
	shadow   bool
	topKeys  int // entries per domain; 0 for none
	log      *slog.Logger
	client   httplimit.Key // for checks
	proxies  clientip.Proxies
	family   family // nil if not set

	joint   *joint
	breaker *fallback.Limiter // wraps joint
	aside   *fallback.Limiter // wraps it, too: has breakers of its own, for what does not decide a request
	metrics *metrics

	nextLogged atomic.Int64 // when a failure of the store may be logged again, in ns since joint.base

	ending sync.WaitGroup // releases of leases of former rules

	mu     sync.Mutex            // serializes Updates, and protects what follows
	fronts map[front]store.Store // the caches in front of store that the rules use
	calm   context.Context       // for releases in progress
	hurry  context.CancelFunc

	now atomic.Pointer[plan]
}

// plan is Rules with their limiters. It never changes.
type plan struct {
	*Rules
	limiters  []ratelimit.Limiter    // one for each rule, by its index
	observers [][]ratelimit.Observer // those of the limiters
	counters  map[string]*observe.Counters
	topKeys   map[string]*observe.TopKeys     // by domain; empty without WithTopKeys
	overrides map[string][]ratelimit.Observer // by domain
}

// Headers are the names of the header fields for clients in a response.
type Headers struct {
	Limit     string // requests per period
	Remaining string
	Reset     string // seconds
}

var usualHeaders = Headers{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

// Option configures a [Service].
type Option func(*Service) error

// WithHeaders adds three header fields to responses over gRPC, for the limit with the fewest events
// left or, in a denial, the one that denies longest. If a name is empty, it is RateLimit-Limit,
// RateLimit-Remaining or RateLimit-Reset. Over HTTP, the fields always have these names.
func WithHeaders(names Headers) Option {
	return func(s *Service) error {
		names.Limit = cmp.Or(names.Limit, usualHeaders.Limit)
		names.Remaining = cmp.Or(names.Remaining, usualHeaders.Remaining)
		names.Reset = cmp.Or(names.Reset, usualHeaders.Reset)
		seen := map[string]bool{}
		for _, name := range []string{names.Limit, names.Remaining, names.Reset} {
			lower := strings.ToLower(name)
			if !validField(name) || seen[lower] {
				return fmt.Errorf("%w: WithHeaders: %s: want three different names of header fields, of letters, digits, - and _", ratelimit.ErrInvalidOption, quote(name))
			}
			seen[lower] = true
		}
		s.headers = &names
		return nil
	}
}

// WithMetadata adds the request, and the metadata of the rules that it passes, to the dynamic
// metadata of responses.
func WithMetadata() Option {
	return func(s *Service) error {
		s.metadata = true
		return nil
	}
}

// WithShadow makes the overall answer always OK. The statuses show what would have been decided.
func WithShadow() Option {
	return func(s *Service) error {
		s.shadow = true
		return nil
	}
}

// WithLogger logs to l instead of [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return func(s *Service) error {
		if l == nil {
			return fmt.Errorf("%w: WithLogger(nil)", ratelimit.ErrInvalidOption)
		}
		s.log = l
		return nil
	}
}

// WithProxies sets the proxies whose header fields are trusted in a check: single addresses or
// networks, such as "10.0.0.7", or "unix" for all peers on a Unix socket. A client inside a trusted
// network can pretend to be anybody. With it, a client's address is taken from X-Forwarded-For,
// read from the right. Without it, the address in a check is that of the peer. A check that counts
// methods, paths or hosts also needs [WithFields].
func WithProxies(proxies ...string) Option {
	return func(s *Service) (err error) {
		s.client = httplimit.ClientIP(proxies)
		if s.proxies, err = clientip.ParseProxies(proxies); err != nil {
			return fmt.Errorf("%w: %w", ratelimit.ErrInvalidOption, err)
		}
		return nil
	}
}

// WithFields sets the family of header fields in which the proxies of [WithProxies] report what a
// client has requested:
//
//	original     X-Original-Method, X-Original-URI, X-Original-Host
//	forwarded    X-Forwarded-Method, X-Forwarded-Uri, X-Forwarded-Host
//
// The other family is not read, because a client may have written it. The proxies must set all
// fields that a check counts. If a field is missing, repeated or malformed, the request is invalid.
func WithFields(family string) Option {
	return func(s *Service) error {
		switch family {
		case "original":
			s.family = original
		case "forwarded":
			s.family = forwarded
		default:
			return fmt.Errorf("%w: fields %s: want original or forwarded", ratelimit.ErrInvalidOption, quote(family))
		}
		return nil
	}
}

// WithTopKeys tracks the keys of each domain that are denied most and that ask most, and shows them
// at /limits of [Service.Private]. Keys may be personal data. entries is as for
// [observe.NewTopKeys], 16 to 65,536, and 0 means 256. With 256 entries, each domain takes up to
// 230 KB. A decision by a limit takes about 0.3 µs longer.
func WithTopKeys(entries int) Option {
	return func(s *Service) error {
		_, err := observe.NewTopKeys(entries)
		s.topKeys = cmp.Or(entries, 256)
		return err
	}
}

// New returns a service that counts on st. It does not use st before the first request. Its errors
// are those of the options and of [Service.Update].
func New(st store.Store, rules *Rules, opts ...Option) (*Service, error) {
	local, err := memstore.New()
	if err != nil {
		return nil, err
	}
	settled, err := newSettled(st)
	if err != nil {
		return nil, err
	}
	s := &Service{store: st, local: local, settled: settled, log: slog.Default(), client: httplimit.PeerIP()}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	if s.family != nil && s.proxies.None() {
		return nil, fmt.Errorf("%w: WithFields has no effect without WithProxies", ratelimit.ErrInvalidOption)
	}
	s.joint = newJoint(st)
	s.calm, s.hurry = context.WithCancel(context.Background())
	s.breaker, err = fallback.New(s.joint.limiter(), fallback.FailClosed(), fallback.WithOnChange(func(state fallback.State, since time.Time) {
		s.log.Warn("the circuit breaker of the store has changed", "state", state, "since", since)
	}))
	if err != nil {
		return nil, err
	}
	if s.aside, err = fallback.New(s.joint.limiter(), fallback.FailClosed()); err != nil {
		return nil, err
	}
	s.metrics = newMetrics()
	return s, s.Update(rules)
}

// Update makes all later requests follow rules. Requests in progress keep the previous rules. Keys
// keep their counts if a number changes. Another algorithm or another period begins a new count.
//
// The caches of a store block that rules do not have are dropped, and their leases are released. Only
// Close waits for that. If it fails, the leased events stay charged, as after a crash.
//
// It returns [ratelimit.ErrInvalidOption] if rules were not made by Parse, if they have a store
// block and the store is in memory, if a limit cannot be leased, or if a check needs [WithFields].
// If there is an error, nothing has changed.
func (s *Service) Update(rules *Rules) error {
	if rules == nil || rules.domains == nil {
		return fmt.Errorf("%w: the Rules were not made by Parse", ratelimit.ErrInvalidOption)
	}
	if err := s.canRead(rules); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fronts := map[front]store.Store{}
	next := &plan{Rules: rules, counters: map[string]*observe.Counters{}, topKeys: map[string]*observe.TopKeys{}, overrides: map[string][]ratelimit.Observer{}}
	for _, r := range rules.rules {
		observers, err := s.observersOf(next, r.domain, r.path)
		if err != nil {
			return err
		}
		l, err := s.limiterOf(r, fronts, observers)
		if err != nil {
			return fmt.Errorf("%s: descriptor %s: %w", r.file, r.path, err)
		}
		next.limiters, next.observers = append(next.limiters, l), append(next.observers, observers)
	}
	for name, d := range rules.domains {
		var err error
		if next.overrides[name], err = s.observersOf(next, d, overridesOf(name)); err != nil {
			return err
		}
	}
	before := s.now.Swap(next)
	s.tellOfGone(before, next)
	s.metrics.inForce(nil)
	s.metrics.loadedAt.SetToCurrentTime()
	dropped := s.fronts
	s.fronts = fronts
	maps.DeleteFunc(dropped, func(f front, _ store.Store) bool { return fronts[f] != nil })
	s.drop(dropped)
	return nil
}

// releaseWithin is how long the release of leases of former rules is tried. As many as a lease keeps take 41 s on a
// store that is 20 ms away.
const releaseWithin = time.Minute

// drop releases the leases of former rules. A store that hangs must not delay the next Update, or metrics.
func (s *Service) drop(fronts map[front]store.Store) {
	ctx, cancel := context.WithTimeout(s.calm, releaseWithin)
	s.ending.Go(func() {
		defer cancel()
		if err := release(ctx, fronts); err != nil { // then they expire
			s.log.Warn("the leases of a former store block could not be released", "error", err)
		}
	})
}

// observersOf returns the observers of a limit with this name in a plan. They continue to count
// after an Update.
func (s *Service) observersOf(next *plan, d *domain, name string) ([]ratelimit.Observer, error) {
	before := cmp.Or(s.now.Load(), new(plan))
	c := cmp.Or(next.counters[name], before.counters[name])
	if c == nil {
		c = observe.NewCounters(name)
	}
	next.counters[name] = c
	if s.topKeys == 0 {
		return []ratelimit.Observer{c}, nil
	}
	top := cmp.Or(next.topKeys[d.name], before.topKeys[d.name])
	if top == nil {
		var err error
		if top, err = observe.NewTopKeys(s.topKeys, observe.WithAskers()); err != nil {
			return nil, err
		}
	}
	next.topKeys[d.name] = top
	return []ratelimit.Observer{c, top}, nil
}

// limiterOf makes the limiter of a rule. All limiters of a domain have the same name, because
// separate counts have different keys.
func (s *Service) limiterOf(r *rule, fronts map[front]store.Store, observers []ratelimit.Observer) (ratelimit.Limiter, error) {
	st, err := s.storeOf(fronts, r.domain.front)
	if err != nil {
		return nil, err
	}
	return ratelimit.New(r.algorithm, st, r.limit, ratelimit.WithName(nameOf(r.domain)), ratelimit.WithPolicyName(r.path), ratelimit.WithReserved(r.reserved), ratelimit.WithObserver(observers...))
}

// nameOf returns the name of a domain's limiters, which has no braces.
func nameOf(d *domain) string { return withoutBraces.Replace(d.name) }

var withoutBraces = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// storeOf returns the store with the caches of f in front of it, and adds them to fronts. The caches
// of the rules in force are used again, with everything they remember.
func (s *Service) storeOf(fronts map[front]store.Store, f front) (st store.Store, err error) {
	if f == (front{}) {
		return s.store, nil
	}
	if st = fronts[f]; st != nil {
		return st, nil
	}
	behind := s.store
	if f.coalescing {
		if behind, err = s.storeOf(fronts, front{denyCache: f.denyCache}); err != nil {
			return nil, err
		}
	}
	_, inMemory := s.store.(*memstore.Store)
	switch st = s.fronts[f]; {
	case st != nil:
	case inMemory:
		err = fmt.Errorf("%w: store: it has no effect, because the store is in memory: remove it", ratelimit.ErrInvalidOption)
	case f.lease > 0:
		st, err = lease.New(behind, f.lease)
	case f.coalescing:
		st, err = coalesce.New(behind)
	default:
		st, err = denycache.New(behind)
	}
	if err != nil {
		return nil, err
	}
	fronts[f] = st
	return st, nil
}

// Close releases all leases. Without a lease there is nothing to close.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stop := context.AfterFunc(ctx, s.hurry) // leases of former rules have no more time than the others
	s.ending.Wait()
	if !stop() {
		s.calm, s.hurry = context.WithCancel(context.Background())
	}
	return release(ctx, s.fronts)
}

// release releases the leases of fronts. Calls that still use them ask the store.
func release(ctx context.Context, fronts map[front]store.Store) (err error) {
	for _, st := range fronts {
		if l, ok := st.(*lease.Store); ok {
			err = cmp.Or(l.Close(ctx), err)
		}
	}
	return err
}
