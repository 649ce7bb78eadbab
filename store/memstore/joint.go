package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit/store"
)

// Prepare implements [store.Store]: there is nothing to prepare.
func (s *Store) Prepare(*store.Rule) {}

// Together implements [store.Store]: all keys are in one memory.
func (s *Store) Together(string, string) bool { return true }

// TakeAll implements [store.Store]. It holds the locks of all tables that have a key
// of a request. No other call waits for a table while it holds one, but for another
// TakeAll, and all of them lock in the order of the tables.
func (s *Store) TakeAll(_ context.Context, requests []store.Request, replies []store.Reply) error {
	var few [8]claim // on the stack
	list := few[:0]
	for i := range requests {
		list = append(list, claim{Request: &requests[i], reply: &replies[i], hash: s.secret.hash(requests[i].Namespace, requests[i].Key)})
	}
	return s.takeAll(list)
}

// takeAll decides on requests of different keys.
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
			held = s.charge(held, &list[i], reading)
		}
	}
	s.unlockAll(held, reading)
	return nil
}

// claim is a Request with what came of it.
type claim struct {
	*store.Request
	hash  hash
	reply *store.Reply
	next  store.State // in which it is charged; zero if that is for a log to do
	force bool        // it is charged even if it is not OK, and holds
	most  int64       // events at most
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

// unlockAll also does the sweeping that is due.
func (s *Store) unlockAll(held []*table, reading int64) {
	due := false
	for _, t := range held {
		due = t.tick() == sweepDue || due
		t.mu.Unlock()
	}
	if due {
		s.sweepNext(reading)
	}
	for s.keys.Load() > s.maxKeys { // charge may have gone beyond
		s.evictBeyond(hash{}, reading)
	}
}

// tableOf is that of h among those that are held.
func tableOf(held []*table, h hash) *table {
	for _, t := range held {
		if t.covers(h) {
			return t
		}
	}
	return nil // not with the tables that lockAll has locked
}

// decideAll decides on each claim, and says whether all are OK.
func decideAll(held []*table, list []claim, reading int64) bool {
	all := true
	for i := range list {
		c := &list[i]
		t := tableOf(held, c.hash)
		slot, now := t.find(c.hash), max(reading, t.horizon)
		if log := t.log(slot); log != nil {
			*c.reply = log.Step(c.Limit, now, c.N)
		} else {
			c.next, *c.reply = c.Namespace.Rule.Step(t.state(slot, c.Namespace.Rule, now), c.Limit, now, c.N)
			if c.force && !c.reply.OK {
				c.reply.X, c.next = c.next.At, c.over()
			}
		}
		all = all && (c.reply.OK || c.force)
	}
	return all
}

// over is the state in which a claim is charged that is not OK.
func (c *claim) over() store.State {
	if c.Namespace.Rule.Overdrawn == nil {
		return store.State{} // for a log
	}
	return c.Namespace.Rule.Overdrawn(c.next, c.Limit, c.most)
}

// charge keeps what decideAll has decided on c. It returns the tables that are held
// then: one that was full has split.
func (s *Store) charge(held []*table, c *claim, reading int64) []*table {
	rule := c.Namespace.Rule
	for {
		t := tableOf(held, c.hash)
		now := max(reading, t.horizon)
		i := t.find(c.hash)
		if i < 0 { // new, or the claim before it had to evict it
			var out outcome
			if i, out = s.insert(t, c.hash, rule, now); out == tableSplit {
				held = append(held, t.next.Load())
				continue
			} else if out == storeFull { // one too many, until unlockAll
				s.keys.Add(1)
				t.resize(minSlots) // it is empty
				i = s.placeNew(t, c.hash, rule)
			}
		}
		if t.log(i) == nil && c.next != (store.State{}) {
			t.slots[i].put(c.next, c.Limit.Rate)
			return held
		}
		if t.log(i) == nil {
			t.setLog(i, rule.NewLog(t.state(i, rule, now)))
		}
		t.addToLog(i, c.Limit, now, c.N)
		if c.force {
			c.reply.X = t.slots[i].at
		}
		return held
	}
}
