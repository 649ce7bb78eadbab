package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/store"
)

// Prepare implements [store.Store]. There is nothing to prepare.
func (s *Store) Prepare(*store.Rule, store.Limit, bool) error {
	if s.maxKeys == 0 {
		return fmt.Errorf("%w: %w", store.ErrInvalidOption, errNotMade)
	}
	return nil
}

// Together implements [store.Store]. It reports true, because all keys are in one memory.
func (s *Store) Together(string, string) bool { return true }

// Decide implements [store.Store]. It holds the locks of all tables that have a key of a request.
// Only Decide waits for a table while it holds another, and it always locks tables in their order,
// so it cannot deadlock.
func (s *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	switch {
	case store.Alternatives(requests):
		return store.InTurn(ctx, requests, replies, s.Decide)
	case len(requests) == 2 && takes(&requests[0]) && takes(&requests[1]) && s.takeTwo(requests, replies):
		return nil
	case len(requests) == 1 && requests[0].Reserved == 0:
		switch r := &requests[0]; r.Op {
		case store.OpTake:
			replies[0], err = s.Take(ctx, r.Namespace, r.Key, r.Limit, r.N)
			return err
		case store.OpUpTo:
			replies[0], err = s.takeUpTo(r)
			return err
		case store.OpLook:
			replies[0], err = s.peek(r)
			return err
		}
	}
	var few [4]request // on the stack
	list := few[:]
	if len(requests) > len(few) {
		list = make([]request, len(requests))
	}
	list = list[:len(requests)]
	for i := range list {
		q, r := &list[i], &requests[i]
		q.Request, q.reply, q.hash = r, &replies[i], s.secret.hash(r.Namespace, r.Key)
	}
	return s.takeAll(list)
}

// takes reports whether r takes N events if they fit, and reserves none.
func takes(r *store.Request) bool { return r.Op == store.OpTake && r.Reserved == 0 }

// takeTwo is Decide for two takes in straight-line code, if both keys have states that were counted
// under their limits. Otherwise, it returns false and changes nothing.
func (s *Store) takeTwo(requests []store.Request, replies []store.Reply) bool {
	p, q := &requests[0], &requests[1]
	if s.maxKeys == 0 || mayPanic(p.Namespace.Rule) || mayPanic(q.Namespace.Rule) {
		return false
	}
	h, k := s.secret.hash(p.Namespace, p.Key), s.secret.hash(q.Namespace, q.Key)
	r, o := &replies[0], &replies[1]
	if k.hi < h.hi { // tables are locked in their order
		p, q, h, k, r, o = q, p, k, h, o, r
	}
	reading := s.now()
	t, u := s.root.leaf(h), s.root.leaf(k)
	t.mu.Lock()
	if u != t {
		u.mu.Lock()
	}
	done, due := false, false
	if i, j := t.counted(h, p.Limit), u.counted(k, q.Limit); i >= 0 && j >= 0 {
		next, x := p.Namespace.Rule.Step(t.slots[i].state(p.Limit.Period), p.Limit, max(reading, t.horizon), p.N)
		last, y := q.Namespace.Rule.Step(u.slots[j].state(q.Limit.Period), q.Limit, max(reading, u.horizon), q.N)
		all := x.OK() && y.OK()
		if done = !all || next.Period == p.Limit.Period && last.Period == q.Limit.Period; done { // or else a log begins
			if *r, *o = x, y; all {
				t.set(i, next)
				u.set(j, last)
			}
			due = t.tick() == sweepDue
		}
	}
	t.mu.Unlock()
	if u != t {
		u.mu.Unlock()
	}
	if due {
		s.sweepNext(reading)
	}
	return done
}

// takeAll decides on requests with different keys.
func (s *Store) takeAll(list []request) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	for i := range list { // before anything is charged
		if _, ok := s.rules.number(list[i].Namespace.Rule); !ok {
			return errTooManyRules
		}
	}
	slices.SortFunc(list, func(a, b request) int { return cmp.Compare(a.hash.hi, b.hash.hi) })
	reading := s.now()
	var few [8]*table // on the stack
	locked, returned := s.lockAll(few[:0], list), false
	defer func() {
		if !returned { // a rule has panicked
			for _, t := range locked {
				t.mu.Unlock()
			}
		}
	}()
	if all := decideAll(locked, list, reading); all {
		for i := range list {
			if q := &list[i]; q.Op == store.OpOverdraw || q.reply.OK() && !q.Looks() {
				locked = s.charge(locked, q, reading)
			}
		}
	}
	returned = true
	s.unlockAll(locked, reading)
	return nil
}

