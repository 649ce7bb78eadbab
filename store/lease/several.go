package lease

import (
	"context"

	"github.com/ratelimit-go/ratelimit/store"
)

// lack is one of several requests, of which not all events are held.
type lack struct {
	request store.Request // as it was asked for
	limits  *limits
	at      int  // its place among the requests
	known   bool // there is a reply without the store

	shard *shard
	entry *entry       // nil if it cannot have a lease
	leads bool         // a lease is fetched for it
	want  int64        // events that the store is asked for: no fewer than requested
	wish  int64        // events that would be asked for if there were any number
	full  *store.Reply // a denial that comes next, since all there was is taken; nil if that is not so
}

// Decide admits what is held. If that is not all, the store decides on the rest, on all of it or
// none, and gives leases of it in the same call. Looks are answered as those alone, but for gates: what
// is held here opens none, since the store decides on all.
func (d *Store) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) (err error) {
	if len(requests) == 1 {
		switch r := &requests[0]; r.Op {
		case store.OpTake:
			replies[0], err = d.Take(ctx, r.Namespace, r.Key, r.Limit, r.N)
			return err
		case store.OpUpTo:
			replies[0], err = d.takeUpTo(ctx, r.Namespace, r.Key, r.Limit, r.N)
			return err
		case store.OpLook:
			replies[0], err = d.peek(ctx, r.Namespace, r.Key, r.Limit, r.N)
			return err
		case store.OpOverdraw:
			replies[0], err = d.overdraw(ctx, r.Namespace, r.Key, r.Limit, r.N, r.Most)
			return err
		}
	}
	lacks, all := d.spendAll(requests, replies), false
	if len(lacks) == 0 {
		return nil
	}
	defer func() { // also if the store panics
		if !all {
			d.putBackHeld(requests, replies, lacks)
		}
	}()
	if d.denyAll(lacks, replies) {
		return nil
	}
	all, err = d.takeLacking(ctx, lacks, replies)
	return err
}

// spendAll spends what is held, and returns the others.
func (d *Store) spendAll(requests []store.Request, replies []store.Reply) (lacks []lack) {
	for i := range requests {
		if l, held := d.spendFor(&requests[i], &replies[i]); !held {
			l.at, l.request, l.want = i, requests[i], requests[i].N
			if l.limits == nil {
				l.limits = newLimits(requests[i].Namespace.Rule, requests[i].Limit, d.terms.life)
			}
			lacks = append(lacks, l)
		}
	}
	return lacks
}

// spendFor spends the events of r, if they are held. If not, but if it is known what the store
// would say, that is reply.
func (d *Store) spendFor(r *store.Request, reply *store.Reply) (l lack, held bool) {
	own := r.Limit.TurnBefore(0)
	s, id := d.shardOf(r.Namespace, r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	later := r.Limit.Before() > 1 // or else events of a bucket have their turn if they are there
	if r.Looks() || later && s.keys[id] == nil {
		return l, false
	}
	e := d.entry(s, id, r.Namespace, r.Key, own)
	if e == nil {
		return l, false
	}
	now := d.now()
	e.used = now
	d.tidy(e, now)
	if held := e.spend(now, int(r.N)); held != nil {
		*reply = d.admit(held, r.N)
		return l, true
	}
	if later {
		return l, false
	}
	l.shard, l.entry, l.limits = s, e, e.limits
	switch {
	case r.N > 1:
	case now < e.denied:
		l.known, *reply = true, d.deny(e, now)
	case e.last != nil && e.last.reply.OK() && now-e.last.told < d.terms.life/2:
		l.known, *reply = true, e.last.reply
	}
	return l, false
}

// denyAll is whether all replies are known, and one denies.
func (d *Store) denyAll(lacks []lack, replies []store.Reply) bool {
	denied := false
	for i := range lacks {
		l := &lacks[i]
		if !l.known {
			return false
		}
		denied = denied || l.request.Votes() && !replies[l.at].OK()
	}
	return denied
}

// putBackHeld takes back what was spent for a list that is not admitted.
func (d *Store) putBackHeld(requests []store.Request, replies []store.Reply, lacks []lack) {
	for i := range requests {
		if len(lacks) > 0 && lacks[0].at == i {
			lacks = lacks[1:]
			continue
		}
		d.putBack(&requests[i], replies[i])
	}
}

// takeLacking asks the store for what is lacking. all is whether it admits all.
func (d *Store) takeLacking(ctx context.Context, lacks []lack, replies []store.Reply) (all bool, err error) {
	if !shareable(lacks) {
		return d.takeAlone(ctx, lacks, replies)
	}
	c := newClaim(lacks)
	d.stand(lacks, c)
	v, err := c.Wait(ctx, d.patience)
	if v.again {
		return d.takeAlone(ctx, lacks, replies)
	}
	for i := range v.replies {
		replies[lacks[i].at] = v.replies[i]
	}
	return v.all, err
}

// takeAlone asks the store for what one call lacks.
func (d *Store) takeAlone(ctx context.Context, lacks []lack, replies []store.Reply) (all bool, err error) {
	d.stats.asked.Add(1)
	told := make([]store.Reply, len(lacks))
	if err = d.Store.Decide(ctx, requestsOf(lacks), told); err != nil {
		return false, err
	}
	all = allOK(lacks, told)
	for i := range lacks {
		l := &lacks[i]
		ns, n, charged := l.request.Namespace, l.request.N, int64(0)
		if all && !l.request.Looks() {
			charged = n
		}
		if l.request.Op == store.OpLook {
			replies[l.at] = d.seen(ns, l.request.Key, l.limits, told[i], n)
		} else {
			replies[l.at] = plain(ns.Rule, l.limits.by, told[i], n, charged)
		}
	}
	return all, nil
}

// requestsOf is what the store is asked for.
func requestsOf(lacks []lack) []store.Request {
	requests := make([]store.Request, len(lacks))
	for i := range lacks {
		l := &lacks[i]
		requests[i] = l.request
		requests[i].Limit, requests[i].N = l.limits.by, l.want
	}
	return requests
}

// allOK is whether all that vote are admitted.
func allOK(lacks []lack, replies []store.Reply) bool {
	for i := range lacks {
		if lacks[i].request.Votes() && !replies[i].OK() {
			return false
		}
	}
	return true
}
