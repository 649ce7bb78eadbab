package lease

import (
	"context"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// Take admits n events of what is held, or asks the store.
func (d *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if l.Before() > 1 {
		return d.takeWithin(ctx, ns, key, l, n)
	}
	l = l.TurnBefore(0) // events of a bucket have their turn now if they are there
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	e := d.entry(s, id, ns, key, l)
	if e == nil {
		s.mu.Unlock()
		return d.askUnleased(ctx, ns, key, l, n)
	}
	now := d.now()
	e.used = now
	d.tidy(e, now)
	if held := e.spend(now, int(n)); held != nil {
		r := d.admit(held, n)
		if e.low() && now >= e.denied {
			d.startFetch(s, e)
		}
		s.mu.Unlock()
		return r, nil
	}
	return d.without(ctx, s, e, n, now)
}

// without decides on n events that are not held. It unlocks s.
func (d *Store) without(ctx context.Context, s *shard, e *entry, n int64, now time.Duration) (store.Reply, error) {
	ls := e.limits
	switch {
	case n > 1: // by the store alone: exact, and what is held stays held
		s.mu.Unlock()
		return d.ask(ctx, e.ns, e.key, ls, n)
	case now < e.denied:
		r := d.deny(e, now)
		s.mu.Unlock()
		return r, nil
	case e.borrow(now, &d.terms):
		d.stats.overdrawn.Add(1)
		if e.settle(&d.terms) {
			d.startFetch(s, e)
		}
		r := store.Reply{Outcome: store.AdmittedByLease, X: lentAt, Y: int64(max(0, e.room-e.owed)) + 1, Z: 1}
		s.mu.Unlock()
		return r, nil
	}
	c := pending.New[answer]()
	e.queue = append(e.queue, c)
	f := e.begun()
	if !e.fetching {
		if f = d.newFetch(e); f == nil { // it is closed
			e.queue = nil
			s.mu.Unlock()
			return d.ask(ctx, e.ns, e.key, ls, n)
		}
	}
	s.mu.Unlock()
	switch {
	case f == nil: // another one's is under way
	case f.want == 1: // for this caller alone
		d.doFetch(ctx, s, e, f)
	default:
		go d.doFetch(context.Background(), s, e, f) // no caller's: the store has a timeout
	}
	a, err := c.Wait(ctx, d.patience)
	if err == nil && a.again {
		return d.ask(ctx, e.ns, e.key, ls, n)
	}
	return a.reply, err
}

// shardOf is where key is, and its hash.
func (d *Store) shardOf(ns *store.Namespace, key string) (*shard, keyhash.Hash) {
	id := d.seeds.In(ns, key)
	return &d.shards[id.Lo%shards], id
}

// ask asks the store, and counts that.
func (d *Store) ask(ctx context.Context, ns *store.Namespace, key string, ls *limits, n int64) (store.Reply, error) {
	d.stats.asked.Add(1)
	r, err := d.Store.Take(ctx, ns, key, ls.by, n)
	return ls.told(r, n, n), err
}

// askUnleased asks the store about a key that cannot have a lease, and counts that.
func (d *Store) askUnleased(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	ls := newLimits(ns.Rule, l, d.terms.life)
	if d.closed.Load() { // then no key can
		return d.ask(ctx, ns, key, ls, n)
	}
	d.stats.unleased.Add(1)
	r, err := d.Store.Take(ctx, ns, key, ls.by, n)
	return ls.told(r, n, n), err
}

// entry is that of key, a new one if need be, under the limit l. It is nil if the key cannot be
// leased, there are too many, or the lease is closed.
func (d *Store) entry(s *shard, id keyhash.Hash, ns *store.Namespace, key string, l store.Limit) *entry {
	e := s.keys[id]
	switch {
	case d.closed.Load() || len(key) > maxKey:
		return nil
	case e != nil && e.limits.own == l:
		return e
	}
	ls := s.limits
	if ls == nil || ls.own != l || ls.rule != ns.Rule {
		ls = newLimits(ns.Rule, l, d.terms.life)
	}
	if !ls.leasable {
		return nil
	}
	if e != nil {
		d.change(e, ls)
		return e
	}
	if d.keys.Add(1) > d.maxKeys {
		d.keys.Add(-1)
		return nil
	}
	s.limits = ls
	e = &entry{ns: ns, key: strings.Clone(key), limits: ls}
	s.keys[id] = e
	d.arm()
	return e
}

// change gives back all that is held under another limit than ls.
func (d *Store) change(e *entry, ls *limits) {
	d.giveUp(e)
	e.limits, e.denied, e.last = ls, 0, nil // full stays: limits that take turns would lend each time
	for _, c := range e.queue {             // who waits for a decision by the other limit
		c.Answer(answer{again: true}, nil)
	}
	e.queue = nil
}

// tidy gives back what has lapsed.
func (d *Store) tidy(e *entry, now time.Duration) {
	for g, unspent := e.lapse(now); unspent > 0; g, unspent = e.lapse(now) {
		d.giveBack(e, g, unspent)
	}
}

// admit is the admission of n events that were spent of a grant.
func (d *Store) admit(held *slot[*grant], n int64) store.Reply {
	d.stats.local.Add(1)
	return held.grant.admit(store.AdmittedByLease, held.left, n)
}

// deny is the denial that is known.
func (d *Store) deny(e *entry, now time.Duration) store.Reply {
	d.stats.local.Add(1)
	r := e.last.reply
	r.Outcome = store.DeniedByLease
	r.X = inMicros(max(e.last.told+micros(r.X), e.denied) - now)
	r.Z = max(r.X, inMicros(e.last.told+micros(r.Z)-now))
	return r
}
