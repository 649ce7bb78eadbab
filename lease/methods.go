package lease

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// AllowWithin decides on n events whose turn must come within within: see
// [ratelimit.AllowWithin]. Events that are held have their turn now. For others of a
// bucket it asks the store each time, and so does [ratelimit.Wait].
func (d *Limiter) AllowWithin(ctx context.Context, key string, n int, within time.Duration) (ratelimit.Result, error) {
	if d.limiter != nil && d.five.Algorithm != tokenBucket { // without turns
		return d.AllowN(ctx, key, n)
	}
	r, by, ok, err := d.held(ctx, key, n)
	if ok || err != nil {
		return r, err
	}
	return d.ask(ctx, five.Take, key, n, d.five.Within(by, within))
}

// AllowUpTo admits n events of what is held, or as many as there is room for. If some are held,
// they are given back to the store first, so that it decides on all.
func (d *Limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, by, ok, err := d.held(ctx, key, n)
	switch {
	case err != nil:
		return 0, ratelimit.Result{}, err
	case ok:
		return n, r, nil
	}
	if err := d.surrender(ctx, key); err != nil {
		return 0, ratelimit.Result{}, err
	}
	r, err = d.ask(ctx, five.TakeUpTo, key, n, by)
	if err == nil && r.Source() == ratelimit.SourceUnlimited {
		return n, r, nil
	}
	return r.Charged(), r, err
}

// surrender gives back what is held of key, and waits for it.
func (d *Limiter) surrender(ctx context.Context, key string) error {
	s, id := d.shardOf(key)
	var slots [2]slot[*grant]
	s.mu.Lock()
	if e := s.keys[id]; e != nil {
		slots = [2]slot[*grant]{e.slot, e.spare}
		e.left, e.spare.left = 0, 0
	}
	s.mu.Unlock()
	for _, held := range slots {
		if held.left == 0 {
			continue
		}
		d.stats.lapsed.Add(int64(held.left))
		if err := d.refund(ctx, key, held.grant, held.left); err != nil {
			return err
		}
	}
	return nil
}

// held admits n events if all of them are held, and returns the limit of key.
func (d *Limiter) held(ctx context.Context, key string, n int) (r ratelimit.Result, by store.Limit, ok bool, err error) {
	if err := d.check(ctx, key, n); err != nil {
		return r, by, false, err
	}
	by, leasable, err := d.limitOf(ctx, key)
	if err != nil || !leasable {
		return r, by, false, err
	}
	s, id := d.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil {
		return r, by, false, nil
	}
	now := d.now()
	e.used = now
	d.tidy(e, by, now)
	held := e.spend(now, n)
	if held == nil {
		return r, by, false, nil
	}
	d.admit(&r, held, n, now)
	return r, by, true, nil
}

// Peek asks the store, and adds what is held here.
func (d *Limiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if err := d.check(ctx, key, 1); err != nil {
		return ratelimit.Result{}, err
	}
	by, _, err := d.limitOf(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	r, err := d.five.By(ctx, five.Peek, key, 1, by)
	if err != nil {
		return ratelimit.Result{}, err
	}
	if left := d.heldOf(key, by); left > 0 {
		r.Allowed, r.RetryAfter, r.Remaining = true, 0, min(r.Limit, r.Remaining+left)
	}
	return r, nil
}

// heldOf is how many events of key are held under this limit.
func (d *Limiter) heldOf(key string, by store.Limit) (n int) {
	s, id := d.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, now := s.keys[id], d.now(); e != nil && *e.by == by {
		for _, held := range []*slot[*grant]{&e.slot, &e.spare} {
			if now < held.until {
				n += held.left
			}
		}
	}
	return n
}

// Charge charges the store. What is held stays held.
func (d *Limiter) Charge(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := d.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	by, _, err := d.limitOf(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return d.ask(ctx, five.Overdraw, key, n, by)
}

// Refund gives back to the lease, if it has not ended, and else to the store. An event that was
// admitted by overdraft is no longer owed, or goes to the lease that has paid for it.
func (d *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := d.check(ctx, key, n); err != nil {
		return err
	}
	under, note, _ := charged.Unmark(d)
	switch note := note.(type) {
	case *grant:
		n = min(n, charged.Charged())
		if n == 0 || d.returned(key, note, n) {
			return nil
		}
		return d.five.RefundBy(ctx, key, note.result, n, *note.by) // charged has a ResetAfter of its own
	case store.Limit:
		return d.five.RefundBy(ctx, key, under, n, note)
	case lent:
		return d.refundLent(ctx, key)
	}
	return d.limiter.Refund(ctx, key, charged, n)
}

// returned gives n events back to their lease. It is false if that has ended, or waits while
// another is spent.
func (d *Limiter) returned(key string, g *grant, n int) bool {
	s, id := d.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil || e.grant != g || d.now() >= e.until {
		return false
	}
	e.left = min(e.most, e.left+n)
	return true
}

// refundLent gives back an event that was admitted by overdraft.
func (d *Limiter) refundLent(ctx context.Context, key string) error {
	s, id := d.shardOf(key)
	s.mu.Lock()
	e := s.keys[id]
	switch {
	case e == nil: // it was paid long ago
		s.mu.Unlock()
		return nil
	case e.owed > 0 && !e.flying:
		e.owed--
	case e.grant != nil && d.now() < e.until:
		e.left, e.most = e.left+1, e.most+1
	case e.grant != nil: // which has ended
		g := e.grant
		s.mu.Unlock()
		return d.five.RefundBy(ctx, key, d.five.PartOf(g.result, 1), 1, *g.by)
	}
	s.mu.Unlock()
	return nil
}

// Reset forgets key, here and at the store. A lease that is on its way, or held by another
// process, is used all the same.
func (d *Limiter) Reset(ctx context.Context, key string) error {
	if err := d.check(ctx, key, 1); err != nil {
		return err
	}
	s, id := d.shardOf(key)
	s.mu.Lock()
	if e := s.keys[id]; e != nil {
		e.slot, e.spare, e.denied, e.full, e.owed = slot[*grant]{}, slot[*grant]{}, 0, 0, 0
	}
	s.mu.Unlock()
	return d.limiter.Reset(ctx, key)
}

// AppendPolicies appends that of the wrapped limiter. The Quota of a bucket is the Burst that the
// store is asked for, and Window the time in which that comes back.
func (d *Limiter) AppendPolicies(ctx context.Context, dst []ratelimit.Policy, key string) ([]ratelimit.Policy, error) {
	if d.limiter == nil {
		return dst, errNoConstructor
	}
	all, err := ratelimit.AppendPolicies(ctx, dst, d.limiter, key)
	if err != nil || d.five.Algorithm != tokenBucket {
		return all, err
	}
	by, _, err := d.limitOf(ctx, key)
	if err != nil {
		return dst, err
	}
	if p := &all[len(all)-1]; by.Rate > 0 {
		p.Quota, p.Window = int(by.Burst), refill(by)
	}
	return all, nil
}

// Unwrap returns the wrapped limiter.
func (d *Limiter) Unwrap() ratelimit.Limiter { return d.limiter }

var (
	_ ratelimit.Limiter        = (*Limiter)(nil)
	_ ratelimit.PolicyAppender = (*Limiter)(nil)
	_ ratelimit.Charger        = (*Limiter)(nil)
	_ ratelimit.Delayer        = (*Limiter)(nil)
)
