package lease

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/store"
)

// Take admits n events of what is held, or asks the store.
func (d *Store) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if l.Before() > 1 { // 1 means due now
		return d.takeOne(ctx, store.Request{Namespace: ns, Key: key, Limit: l, N: n}, nil)
	}
	l = l.TurnBefore(0) // events of a bucket that are held are due now
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	e := d.entry(s, id, ns, key, l)
	if e == nil {
		s.mu.Unlock()
		asked := &d.stats.unleased
		if d.closed.Load() { // if the store is closed, no key can have a lease
			asked = &d.stats.asked
		}
		return d.ask(ctx, ns, key, newLimits(ns.Rule, l, d.terms.life), n, asked)
	}
	now := d.now()
	if held := d.spend(e, now, n); held != nil {
		r := d.admit(held, n)
		if e.low() && now >= e.denied {
			d.fetchAhead(s, e)
		}
		s.mu.Unlock()
		return r, nil
	}
	ls := e.limits
	switch {
	case n > 1: // only by the store, which is exact; events that are held stay held
		s.mu.Unlock()
		return d.ask(ctx, e.ns, e.key, ls, n, &d.stats.asked)
	case now < e.denied:
		r := d.deny(e, now)
		s.mu.Unlock()
		return r, nil
	case e.lend(now, &d.terms):
		r := d.admitLent(s, e, now)
		s.mu.Unlock()
		d.stats.overdrawn.Add(1)
		return r, nil
	}
	s.mu.Unlock()
	return d.takeOne(ctx, store.Request{Namespace: e.ns, Key: e.key, Limit: l, N: n}, &miss{limits: ls, shard: s, entry: e})
}

// takeOne decides on r. If m is not nil, none of the events of r are held.
func (d *Store) takeOne(ctx context.Context, r store.Request, m *miss) (store.Reply, error) {
	requests, replies := [1]store.Request{r}, [1]store.Reply{}
	if m == nil {
		err := d.takeMisses(ctx, requests[:], replies[:], d.decideHere(requests[:], replies[:]))
		return replies[0], err
	}
	m.request = r
	_, err := d.claim(ctx, []miss{*m}, replies[:])
	return replies[0], err
}

// miss is one of several requests for which not all events are held.
type miss struct {
	request  store.Request // as the caller asked
	limits   *limits
	at       int  // its index among the requests
	known    bool // whether the reply is known without the store
	unleased bool // whether the store is asked because the key cannot have a lease

	shard *shard
	entry *entry // nil if only the store can answer
}

// Decide admits events that are held. If some are not, the store decides on these, all or none, and
// grants leases of them in the same call. Looks are answered as if they were alone, except for
// gates, because events held here must not open a gate if the store decides on all.
func (d *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	if store.Alternatives(requests) {
		return store.InTurn(ctx, requests, replies, d.Decide)
	}
	if len(requests) == 1 && requests[0].Reserved == 0 {
		switch r := &requests[0]; r.Op {
		case store.OpTake:
			replies[0], err = d.Take(ctx, r.Namespace, r.Key, r.Limit, r.N)
			return err
		case store.OpUpTo:
			replies[0], err = d.takeUpTo(ctx, r)
			return err
		case store.OpOverdraw:
			replies[0], err = d.overdraw(ctx, r.Namespace, r.Key, r.Limit, r.N, r.Most)
			return err
		}
	}
	for range requests { // a lease that arrives gives each of them at most one more chance
		misses := d.decideHere(requests, replies)
		if err = d.takeMisses(ctx, requests, replies, misses); err != nil || !d.haveArrived(misses, replies) {
			break
		}
	}
	return err
}

// haveArrived reports whether the store has denied events that are held by now, because a lease in flight had taken them.
func (d *Store) haveArrived(misses []miss, replies []store.Reply) bool {
	return len(misses) > 1 && slices.ContainsFunc(misses, func(m miss) bool {
		if m.entry == nil || !m.request.Votes() || replies[m.at].OK() {
			return false
		}
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		return m.entry.limits == m.limits && m.entry.held(d.now()) >= int(m.request.N)
	})
}

