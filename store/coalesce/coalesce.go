// Package coalesce asks a store once for many callers.
//
//	together, err := coalesce.New(redis)
//	...
//	limiter, err := ratelimit.NewTokenBucket(together, ratelimit.PerMinute(100))
package coalesce

import (
	"context"
	"fmt"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// Store stands before another [store.Store] and asks it once for many callers. While a call for
// one event of a key is under way, others on that key wait. They are then decided by one call,
// which admits as many of them as fit, in order of arrival. Each gets the answer that it would
// have got alone.
//
// Calls of an All, for any number of events, wait for calls for the same keys under the same
// limits. If one call is too much for all of them, another one charges as many as had room. Room that
// comes between the two is for those who come again: RetryAfter is then 1 µs.
//
// Use it for hot keys on Redis, where a decision costs a round trip. A key can then be asked
// for more often than Redis answers. A call that meets no other on its keys costs what it did.
// One Store serves many limiters. Put it before a denycache, which then spares it the callers who
// are denied.
//
// A call that does meet others waits for those under way and for its own. Each of them is two
// calls of the store, or three for an All, if some events are admitted and others are not. The call ends in
// [store.ErrTimeout] if the store answers nobody for its timeout and a sixteenth. Goroutines ask
// for the callers who wait, and end with the last of them. If a caller's ctx ends while it waits,
// its permit goes to the next one or back.
//
// All else goes on to the store as it is: calls of more than one event of one key, a Decide with a shadow
// or a look, what AllowUpTo, AllowWithin of the buckets and Peek ask, and what is given back.
//
// It is safe for concurrent use. Make it by [New].
type Store struct {
	store.Store
	patience *pending.Patience

	seeds keyhash.Seeds

	mu      sync.Mutex                     // protects waiters; never held over a call
	waiters map[keyhash.Hash][]batch.Claim // for the next call, in order of arrival, where one is under way
}

// New returns a store that asks s. Its error is [store.ErrInvalidOption]: s is nil.
func New(s store.Store) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	return &Store{Store: s, patience: pending.PatienceWith(s), seeds: keyhash.New(), waiters: map[keyhash.Hash][]batch.Claim{}}, nil
}

// Unwrap returns the store that is asked.
func (s *Store) Unwrap() store.Store { return s.Store }

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.waiters == nil {
		return unmade.Err
	}
	if rule.Held {
		return fmt.Errorf("%w: calls of %s are not joined: each slot has a number of its own", store.ErrInvalidOption, rule.Name)
	}
	return s.Store.Prepare(rule, l, fixed)
}

// keyOf is a hash of what calls must have in common to be decided together: all but the numbers of events of a list.
// shared is false for calls that are not: those that do not take events, or wait for a turn, and those for several
// events of one key, of which the store cannot charge as many calls as fit at one instant.
func (s *Store) keyOf(requests []store.Request) (k keyhash.Hash, shared bool) {
	for i := range requests {
		r := &requests[i]
		if r.Op != store.OpTake || r.Limit.Before() > 0 || r.Reserved > 0 || r.Else && i > 0 || r.N > batch.MostEvents || r.N > 1 && len(requests) == 1 {
			return k, false
		}
		k = s.seeds.After(k, r.Namespace, r.Key, r.Limit)
	}
	return k, true
}

// Take decides on events together with others.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	requests, replies := [1]store.Request{{Namespace: ns, Key: key, Limit: l, N: n}}, [1]store.Reply{}
	err := s.decide(ctx, requests[:], replies[:], func() (err error) {
		replies[0], err = s.Store.Take(ctx, ns, key, l, n)
		return err
	})
	return replies[0], err
}

// Decide decides on events together with others, of each list all or none.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return s.decide(ctx, requests, replies, func() error { return s.Store.Decide(ctx, requests, replies) })
}

// decide decides on requests together with others, or alone.
func (s *Store) decide(ctx context.Context, requests []store.Request, replies []store.Reply, alone func() error) error {
	k, shared := s.keyOf(requests)
	if !shared {
		return alone()
	}
	if w, waits := s.wait(k, requests); waits {
		v, err := w.Wait(ctx, s.patience)
		copy(replies, v.Replies)
		return err
	}
	defer s.goOn(k, requests, nil) // also if the store panics
	err := alone()
	s.patience.Heard(err)
	return err
}

// wait waits for the call on k that is under way. If there is none, the next one is.
func (s *Store) wait(k keyhash.Hash, requests []store.Request) (w batch.Claim, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters, underWay := s.waiters[k]
	if underWay {
		w = batch.NewClaim(len(requests), func(i int) int64 { return requests[i].N })
		waiters = batch.Add(waiters, w)
	}
	s.waiters[k] = waiters
	return w, underWay
}

// goOn asks the store for those who wait on k: those who are left, and those who have come since. If there
// are none, no call is under way any more.
func (s *Store) goOn(k keyhash.Hash, requests []store.Request, left []batch.Claim) {
	s.mu.Lock()
	next, others := batch.Next(left, s.waiters[k])
	if s.waiters[k] = others; len(next) == 0 {
		delete(s.waiters, k)
	}
	s.mu.Unlock()
	if len(next) > 0 {
		b := new(batch.Batch)
		b.Make(len(requests), next, s.patience)
		copy(b.Requests, requests)
		go s.askFor(k, b)
	}
}

// askFor asks the store for b, and goes on, even if the store ends the goroutine.
func (s *Store) askFor(k keyhash.Hash, b *batch.Batch) {
	defer func() { s.goOn(k, b.Requests, s.answer(b)) }()
	b.Ask(context.Background(), s.Store) // not a waiter's context: the store has its own timeout
}

// answer answers the waiters of b, each as if the others had come one after the other. It gives back what is
// of those who have left. After an error that stays charged, as after any call whose caller has left.
func (s *Store) answer(b *batch.Batch) (again []batch.Claim) {
	given := make([]int64, len(b.Parts))
	again = b.Answer(func(w batch.Claim, replies []store.Reply) {
		for i, n := range w.N {
			replies[i] = b.Parts[i].Reply.After(b.Requests[i].Namespace.Rule, given[i])
			given[i] += n
		}
	}, func(w batch.Claim, _ []store.Reply) {
		for i, n := range w.N {
			given[i] -= n
		}
	})
	for i, p := range b.Parts {
		if q := &b.Requests[i]; p.Granted > given[i] {
			receipt := p.Reply.Receipt(q.Namespace.Rule, q.Limit, p.Granted, p.Granted-given[i])
			s.patience.Heard(s.Refund(context.Background(), q.Namespace, q.Key, q.Limit, receipt))
		}
	}
	return again
}

var _ store.Store = (*Store)(nil)
