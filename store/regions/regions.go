// Package regions shares limits among regions, each with a store of its own.
//
//	stores := map[string]store.Store{"eu": redisEU, "us": redisUS} // the same in all regions
//	...
//	shared, err := regions.New("eu", stores) // in the EU
//	...
//	limiter, err := ratelimit.NewFixedWindow(shared, ratelimit.PerSecond(1000), ratelimit.WithName("api"))
//
// The limit is that of all regions together. A decision asks the store of its own region, for its
// share of the limit. Only what that denies asks the others, and moves to this region what they
// do not use.
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
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before the stores of some regions, and decides by the share that its own region has
// of each limit. What that denies makes the region fetch one half of what another region has left,
// or more if the call needs more. The events are charged there first, and then given back to the
// own share, which is asked once more.
//
// With 1000 a second in two regions, one of them alone can use nearly 1000. Cut off from each
// other, each has its 500.
//
// Bound: that of the limiter, also when regions are cut off. A bucket admits besides what is
// refilled during one transfer. Clocks that differ add their difference to the interval. [Why it
// holds].
//
// What the own share admits costs nothing more. A fetch costs the denied caller three calls of
// the own store, and two of each region that it asks, for up to [WithWait]. One call at a time
// fetches for a key, and others are denied meanwhile.
//
// Limit and policies are those of the sum. Remaining and RetryAfter are those of the own share, and
// a call for more than that can hold is denied. Peek, Charge, Refund and Reset are for the own
// share.
//
// It remembers at most 65,536 keys, in 4 MB. Do not use it for limits of a few events, or where
// all calls of a key come to one region. It is safe for concurrent use. Make it by [New].
//
// [Why it holds]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/scaling.md#regions
type Store struct {
	traits
	store.Store // of the own region: Together, Reset

	own    *region
	others []*region // by name
	wait   time.Duration

	base   time.Time // of all times, which are monotonic
	seeds  keyhash.Seeds
	pauses pauses
	turn   atomic.Uint32

	moved, fetches, failed atomic.Int64
}

type traits = see.Traits

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

// WithWait bounds the time in which a denied call asks other regions, to d in sum: 1 ms to
// 1 min. The default is 500 ms. It must be more than two round trips to a region, or that gives
// nothing.
func WithWait(d time.Duration) Option {
	return func(s *settings) error {
		if d < leastWait || d > mostWait {
			return fmt.Errorf("%w: WithWait(%v), want %v to %v", store.ErrInvalidOption, d, leastWait, mostWait)
		}
		s.wait = d
		return nil
	}
}

// WithWeights says how large the shares of the regions are: that of one with a weight of 3 is three
// times that of one with 1. Each weight is 1 to 1,000,000, and each region has one. They must be
// the same in all regions. By default all are equal.
func WithWeights(weights map[string]int) Option {
	return func(s *settings) error {
		for name, w := range weights {
			if w < 1 || w > mostWeight {
				return fmt.Errorf("%w: WithWeights: %d of %q, want 1 to %d", store.ErrInvalidOption, w, name, mostWeight)
			}
		}
		s.weights = weights
		return nil
	}
}

// New returns the store of the region here, one of stores, which are those of all regions by name:
// 2 to 1,000. Processes of all regions must have the same names, and limiters with the same
// algorithm, limit and name. Its error is [store.ErrInvalidOption]: a region has no store, or
// two have the same one, or an option is out of range.
//
// A region's share of a limit is at least one event, and the rest is by weight. Of a bucket's Burst
// it is at least two. The shares add up to the limit. A limit that is smaller cannot be shared, nor
// can a [ratelimit.SlidingLog] or a [ratelimit.LeakyBucket], which take back only events of their
// own. That is the error of the limiter's constructor, and of each call for a limit function. Nor can a limiter
// reserve events, since no region knows what remains in the others.
//
// [ratelimit.SlidingLog]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#SlidingLog
// [ratelimit.LeakyBucket]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit#LeakyBucket
func New(here string, stores map[string]store.Store, opts ...Option) (*Store, error) {
	by := settings{wait: defaultWait}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an Option is nil", store.ErrInvalidOption)
		}
		if err := opt(&by); err != nil {
			return nil, err
		}
	}
	all, err := divide(stores, by.weights)
	if err != nil {
		return nil, err
	}
	s := &Store{traits: traits{Waits: true, Divides: true}, wait: by.wait, base: time.Now(), seeds: keyhash.New()}
	own := slices.IndexFunc(all, func(r *region) bool { return r.name == here })
	if own < 0 {
		return nil, fmt.Errorf("%w: the region %q has no store", store.ErrInvalidOption, here)
	}
	s.own, s.Store = all[own], all[own].Store
	s.others = slices.Delete(all, own, own+1)
	return s, nil
}

