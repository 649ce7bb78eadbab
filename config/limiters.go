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
	"github.com/ratelimit-go/ratelimit/internal/options"
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
// [Limiters.Update]. All methods are safe for concurrent use. There is no goroutine, and nothing to
// close unless a limiter has a lease: see [Limiters.Close]. Use [Config.Build] to create them.
type Limiters struct {
	store  store.Store
	local  store.Store // for local limiters
	tierOf func(ctx context.Context, key string) (string, error)

	ending sync.WaitGroup // releases of leases of previous texts

	mu     sync.Mutex      // protects what follows, and serializes Updates
	calm   context.Context // for releases in progress; nil at first
	hurry  context.CancelFunc
	index  map[string]int // into now, for all names of all texts
	taken  map[string]ratelimit.Limiter
	fronts map[front]store.Store // store, and the caches in front of it; only the leases in use

	// now is read by every decision, so that a text takes effect on all limiters at the same
	// instant. A name that is not in the text has nil there.
	now atomic.Pointer[[]*stack]
}

// Option configures [Limiters].
type Option func(*Limiters) error

// WithTierFunc calls f for the tier of a key, on each call of a limiter with tiers. A tier that the
// text does not list gets the limiter's own limit, and so does "". Errors of f are returned
// unchanged, and nothing is consumed. f must be safe for concurrent use.
func WithTierFunc(f func(ctx context.Context, key string) (string, error)) Option {
	return options.Checked(options.Given("WithTierFunc", f != nil), func(ls *Limiters) { ls.tierOf = f })
}

// Build makes the limiters of c on s. Local limiters, which decide while s fails, count in memory:
// see [memstore.New] for its bounds.
//
// It returns [ratelimit.ErrInvalidOption] if s or an option is nil, or if c was not made by Parse.
// It also returns ErrInvalidOption if there are tiers but no [WithTierFunc], or if a limiter has a
// store block although s is in memory.
func (c *Config) Build(s store.Store, opts ...Option) (*Limiters, error) {
	fronts, err := newFronts(s)
	if err != nil {
		return nil, err
	}
	ls := &Limiters{store: s, fronts: fronts, local: ratelimit.Must(memstore.New()), index: map[string]int{}, taken: map[string]ratelimit.Limiter{}}
	if err := options.Apply(ls, opts); err != nil {
		return nil, err
	}
	ls.now.Store(new([]*stack))
	if err := ls.Update(c); err != nil {
		return nil, err
	}
	return ls, nil
}

// front describes the caches in front of the store: a lease, or any of the others.
type front struct {
	denyCache, coalescing bool
	lease                 time.Duration // 0 for none
}

// newFronts makes the caches in front of s, without leases. They stay in use for all later texts,
// with everything they remember.
func newFronts(s store.Store) (map[front]store.Store, error) {
	cached, err := denycache.New(s)
	if err != nil {
		return nil, err
	}
	return map[front]store.Store{
		{}: s, {coalescing: true}: ratelimit.Must(coalesce.New(s)),
		{denyCache: true}: cached, {denyCache: true, coalescing: true}: ratelimit.Must(coalesce.New(cached)),
	}, nil
}

// storeOf returns the store with the caches of f in front of it.
func (ls *Limiters) storeOf(f front) (s store.Store, err error) {
	if ls.fronts[f] == nil {
		if ls.fronts[f], err = lease.New(ls.store, f.lease); err != nil {
			delete(ls.fronts, f)
		}
	}
	return ls.fronts[f], err
}

var errNotBuilt = fmt.Errorf("%w: the Limiters were not made by Build", ratelimit.ErrInvalidOption)

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

// Limiter returns the limiter with this name, which is also a [ratelimit.PolicyAppender]. It is
// always the same limiter, and follows all Updates. Call Limiter once, not for each decision,
// because it takes a lock. If there is no such name, it returns [ratelimit.ErrInvalidOption].
//
// [ratelimit.NewAll] cannot decide on it together with others at one instant, and asks one after
// the other. If limits belong together, list them under limits instead.
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
		ls.taken[name] = &limiter{follower{changes, ls, i, (*stack).whole}}
	}
	return ls.taken[name], nil
}

// Update replaces all limits by those of c at one instant. Each decision follows one text or the
// other, and no call waits for an Update. Limiters that [Limiters.Limiter] has returned follow.
//
// Keys keep what they have spent if a rate, a burst, tiers, instances, on_failure or store changes,
// but at most the new capacity. Leases that are no longer in the text are released. If limits are
// added or removed, the counts of each Period that remains are kept. Slots stay held.
//
// Another algorithm, or another Period of a limit, begins a new count, so each key may spend up to
// one additional capacity at that moment. Processes that share a store count separately until the
// last of them has updated. Unlimited is a Period of its own: a limit that changes back from it
// finds its previous count, as far as it still counts.
//
// A Refund of an earlier Result goes to the counts that were charged. A Reset resets the counts of
// all texts so far, with a call to the store for each. What on_failure: local admitted in an outage
// is charged to the store even under the next text, and until then the local limiter decides on its
// key.
//
// If c lacks a name whose limiter has been returned, that is an error. Other names can be removed,
// and new ones added. If there is an error, nothing has changed. The errors are those of
// [Config.Build].
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

