// Package coalesce asks a store once for many callers.
package coalesce

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/store"
)

// Store wraps a store. While a Take of a key is under way, others on that key wait, and
// then one TakeUpTo decides on all of them. It is for one namespace.
type Store struct {
	store.Store

	mu    sync.Mutex       // protects calls and the waiters in it; never held over a call
	calls map[hotKey]*call // that are under way
}

// New returns a Store that asks s.
func New(s store.Store) *Store { return &Store{Store: s, calls: map[hotKey]*call{}} }

type hotKey struct {
	key   string
	limit store.Limit
}

// call is a call of the store under way. Its waiters wait for the next one, in order of
// arrival.
type call struct{ waiters []*waiter }

// waiter is a call of Take waiting for its answer. Whichever side sets done first, the
// waiter leaving or the sender answering, decides which it is.
type waiter struct {
	done  atomic.Bool
	ready chan struct{} // closed when the answer is there
	answer
}

type answer struct {
	reply    store.Reply
	err      error
	panicked any // the value that the store panicked with
}

// Take implements [store.Store]. Only single events without a Before are coalesced.
func (s *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if n != 1 || l.Before > 0 {
		return s.Store.Take(ctx, ns, key, l, n)
	}
	k := hotKey{key, l}
	s.mu.Lock()
	if underWay, ok := s.calls[k]; ok {
		w := &waiter{ready: make(chan struct{})}
		underWay.waiters = append(underWay.waiters, w)
		s.mu.Unlock()
		return w.wait(ctx)
	}
	s.calls[k] = new(call)
	s.mu.Unlock()
	defer func() { // also if the store panics
		if waiters := s.next(k); waiters != nil {
			go s.decideAll(ns, k, waiters)
		}
	}()
	return s.Store.Take(ctx, ns, key, l, 1)
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
	for waiters != nil {
		s.decide(ns, k, present(waiters))
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
	defer func() { // a panic belongs on the callers' goroutines, which may expect it
		if p := recover(); p != nil {
			answerAll(waiters, answer{panicked: p})
		}
	}()
	ctx := context.Background() // not a waiter's: the store has its own timeout
	r, err := s.TakeUpTo(ctx, ns, k.key, k.limit, int64(len(waiters)))
	if err != nil || !r.OK() {
		answerAll(waiters, answer{reply: r, err: err})
		return
	}
	granted, given := min(int64(len(waiters)), r.Available(ns.Rule, k.limit)), int64(0)
	for i, w := range waiters {
		if given == granted {
			denial, err := s.Peek(ctx, ns, k.key, k.limit, 1)
			denial.Outcome = store.Denied
			answerAll(waiters[i:], answer{reply: denial, err: err})
			return
		}
		if w.answerWith(answer{reply: r.After(ns.Rule, given)}) {
			given++
		}
	}
	if given < granted { // some have left
		// After an error they stay charged, as after any call whose caller has left.
		_ = s.Refund(ctx, ns, k.key, k.limit, r.Receipt(ns.Rule, k.limit, granted, granted-given))
	}
}

// present returns the waiters that have not left.
func present(waiters []*waiter) []*waiter {
	here := waiters[:0]
	for _, w := range waiters {
		if !w.done.Load() {
			here = append(here, w)
		}
	}
	return here
}

// wait returns the answer, or leaves when ctx ends.
func (w *waiter) wait(ctx context.Context) (store.Reply, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		if w.done.CompareAndSwap(false, true) {
			return store.Reply{}, ctx.Err()
		}
		<-w.ready // the answer is being written
	}
	if w.panicked != nil {
		panic(w.panicked)
	}
	return w.reply, w.err
}

// answerWith answers w, unless it has left.
func (w *waiter) answerWith(a answer) bool {
	if !w.done.CompareAndSwap(false, true) {
		return false
	}
	w.answer = a
	close(w.ready)
	return true
}

func answerAll(waiters []*waiter, a answer) {
	for _, w := range waiters {
		w.answerWith(a)
	}
}