// Prepare refuses what cannot be shared.
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.own == nil {
		return fmt.Errorf("%w: a regions.Store is made by New", store.ErrInvalidOption)
	}
	if !credit.Has(rule) {
		return fmt.Errorf("%w: a %s cannot be shared by regions: it takes back only events of its own", store.ErrInvalidOption, rule.Name)
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
func (s *Store) Unwrap() store.Store { return s.Store }

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

// takeUpTo admits as many of n events as the own share has room for, and fetches if that has room
// for none. If it has room for some, it fetches for the next call.
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

// ask asks the own share for n events, and once more if room for as many as want was fetched.
func (s *Store) ask(ctx context.Context, op operation, ns *store.Namespace, key string, l store.Limit, n, want int64) (r store.Reply, share store.Limit, err error) {
	if share, err = s.own.share(ns.Rule, l); err != nil {
		return r, share, err
	}
	r, err = op(ctx, s.Store, ns, key, share, n)
	if err == nil && s.fetch(ctx, s.patience(ctx), ns, key, l, share, want, r) && ctx.Err() == nil {
		r, err = op(ctx, s.Store, ns, key, share, n)
	}
	return r, share, err
}

// Decide decides by the own shares. It fetches for each that denies. A look asks no other region, so
// Take may admit what a look says is denied.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	switch {
	case store.Alternatives(requests):
		return store.InTurn(ctx, requests, replies, s.Decide)
	case slices.ContainsFunc(requests, func(r store.Request) bool { return r.Reserved > 0 }):
		return fmt.Errorf("%w: regions: no region knows what remains in the others: nothing can be reserved", store.ErrInvalidOption)
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
	if err := s.Store.Decide(ctx, shares, replies); err != nil {
		return err
	}
	if s.fetchAll(ctx, requests, shares, replies) && ctx.Err() == nil {
		if err := s.Store.Decide(ctx, shares, replies); err != nil {
			return err
		}
	}
	all := true
	for i := range shares {
		all = all && (replies[i].OK() || !shares[i].Votes())
	}
	for i := range shares {
		q, charged := &shares[i], int64(0)
		if all && !q.Looks() {
			charged = q.N
		}
		replies[i] = replies[i].Plainly(q.Namespace.Rule, q.Limit, q.N, charged)
	}
	return nil
}

// fetchAll fetches for each of the shares that denies, unless one of those that vote finds nothing.
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

// overdraw charges the own share, which may then hold its part of most.
func (s *Store) overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	rule, whole := ns.Rule, most
	share, err := s.own.share(rule, l)
	if err != nil {
		return store.Reply{}, err
	}
	if rule.Burst { // or else the share would take longer than the limit to drain
		most, _ = exact.MulDiv(most, share.Rate, l.Rate)
		most = max(most, share.Burst)
	}
	r, err := store.Overdraw(ctx, s.Store, ns, key, share, n, most)
	if err != nil || r.Plain() {
		return r, err
	}
	spent := rule.Spent(r)
	if held := max(0, most-spent); held < n { // a plain reply would say that all n are charged
		return r.After(rule, whole-held-spent), nil // of the limit as a whole, which is then as full
	}
	told := store.Reply{Outcome: r.Outcome | store.DeniedPlainly, X: r.X, Y: r.Available(rule, share)}
	r.Outcome = store.Admitted
	told.Z = r.Report(rule, share, n, n).Reset
	return told, nil
}

// Refund gives back to the own share what was charged there, also where it was fetched.
func (s *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	share, err := s.own.anyShare(ns.Rule, l)
	if err != nil {
		return err
	}
	if ns.Rule.Burst {
		// A limiter whose Rate is 0 for now gives back under the highest Burst that there is.
		share.Burst = min(share.Burst, bucket.Most(share))
		// The receipt is of the limit that was told.
		l.Rate, l.Period = c.Rate, c.Period
		charged, err := s.own.anyShare(ns.Rule, l)
		if err != nil {
			return err
		}
		c = store.NewReceipt(charged, c.At, c.Due-c.At, c.N)
	}
	return s.Store.Refund(ctx, ns, key, share, c)
}

// Stats counts what a [Store] has done with other regions.
type Stats struct {
	Fetches int64 // denied calls that asked them
	Moved   int64 // events that were debited there and credited here
	Failed  int64 // calls of stores, in fetches, that failed or were too slow
}

// Stats returns the counts since New.
func (s *Store) Stats() Stats {
	return Stats{Fetches: s.fetches.Load(), Moved: s.moved.Load(), Failed: s.failed.Load()}
}

var _ store.Store = (*Store)(nil)