// takeMisses asks the store for the misses. If these are denied, the events spent for the rest
// are taken back.
func (d *Store) takeMisses(ctx context.Context, requests []store.Request, replies []store.Reply, misses []miss) (err error) {
	if len(misses) == 0 {
		return nil
	}
	all := false
	defer func() { // even if the store panics
		if !all {
			d.putBack(requests, replies, misses)
		}
	}()
	if slices.ContainsFunc(misses, miss.alone) {
		all, err = d.takeAlone(ctx, misses, replies)
	} else {
		all, err = d.claim(ctx, misses, replies)
	}
	return err
}

// alone reports whether m must be asked for in a call of its own.
func (m miss) alone() bool {
	return m.entry == nil || !m.request.Votes() || m.request.N > batch.MostEvents
}

// decideHere decides on requests by what is held and known, if it can. Otherwise, it returns what
// to ask for, and has spent the events that are held for the rest.
func (d *Store) decideHere(requests []store.Request, replies []store.Reply) (misses []miss) {
	for i := range requests {
		if m, held := d.spendFor(&requests[i], &replies[i]); !held {
			m.at, m.request = i, requests[i]
			if m.limits == nil {
				m.limits = newLimits(m.request.Namespace.Rule, m.request.Limit, d.terms.life)
			}
			misses = append(misses, m)
		}
	}
	switch {
	case len(misses) == 0:
		return nil
	case denyAll(misses, replies):
		d.putBack(requests, replies, misses)
		return nil
	case d.lendAll(misses, replies):
		return nil
	}
	return misses
}

