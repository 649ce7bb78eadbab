// Package regions lets regions that each have their own store share limits.
//
//	stores := map[string]store.Store{"eu": redisEU, "us": redisUS} // the same in all regions
//	...
//	shared, err := regions.New("eu", stores) // in the EU
//	...
//	limiter, err := ratelimit.NewFixedWindow(shared, ratelimit.PerSecond(1000), ratelimit.WithName("api"))
//
// The limit applies to all regions together. A decision asks the store of the local region, which
// has a share of the limit. Only if the share denies does it ask other regions, and move room that
// they do not use to the local region.
package regions

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/bucket"
	"github.com/ratelimit-go/ratelimit/internal/credit"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store wraps the stores of all regions, and decides by its own region's share of each limit. If
// the share denies, the region fetches half of what another region has left, or more if the call
// needs more. The events are first charged there and then refunded to the local share, which is
// then asked again.
//
// With 1000 events per second in two regions, one region alone can use nearly 1000. If they are cut
// off from each other, each still has its 500.
//
// Bound: that of the limiter, even when regions are cut off. A bucket can also admit what is
// refilled during one transfer. If clocks differ, their difference adds to the interval. [Why it
// holds].
//
// Admissions by the local share cost nothing extra. A fetch costs the denied caller three calls to
// its own store, and two to each region that it asks, for up to [WithWait]. One call at a time
// fetches for a key, and others are denied in the meantime.
//
// Limit and policies are those of the whole limit. Remaining and RetryAfter are those of the local
// share, and a call for more than it can hold is denied. Peek, Charge, Refund and Reset apply to
// the local share.
//
// A Store remembers 65,536 keys in 4 MB. Do not use it for limits of a few events. If all calls of a key
// arrive in one region, the store of that region is enough. It is safe for concurrent use. Use [New] to
// create one.
//
// [Why it holds]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#regions
type Store struct {
	wrapper
	inner // the store of the local region, for Together and Reset

	own    *region
	others []*region // by name
	wait   time.Duration

	base       time.Time // the origin of all times
	seeds      keyhash.Seeds
	pauses     pauses
	nextRegion atomic.Uint32

	moved, fetches, failed atomic.Int64
}

type (
	wrapper = see.Wrapper
	inner   = store.Store
)

type settings struct {
	wait    time.Duration
	weights map[string]int
}

const (
	defaultWait = 500 * time.Millisecond
	leastWait   = time.Millisecond
	mostWait    = time.Minute
)

// Option configures a [Store].
type Option func(*settings) error

// WithWait limits the total time in which a denied call asks other regions to d, 1 ms to 1 min. The
// default is 500 ms. It must be longer than two round trips to a region, because otherwise that
// region cannot help.
func WithWait(d time.Duration) Option {
	return options.Checked(options.Within("WithWait", d, leastWait, mostWait), func(s *settings) { s.wait = d })
}

// WithWeights sets the relative sizes of the regions' shares: a region with a weight of 3 has three
// times the share of a region with 1. Each region needs a weight, 1 to 1,000,000. The weights must
// be the same in all regions. By default all shares are equal.
func WithWeights(weights map[string]int) Option {
	return func(s *settings) error {
		for name, w := range weights {
			if w < 1 || w > mostWeight {
				return fmt.Errorf("%w: WithWeights: %d for %q, want 1 to %d", store.ErrInvalidOption, w, name, mostWeight)
			}
		}
		s.weights = weights
		return nil
	}
}

