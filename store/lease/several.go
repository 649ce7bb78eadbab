package lease

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// mostWaits is for how many calls of others a TakeAll waits. The first may have been under way
// already, and the second fetches for those who wait.
const mostWaits = 2

// lack is one of several requests, of which not all events are held.
type lack struct {
	request store.Request // as it was asked for
	limits  *limits
	at      int           // its place among the requests
	known   bool          // there is a reply without the store
	fetched chan struct{} // closed when the call under way for it has ended; nil if there is none

	shard *shard
	entry *entry       // nil if no lease is fetched for it
	want  int64        // events that the store is asked for: no fewer than requested
	wish  int64        // events that would be asked for if there were any number
	full  *store.Reply // a denial that comes next, since all there was is taken; nil if that is not so
}

// TakeAll admits what is held. If that is not all, the store decides on the rest, on all of it or
// none, and gives leases of it in the same call. Looks are answered as by Peek.
func (d *Store) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	for waits, exact := 0, false; ; waits++ {
		lacks := d.spendAll(requests, replies)
		if len(lacks) == 0 {
			return nil
		}
		if fetched := underWay(lacks); fetched != nil && waits < mostWaits {
			d.putBackHeld(requests, replies, lacks)
			select {
			case <-fetched:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if d.denyAll(lacks, replies) {
			d.putBackHeld(requests, replies, lacks)
			return nil
		}
		all, err := d.takeLacking(ctx, lacks, replies, exact)
		if all {
			return nil
		}
		d.putBackHeld(requests, replies, lacks)
		if exact || err != nil || !askedAhead(lacks) {
			return err
		}
		exact = true // it was denied more than it needs
	}
}

// spendAll spends what is held, and returns the others.
func (d *Store) spendAll(requests []store.Request, replies []store.Reply) (lacks []lack) {
	for i := range requests {
		if l, held := d.spendFor(&requests[i], &replies[i]); !held {
			l.at, l.request, l.want = i, requests[i], requests[i].N
			if l.limits == nil {
				l.limits = limitsOf(&requests[i], d.terms.life)
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
	if r.N == 0 || later && s.keys[id] == nil {
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
	if e.fetched != nil && !e.late && !l.known {
		l.fetched = e.fetched
		e.awaited += int(r.N)
	}
	return l, false
}

// underWay is closed when a call under way has ended that may give what is lacking.
func underWay(lacks []lack) chan struct{} {
	for i := range lacks {
		if lacks[i].fetched != nil {
			return lacks[i].fetched
		}
	}
	return nil
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

// askedAhead is whether the store was asked for more than was requested.
func askedAhead(lacks []lack) bool {
	for i := range lacks {
		if lacks[i].want > lacks[i].request.N {
			return true
		}
	}
	return false
}

// putBackHeld takes back what was spent for a TakeAll that is not admitted.
func (d *Store) putBackHeld(requests []store.Request, replies []store.Reply, lacks []lack) {
	for i := range requests {
		if len(lacks) > 0 && lacks[0].at == i {
			lacks = lacks[1:]
			continue
		}
		d.putBack(&requests[i], replies[i])
	}
}

// takeLacking asks the store for what is lacking and, unless it is to be exact, for leases.
// all is whether it admits all.
func (d *Store) takeLacking(ctx context.Context, lacks []lack, replies []store.Reply, exact bool) (all bool, err error) {
	d.lead(lacks, exact)
	c := pending.New[together]()
	if askedAhead(lacks) {
		go d.takeTogether(context.Background(), lacks, c) // no caller's: the store has a timeout
	} else {
		d.takeTogether(ctx, lacks, c)
	}
	a, err := c.Wait(ctx)
	for i := range a.replies {
		replies[lacks[i].at] = a.replies[i]
	}
	return a.all, err
}

// together is an answer to what is lacking: whether all is charged, and the replies.
type together struct {
	all     bool
	replies []store.Reply
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

// lead makes the next call one that fetches leases, of each key for which none is under way.
func (d *Store) lead(lacks []lack, exact bool) {
	for i := range lacks {
		if l := &lacks[i]; l.entry != nil && !d.leadFor(l, exact) {
			l.entry = nil
		}
	}
}

func (d *Store) leadFor(l *lack, exact bool) bool {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	e, now := l.entry, d.now()
	d.tidy(e, now)
	if !l.request.Votes() || e.fetched != nil || e.owed > 0 || e.spare.left > 0 || e.limits != l.limits || !d.begin() {
		return false
	}
	e.fetched = make(chan struct{})
	l.wish = max(l.want, int64(e.ask(now, e.awaited, d.termsOf(e.ns))))
	e.awaited = 0
	if !exact { // all or none: no more than there is, as far as is known
		l.want = max(l.want, min(l.wish, int64(e.remaining)))
	}
	return true
}

// takeTogether asks the store, takes the leases, and tells c.
func (d *Store) takeTogether(ctx context.Context, lacks []lack, c *pending.Call[together]) {
	replies := make([]store.Reply, len(lacks))
	sent := d.now()
	panicked, err := d.askTogether(ctx, lacks, replies)
	failed := err != nil || panicked != nil
	all := !failed && allOK(lacks, replies)
	for i := range lacks {
		if l := &lacks[i]; all && l.entry != nil {
			l.full = d.fullAfter(ctx, l, replies[i])
		}
	}
	for i := range lacks {
		replies[i] = d.takeIn(&lacks[i], replies[i], all, failed, sent)
	}
	switch {
	case panicked != nil:
		c.Panic(panicked)
	case err != nil:
		c.Answer(together{}, err)
	case !c.Answer(together{all, replies}, nil) && all: // the caller has left
		for i := range lacks {
			if l := &lacks[i]; l.request.N > 0 && replies[i].OK() {
				d.putBack(&l.request, replies[i])
			}
		}
	}
}

// askTogether asks the store, and counts that.
func (d *Store) askTogether(ctx context.Context, lacks []lack, replies []store.Reply) (panicked any, err error) {
	requests := make([]store.Request, len(lacks))
	for i := range lacks {
		l := &lacks[i]
		requests[i] = l.request
		requests[i].Limit, requests[i].N = l.limits.by, l.want
	}
	defer func() {
		if panicked = recover(); err != nil || panicked != nil {
			d.stats.lost.Add(1)
		} else {
			d.stats.asked.Add(1)
		}
	}()
	return nil, d.Store.TakeAll(ctx, requests, replies)
}

// fullAfter is the denial that the next event of l meets after r, if r admits about all there is.
// It is nil if there is more, or nobody has looked.
func (d *Store) fullAfter(ctx context.Context, l *lack, r store.Reply) *store.Reply {
	ns, by := l.request.Namespace, l.limits.by
	if l.want == l.request.N || l.want == l.wish || r.Available(ns.Rule, by)-l.want >= l.wish {
		return nil
	}
	denial, err := denialOf(ctx, d.Store, ns, l.request.Key, by)
	if err != nil { // then it is learned from the next call
		return nil
	}
	return &denial
}

// takeIn makes the reply to l of r, which is that of the store, and takes the lease or the denial.
func (d *Store) takeIn(l *lack, r store.Reply, all, failed bool, sent time.Duration) store.Reply {
	if l.entry == nil {
		return d.withoutLease(l, r, all, failed)
	}
	defer d.running.Done()
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	now := d.now()
	d.fetched(l.entry, sent, now)
	defer d.serve(l.shard, l.entry)
	switch {
	case failed:
		l.entry.failed()
		return r
	case all:
		return d.admitLack(l, r, sent, now)
	}
	return d.denyLack(l, r, sent, now)
}

// withoutLease is the reply to l, for which no lease was asked for.
func (d *Store) withoutLease(l *lack, r store.Reply, all, failed bool) store.Reply {
	ns, n := l.request.Namespace, l.request.N
	switch {
	case failed:
		return r
	case n == 0:
		return d.seen(ns, l.request.Key, l.limits, r, 1)
	case all:
		return plain(ns.Rule, l.limits.by, r, n, n)
	}
	return plain(ns.Rule, l.limits.by, r, n, 0)
}

// admitLack takes a grant, and admits the events of l.
func (d *Store) admitLack(l *lack, r store.Reply, sent, now time.Duration) store.Reply {
	e, by, n := l.entry, l.limits.by, l.request.N
	says := r.Report(e.ns.Rule, by, l.want, l.want)
	g := &grant{at: r.X, reset: says.Reset, room: int(says.Remaining), limits: l.limits}
	d.stats.granted.Add(l.want)
	held := e.receive(grants{
		granted: int(l.want), want: int(l.wish), room: g.room,
		sent: sent, now: now, window: untilWindowEnds(e.ns.Rule.Name, g.reset, by),
	}, d.termsOf(e.ns))
	held.grant = g
	held.left -= int(n)
	e.remaining = g.room
	if l.full != nil && l.limits == e.limits {
		d.remember(e, *l.full, sent, now)
	}
	if l.limits != e.limits { // the limit has changed meanwhile
		d.giveUp(e)
	}
	return g.admit(store.AdmittedPlainly, held.left, n)
}

// denyLack is the reply to l if not all are admitted, and remembers it.
func (d *Store) denyLack(l *lack, r store.Reply, sent, now time.Duration) store.Reply {
	e, by, n := l.entry, l.limits.by, l.request.N
	room := r.Available(e.ns.Rule, by)
	told := plain(e.ns.Rule, by, r, n, 0)
	if n <= room { // another one denies, or more was asked for
		told.Outcome = store.AdmittedPlainly
	}
	if l.limits != e.limits { // then it says nothing of today's limit
		return told
	}
	e.remaining = int(room)
	switch {
	case n <= room:
		e.denied, e.last = 0, &remembered{told, now}
	case n == 1 && l.want == 1: // or else one may fit, or the denial says when more fit
		return d.remember(e, told, sent, now)
	}
	return told
}
