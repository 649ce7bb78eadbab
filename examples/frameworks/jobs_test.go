package frameworks_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// job is one of a queue.
type job struct {
	id   int
	paid bool // its turn is charged
	due  time.Time
}

// jobs is a queue whose jobs become due.
type jobs struct {
	mu      sync.Mutex
	waiting []job
	backs   int // how often one was put back
	done    []time.Time
}

// take returns a job that is due, or how long none will be. It is over if none is left.
func (q *jobs) take() (j job, wait time.Duration, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return j, 0, true
	}
	i := 0
	for k := range q.waiting {
		if q.waiting[k].due.Before(q.waiting[i].due) {
			i = k
		}
	}
	if wait = time.Until(q.waiting[i].due); wait > 0 {
		return j, wait, false
	}
	j = q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return j, 0, false
}

func (q *jobs) putBack(j job, after time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.due = time.Now().Add(after)
	q.waiting = append(q.waiting, j)
	q.backs++
	return nil
}

func (q *jobs) do(job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done = append(q.done, time.Now())
	return nil
}

// inItsTurn does a job in a turn of its own.
func (q *jobs) inItsTurn(ctx context.Context, limiter ratelimit.Limiter, job job) error {
	if !job.paid {
		r, err := ratelimit.AllowWithin(ctx, limiter, "supplier", 1, time.Hour)
		switch {
		case err != nil:
			return err
		case !r.Allowed: // no scheduled time is left within an hour
			return q.putBack(job, r.RetryAfter)
		case r.Delay > 0:
			job.paid = true
			return q.putBack(job, r.Delay)
		}
	}
	return q.do(job)
}

// byRetryAfter puts a job back until somebody may have the next event.
func (q *jobs) byRetryAfter(ctx context.Context, limiter ratelimit.Limiter, job job) error {
	r, err := limiter.Allow(ctx, "supplier")
	if err != nil {
		return err
	}
	if !r.Allowed {
		return q.putBack(job, r.RetryAfter)
	}
	return q.do(job)
}

// bySlot waits a little for a slot. When one is free nobody knows.
func (q *jobs) bySlot(ctx context.Context, limiter ratelimit.Limiter, job job) error {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	slot, _, err := inflight.Wait(soon, limiter, "supplier", 1)
	if err != nil {
		return q.putBack(job, time.Minute) // or return err, if the store failed
	}
	defer slot.Release()
	time.Sleep(100 * time.Millisecond)
	return q.do(job)
}

// work has 12 workers do a backlog of 500 jobs.
func work(t *testing.T, do func(*jobs, context.Context, ratelimit.Limiter, job) error, limiter func(*memstore.Store) (ratelimit.Limiter, error)) *jobs {
	q := new(jobs)
	l, err := limiter(ratelimit.Must(memstore.New()))
	if err != nil {
		t.Fatal(err)
	}
	for id := range 500 {
		q.waiting = append(q.waiting, job{id: id, due: time.Now()})
	}
	var workers sync.WaitGroup
	for range 12 {
		workers.Go(func() {
			for {
				j, wait, over := q.take()
				switch {
				case over:
					return
				case wait > 0:
					time.Sleep(wait)
				default:
					if err := do(q, t.Context(), l, j); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	workers.Wait()
	if len(q.done) != 500 {
		t.Errorf("%d jobs were done", len(q.done))
	}
	return q
}

// worst is the most jobs that were done within d.
func (q *jobs) worst(d time.Duration) (worst int) {
	slices.SortFunc(q.done, time.Time.Compare)
	first := 0
	for i := range q.done {
		for q.done[i].Sub(q.done[first]) >= d {
			first++
		}
		worst = max(worst, i-first+1)
	}
	return worst
}

func hundredASecond(s *memstore.Store) (ratelimit.Limiter, error) {
	return ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 10}, ratelimit.WithName("jobs"))
}

// Each of 500 jobs that wait is put back once, until its own turn. Put back by the RetryAfter of a
// denial all come again together, each time.
func TestAJobIsPutBackOnce(t *testing.T) {
	for _, test := range []struct {
		name        string
		do          func(*jobs, context.Context, ratelimit.Limiter, job) error
		least, most int // that are put back
	}{
		{"AllowWithin", (*jobs).inItsTurn, 490, 490}, // all but the Burst
		{"RetryAfter", (*jobs).byRetryAfter, 50 * 500, 500 * 500},
	} {
		t.Run(test.name, func(t *testing.T) {
			if testing.Short() && test.least > 500 {
				t.Skip("takes seconds with the race detector")
			}
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				q := work(t, test.do, hundredASecond)
				if q.backs < test.least || q.backs > test.most {
					t.Errorf("%d were put back", q.backs)
				}
				if worst := q.worst(time.Second); worst > 110 {
					t.Errorf("%d were done within a second", worst)
				}
				if took := time.Since(began); took > 4900*time.Millisecond {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// Those who wait for a slot have it as soon as one is free.
func TestAWorkerWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		q := work(t, (*jobs).bySlot, func(s *memstore.Store) (ratelimit.Limiter, error) {
			return inflight.New(s, 4, time.Minute, ratelimit.WithName("at_once"))
		})
		if q.backs != 0 || time.Since(began) != 12500*time.Millisecond {
			t.Errorf("%d were put back, and it took %v", q.backs, time.Since(began))
		}
	})
}
