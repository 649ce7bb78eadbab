package serve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
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
// is the same over HTTP, and [Service.Private] is for operators. All methods are safe for
// concurrent use.
//
// A circuit breaker stands before the store (package fallback). While that is open, requests are
// answered at once, as on_failure of their domain says. It also answers in time for the deadline of
// a call that the store does not. Make a Service by [New].
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	store    store.Store
	local    store.Store // of on_failure: local
	settled  *ratelimit.TokenBucket
	headers  *Headers // nil if there are none
	metadata bool
	shadow   bool
	topKeys  int // entries of each domain's; 0 if there are none
	log      *slog.Logger
	client   httplimit.Key // of checks
	proxies  clientip.Proxies
	family   family // nil if there is none

	joint   *joint
	breaker *fallback.Limiter // before joint
	metrics *metrics

	mu     sync.Mutex            // orders Updates, and protects what follows
	fronts map[front]store.Store // store, and what stands before it

	now atomic.Pointer[plan]
}

// plan is Rules on a store. It never changes.
type plan struct {
	*Rules
	limiters  []ratelimit.Limiter // of rules, by their index
	counters  map[string]*observe.Counters
	topKeys   map[string]*observe.TopKeys     // by domain; none without WithTopKeys
	overrides map[string][]ratelimit.Observer // by domain
}

// Headers are the names of the fields that an answer has for clients.
type Headers struct {
	Limit     string // requests per period
	Remaining string
	Reset     string // seconds
}

var usualHeaders = Headers{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

// Option is an optional setting of [New].
type Option func(*Service) error

// WithHeaders puts three fields into answers over gRPC, for the limit with the least left, or the
// one that denies longest. A name that is empty is RateLimit-Limit, RateLimit-Remaining or
// RateLimit-Reset.
func WithHeaders(names Headers) Option {
	return func(s *Service) error {
		names.Limit = cmp.Or(names.Limit, usualHeaders.Limit)
		names.Remaining = cmp.Or(names.Remaining, usualHeaders.Remaining)
		names.Reset = cmp.Or(names.Reset, usualHeaders.Reset)
		s.headers = &names
		return nil
	}
}

// WithMetadata puts the request, and the metadata of the rules that it passes, into the dynamic
// metadata of answers.
func WithMetadata() Option {
	return func(s *Service) error {
		s.metadata = true
		return nil
	}
}

// WithShadow makes each answer OK as a whole. Its statuses say what would have been.
func WithShadow() Option {
	return func(s *Service) error {
		s.shadow = true
		return nil
	}
}

// WithLogger logs to l, and not to [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return func(s *Service) error {
		if l == nil {
			return fmt.Errorf("%w: WithLogger(nil)", ratelimit.ErrInvalidOption)
		}
		s.log = l
		return nil
	}
}

// WithProxies names the proxies whose header fields are believed in a check: single addresses or networks,
// such as "10.0.0.7", or "unix" for all peers at a Unix socket. Who is inside such a network can pretend
// to be anybody. The address of a client is then that of X-Forwarded-For, read from the right. Without
// it a check sees its peer alone. A check that counts methods, paths or hosts needs [WithFields] too.
func WithProxies(proxies ...string) Option {
	return func(s *Service) (err error) {
		s.client = httplimit.ClientIP(proxies)
		if s.proxies, err = clientip.ParseProxies(proxies); err != nil {
			return fmt.Errorf("%w: %w", ratelimit.ErrInvalidOption, err)
		}
		return nil
	}
}

// WithFields names the family of header fields in which the proxies of [WithProxies] say what a client has
// asked for:
//
//	original     X-Original-Method, X-Original-URI, X-Original-Host
//	forwarded    X-Forwarded-Method, X-Forwarded-Uri, X-Forwarded-Host
//
// The other one is not read: a client may have written it. The proxies must set all fields that a check
// counts. One that is missing, is there twice or makes no sense is an invalid request.
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

// WithTopKeys finds the keys of each domain that are denied most, and that ask most, with so many
// entries, for /limits of [Service.Private]. That shows keys, which may be personal data. Entries
// are those of [observe.NewTopKeys], 16 to 65,536; 0 means 256. Of a domain they take up to 230 KB
// at 256. A decision on a limit costs some 0.3 µs more.
func WithTopKeys(entries int) Option {
	return func(s *Service) error {
		_, err := observe.NewTopKeys(entries)
		s.topKeys = cmp.Or(entries, 256)
		return err
	}
}

