// Package coalesce combines concurrent calls for one key into one call to a store.
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

// Store wraps another [store.Store] and asks it once for many callers. While a call for one event
// of a key is in progress, further calls for that key wait. One call then decides on all of them,
// in order of arrival, and each caller gets the answer that it would have got alone.
//
// Calls of an All, for any number of events, are combined with calls for the same keys under the
// same limits. If not all of them fit, a second call charges as many as had room.
//
// Use it for hot keys on Redis: callers can then ask for a key more often than Redis answers. A
// call that meets no other call costs the same as before. One Store can serve many limiters. It can
// wrap a denycache, which answers repeated denials in memory.
//
// A call that meets others waits for the call in progress and for its own. Each of these can be two
// calls to the store, or three for an All, if only some events are admitted. A caller gets
// [store.ErrTimeout] if the store answers nobody for 17/16 of its timeout. If a caller's ctx ends
// while it waits, its permit goes to the next caller or is refunded.
//
// All other calls go to the store unchanged: several events of one key, a Decide with a shadow or a
// look, refunds, AllowUpTo, Peek, and AllowWithin of a bucket.
//
// A Store runs goroutines only while callers wait. It is safe for concurrent use.
type Store struct {
	inner
	patience *pending.Patience

	seeds keyhash.Seeds

	mu      sync.Mutex             // protects waiters; never held over a call
	waiters map[keyhash.Hash]queue // for the next call; a key exists while a call on it is in progress
}

type inner = store.Store

// queue is the calls that wait for the call in progress, in order of arrival.
type queue struct {
	claims []batch.Claim
	last   *pending.Answered // nil until a call waits
}

// New returns a store that asks s. It returns [store.ErrInvalidOption] if s is nil.
func New(s store.Store) (*Store, error) {
	if isnil.Is(s) {
		return nil, fmt.Errorf("%w: the store is nil", store.ErrInvalidOption)
	}
	return &Store{inner: s, patience: pending.PatienceWith(s), seeds: keyhash.New(), waiters: map[keyhash.Hash]queue{}}, nil
}

// Unwrap returns the wrapped store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Prepare implements [store.Store].
func (s *Store) Prepare(rule *store.Rule, l store.Limit, fixed bool) error {
	if s.waiters == nil {
		return unmade.Err
	}
	if rule.Held {
		return fmt.Errorf("%w: coalesce cannot combine calls of %s, because each slot has its own number", store.ErrInvalidOption, rule.Name)
	}
	return s.inner.Prepare(rule, l, fixed)
}

// keyOf returns a hash of everything that calls must have in common to be decided together. In
// lists, the numbers of events may differ. shared is false for calls that cannot be combined: those
// that do not take events, those that may wait, and those for several events of one key. For the
// last ones, the store cannot charge as many calls as fit at one instant.
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

// Take decides on n events, together with other calls if there are any.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	requests, replies := [1]store.Request{{Namespace: ns, Key: key, Limit: l, N: n}}, [1]store.Reply{}
	err := s.decide(ctx, requests[:], replies[:], func() (err error) {
		replies[0], err = s.inner.Take(ctx, ns, key, l, n)
		return err
	})
	return replies[0], err
}

// Decide decides on requests, all or none, together with other calls if there are any.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return s.decide(ctx, requests, replies, func() error { return s.inner.Decide(ctx, requests, replies) })
}

// decide decides on requests together with other calls, or alone.
func (s *Store) decide(ctx context.Context, requests []store.Request, replies []store.Reply, alone func() error) error {
	k, shared := s.keyOf(requests)
	if !shared {
		return alone()
	}
	if w, last := s.wait(k, requests); last != nil {
		v, err := w.Wait(ctx, s.patience, requests[0].Key, last)
		copy(replies, v.Replies)
		return err
	}
	err := store.ErrTimeout // if the store panics, it has not answered
	defer func() { s.proceed(k, requests, nil, err) }()
	err = alone()
	return err
}

// wait joins the calls that wait for the call in progress on k. If there is none, the caller's
// becomes that call, and last is nil.
func (s *Store) wait(k keyhash.Hash, requests []store.Request) (w batch.Claim, last *pending.Answered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, underWay := s.waiters[k]
	if underWay {
		if q.last == nil {
			q.last = new(pending.Answered)
		}
		w = batch.NewClaim(len(requests), func(i int) int64 { return requests[i].N })
		q.claims = batch.Add(q.claims, w)
	}
	s.waiters[k] = q
	return w, q.last
}

// proceed asks the store for the calls that wait on k, after a call that ended with err: first those in
// left, then those that have arrived since. If there are none, no call is in progress any more.
func (s *Store) proceed(k keyhash.Hash, requests []store.Request, left []batch.Claim, err error) {
	s.mu.Lock()
	q := s.waiters[k]
	next, others := batch.Next(left, q.claims)
	if s.waiters[k] = (queue{others, q.last}); len(next) == 0 {
		delete(s.waiters, k)
	}
	s.mu.Unlock()
	if len(next) > 0 {
		s.patience.Heard(q.last, err)
		b := new(batch.Batch)
		b.Make(len(requests), next, s.patience)
		b.Parts[0].Last = q.last
		copy(b.Requests, requests)
		go s.askFor(k, b)
	}
}

// askFor asks the store for b and continues with the next call, even if the store ends the
// goroutine.
func (s *Store) askFor(k keyhash.Hash, b *batch.Batch) {
	defer func() {
		again, given := s.answer(b)
		s.proceed(k, b.Requests, again, b.Err) // before the refunds, in which the store may panic or end the goroutine
		s.giveBack(b, given)
	}()
	b.Ask(context.Background(), s.inner) // not a waiter's context, because the store has its own timeout
}

// answer answers the waiters of b as if their calls had been made one after the other. It refunds
// the events of callers that have left. If the refund fails, they stay charged, as after any call
// whose caller has left.
func (s *Store) answer(b *batch.Batch) (again []batch.Claim, given []int64) {
	given = make([]int64, len(b.Parts))
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
	return again, given
}

// giveBack refunds what b has charged beyond what was given.
func (s *Store) giveBack(b *batch.Batch, given []int64) {
	defer func() { _ = recover() }() // there is no caller to panic for
	for i, p := range b.Parts {
		if q := &b.Requests[i]; p.Granted > given[i] {
			receipt := p.Reply.Receipt(q.Namespace.Rule, q.Limit, p.Granted, p.Granted-given[i])
			b.Heard(s.Refund(context.Background(), q.Namespace, q.Key, q.Limit, receipt))
		}
	}
}

var _ store.Store = (*Store)(nil)
