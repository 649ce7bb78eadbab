package lease

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/internal/unmade"
	"github.com/ratelimit-go/ratelimit/store"
)

// job is a call of the store that nobody waits for.
type job func(ctx context.Context) error

// maxWorkers is how many jobs are done at once.
const maxWorkers = 32

// begin counts a goroutine, or a call, that Close waits for. It is false if the limiter is closed.
func (d *Store) begin() bool {
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
func (d *Store) giveBack(e *entry, g *grant, n int) {
	if g == nil || n == 0 {
		return
	}
	d.stats.lapsed.Add(int64(n))
	ns, key := e.ns, e.key
	d.do(func(ctx context.Context) error { return d.refund(ctx, ns, key, g, n) }, int(d.maxKeys))
}

func (d *Store) refund(ctx context.Context, ns *store.Namespace, key string, g *grant, n int) error {
	err := d.Store.Refund(ctx, ns, key, g.limits.by, g.receipt(n))
	if err == nil {
		d.stats.givenBack.Add(int64(n))
	}
	return err
}

// do has a worker do j, unless more than most wait for one. Once the store is closed, Close does all that
// is left. A call of several keys may end later: then nobody else comes for j.
func (d *Store) do(j job, most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch closed := d.closed.Load(); {
	case d.done:
		go func() { _ = j.run(context.Background()) }()
	case closed:
		d.jobs = append(d.jobs, j)
	case len(d.jobs) < most:
		d.jobs = append(d.jobs, j)
		if d.workers < maxWorkers {
			d.workers++
			d.running.Go(func() { _ = d.work(context.Background(), true) })
		}
	}
}

// work does jobs until there is nothing left to do, and returns the first error. Open workers
// leave the rest to Close.
func (d *Store) work(ctx context.Context, open bool) (first error) {
	for {
		d.mu.Lock()
		last := len(d.jobs) - 1
		if last < 0 || open && d.closed.Load() {
			if last < 0 {
				d.jobs = nil // frees the room of many
			}
			d.workers--
			d.mu.Unlock()
			return first
		}
		j := d.jobs[last]
		d.jobs[last] = nil // frees what it refers to
		d.jobs = d.jobs[:last]
		d.mu.Unlock()
		if err := j.run(ctx); first == nil {
			first = err
		}
	}
}

func (j job) run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil { // of a store: there is no caller to tell
			err = errPanic
		}
	}()
	return j(ctx)
}

var errPanic = errors.New("lease: the store has panicked")

// arm starts the timer that sweeps, if there is none.
func (d *Store) arm() {
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
func (d *Store) sweep() {
	for i := range d.shards {
		d.sweepShard(&d.shards[i])
	}
	d.armed.Store(false)
	if d.keys.Load() > 0 { // or one has come meanwhile
		d.arm()
	}
}

func (d *Store) sweepShard(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := d.now()
	for id, e := range s.keys {
		d.tidy(e, now)
		if e.owed > 0 {
			d.fetchAhead(s, e)
		}
		held := e.left > 0 || e.spare.left > 0 || e.owed > 0
		if !e.fetching && !e.queued && e.queues == nil && !held && now >= max(e.denied, e.full) && now-e.used > 2*d.terms.life {
			delete(s.keys, id)
			d.keys.Add(-1)
		}
	}
}

// Close gives back what is held, and charges what is owed by overdraft. Later calls ask the
// store. It waits for calls that are under way, also if ctx has ended: for the store's timeout
// at most. The error is the first of those of the store. To close again does nothing.
func (d *Store) Close(ctx context.Context) error {
	if d.Store == nil {
		return unmade.Err
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
	first := d.workTogether(ctx)
	d.running.Wait()
	for i := range d.shards {
		d.closeShard(&d.shards[i])
	}
	d.mu.Lock()
	d.done = true
	d.mu.Unlock()
	return cmp.Or(first, d.workTogether(ctx))
}

// workTogether does all jobs, several at once, and returns the first error of a worker.
func (d *Store) workTogether(ctx context.Context) error {
	errs := make([]error, maxWorkers)
	var workers sync.WaitGroup
	for i := range errs {
		workers.Go(func() { errs[i] = d.work(ctx, false) })
	}
	workers.Wait()
	return cmp.Or(errs...)
}

// closeShard makes jobs of all that is held, and of what is owed.
func (d *Store) closeShard(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.keys {
		d.giveUp(e)
		if owed := e.owed; owed > 0 {
			d.do(func(ctx context.Context) error {
				_, err := store.Overdraw(ctx, d.Store, e.ns, e.key, e.limits.by, int64(owed), math.MaxInt32)
				return err
			}, math.MaxInt)
		}
	}
	d.keys.Add(-int64(len(s.keys)))
	s.keys = make(map[keyhash.Hash]*entry)
}

// giveUp gives back all that is held of a key.
func (d *Store) giveUp(e *entry) {
	for range 2 { // the spare becomes what is spent
		g, n := e.drop()
		d.giveBack(e, g, n)
	}
}