// New returns the store for the region here. stores has the stores of all regions by name, 2 to
// 1,000 of them, including here. Processes in all regions must use the same names, and limiters
// with the same algorithm, limit and name. It returns [store.ErrInvalidOption] if a region has no
// store, if two regions have the same store, or if an option is out of range.
//
// A region's share of a limit is at least one event, or two events for a bucket's Burst, and the
// rest is divided by weight. The shares add up to the limit. A limit that is too small for this
// cannot be shared. Neither can a [ratelimit.SlidingLog] or a [ratelimit.LeakyBucket], which refund
// only events of their own. The limiter's constructor then returns an error, or each call does if
// the limit comes from a limit function. A limiter with [ratelimit.WithReserved] is refused as well,
// because no region knows what remains in the others.
//
// [ratelimit.WithReserved]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#WithReserved
// [ratelimit.SlidingLog]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#SlidingLog
// [ratelimit.LeakyBucket]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#LeakyBucket
func New(here string, stores map[string]store.Store, opts ...Option) (*Store, error) {
	by := settings{wait: defaultWait}
	if err := options.Apply(&by, opts); err != nil {
		return nil, err
	}
	all, err := divide(stores, by.weights)
	if err != nil {
		return nil, err
	}
	s := &Store{wrapper: see.Has(see.Traits{Waits: true, Divides: true}), wait: by.wait, base: time.Now(), seeds: keyhash.New()}
	own := slices.IndexFunc(all, func(r *region) bool { return r.name == here })
	if own < 0 {
		return nil, fmt.Errorf("%w: the region %q is not among the stores", store.ErrInvalidOption, here)
	}
	s.own, s.inner = all[own], all[own].Store
	s.others = slices.Delete(all, own, own+1)
	return s, nil
}

// Prepare rejects what cannot be shared.
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.own == nil {
		return fmt.Errorf("%w: the regions.Store was not made by New", store.ErrInvalidOption)
	}
	if !credit.Has(rule) {
		return fmt.Errorf("%w: algorithm %s cannot be shared by regions, want a fixed_window, a sliding_window or a token_bucket", store.ErrInvalidOption, rule.Name)
	}
	for _, r := range append([]*region{s.own}, s.others...) {
		share, err := l, error(nil)
		if l.Rate > 0 {
			share, err = r.share(rule, l)
		}
		if err == nil {
			err = r.Prepare(rule, share, fixed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Unwrap returns the store of the own region.
func (s *Store) Unwrap() store.Store { return s.inner }

// operation is Take or TakeUpTo of a store.
type operation func(ctx context.Context, s store.Store, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error)

func take(ctx context.Context, s store.Store, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.Take(ctx, ns, key, l, n)
}

// Take admits n events if the own share has room for them, or can fetch it.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r, share, err := s.ask(ctx, take, ns, key, l, n, n)
	if err != nil {
		return store.Reply{}, err
	}
	return r.Plainly(ns.Rule, share, n, n), nil
}

// takeUpTo admits as many of n events as the local share has room for, and fetches if it has no room.
// If it has room for some, it fetches for the next call.
func (s *Store) takeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	r, share, err := s.ask(ctx, store.TakeUpTo, ns, key, l, n, 1)
	if err != nil {
		return store.Reply{}, err
	}
	fit := max(1, min(n, r.Available(ns.Rule, share)))
	if r.OK() && fit < n {
		denied := r.After(ns.Rule, fit)
		denied.Outcome &^= store.Admitted
		s.fetch(ctx, s.patience(ctx), ns, key, l, share, 1, denied)
	}
	return r.Plainly(ns.Rule, share, fit, fit), nil
}

// ask asks the local share for n events, and again if room for want events was fetched.
func (s *Store) ask(ctx context.Context, op operation, ns *store.Namespace, key string, l store.Limit, n, want int64) (r store.Reply, share store.Limit, err error) {
	if share, err = s.own.share(ns.Rule, l); err != nil {
		return r, share, err
	}
	r, err = op(ctx, s.inner, ns, key, share, n)
	if err == nil && s.fetch(ctx, s.patience(ctx), ns, key, l, share, want, r) && ctx.Err() == nil {
		r, err = op(ctx, s.inner, ns, key, share, n)
	}
	return r, share, err
}

// Decide decides by the own shares, and fetches for each share that denies. A look does not ask
// other regions, so Take may admit what a look denies.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	switch {
	case store.Alternatives(requests):
		return store.InTurn(ctx, requests, replies, s.Decide)
	case slices.ContainsFunc(requests, func(r store.Request) bool { return r.Reserved > 0 }):
		return fmt.Errorf("%w: regions cannot reserve events, because no region knows what remains in the others", store.ErrInvalidOption)
	case len(requests) == 1:
		switch q := &requests[0]; q.Op {
		case store.OpUpTo:
			replies[0], err = s.takeUpTo(ctx, q.Namespace, q.Key, q.Limit, q.N)
			return err
		case store.OpOverdraw:
			replies[0], err = s.overdraw(ctx, q.Namespace, q.Key, q.Limit, q.N, q.Most)
			return err
		}
	}
	shares := slices.Clone(requests)
	for i := range shares {
		if shares[i].Limit, err = s.own.share(shares[i].Namespace.Rule, shares[i].Limit); err != nil {
			return err
		}
	}
	if err := s.inner.Decide(ctx, shares, replies); err != nil {
		return err
	}
	if s.fetchAll(ctx, requests, shares, replies) && ctx.Err() == nil {
		if err := s.again(ctx, shares, replies); err != nil {
			return err
		}
	}
	all := store.AllOK(shares, replies)
	for i := range shares {
		q, charged := &shares[i], int64(0)
		if all && !q.Looks() {
			charged = q.N
		}
		replies[i] = replies[i].Plainly(q.Namespace.Rule, q.Limit, q.N, charged)
	}
	return nil
}

