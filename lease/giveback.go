package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

// counts are what [Stats] are made of.
type counts struct{ local, asked, granted, lapsed, givenBack, lost, overdrawn atomic.Int64 }

// Stats are totals since New, but for Keys and Held.
type Stats struct {
	Keys, Held int   // keys with a lease or a denial, and events that are held now
	Local      int64 // decisions without the store
	Asked      int64 // calls of the store for events
	Granted    int64 // events that it has charged for leases
	Lapsed     int64 // of these, not used in time
	GivenBack  int64 // of these, given back: the others are charged until they leave the limit
	Lost       int64 // calls without an answer, whose events may be charged
	Overdrawn  int64 // events admitted before the store knew
}

// Stats returns what has happened up to now.
func (d *Limiter) Stats() Stats {
	c := &d.stats
	s := Stats{
		Local: c.local.Load(), Asked: c.asked.Load(), Granted: c.granted.Load(), Lapsed: c.lapsed.Load(),
		GivenBack: c.givenBack.Load(), Lost: c.lost.Load(), Overdrawn: c.overdrawn.Load(),
	}
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		now := d.now()
		for _, e := range sh.keys {
			s.Keys++
			if now < e.until {
				s.Held += e.left
			}
			if now < e.spare.until {
				s.Held += e.spare.left
			}
		}
		sh.mu.Unlock()
	}
	return s
}

// unspent are events of a grant that nobody has used in time.
type unspent struct {
	key   string
	grant *grant
	n     int
}

// maxWorkers is how many calls give back at once.
const maxWorkers = 32

// begin counts a goroutine, or a call, that Close waits for. It is false if the limiter is closed.
func (d *Limiter) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return false
	}
	d.running.Add(1)
	return true
}

// giveBack gives back n events of a grant, without waiting for it. If the store takes too few
// calls for all that lapses, the rest stays charged until it leaves the limit.
func (d *Limiter) giveBack(key string, g *grant, n int) {
	if n == 0 {
		return
	}
	d.stats.lapsed.Add(int64(n))
	d.mu.Lock()
	defer d.mu.Unlock()
	closed := d.closed.Load()
	if !closed && int64(len(d.returns)) >= d.maxKeys {
		return
	}
	d.returns = append(d.returns, unspent{key, g, n})
	if d.workers < maxWorkers && !closed {
		d.workers++
		d.running.Go(func() { _ = d.work(context.Background()) })
	}
}

// work gives back until there is nothing left to do, and returns the first error.
func (d *Limiter) work(ctx context.Context) (first error) {
	for {
		d.mu.Lock()
		if len(d.returns) == 0 {
			d.returns = nil
			d.workers--
			d.mu.Unlock()
			return first
		}
		u := d.returns[len(d.returns)-1]
		d.returns = d.returns[:len(d.returns)-1]
		d.mu.Unlock()
		if err := d.refund(ctx, u); first == nil {
			first = err
		}
	}
}

func (d *Limiter) refund(ctx context.Context, u unspent) (err error) {
	defer func() {
		if p := recover(); p != nil { // of a store: there is no caller to tell
			err = errPanic
		}
	}()
	if err = d.five.RefundBy(ctx, u.key, u.grant.result, u.n, *u.grant.by); err == nil {
		d.stats.givenBack.Add(int64(u.n))
	}
	return err
}

var errPanic = errors.New("lease: the store has panicked")

// arm starts the timer that sweeps, if there is none.
func (d *Limiter) arm() {
	if d.armed.Load() || !d.armed.CompareAndSwap(false, true) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed.Load() {
		d.timer = time.AfterFunc(max(d.terms.life, leastSweep, time.Duration(d.keys.Load())*perKey), d.sweep)
	}
}

// sweep gives back what has lapsed, settles what is owed, and forgets keys that are not asked
// for. While there are keys it comes again.
func (d *Limiter) sweep() {
	for i := range d.shards {
		d.sweepShard(&d.shards[i])
	}
	d.armed.Store(false)
	if d.keys.Load() > 0 { // or one has come meanwhile
		d.arm()
	}
}

func (d *Limiter) sweepShard(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := d.now()
	for id, e := range s.keys {
		d.tidy(e, *e.by, now)
		if e.owed > 0 {
			d.launch(s, e)
		}
		held := e.left > 0 || e.spare.left > 0 || e.owed > 0
		if !e.flying && !held && now >= max(e.denied, e.full) && now-e.used > 2*d.terms.life {
			delete(s.keys, id)
			d.keys.Add(-1)
		}
	}
}

// Close gives back what is held, and charges what is owed by overdraft. Later calls ask the
// store. It waits for calls that are under way, also if ctx has ended: for the store's timeout
// at most. The error is the first of those of the store. To close again does nothing.
func (d *Limiter) Close(ctx context.Context) error {
	if d.limiter == nil {
		return errNoConstructor
	}
	d.mu.Lock()
	closed := d.closed.Swap(true)
	if d.timer != nil {
		d.timer.Stop()
	}
	d.mu.Unlock()
	if closed {
		return nil
	}
	d.running.Wait()
	var first error
	for i := range d.shards {
		if err := d.closeShard(ctx, &d.shards[i]); first == nil {
			first = err
		}
	}
	d.mu.Lock()
	d.workers++
	d.mu.Unlock()
	if err := d.work(ctx); first == nil {
		first = err
	}
	return first
}

// closeShard hands all that is held to the last worker, and charges what is owed.
func (d *Limiter) closeShard(ctx context.Context, s *shard) (first error) {
	s.mu.Lock()
	keys := s.keys
	s.keys = make(map[keyhash.Hash]*entry)
	d.keys.Add(-int64(len(keys)))
	for _, e := range keys {
		d.giveUp(e)
	}
	s.mu.Unlock()
	for _, e := range keys { // nobody finds them any more
		if e.owed == 0 {
			continue
		}
		if _, err := d.five.By(ctx, five.Overdraw, e.key, e.owed, *e.by); first == nil {
			first = err
		}
	}
	return first
}

// giveUp gives back all that is held of a key.
func (d *Limiter) giveUp(e *entry) {
	for range 2 { // the spare becomes what is spent
		g, n := e.drop()
		d.giveBack(e.key, g, n)
	}
}
