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
	var few [4]claim // on the stack
	list := few[:]
	if len(requests) > len(few) {
		list = make([]claim, len(requests))
	}
	list = list[:len(requests)]
	for i := range list {
		c, r := &list[i], &requests[i]
		c.Request, c.reply, c.hash = r, &replies[i], s.secret.hash(r.Namespace, r.Key)
	}
	return s.takeAll(list)
}

// takes reports whether r takes N events if they fit, and reserves none.
func takes(r *store.Request) bool { return r.Op == store.OpTake && r.Reserved == 0 }

// takeTwo is Decide for two takes in straight-line code, if both keys have states that were counted
// under their limits. Otherwise, it returns false and changes nothing.
func (s *Store) takeTwo(requests []store.Request, replies []store.Reply) bool {
	if s.maxKeys == 0 {
		return false
	}
	p, q := &requests[0], &requests[1]
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
func (s *Store) takeAll(list []claim) error {
	if s.maxKeys == 0 {
		return errNotMade
	}
	for i := range list { // before anything is charged
		if _, ok := s.rules.number(list[i].Namespace.Rule); !ok {
			return errTooManyRules
		}
	}
	slices.SortFunc(list, func(a, b claim) int { return cmp.Compare(a.hash.hi, b.hash.hi) })
	reading := s.now()
	var few [8]*table // on the stack
	held := s.lockAll(few[:0], list)
	if all := decideAll(held, list, reading); all {
		for i := range list {
			if c := &list[i]; c.Op == store.OpOverdraw || c.reply.OK() && !c.Looks() {
				held = s.charge(held, c, reading)
			}
		}
	}
	s.unlockAll(held, reading)
	return nil
}

// claim is a Request with its outcome.
type claim struct {
	*store.Request
	hash  hash
	reply *store.Reply
	table *table      // the table that held the key when it was decided on
	slot  int         // the slot of the key in table; -1 if it was not there
	n     int64       // the events to charge
	next  store.State // with the events charged; zero if a log charges them
}

// lockAll locks the tables of all requests, which are sorted.
func (s *Store) lockAll(held []*table, list []claim) []*table {
	for i := range list {
		if n := len(held); n == 0 || !held[n-1].covers(list[i].hash) {
			held = append(held, s.lock(list[i].hash))
		}
	}
	return held
}

// unlockAll unlocks the tables, and sweeps if a sweep is due.
func (s *Store) unlockAll(held []*table, reading int64) {
	due := false
	for _, t := range held {
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

// tableOf returns the table among held that covers h.
func tableOf(held []*table, h hash) *table {
	for _, t := range held {
		if t.covers(h) {
			return t
		}
	}
	return nil // not reached, because lockAll has locked the table of each request
}

// decideAll decides on each claim, and reports whether all that vote are OK.
func decideAll(held []*table, list []claim, reading int64) bool {
	all := true
	for i := range list {
		c := &list[i]
		t := tableOf(held, c.hash)
		c.table, c.slot, c.n = t, t.find(c.hash), c.N
		now := max(reading, t.horizon)
		c.step(now)
		if c.Op == store.OpUpTo && c.n > 1 && !c.reply.OK() {
			c.n = max(1, c.Namespace.Rule.Available(c.Limit, *c.reply)-c.Reserved)
			c.step(now)
		}
		all = all && (c.reply.OK() || !c.Votes())
	}
	return all
}

// step decides on the claim's events together with its reserved ones, and makes next the state in
// which only the claim's events are charged.
func (c *claim) step(now int64) {
	if log := c.table.log(c.slot); log != nil {
		*c.reply = log.Step(c.Limit, now, c.n+c.Reserved)
		return
	}
	rule := c.Namespace.Rule
	s := c.table.stateUnder(c.slot, rule, c.Limit, now)
	c.next, *c.reply = rule.Step(s, c.Limit, now, c.n+c.Reserved)
	switch {
	case c.reply.OK() && c.Reserved > 0:
		c.next, _ = rule.Step(s, c.Limit, now, c.n)
	case !c.reply.OK() && c.Op == store.OpOverdraw:
		c.reply.X, c.next = c.next.At, c.over()
	}
}

// over returns the state to keep for a claim that is charged although it is not OK.
func (c *claim) over() store.State {
	if c.Namespace.Rule.Overdrawn == nil {
		return store.State{} // for a log
	}
	return c.Namespace.Rule.Overdrawn(c.next, c.Limit, c.Most)
}

// place returns the current table and slot of c's key, because the claims before it may have moved
// it.
func (c *claim) place(held []*table) (*table, int) {
	if t, i := c.table, c.slot; i >= 0 && i < len(t.slots) && t.slots[i].is(c.hash) {
		return t, i
	}
	t := tableOf(held, c.hash)
	return t, t.find(c.hash)
}

// charge writes the decision of decideAll on c. It returns the tables that are now held, because a
// full table may have been split.
func (s *Store) charge(held []*table, c *claim, reading int64) []*table {
	rule := c.Namespace.Rule
	for {
		t, i := c.place(held)
		now := max(reading, t.horizon)
		if i < 0 { // new, or evicted for an earlier claim
			var out outcome
			if i, out = s.insert(t, c.hash, rule, c.Limit, now); out == tableSplit {
				held = append(held, t.next.Load())
				continue
			} else if out == storeFull { // one key too many, until unlockAll
				s.keys.Add(1)
				t.resize(minSlots) // it is empty
				i = s.placeNew(t, c.hash, rule, c.Limit)
			}
		}
		if t.log(i) == nil && c.next != (store.State{}) {
			t.put(i, c.next, c.Limit.Rate)
			return held
		}
		if t.log(i) == nil {
			t.setLog(i, rule.NewLog(t.state(i, rule, now)))
		}
		t.addToLog(i, c.Limit, now, c.n)
		if c.Op == store.OpOverdraw {
			c.reply.X = t.slots[i].at
		}
		return held
	}
}
