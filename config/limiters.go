package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/internal/yamltree"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/coalesce"
	"github.com/ratelimit-go/ratelimit/store/denycache"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// Limiters are the limiters of a text, on one store. They follow the text given to
// [Limiters.Update]. All methods are safe for concurrent use. There is no goroutine and nothing
// to close, unless a limiter has a lease: see [Limiters.Close]. Make them by [Config.Build].
type Limiters struct {
	store  store.Store
	local  store.Store // of local limiters
	tierOf func(ctx context.Context, key string) (string, error)

	ending sync.WaitGroup // leases of former texts are given back

	mu     sync.Mutex      // protects what follows, and orders Updates
	calm   context.Context // of those that are ending; nil at first
	hurry  context.CancelFunc
	index  map[string]int // in now, of all names there ever were
	taken  map[string]ratelimit.Limiter
	fronts map[front]store.Store // store, and what stands before it; of leases those in use

	// now is what every decision reads, so that a text takes effect on all limiters at
	// one instant. A name that is not in the text has nil there.
	now atomic.Pointer[[]*stack]
}

// Option configures [Limiters].
type Option func(*Limiters) error

// WithTierFunc asks f for the tier of a key, on each call of a limiter with tiers. A tier
// that the text does not list has the limiter's own limit, and so has "". An error of f is
// returned as it is, and nothing is consumed. The function must be safe for concurrent use.
func WithTierFunc(f func(ctx context.Context, key string) (string, error)) Option {
	return func(ls *Limiters) error {
		if f == nil {
			return fmt.Errorf("%w: WithTierFunc(nil)", ratelimit.ErrInvalidOption)
		}
		ls.tierOf = f
		return nil
	}
}

// Build makes the limiters of c on s. What local limiters count while s fails is kept in
// memory: see [memstore.New] for its bounds.
//
// Errors wrap [ratelimit.ErrInvalidOption]: s or an option is nil, c is not made by Parse,
// there are tiers but no [WithTierFunc], or a limiter has a store block and s is in memory.
func (c *Config) Build(s store.Store, opts ...Option) (*Limiters, error) {
	local, err := memstore.New()
	if err != nil {
		return nil, err
	}
	fronts, err := newFronts(s)
	if err != nil {
		return nil, err
	}
	ls := &Limiters{store: s, fronts: fronts, local: local, index: map[string]int{}, taken: map[string]ratelimit.Limiter{}}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(ls); err != nil {
			return nil, err
		}
	}
	ls.now.Store(new([]*stack))
	if err := ls.Update(c); err != nil {
		return nil, err
	}
	return ls, nil
}

// front says what stands before the store: a lease, or any of the others.
type front struct {
	denyCache, coalescing bool
	lease                 time.Duration // 0 is none
}

// newFronts makes what can stand before s, without leases. It stays, and so does what it remembers.
func newFronts(s store.Store) (map[front]store.Store, error) {
	cached, err := denycache.New(s)
	if err != nil {
		return nil, err
	}
	fronts := map[front]store.Store{{}: s, {denyCache: true}: cached}
	for _, cache := range []bool{false, true} {
		if fronts[front{denyCache: cache, coalescing: true}], err = coalesce.New(fronts[front{denyCache: cache}]); err != nil {
			return nil, err
		}
	}
	return fronts, nil
}

// storeOf is the store with what stands before it.
func (ls *Limiters) storeOf(f front) (s store.Store, err error) {
	if ls.fronts[f] == nil {
		if ls.fronts[f], err = lease.New(ls.store, f.lease); err != nil {
			delete(ls.fronts, f)
		}
	}
	return ls.fronts[f], err
}

var errNotBuilt = fmt.Errorf("%w: Limiters are made by Build", ratelimit.ErrInvalidOption)

