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

// job is a call to the store for which nobody waits.
type job func(ctx context.Context) error

// maxWorkers is how many jobs run at the same time.
const maxWorkers = 32

// begin counts a goroutine or a call that Close must wait for. It returns false if the store is
// closed.
func (d *Store) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return false
	}
	d.running.Add(1)
	return true
}

// giveBack releases n events of a grant, without waiting. If the store is too slow for everything
// that lapses, the rest stays charged until it leaves the limit.
func (d *Store) giveBack(e *entry, g *grant, n int) {
	if g == nil || n == 0 {
		return
	}
	d.stats.lapsed.Add(int64(n))
	ns, key := e.ns, e.key
	d.do(func(ctx context.Context) error { return d.refund(ctx, ns, key, g, n) }, int(d.maxKeys))
}

func (d *Store) refund(ctx context.Context, ns *store.Namespace, key string, g *grant, n int) error {
	err := d.inner.Refund(ctx, ns, key, g.limits.by, g.receipt(n))
	if err == nil {
		d.stats.givenBack.Add(int64(n))
	}
	return err
}

// do lets a worker run j, unless more than most jobs are waiting. After the store is closed, Close
// runs the remaining jobs. A call for several keys may end even later, and then do runs j itself.
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
			d.running.Go(d.work)
		}
	}
}

// work runs jobs until none are left, or Close runs the rest.
func (d *Store) work() {
	for j := d.pop(true); j != nil; j = d.pop(true) {
		_ = j.run(context.Background())
	}
}

// pop removes and returns a job. It returns nil if none is left, or if Close runs those that are, and a worker then ends.
func (d *Store) pop(worker bool) job {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.jobs) - 1
	if last < 0 {
		d.jobs = nil // frees the room of many
	}
	if last < 0 || worker && d.closed.Load() {
		if worker {
			d.workers--
		}
		return nil
	}
	j := d.jobs[last]
	d.jobs[last] = nil // frees what it refers to
	d.jobs = d.jobs[:last]
	return j
}

func (j job) run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil { // a store has panicked, and there is no caller to panic for
			err = errPanic
		}
	}()
	return j(ctx)
}

var errPanic = errors.New("lease: the store panicked")

// arm starts the timer for a sweep, unless it is running.
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

// sweep releases what has lapsed, settles what is owed, and removes keys that are no longer used.
// It runs again as long as there are keys.
func (d *Store) sweep() {
	for i := range d.shards {
		d.sweepShard(&d.shards[i])
	}
	d.armed.Store(false)
	if d.keys.Load() > 0 { // there are keys, or one was added in the meantime
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

// Close releases all leases, and charges what is owed by overdraft. Later calls ask the store.
// Close waits for calls in progress even if ctx has ended, but no longer than the store's timeout.
// It returns the first error of the store. Another Close only waits for the first one, or for the end of its ctx.
func (d *Store) Close(ctx context.Context) error {
	if d.inner == nil {
		return unmade.Err
	}
	d.mu.Lock()
	closed := d.closed.Swap(true)
	if d.timer != nil {
		d.timer.Stop()
	}
	d.mu.Unlock()
	if closed {
		select {
		case <-d.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(d.ended)
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

// workTogether runs all jobs, several at a time, and returns the first error.
func (d *Store) workTogether(ctx context.Context) (first error) {
	var failed sync.Once
	var all sync.WaitGroup
	for range maxWorkers {
		all.Go(func() {
			for j := d.pop(false); j != nil; j = d.pop(false) {
				if err := j.run(ctx); err != nil {
					failed.Do(func() { first = err })
				}
			}
		})
	}
	all.Wait()
	return first
}

// closeShard makes jobs for everything that is held or owed.
func (d *Store) closeShard(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.keys {
		d.giveUp(e)
		if owed := e.owed; owed > 0 {
			d.do(func(ctx context.Context) error {
				_, err := store.Overdraw(ctx, d.inner, e.ns, e.key, e.limits.by, int64(owed), math.MaxInt32)
				return err
			}, math.MaxInt)
		}
	}
	d.keys.Add(-int64(len(s.keys)))
	s.keys = make(map[keyhash.Hash]*entry)
}

// giveUp releases everything that is held of a key.
func (d *Store) giveUp(e *entry) {
	for range 2 { // the spare becomes what is spent
		g, n := e.drop()
		d.giveBack(e, g, n)
	}
}
