// Package queue keeps the waiters of a key in order of arrival, so that only the first one asks the
// limiter.
//
// A queue belongs to one key of one limiter in this process. It exists while a call asks or waits
// in it. Each answer shows when the next events fit, so most questions are answered with an
// admission.
package queue

import (
	"container/list"
	"hash/maphash"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

type id struct {
	limiter any
	key     string
}

// shardCount is the number of locks over which the keys are distributed, so that two calls rarely
// share one.
const shardCount = 64

type shard struct {
	mu     sync.Mutex // protects the fields below, and the queues
	queues map[id]*queue
	spare  *queue    // the last queue that was removed
	_      [5]uint64 // so that no two shards share a cache line
}

var (
	seed   = maphash.MakeSeed()
	shards [shardCount]shard
)

// queue has the waiters of a key, and what is known about its limiter. The shard's lock protects
// all of it.
type queue struct {
	id    id
	shard *shard
	pace

	waiters  list.List // in order of arrival, of *Waiter
	arrivals uint64
	events   int       // of all waiters in the queue
	largest  int       // no waiter in the queue wants more
	soonest  time.Time // no waiter in the queue has an earlier end; zero if it is empty
	permits  int       // whose waiters sleep until their time

	latest   Answer // for waiters that are refused without asking
	latestAt time.Time
	err      error         // of an unavailable store; the next question may succeed
	failedAt time.Time     // when err came first
	pause    time.Duration // after failedAt
}

// lock returns the queue of i with its lock held, and creates it if there is none. A limiter that
// cannot be a map key, or that contains NaN and is not even equal to itself, gets a new queue for
// each call.
func lock(i id, kind Kind) *queue {
	v := reflect.ValueOf(i.limiter)
	if v.Kind() != reflect.Pointer && (i.limiter == nil || !v.Comparable() || i != i) { //nolint:gocritic,staticcheck // NaN
		q := &queue{shard: new(shard), pace: pace{kind: kind}}
		q.shard.mu.Lock()
		return q
	}
	s := &shards[maphash.String(seed, i.key)%shardCount]
	s.mu.Lock()
	q := s.queues[i]
	if q != nil {
		return q
	}
	if q = s.spare; q == nil {
		q = new(queue)
	}
	*q = queue{id: i, shard: s, pace: pace{kind: kind}}
	if s.spare = nil; s.queues == nil {
		s.queues = make(map[id]*queue)
	}
	s.queues[i] = q
	return q
}

func (q *queue) empty() bool { return q.pending == 0 && q.waiters.Len() == 0 && q.permits == 0 }

// first returns the waiter that may ask next, or nil if there is none.
func (q *queue) first() *Waiter {
	if e := q.waiters.Front(); e != nil {
		return e.Value.(*Waiter)
	}
	return nil
}

// wakeOrRemove is called after each change. It wakes the first waiter, or removes the queue.
func (q *queue) wakeOrRemove() {
	s := q.shard
	if w := q.first(); w != nil {
		w.signal()
	} else if q.empty() && s.queues != nil {
		delete(s.queues, q.id)
		*q = queue{} // so that it keeps nothing alive
		s.spare = q
	}
}

// insert puts w in its place by arrival. That is the end of the queue, except for waiters that have
// asked and were denied: they belong at the front.
func (q *queue) insert(w *Waiter) {
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
	}
	q.events += w.N
	q.bounds(w)
	if last := q.waiters.Back(); last == nil || last.Value.(*Waiter).arrival < w.arrival {
		w.element = q.waiters.PushBack(w)
		return
	}
	e := q.waiters.Front()
	for e.Value.(*Waiter).arrival < w.arrival {
		e = e.Next()
	}
	w.element = q.waiters.InsertBefore(w, e)
}

// bounds updates largest and soonest for w.
func (q *queue) bounds(w *Waiter) {
	q.largest = max(q.largest, w.N)
	if q.soonest.IsZero() || w.end.Before(q.soonest) {
		q.soonest = w.end
	}
}

// remove takes w out of the queue, if it is there.
func (q *queue) remove(w *Waiter) {
	if w.element != nil {
		q.waiters.Remove(w.element)
		w.element = nil
		q.events -= w.N
	}
}

// remember keeps an answer for waiters that will not ask. It refuses waiters that want more than
// the limit, and waiters whose permit is known to come too late. Waiters that arrive later check
// their own place in the queue.
func (q *queue) remember(a Answer, now time.Time) {
	if a.Allowed { // keep the information of the last denial
		a.Info = q.latest.Info
	}
	q.latest, q.latestAt = a, now
	q.err, q.pause = nil, 0
	late := !q.soonest.IsZero() && q.soonest.Before(q.notBefore.Add(q.trip))
	checked := q.turnsChecked || q.base.IsZero()
	if !late && checked && !q.tooMany(q.largest) {
		return
	}
	q.turnsChecked = !q.base.IsZero()
	q.largest, q.soonest = 0, time.Time{}
	before := 0 // events of the waiters that stay
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*Waiter)
		e = e.Next()
		turn := q.earliest(before + w.N)
		never := q.tooMany(w.N) && !a.Elsewhere && w.Asker.MayHandOn()
		if !never && !q.tooLate(w.end, turn, now) {
			before += w.N
			q.bounds(w)
			continue
		}
		w.Answer, w.refusal = q.denial(turn, now), ErrTooLate
		if never {
			w.Answer.RetryAfter, w.refusal = Never, ErrNever
		}
		q.remove(w)
		w.signal()
	}
}

// tooMany reports whether the limit in the last answer is below n.
func (q *queue) tooMany(n int) bool { return q.latest.Limit > 0 && n > q.latest.Limit }

// never reports whether n events are never admitted. An old answer does not count, because the
// limit may have risen.
func (q *queue) never(n int, now time.Time) bool {
	return q.tooMany(n) && !q.latest.Alternatives && now.Sub(q.latestAt) < stale
}

// denial returns a denial for waiters that would be due at t, made from the latest decision.
func (q *queue) denial(t, now time.Time) Answer {
	retry := max(t.Sub(now), time.Microsecond)
	reset := q.latest.ResetAfter - now.Sub(q.latestAt)
	return Answer{Limit: q.latest.Limit, RetryAfter: retry, ResetAfter: max(reset, retry), Info: q.latest.Info}
}

// recheck lets the first waiter ask immediately if it would not ask for a long time and the last
// answer is old. The limit may have changed since, or the key may have been reset. No pause after an
// error is that long.
func (q *queue) recheck(now time.Time) {
	if q.pending > 0 || now.Sub(q.latestAt) < stale {
		return
	}
	if w := q.first(); w != nil { // otherwise the arriving waiter asks, although others may still sleep until their turns
		if _, at, _ := w.plan(now); at.Sub(now) <= stale {
			return
		}
		w.signal()
	}
	q.forget()
}

// Len returns the number of queues, for tests.
func Len() (n int) {
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		n += len(s.queues)
		s.mu.Unlock()
	}
	return n
}

// Places limits how many waiters sleep at the same time.
type Places struct {
	Most  int64
	taken atomic.Int64
}

// Taken returns how many waiters sleep.
func (p *Places) Taken() int64 { return p.taken.Load() }

// Full reports whether no further waiter may sleep.
func (p *Places) Full() bool { return p.Taken() >= p.Most }

// take takes a place, and reports whether there was one.
func (p *Places) take() bool {
	taken := p.taken.Add(1) <= p.Most
	if !taken {
		p.taken.Add(-1)
	}
	return taken
}