// Names returns the names of the limiters, sorted.
func (ls *Limiters) Names() []string {
	if ls == nil {
		return nil
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var names []string
	for name, i := range ls.index {
		if (*ls.now.Load())[i] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Limiter returns the limiter of this name, which is also a [ratelimit.PolicyAppender]. It is
// always the same one, and follows all Updates. Ask once, not for each decision: it takes a
// lock. Without such a name the error is [ratelimit.ErrInvalidOption].
//
// [ratelimit.NewAll] cannot decide it together with others at one instant, and asks one
// after the other. Limits that belong together are better listed under limits.
func (ls *Limiters) Limiter(name string) (ratelimit.Limiter, error) {
	if ls == nil || ls.now.Load() == nil {
		return nil, errNotBuilt
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	i, found := ls.index[name]
	if !found || (*ls.now.Load())[i] == nil {
		return nil, fmt.Errorf("%w: the configuration has no limiter %s", ratelimit.ErrInvalidOption, yamltree.Quote(name))
	}
	if ls.taken[name] == nil {
		ls.taken[name] = &limiter{follower{ls, i, (*stack).whole}}
	}
	return ls.taken[name], nil
}

// Update replaces all limits by those of c, at one instant. Each decision follows one text or
// the other, and no call waits for it. The limiters that [Limiters.Limiter] has returned
// follow.
//
// Keys keep their spend when a rate, a burst, tiers, instances, on_failure or store change. It
// is read as at most the new capacity. What a lease holds that is no longer in the text is
// given back. When limits come or go, they keep that of each Period that remains. Slots stay held.
//
// Another algorithm or another Period of a limit begins a new count. So each key may spend one
// capacity more at that moment. Processes that share a store count apart until the last has
// updated. Unlimited is a Period of its own: a limit
// that changes back from it finds its former count, as far as it still counts.
//
// A Refund of a Result from before gives back to the counts that were charged. A Reset reaches
// those of all texts so far, with a call of the store for each. What on_failure: local has
// admitted in an outage is charged to the store under the next text too. Until then its key
// stays with local.
//
// A name that is not in c is an error if its limiter has been returned. All others go, and new
// ones come. On an error nothing has changed. Errors are those of [Config.Build].
func (ls *Limiters) Update(c *Config) error {
	switch {
	case ls == nil || ls.now.Load() == nil:
		return errNotBuilt
	case c == nil || len(c.specs) == 0:
		return unmade.Err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err := ls.missing(c); err != nil {
		return err
	}
	index := maps.Clone(ls.index)
	for _, s := range c.specs {
		if _, found := index[s.name]; !found {
			index[s.name] = len(index)
		}
	}
	next := make([]*stack, len(index))
	for _, s := range c.specs {
		i := index[s.name]
		var before *stack
		if now := *ls.now.Load(); i < len(now) {
			before = now[i]
		}
		var err error
		if next[i], err = ls.stack(s, i, before); err != nil {
			return s.fail(err)
		}
	}
	ls.index = index
	ls.now.Store(&next)
	ls.endUnused(next)
	return nil
}

// endUnused ends the leases that no limiter has any more. Only Close waits for what is given back:
// if it fails, or the program ends before, that stays charged as after a crash.
func (ls *Limiters) endUnused(next []*stack) {
	ended := maps.Clone(ls.fronts)
	for _, st := range next {
		if st != nil {
			delete(ended, st.spec.front)
		}
	}
	if ls.calm == nil {
		ls.calm, ls.hurry = context.WithCancel(context.Background())
	}
	calm := ls.calm
	for f, s := range ended {
		if l, ok := s.(*lease.Store); ok {
			delete(ls.fronts, f)
			ls.ending.Go(func() {
				ctx, cancel := context.WithTimeout(calm, patience)
				defer cancel()
				_ = l.Close(ctx)
			})
		}
	}
}

// patience is how long leases of a former text are given back.
const patience = 10 * time.Second

// Close gives back what leases hold: see [lease.Store.Close]. Later calls ask the store. It is
// for programs whose text has a lease. Without one there is nothing to close.
func (ls *Limiters) Close(ctx context.Context) error {
	if ls == nil || ls.now.Load() == nil {
		return errNotBuilt
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	stop := context.AfterFunc(ctx, ls.hurry) // leases of former texts have no longer than the others
	ls.ending.Wait()
	if stop(); ctx.Err() != nil {
		ls.calm = nil
	}
	var errs []error
	for _, s := range ls.fronts {
		if l, ok := s.(*lease.Store); ok {
			errs = append(errs, l.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// missing returns an error for each limiter in use that c does not have.
func (ls *Limiters) missing(c *Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(ls.taken)) {
		if !slices.ContainsFunc(c.specs, func(s *spec) bool { return s.name == name }) {
			errs = append(errs, fmt.Errorf("%w: limiter %s is in use, but missing from the new configuration",
				ratelimit.ErrInvalidOption, yamltree.Quote(name)))
		}
	}
	return errors.Join(errs...)
}

// stack is what one text makes of one limiter. It never changes.
type stack struct {
	spec   *spec
	shared *limits // on the store
	local  *limits // of the last text with on_failure: local, or nil
	// fallbacks are those of all texts so far. They stay: each has its breaker, knows what
	// its local limiter owes, and refunds what it has admitted itself.
	fallbacks map[failure]*fallback.Limiter
	// counts are those of all texts so far, for Reset. The next text may need any again.
	counts map[count]ratelimit.Limiter
}

// whole returns the limiter that callers ask about key.
func (st *stack) whole(key string) ratelimit.Limiter {
	if f := st.fallbacks[failLocal]; f != nil && f.Owes(key) {
		return f // whatever the text says now: no other limiter charges the store with that
	}
	if f := st.fallbacks[st.spec.onFailure]; f != nil {
		return f
	}
	return st.shared
}

func (st *stack) onStore(string) ratelimit.Limiter  { return st.shared }
func (st *stack) inMemory(string) ratelimit.Limiter { return st.local }

// stack makes limiter i by s. What it is by the text in force is before, or nil if it is
// new.
func (ls *Limiters) stack(s *spec, i int, before *stack) (st *stack, err error) {
	if s.tiers != nil && ls.tierOf == nil {
		return nil, fmt.Errorf("%w: it has tiers, but Build was given no WithTierFunc", ratelimit.ErrInvalidOption)
	}
	if _, inMemory := ls.store.(*memstore.Store); inMemory && s.front != (front{}) {
		return nil, fmt.Errorf("%w: store: it has no effect, since the store is in memory", ratelimit.ErrInvalidOption)
	}
	st = &stack{spec: s, fallbacks: map[failure]*fallback.Limiter{}, counts: map[count]ratelimit.Limiter{}}
	if before != nil {
		if s.equal(before.spec) {
			return before, nil
		}
		st.local, st.fallbacks, st.counts = before.local, maps.Clone(before.fallbacks), maps.Clone(before.counts)
	}
	if st.shared, err = ls.onStore(s); err != nil {
		return nil, err
	}
	st.shared.addTo(st.counts, false)
	if s.onFailure == failLocal {
		if st.local, err = ls.inMemory(s, st.shared); err != nil {
			return nil, err
		}
		st.local.addTo(st.counts, true)
	}
	if s.onFailure != failError && st.fallbacks[s.onFailure] == nil {
		st.fallbacks[s.onFailure], err = fallback.New(&follower{ls, i, (*stack).onStore}, ls.policy(s.onFailure, i))
	}
	return st, err
}

// equal reports whether both say the same, whatever their lines.
func (s *spec) equal(other *spec) bool {
	moved := *s
	moved.line, moved.column = other.line, other.column
	return reflect.DeepEqual(&moved, other)
}

// policy returns what limiter i does while the store fails.
func (ls *Limiters) policy(f failure, i int) fallback.Answer {
	switch f {
	case failOpen:
		return fallback.FailOpen()
	case failClosed:
		return fallback.FailClosed()
	}
	return fallback.FailTo(&follower{ls, i, (*stack).inMemory})
}

// onStore makes the limits on the store.
func (ls *Limiters) onStore(s *spec) (*limits, error) {
	opts := s.options(ls.tierOf)
	front, err := ls.storeOf(s.front)
	if err != nil {
		return nil, err
	}
	return ls.newLimits(s, front, func(i int) (ratelimit.Limiter, error) {
		if i == len(s.limits) {
			return s.newSlots(front)
		}
		l := s.limits[i]
		return ratelimit.New(s.algorithm, front, l, append(opts, ratelimit.WithPolicyName(s.policyName(l)))...)
	})
}

// inMemory makes the shares of the limits on the store.
func (ls *Limiters) inMemory(s *spec, shared *limits) (*limits, error) {
	return ls.newLimits(s, ls.local, func(i int) (ratelimit.Limiter, error) {
		return see.Local(shared.parts[i], ls.local, s.instances)
	})
}

// policyName returns the name of the policy of l. It is the limiter's name, followed by the
// Period if it has several limits, such as "login/15m".
func (s *spec) policyName(l ratelimit.Limit) string {
	if !s.several || l == ratelimit.Unlimited() {
		return s.name
	}
	return s.name + "/" + limittext.Period(l.String())
}