// spendFor spends the events of r if they are held. Otherwise, it returns a miss. If that is known, reply
// is what the store would answer, as far as its last answer tells: a denial, or that there is room.
func (d *Store) spendFor(r *store.Request, reply *store.Reply) (m miss, held bool) {
	own := r.Limit.TurnBefore(0)
	s, id := d.shardOf(r.Namespace, r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	leaseless := r.Limit.Before() > 1 || r.Op == store.OpUpTo          // 1 means due now, as events of a bucket are that are held
	if r.Looks() || r.Reserved > 0 || leaseless && s.keys[id] == nil { // only the store knows what remains
		return m, false
	}
	e := d.entry(s, id, r.Namespace, r.Key, own)
	if e == nil {
		m.unleased = !d.closed.Load() && !leaseless // as in Take
		return m, false
	}
	now := d.now()
	if held := d.spend(e, now, r.N); held != nil {
		*reply = d.admit(held, r.N)
		return m, true
	}
	if leaseless {
		return m, false
	}
	m.shard, m.entry, m.limits = s, e, e.limits
	switch {
	case r.N > 1:
	case now < e.denied:
		m.known, *reply = true, d.deny(e, now)
	case e.last != nil && e.last.reply.OK() && now-e.last.at < d.terms.life/2:
		m.known, *reply = true, e.last.reply
	}
	return m, false
}

// lendAll admits all of misses before the store knows them, if it may.
func (d *Store) lendAll(misses []miss, replies []store.Reply) bool {
	for i := range misses {
		if m := &misses[i]; d.terms.overdraft == 0 || !d.lendFor(m, &replies[m.at]) {
			for _, m := range misses[:i] {
				d.putBackOne(&m.request, replies[m.at])
			}
			return false
		}
	}
	d.stats.overdrawn.Add(int64(len(misses)))
	return true
}

func (d *Store) lendFor(m *miss, reply *store.Reply) (lent bool) {
	if e := m.entry; e != nil && m.request.N == 1 {
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		now := d.now()
		if lent = e.limits == m.limits && e.lend(now, &d.terms); lent {
			*reply = d.admitLent(m.shard, e, now)
		}
	}
	return lent
}

// admitLent returns the admission of an event that e has lent.
func (d *Store) admitLent(s *shard, e *entry, now time.Duration) store.Reply {
	at := lentAt + inMicros(now)
	if e.owed == 1 {
		e.owedSince = at
	}
	if e.mustPay(&d.terms) {
		d.fetchAhead(s, e)
	}
	return store.Reply{Outcome: store.AdmittedByLease, X: at, Y: int64(max(0, e.room-e.owed)) + 1, Z: 1}
}

// denyAll reports whether all replies are known and one of them denies.
func denyAll(misses []miss, replies []store.Reply) bool {
	denied := false
	for i := range misses {
		m := &misses[i]
		if !m.known {
			return false
		}
		denied = denied || m.request.Votes() && !replies[m.at].OK()
	}
	return denied
}

// putBack takes back what was spent for requests, except for misses.
func (d *Store) putBack(requests []store.Request, replies []store.Reply, misses []miss) {
	for i := range requests {
		if len(misses) > 0 && misses[0].at == i {
			misses = misses[1:]
			continue
		}
		d.putBackOne(&requests[i], replies[i])
	}
}

// takeAlone asks the store for the misses of one call.
func (d *Store) takeAlone(ctx context.Context, misses []miss, replies []store.Reply) (all bool, err error) {
	switch {
	case slices.ContainsFunc(misses, func(m miss) bool { return m.unleased }):
		d.stats.unleased.Add(1)
	case slices.ContainsFunc(misses, func(m miss) bool { return !m.request.Looks() }): // the call is for events
		d.stats.asked.Add(1)
	}
	requests, answers := make([]store.Request, len(misses)), make([]store.Reply, len(misses))
	for i := range misses {
		requests[i] = misses[i].request
		requests[i].Limit = misses[i].limits.by
	}
	if err = d.inner.Decide(ctx, requests, answers); err != nil {
		return false, err
	}
	all = store.AllOK(requests, answers)
	for i := range misses {
		m, r := &misses[i], &requests[i]
		n, charged := r.N, int64(0)
		if r.Op == store.OpUpTo {
			n = max(1, min(n, answers[i].Available(r.Namespace.Rule, m.limits.by)-r.Reserved))
		}
		if all && !r.Looks() {
			charged = n
		}
		if r.Op == store.OpLook && r.Reserved == 0 {
			replies[m.at] = d.withHeld(r.Namespace, r.Key, m.limits, answers[i], n)
		} else {
			replies[m.at] = answers[i].Plainly(r.Namespace.Rule, m.limits.by, n+r.Reserved, charged)
		}
	}
	return all, nil
}

// shardOf returns the shard of key, and the key's hash.
func (d *Store) shardOf(ns *store.Namespace, key string) (*shard, keyhash.Hash) {
	id := d.seeds.In(ns, key)
	return &d.shards[id.Lo%shards], id
}

// ask asks the store, and counts the call.
func (d *Store) ask(ctx context.Context, ns *store.Namespace, key string, ls *limits, n int64, asked *atomic.Int64) (store.Reply, error) {
	asked.Add(1)
	r, err := d.inner.Take(ctx, ns, key, ls.by, n)
	return ls.underOwn(r, n, n), err
}

// entry returns the entry of key under the limit l, and makes it if needed. It returns nil if the
// key cannot be leased, if there are too many keys, or if the store is closed.
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

// change releases everything that is held under a limit other than ls.
func (d *Store) change(e *entry, ls *limits) {
	d.giveUp(e)
	e.limits, e.denied, e.last = ls, 0, nil // full stays, because otherwise limits that alternate would lend each time
}

// spend admits n events of what is held of e, and returns the grant they belong to, or nil if there
// are not enough.
func (d *Store) spend(e *entry, now time.Duration, n int64) *lease[*grant] {
	e.used = now
	d.tidy(e, now)
	return e.spend(now, int(n))
}

// tidy releases what has lapsed.
func (d *Store) tidy(e *entry, now time.Duration) {
	for g, unspent := e.lapse(now); unspent > 0; g, unspent = e.lapse(now) {
		d.giveBack(e, g, unspent)
	}
}

// admit returns the admission of n events that were spent from a grant.
func (d *Store) admit(held *lease[*grant], n int64) store.Reply {
	d.stats.local.Add(1)
	return held.grant.admit(store.AdmittedByLease, held.left, n)
}

// deny returns the denial that is known: while e.denied lies ahead, e.last is a denial, because whatever
// replaces one changes both.
func (d *Store) deny(e *entry, now time.Duration) store.Reply {
	d.stats.local.Add(1)
	r := e.last.reply
	r.Outcome = store.DeniedByLease
	r.X = inMicros(max(e.last.at+micros(r.X), e.denied) - now)
	r.Z = max(r.X, inMicros(e.last.at+micros(r.Z)-now))
	return r
}
