package lease

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// takeUpTo admits n events of what is held, or as many as there is room for. If fewer are held,
// these are first refunded to the store, so that it decides on all of them.
func (d *Store) takeUpTo(ctx context.Context, q *store.Request) (r store.Reply, err error) {
	if _, held := d.spendFor(q, &r); held {
		return r, nil
	}
	ns, key := q.Namespace, q.Key
	if err := d.surrender(ctx, ns, key); err != nil {
		return store.Reply{}, err
	}
	d.stats.asked.Add(1)
	ls := newLimits(ns.Rule, q.Limit, d.terms.life)
	if r, err = store.TakeUpTo(ctx, d.inner, ns, key, ls.by, q.N); err != nil {
		return store.Reply{}, err
	}
	n := max(1, min(q.N, r.Available(ns.Rule, ls.by)))
	return ls.underOwn(r, n, n), nil
}

// surrender refunds everything that is held of key, and waits for it.
func (d *Store) surrender(ctx context.Context, ns *store.Namespace, key string) error {
	s, id := d.shardOf(ns, key)
	var leases [2]lease[*grant]
	s.mu.Lock()
	if e := s.keys[id]; e != nil {
		leases = [2]lease[*grant]{e.lease, e.spare}
		e.left, e.spare.left = 0, 0
	}
	s.mu.Unlock()
	n, done := 0, make(chan error, len(leases))
	for _, held := range leases {
		if held.left > 0 {
			n++
			d.stats.lapsed.Add(int64(held.left))
			d.do(func(ctx context.Context) error { // not the caller's context: the events are those of others
				err := errPanic
				defer func() { done <- err }()
				err = d.refund(ctx, ns, key, held.grant, held.left)
				return err
			}, math.MaxInt)
		}
	}
	var first error
	for range n {
		select {
		case err := <-done:
			first = cmp.Or(first, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return first
}

// putBackOne takes back the events that were spent for r. If their lease has ended in the meantime,
// they are refunded to the store.
func (d *Store) putBackOne(r *store.Request, spent store.Reply) {
	s, id := d.shardOf(r.Namespace, r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, n := s.keys[id], int(r.N)
	if e == nil {
		e = &entry{ns: r.Namespace, key: r.Key}
	}
	if isLent(spent.X) {
		d.giveBack(e, e.unlend(d.now(), spent.X), n)
		return
	}
	for _, held := range []*lease[*grant]{&e.lease, &e.spare} {
		if held == &e.spare && held.left == 0 { // the next grant may need the space
			break
		}
		if held.grant != nil && held.grant.at == spent.X && held.grant.reset == spent.Z && held.left+n <= held.most {
			held.left += n
			return
		}
	}
	d.giveBack(e, &grant{at: spent.X, reset: spent.Z, limits: newLimits(r.Namespace.Rule, r.Limit.TurnBefore(0), d.terms.life)}, n)
}

// withHeld returns r, the store's reply to a look for n events, with the events that are held here
// added.
func (d *Store) withHeld(ns *store.Namespace, key string, ls *limits, r store.Reply, n int64) store.Reply {
	left := d.heldOf(ns, key, ls.own)
	if left == 0 {
		return ls.underOwn(r, n, 0)
	}
	p := r.Plainly(ns.Rule, ls.by, n, 0)
	if p.Y = min(ls.by.Burst, p.Y+left); left >= n {
		p.Outcome = store.AdmittedPlainly
	}
	return p
}

// heldOf returns how many events of key are held under the limit l.
func (d *Store) heldOf(ns *store.Namespace, key string, l store.Limit) (n int64) {
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.keys[id]; e != nil && e.limits.own == l {
		n = int64(e.held(d.now()))
	}
	return n
}

// overdraw charges the store. Events that are held stay held.
func (d *Store) overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	d.stats.asked.Add(1)
	ls := newLimits(ns.Rule, l, d.terms.life)
	r, err := store.Overdraw(ctx, d.inner, ns, key, ls.by, n, most)
	if err != nil {
		return r, err
	}
	d.noteDebt(ns, key, r.X)
	if ls.by == ls.own || r.Plain() {
		return r, nil
	}
	if spent := ns.Rule.Spent; spent != nil && n > most-spent(r) { // an unbounded debt: r has what was charged
		return r, nil
	}
	r.Outcome = store.Admitted
	report := r.Report(ns.Rule, ls.by, n, n)
	return store.Reply{Outcome: store.AdmittedPlainly, X: r.X, Y: r.Available(ns.Rule, ls.by), Z: report.Reset}, nil
}

// noteDebt records when an Overdraw of key happened, unless the one that is recorded has the time of a
// lease that is held.
func (d *Store) noteDebt(ns *store.Namespace, key string, at int64) {
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.keys[id]; e != nil && ((e.grant == nil || e.grant.at != e.debtAt) && (e.spare.grant == nil || e.spare.grant.at != e.debtAt)) {
		e.debtAt = at
	}
}

// Refund returns the events to their lease, if it has not ended, and otherwise to the store. An
// event that was admitted by overdraft is no longer owed, or is returned to the lease that has paid
// for it.
func (d *Store) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if isLent(c.At) {
		return d.refundLent(ctx, ns, key, c.At)
	}
	if c.N -= d.returned(ns, key, c); c.N == 0 {
		return nil
	}
	by := newLimits(ns.Rule, l, d.terms.life).by
	if !c.Overdrawn {
		c.Overdrawn = store.NewReceipt(by, c.At, c.Due-c.At, c.N).Overdrawn
	}
	return d.inner.Refund(ctx, ns, key, by, c)
}

// returned returns events to their lease, and returns how many. That is 0 if the lease has ended or
// waits while another one is spent. It is also 0 if the events may be a debt charged at the same
// time, which is not room.
func (d *Store) returned(ns *store.Namespace, key string, c store.Receipt) int64 {
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil || e.grant == nil || e.grant.at != c.At || e.grant.at+e.grant.reset != c.Due || c.At == e.debtAt || d.now() >= e.until {
		return 0
	}
	n := min(int(c.N), e.most-e.left)
	e.left += n
	return int64(n)
}

// refundLent refunds an event that was lent.
func (d *Store) refundLent(ctx context.Context, ns *store.Namespace, key string, at int64) error {
	var g *grant
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	if e := s.keys[id]; e != nil { // otherwise it was paid long ago
		g = e.unlend(d.now(), at)
	}
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return d.inner.Refund(ctx, ns, key, g.limits.by, g.receipt(1))
}

// unlend takes back an event that was lent. If it was paid by a grant that has ended, it returns that
// grant. An event that was paid before that stays charged, because it may have left the limit.
func (e *entry) unlend(now time.Duration, at int64) *grant {
	switch {
	case e.owed > 0 && at >= e.owedSince:
		e.owed--
	case e.lastPaid.n > 0 && at >= e.lastPaid.since:
		if e.lastPaid.n--; e.grant != e.lastPaid.grant || now >= e.until {
			return e.lastPaid.grant
		}
		e.left, e.most = e.left+1, e.most+1
	}
	return nil
}

// Reset resets key here and at the store. A lease that is in flight, or held by another process,
// can still be used.
func (d *Store) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	s, id := d.shardOf(ns, key)
	s.mu.Lock()
	if e := s.keys[id]; e != nil {
		e.lease, e.spare, e.last = lease[*grant]{}, lease[*grant]{}, nil
		e.denied, e.full, e.owed, e.lastPaid = 0, 0, 0, payment{}
	}
	s.mu.Unlock()
	return d.inner.Reset(ctx, ns, key)
}

var _ store.Store = (*Store)(nil)