// request is a Request, and how it was decided.
type request struct {
	*store.Request
	hash  hash
	reply *store.Reply
	table *table      // the table that held the key when it was decided on
	slot  int         // the slot of the key in table; -1 if it was not there
	n     int64       // the events to charge
	next  store.State // with the events charged; zero if a log charges them
}

// lockAll locks the tables of all requests, which are sorted.
func (s *Store) lockAll(locked []*table, list []request) []*table {
	for i := range list {
		if n := len(locked); n == 0 || !locked[n-1].covers(list[i].hash) {
			locked = append(locked, s.lock(list[i].hash))
		}
	}
	return locked
}

// unlockAll unlocks the tables, and sweeps if a sweep is due.
func (s *Store) unlockAll(locked []*table, reading int64) {
	due := false
	for _, t := range locked {
		due = t.tick() == sweepDue || due
		t.mu.Unlock()
	}
	if due {
		s.sweepNext(reading)
	}
	for s.keys.Load() > s.maxKeys { // charge may have exceeded the maximum
		s.evictBeyond(hash{}, reading)
	}
}

// tableOf returns the table among locked that covers h.
func tableOf(locked []*table, h hash) *table {
	for _, t := range locked {
		if t.covers(h) {
			return t
		}
	}
	return nil // not reached, because lockAll has locked the table of each request
}

// decideAll decides on each request, and reports whether all that vote are OK.
func decideAll(locked []*table, list []request, reading int64) bool {
	all := true
	for i := range list {
		q := &list[i]
		t := tableOf(locked, q.hash)
		q.table, q.slot, q.n = t, t.find(q.hash), q.N
		now := max(reading, t.horizon)
		q.step(now)
		if q.Op == store.OpUpTo && q.n > 1 && !q.reply.OK() {
			q.n = max(1, q.Namespace.Rule.Available(q.Limit, *q.reply)-q.Reserved)
			q.step(now)
		}
		all = all && (q.reply.OK() || !q.Votes())
	}
	return all
}

// step decides on q's events together with its reserved ones, and makes next the state in which
// only q's events are charged.
func (q *request) step(now int64) {
	if log := q.table.log(q.slot); log != nil {
		*q.reply = log.Step(q.Limit, now, q.n+q.Reserved)
		return
	}
	rule := q.Namespace.Rule
	s := q.table.stateUnder(q.slot, rule, q.Limit, now)
	q.next, *q.reply = rule.Step(s, q.Limit, now, q.n+q.Reserved)
	switch {
	case q.reply.OK() && q.Reserved > 0:
		q.next, _ = rule.Step(s, q.Limit, now, q.n)
	case !q.reply.OK() && q.Op == store.OpOverdraw:
		q.reply.X, q.next = q.next.At, q.overdrawn()
	}
}

// overdrawn returns the state to keep for a request that is charged although it is not OK.
func (q *request) overdrawn() store.State {
	if q.Namespace.Rule.Overdrawn == nil {
		return store.State{} // for a log
	}
	return q.Namespace.Rule.Overdrawn(q.next, q.Limit, q.Most)
}

// where returns the current table and slot of q's key, because the requests before it may have
// moved it.
func (q *request) where(locked []*table) (*table, int) {
	if t, i := q.table, q.slot; i >= 0 && i < len(t.slots) && t.slots[i].is(q.hash) {
		return t, i
	}
	t := tableOf(locked, q.hash)
	return t, t.find(q.hash)
}

// charge writes the decision of decideAll on q. It returns the tables that are now locked, because a
// full table may have been split.
func (s *Store) charge(locked []*table, q *request, reading int64) []*table {
	rule := q.Namespace.Rule
	for {
		t, i := q.where(locked)
		now := max(reading, t.horizon)
		if i < 0 { // new, or evicted for an earlier request
			var out outcome
			if i, out = s.insert(t, q.hash, rule, q.Limit, now); out == tableSplit {
				locked = append(locked, t.next.Load())
				continue
			} else if out == storeFull { // one key too many, until unlockAll
				s.keys.Add(1)
				t.resize(minSlots) // it is empty
				i = s.placeNew(t, q.hash, rule, q.Limit)
			}
		}
		if t.log(i) == nil && q.next != (store.State{}) {
			t.put(i, q.next, q.Limit.Rate)
			return locked
		}
		if t.log(i) == nil {
			t.setLog(i, rule.NewLog(t.state(i, rule, now)))
		}
		t.addToLog(i, q.Limit, now, q.n)
		if q.Op == store.OpOverdraw {
			q.reply.X = t.slots[i].at
		}
		return locked
	}
}
