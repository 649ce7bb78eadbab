// Package coalesce asks a store once for many callers.
//
//	together, err := coalesce.New(redis)
//	...
//	limiter, err := ratelimit.NewTokenBucket(together, ratelimit.PerMinute(100))
package coalesce

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before another [store.Store] and asks it once for many callers. While a call for
// one event of a key is under way, others on that key wait. They are then decided by one call,
// which admits as many of them as fit, in order of arrival. Each gets the answer that it would
// have got alone.
//
// Use it for hot keys on Redis, where a decision costs a round trip. A key can then be asked
// for more often than Redis answers. A call that meets no other on its key costs what it did.
// One Store serves many limiters. Put it before a denycache, which then spares it the callers who
// are denied.
//
// A call that does meet others waits for those under way and for its own. Each of them is two
// calls of the store if some events are admitted and others are not. The call ends in
// [store.ErrTimeout] if the store answers nobody for its timeout and a sixteenth. A goroutine asks
// for the callers who wait, and ends with the last of them. If a caller's ctx ends while it waits,
// its permit goes to the next one or back.
//
// All else goes on to the store as it is: calls of more than one event, those of an All, what
// AllowUpTo, AllowWithin of the buckets and Peek ask, and what is given back.
//
// It is safe for concurrent use. Make it by [New].
type Store struct {
	store.Store
	patience *pending.Patience

	mu    sync.Mutex       // protects calls and the waiters in it; never held over a call
	calls map[hotKey]*call // that are under way
}

// New returns a store that asks s. Its error is [store.ErrInvalidOption]: s is nil.
func New(s store.Store) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	return &Store{Store: s, patience: pending.PatienceWith(s), calls: map[hotKey]*call{}}, nil
}

// Unwrap returns the store that is asked.
func (s *Store) Unwrap() store.Store { return s.Store }

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.calls == nil {
		return unmade.Err
	}
	if rule.Held {
		return fmt.Errorf("%w: calls of %s are not joined: each slot has a number of its own", store.ErrInvalidOption, rule.Name)
	}
	return s.Store.Prepare(rule, l, fixed)
}

// hotKey is what calls must have in common to be decided together.
type hotKey struct {
	space [2]uint64 // the ID of the namespace
	key   string
	limit store.Limit
}

// call is a call of the store under way. Its waiters wait for the next one, in order of
// arrival.
type call struct{ waiters []*waiter }

type waiter = pending.Call[store.Reply]

// add adds w. Before the waiters need more room, those go who have left: the call may hang.
func (c *call) add(w *waiter) {
	if len(c.waiters) == cap(c.waiters) {
		c.waiters = slices.DeleteFunc(c.waiters, (*waiter).Done)
		c.waiters = slices.Grow(c.waiters, len(c.waiters)+1)
	}
	c.waiters = append(c.waiters, w)
}

// Take decides on single events together with others.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if n != 1 || l.Before() > 0 {
		return s.Store.Take(ctx, ns, key, l, n)
	}
	hi, lo := ns.ID()
	k := hotKey{[2]uint64{hi, lo}, key, l}
	s.mu.Lock()
	if underWay, ok := s.calls[k]; ok {
		w := pending.New[store.Reply]()
		underWay.add(w)
		s.mu.Unlock()
		return w.Wait(ctx, s.patience)
	}
	s.calls[k] = new(call)
	s.mu.Unlock()
	defer func() { // also if the store panics
		if waiters := s.next(k); waiters != nil {
			go s.decideAll(ns, k, waiters)
		}
	}()
	r, err := s.Store.Take(ctx, ns, key, l, 1)
	s.patience.Heard(err)
	return r, err
}

// next returns the waiters for the next call on k. If there are none, no call is under
// way any more.
func (s *Store) next(k hotKey) []*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters := s.calls[k].waiters
	if s.calls[k].waiters = nil; waiters == nil {
		delete(s.calls, k)
	}
	return waiters
}

// decideAll decides on waiters, and on those that come meanwhile, until none is left.
func (s *Store) decideAll(ns *store.Namespace, k hotKey, waiters []*waiter) {
	defer func() {
		if waiters != nil { // the store has ended this goroutine
			answerAll(waiters, store.Reply{}, errExit)
			go s.decideAll(ns, k, s.next(k))
		}
	}()
	for waiters != nil {
		waiters = slices.DeleteFunc(waiters, (*waiter).Done)
		s.decide(ns, k, waiters)
		waiters = s.next(k)
	}
}

// decide decides on all waiters by one call of the store. If only some are admitted, a
// second call finds the RetryAfter of the others. To try them again instead would keep
// them waiting while each round trip finds a little room.
func (s *Store) decide(ns *store.Namespace, k hotKey, waiters []*waiter) {
	if len(waiters) == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			for _, w := range waiters {
				w.Panic(p)
			}
		}
	}()
	ctx := context.Background() // not a waiter's: the store has its own timeout
	r, err := store.TakeUpTo(ctx, s.Store, ns, k.key, k.limit, int64(len(waiters)))
	s.patience.Heard(err)
	if err != nil || !r.OK() {
		answerAll(waiters, r, err)
		return
	}
	granted, given := min(int64(len(waiters)), r.Available(ns.Rule, k.limit)), int64(0)
	for i, w := range waiters {
		if given == granted {
			denial, err := s.denial(ctx, ns, k)
			answerAll(waiters[i:], denial, err)
			return
		}
		if w.Answer(r.After(ns.Rule, given), nil) {
			given++
		}
	}
	if given < granted { // some have left
		// After an error they stay charged, as after any call whose caller has left.
		s.patience.Heard(s.Refund(ctx, ns, k.key, k.limit, r.Receipt(ns.Rule, k.limit, granted, granted-given)))
	}
}

// denial is that of an event for which there was no room. If room has come since, the call can
// come back at once.
func (s *Store) denial(ctx context.Context, ns *store.Namespace, k hotKey) (store.Reply, error) {
	r, err := store.Peek(ctx, s.Store, ns, k.key, k.limit, 1)
	if s.patience.Heard(err); err == nil && r.OK() {
		const soon = 1 // µs
		r = store.Reply{Outcome: store.DeniedPlainly, X: soon, Z: max(soon, r.Report(ns.Rule, k.limit, 1, 0).Reset)}
	}
	return r, err
}

var errExit = fmt.Errorf("%w: the store has ended its goroutine, the outcome is unknown", store.ErrTimeout)

func answerAll(waiters []*waiter, r store.Reply, err error) {
	for _, w := range waiters {
		w.Answer(r, err)
	}
}

var _ store.Store = (*Store)(nil)