// endUnused ends the leases that no limiter uses. Only Close waits for the release. If it fails, or
// the program ends before, the leased events stay charged, as after a crash.
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

// patience is how long the release of leases of a previous text is tried.
const patience = 10 * time.Second

// Close releases the leases: see [lease.Store.Close]. Later calls ask the store. Close is for
// programs whose text has a lease. Without a lease there is nothing to close.
func (ls *Limiters) Close(ctx context.Context) error {
	if ls == nil || ls.now.Load() == nil {
		return errNotBuilt
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	stop := context.AfterFunc(ctx, ls.hurry) // leases of previous texts have no more time than the others
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

// missing returns an error for each limiter in use that is not in c.
func (ls *Limiters) missing(c *Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(ls.taken)) {
		if !slices.ContainsFunc(c.specs, func(s *spec) bool { return s.name == name }) {
			errs = append(errs, fmt.Errorf("%w: limiter %s is in use, but missing from the new configuration: keep it there",
				ratelimit.ErrInvalidOption, yamltree.Quote(name)))
		}
	}
	return errors.Join(errs...)
}

// stack is one limiter of one text. It never changes.
type stack struct {
	spec   *spec
	shared *limits // on the store
	local  *limits // of the last text with on_failure: local, or nil
	// fallbacks are the fallbacks of all texts so far. They are kept, because each has its breaker,
	// knows what its local limiter owes, and refunds what it has admitted itself.
	fallbacks map[failure]*fallback.Limiter
	// counts are the limiters of all texts so far, for Reset. The next text may need any of them
	// again.
	counts map[count]ratelimit.Limiter
}

// whole returns the limiter that callers ask about key.
func (st *stack) whole(key string) ratelimit.Limiter {
	if f := st.fallbacks[failLocal]; f != nil && f.Owes(key) {
		return f // only this fallback charges the store with what it owes, whatever the text says now
	}
	if f := st.fallbacks[st.spec.onFailure]; f != nil {
		return f
	}
	return st.shared
}

func (st *stack) onStore(string) ratelimit.Limiter  { return st.shared }
func (st *stack) inMemory(string) ratelimit.Limiter { return st.local }

// stack makes limiter i from s. before is the limiter of the text in force, or nil if it is new.
func (ls *Limiters) stack(s *spec, i int, before *stack) (st *stack, err error) {
	if s.tiers != nil && ls.tierOf == nil {
		return nil, fmt.Errorf("%w: it has tiers: pass WithTierFunc to Build", ratelimit.ErrInvalidOption)
	}
	if _, inMemory := ls.store.(*memstore.Store); inMemory && s.front != (front{}) {
		return nil, fmt.Errorf("%w: store: it has no effect, because the store is in memory: remove it", ratelimit.ErrInvalidOption)
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
		st.fallbacks[s.onFailure], err = fallback.New(&follower{passive, ls, i, (*stack).onStore}, ls.policy(s.onFailure, i))
	}
	return st, err
}

// equal reports whether both have the same meaning, wherever they are in the text.
func (s *spec) equal(other *spec) bool {
	moved := *s
	moved.line, moved.column = other.line, other.column
	return reflect.DeepEqual(&moved, other)
}

// policy returns the fallback's answer for limiter i while the store fails.
func (ls *Limiters) policy(f failure, i int) fallback.Answer {
	switch f {
	case failOpen:
		return fallback.FailOpen()
	case failClosed:
		return fallback.FailClosed()
	}
	return fallback.FailTo(&follower{passive, ls, i, (*stack).inMemory})
}

// onStore makes the limits on the store.
func (ls *Limiters) onStore(s *spec) (*limits, error) {
	opts := s.options(ls.tierOf)
	front, err := ls.storeOf(s.front)
	if err != nil {
		return nil, err
	}
	bans := front
	if s.front.lease > 0 { // a ban cannot be leased
		bans = ls.store
	}
	return ls.newLimits(s, bans, func(i int) (ratelimit.Limiter, error) {
		if i == len(s.limits) {
			return s.newSlots(front)
		}
		l := s.limits[i]
		return ratelimit.New(s.algorithm, front, l, append(opts, ratelimit.WithPolicyName(s.policyName(l)))...)
	})
}

// inMemory makes the local shares of the limits on the store.
func (ls *Limiters) inMemory(s *spec, shared *limits) (*limits, error) {
	return ls.newLimits(s, ls.local, func(i int) (ratelimit.Limiter, error) {
		return see.Local(shared.parts[i], ls.local, s.instances)
	})
}

// policyName returns the name of the policy of l. It is the limiter's name, followed by the Period
// if the limiter has several limits, such as "login/15m".
func (s *spec) policyName(l ratelimit.Limit) string {
	if !s.several || l == ratelimit.Unlimited() {
		return s.name
	}
	return s.name + "/" + limittext.Period(l.String())
}
