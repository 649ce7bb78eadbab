package lease

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// AllowWithin decides on n events whose turn must come within within: see
// [ratelimit.AllowWithin]. Events that are held have their turn now.
func (d *Limiter) AllowWithin(ctx context.Context, key string, n int, within time.Duration) (ratelimit.Result, error) {
	if d.limiter != nil && d.five.Algorithm != tokenBucket { // without turns
		return d.AllowN(ctx, key, n)
	}
	if r, ok, err := d.held(ctx, key, n); ok || err != nil {
		return r, err
	}
	by, _, err := d.limitOf(ctx, key)
	if err != nil {
		return ratelimit.Result{}, err
	}
	by.Before = d.five.Before(within)
	return d.ask(ctx, five.Take, key, n, by)
}

// AllowUpTo admits n events of what is held, or as many as the store has room for.
func (d *Limiter) AllowUpTo(ctx context.Context, key string, n int) (granted int, r ratelimit.Result, err error) {
	r, ok, err := d.held(ctx, key, n)
	if ok || err != nil {
		return n, r, err
	}
	by, _, err := d.limitOf(ctx, key)
	if err != nil {
		return 0, ratelimit.Result{}, err
	}
	r, err = d.ask(ctx, five.TakeUpTo, key, n, by)
	if err == nil && r.Source() == ratelimit.SourceUnlimited {
		return n, r, nil
	}
	return r.Charged(), r, err
}

// held admits n events if all of them are held.
func (d *Limiter) held(ctx context.Context, key string, n int) (r ratelimit.Result, ok bool, err error) {
	if err := d.check(ctx, key, n); err != nil {
		return ratelimit.Result{}, false, err
	}
	by, leasable, err := d.limitOf(ctx, key)
	if err != nil || !leasable {
		return ratelimit.Result{}, false, err
	}
	id := d.seeds.Hash(key)
	s := &d.shards[id.Lo%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil {
		return r, false, nil
	}
	now := d.now()
	e.used = now
	d.tidy(e, by, now)
	held := e.spend(now, n)
	if held == nil {
		return r, false, nil
	}
	d.admit(&r, held, n, now)
	return r, true, nil
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
	if left := d.heldOf(key); left > 0 {
		r.Allowed, r.RetryAfter, r.Remaining = true, 0, min(r.Limit, r.Remaining+left)
	}
	return r, nil
}

// heldOf is how many events of key are held.
func (d *Limiter) heldOf(key string) (n int) {
	id := d.seeds.Hash(key)
	s := &d.shards[id.Lo%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, now := s.keys[id], d.now(); e != nil {
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

// Refund gives back to the lease, if it has not ended, and else to the store. What was admitted
// by overdraft cannot be given back: that is [ratelimit.ErrInvalidN].
func (d *Limiter) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if err := d.check(ctx, key, n); err != nil {
		return err
	}
	under, note, _ := charged.Of(d)
	switch note := note.(type) {
	case *grant:
		n = min(n, charged.Charged())
		if n == 0 || d.returned(key, note, n) {
			return nil
		}
		return d.five.RefundBy(ctx, key, note.result, n, *note.by) // charged has a ResetAfter of its own
	case store.Limit:
		return d.five.RefundBy(ctx, key, under, n, note)
	}
	return d.limiter.Refund(ctx, key, charged, n)
}

// returned gives n events back to their lease. It is false if that has ended, or waits while
// another is spent.
func (d *Limiter) returned(key string, g *grant, n int) bool {
	id := d.seeds.Hash(key)
	s := &d.shards[id.Lo%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil || e.grant != g || d.now() >= e.until {
		return false
	}
	e.left = min(e.most, e.left+n)
	return true
}

// Reset forgets key, here and at the store. A lease that is on its way, or held by another
// process, is used all the same.
func (d *Limiter) Reset(ctx context.Context, key string) error {
	if err := d.check(ctx, key, 1); err != nil {
		return err
	}
	id := d.seeds.Hash(key)
	s := &d.shards[id.Lo%shards]
	s.mu.Lock()
	if e := s.keys[id]; e != nil {
		e.slot, e.spare, e.denied, e.full = slot[*grant]{}, slot[*grant]{}, 0, 0
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
	_ ratelimit.Limiter   = (*Limiter)(nil)
	_ ratelimit.Describer = (*Limiter)(nil)
	_ ratelimit.Charger   = (*Limiter)(nil)
	_ ratelimit.Delayer   = (*Limiter)(nil)
)