// New returns a service that counts on st. It asks st nothing before the first request. Its errors
// are those of options, and of [Service.Update].
func New(st store.Store, rules *Rules, opts ...Option) (*Service, error) {
	local, err := memstore.New()
	if err != nil {
		return nil, err
	}
	settled, err := newSettled(st)
	if err != nil {
		return nil, err
	}
	s := &Service{store: st, local: local, settled: settled, log: slog.Default(), client: httplimit.PeerIP(), fronts: map[front]store.Store{{}: st}}
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
	s.joint = &joint{base: time.Now()}
	s.breaker, err = fallback.New(s.joint, fallback.FailClosed(), fallback.WithOnChange(func(state fallback.State, since time.Time) {
		s.log.Warn("circuit breaker of the store", "state", state, "since", since)
	}))
	if err != nil {
		return nil, err
	}
	s.metrics = newMetrics()
	return s, s.Update(rules)
}

// Update makes all later requests follow rules. Those under way keep theirs. Keys keep their
// count when a number changes. Another algorithm or another period begins a new one.
//
// On an error nothing has changed. It is [ratelimit.ErrInvalidOption]: rules are not made by
// Parse, or have a store block and the store is in memory, or a limit cannot be leased, or a check
// needs [WithFields].
func (s *Service) Update(rules *Rules) error {
	if rules == nil || rules.domains == nil {
		return fmt.Errorf("%w: Rules are made by Parse", ratelimit.ErrInvalidOption)
	}
	if err := s.canRead(rules); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &plan{Rules: rules, counters: map[string]*observe.Counters{}, topKeys: map[string]*observe.TopKeys{}, overrides: map[string][]ratelimit.Observer{}}
	for _, r := range rules.rules {
		observers, err := s.observersOf(next, r.domain, r.path)
		if err != nil {
			return err
		}
		l, err := s.limiterOf(r, observers)
		if err != nil {
			return fmt.Errorf("%s: descriptor %s: %w", r.file, r.path, err)
		}
		next.limiters = append(next.limiters, l)
	}
	for name, d := range rules.domains {
		var err error
		if next.overrides[name], err = s.observersOf(next, d, name+" overrides"); err != nil {
			return err
		}
	}
	s.now.Store(next)
	s.metrics.inForce(nil)
	s.metrics.loadedAt.SetToCurrentTime()
	return nil
}

// observersOf are those of a limit with this name, in a plan. They go on counting.
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

// limiterOf makes the limiter of a rule. All of a domain have one name: what is counted apart has
// another key.
func (s *Service) limiterOf(r *rule, observers []ratelimit.Observer) (ratelimit.Limiter, error) {
	st, err := s.storeOf(r.domain.front)
	if err != nil {
		return nil, err
	}
	return ratelimit.New(r.algorithm, st, r.limit, ratelimit.WithName(nameOf(r.domain)), ratelimit.WithPolicyName(r.path), ratelimit.WithReserved(r.reserved), ratelimit.WithObserver(observers...))
}

// nameOf is the name of a domain's limiters, which has no braces.
func nameOf(d *domain) string { return withoutBraces.Replace(d.name) }

var withoutBraces = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// storeOf is the store with what stands before it. It stays for other rules, and so does what it
// remembers.
func (s *Service) storeOf(f front) (st store.Store, err error) {
	if st = s.fronts[f]; st != nil || f == (front{}) {
		return st, nil
	}
	if _, inMemory := s.store.(*memstore.Store); inMemory {
		return nil, fmt.Errorf("%w: store: it has no effect, since the store is in memory", ratelimit.ErrInvalidOption)
	}
	switch {
	case f.lease > 0:
		st, err = lease.New(s.store, f.lease)
	case f.coalescing:
		if st, err = s.storeOf(front{denyCache: f.denyCache}); err == nil {
			st, err = coalesce.New(st)
		}
	default:
		st, err = denycache.New(s.store)
	}
	if err == nil {
		s.fronts[f] = st
	}
	return st, err
}

// Close gives back what leases hold. Without a lease there is nothing to close.
func (s *Service) Close(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.fronts {
		if l, ok := st.(*lease.Store); ok {
			err = cmp.Or(l.Close(ctx), err)
		}
	}
	return err
}