// again decides once more, after a fetch. If the limits that vote have been charged, only shadows that have denied
// are asked.
func (s *Store) again(ctx context.Context, shares []store.Request, replies []store.Reply) error {
	if !store.AllOK(shares, replies) {
		return s.inner.Decide(ctx, shares, replies)
	}
	for i := range shares {
		if replies[i].OK() || shares[i].Looks() {
			continue
		}
		if r, err := store.Decide(ctx, s.inner, shares[i]); err == nil { // otherwise its denial stands, and the call is charged
			replies[i] = r
		}
	}
	return nil
}

// fetchAll fetches for each share that denies, unless one whose denial counts finds nothing.
func (s *Store) fetchAll(ctx context.Context, requests, shares []store.Request, replies []store.Reply) (again bool) {
	p := s.patience(ctx)
	for i := range shares {
		q := &shares[i]
		if q.Looks() || replies[i].OK() {
			continue
		}
		found := s.fetch(ctx, p, q.Namespace, q.Key, requests[i].Limit, q.Limit, q.N, replies[i])
		if !found && q.Votes() {
			return false
		}
		again = again || found
	}
	return again
}

// overdraw charges the local share, which may then hold its part of most.
func (s *Store) overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	rule, whole := ns.Rule, most
	share, err := s.own.share(rule, l)
	if err != nil {
		return store.Reply{}, err
	}
	if rule.Burst { // otherwise the share would take longer than the limit to drain
		most, _ = exact.MulDiv(most, share.Rate, l.Rate)
		most = max(most, share.Burst)
	}
	r, err := store.Overdraw(ctx, s.inner, ns, key, share, n, most)
	if err != nil || r.Plain() {
		return r, err
	}
	spent := rule.Spent(r)
	if held := max(0, most-spent); held < n { // a plain reply would mean that all n are charged
		return r.After(rule, whole-held-spent), nil // the reply of the whole limit, which is then equally full
	}
	told := store.Reply{Outcome: r.Outcome | store.DeniedPlainly, X: r.X, Y: r.Available(rule, share)}
	r.Outcome = store.Admitted
	told.Z = r.Report(rule, share, n, n).Reset
	return told, nil
}

// Refund refunds to the own share what was charged there, even if it had been fetched.
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	share, err := s.own.anyShare(ns.Rule, l)
	if err != nil {
		return err
	}
	if ns.Rule.Burst {
		// A limiter whose Rate is 0 at the moment refunds under the highest possible Burst.
		share.Burst = min(share.Burst, bucket.Most(share))
		// The receipt is for the limit that was reported.
		l.Rate, l.Period = c.Rate, c.Period
		charged, err := s.own.anyShare(ns.Rule, l)
		if err != nil {
			return err
		}
		c = store.NewReceipt(charged, c.At, c.Due-c.At, c.N)
	}
	return s.inner.Refund(ctx, ns, key, share, c)
}

// Stats counts what a [Store] has done with other regions.
type Stats struct {
	Fetches int64 // denied calls that asked other regions
	Moved   int64 // events that were charged there and refunded here
	Failed  int64 // calls to stores during fetches that failed or were too slow
}

// Stats returns the counts since New.
func (s *Store) Stats() Stats {
	return Stats{Fetches: s.fetches.Load(), Moved: s.moved.Load(), Failed: s.failed.Load()}
}

var _ store.Store = (*Store)(nil)
