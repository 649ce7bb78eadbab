// Package queue keeps the waiters of a key in order of arrival, so that only the first of
// them asks the limiter.
//
// A queue belongs to one key of one limiter in this process. It exists while a call asks or
// waits in it. From each answer it reads when the next events fit, so that most questions
// are answered with an admission.
package queue

import (
	"hash/maphash"
	"reflect"
	"sync"
	"time"
)

// Kind is how a limiter admits events that have to wait.
type Kind uint8

const (
	// Unknown is learned by asking.
	Unknown Kind = iota
	// Plain admits events when their time has come, and not before.
	Plain
	// Early admits events some time before their time. Delay is the time that remains.
	Early
	// Turns admits events into a queue of the limiter's own. Delay is the time until
	// their turn.
	Turns
	// Leaky is Turns of a leaky bucket: no turn comes before the ResetAfter of the last
	// answer.
	Leaky
)

// KindOf returns the Kind of limiters by their algorithm's name, or "" if that is not
// known. delays reports whether they have AllowWithin. Other algorithms work as well, but
// some questions are needed to learn their Kind.
func KindOf(algorithm string, delays bool) Kind {
	switch algorithm {
	case "fixed_window", "sliding_window", "sliding_log":
		return Plain
	case "token_bucket":
		return Early
	case "leaky_bucket":
		return Leaky
	}
	if delays {
		return Unknown
	}
	return Turns // an admission has its Delay, if any
}

type id struct {
	limiter any
	key     string
}

// shardCount is how many locks the keys are spread over, so that two calls rarely share
// one.
const shardCount = 64

type shard struct {
	mu     sync.Mutex // protects all below, and the queues
	queues map[id]*queue
	spare  *queue    // the last one that was removed
	_      [5]uint64 // so that no two shards share a cache line
}

var (
	seed   = maphash.MakeSeed()
	shards [shardCount]shard
)

// shardOf returns the shard of i's queue, or nil if i cannot be a map key. A limiter that
// contains NaN is not even equal to itself.
func shardOf(i id) *shard {
	if i.limiter == nil || !comparable(i.limiter) || i != i { //nolint:gocritic,staticcheck // NaN
		return nil
	}
	return &shards[maphash.String(seed, i.key)%shardCount]
}

func comparable(limiter any) bool {
	v := reflect.ValueOf(limiter)
	return v.Kind() == reflect.Pointer || v.Comparable()
}

// queue is the waiters of a key, with what is known of its limiter. The shard's lock
// protects all of it.
type queue struct {
	id    id
	shard *shard
	pace

	first, last *waiter
	arrivals    uint64
	events      int       // of all that stand in the queue
	largest     int       // nobody wants more events
	soonest     time.Time // no deadline is before it; zero if there is none

	holders int // waiters with a permit, who sleep until its time

	latest   Decision // for waiters that are refused without asking
	latestAt time.Time
	renewed  time.Time     // when a newcomer let the first ask again
	pause    time.Duration // after err
	err      error         // of a store that is away: the next question may succeed
}

// queue returns the queue of i, and makes it if there is none. Call it with the lock held.
func (s *shard) queue(i id, kind Kind) *queue {
	if q := s.queues[i]; q != nil {
		return q
	}
	q := s.spare
	if s.spare = nil; q == nil {
		q = new(queue)
	}
	*q = queue{id: i, shard: s, pace: newPace(kind)}
	if s.queues == nil {
		s.queues = make(map[id]*queue)
	}
	s.queues[i] = q
	return q
}

func (q *queue) empty() bool { return q.pending == 0 && q.first == nil && q.holders == 0 }

// moved is called after each change. It wakes the first waiter, or removes the queue.
func (q *queue) moved() {
	s := q.shard
	switch {
	case q.first != nil:
		q.first.call()
	case q.empty() && s.queues != nil:
		delete(s.queues, q.id)
		q.id, q.latest, q.err = id{}, Decision{}, nil // so that it keeps nothing alive
		s.spare = q
	}
}

// after returns the waiter behind w, or the first if w is nil.
func (q *queue) after(w *waiter) *waiter {
	if w == nil {
		return q.first
	}
	return w.next
}

// insert puts w where it belongs by arrival. That is the end, but for waiters that have
// asked and were denied.
func (q *queue) insert(w *waiter) {
	before := q.last
	if q.first != nil && w.arrival < q.last.arrival {
		for before = nil; q.after(before).arrival < w.arrival; {
			before = q.after(before)
		}
	}
	w.prev, w.next = before, q.after(before)
	if w.prev != nil {
		w.prev.next = w
	} else {
		q.first = w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		q.last = w
	}
	w.stands = true
	q.events += w.N
	q.bounds(w)
}

// bounds keeps largest and soonest true for w.
func (q *queue) bounds(w *waiter) {
	q.largest = max(q.largest, w.N)
	if !w.End.IsZero() && (q.soonest.IsZero() || w.End.Before(q.soonest)) {
		q.soonest = w.End
	}
}

func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next, w.stands = nil, nil, false
	q.events -= w.N
}

// remember keeps an answer for waiters that will not ask. It refuses those whose permit is
// known to come too late. Those who want more than the limit ask at once and by themselves,
// since they hold the others up for nothing.
func (q *queue) remember(d *Decision, now time.Time) {
	told := q.latest.Told
	q.latest, q.latestAt = *d, now
	q.err, q.pause = nil, 0
	if d.Allowed { // the last denial is still the one that says why
		q.latest.Told = told
	}
	late := !q.soonest.IsZero() && q.soonest.Before(q.notBefore.Add(q.trip))
	if !late && (d.Limit <= 0 || q.largest <= d.Limit) {
		return
	}
	q.largest, q.soonest = 0, time.Time{}
	for w := q.first; w != nil; {
		next := w.next
		switch {
		case d.Limit > 0 && w.N > d.Limit && !w.asked:
			q.remove(w)
			q.pending++
			w.alone = true
			w.call()
		case q.tooLate(w.End, w.Timed, q.notBefore, now):
			q.remove(w)
			w.refused, w.denial = true, q.denial(q.notBefore, now)
			w.call()
		default:
			q.bounds(w)
		}
		w = next
	}
}

// denial is that of waiters that would be due at t, made from the latest decision.
func (q *queue) denial(t, now time.Time) Decision {
	retry := max(t.Sub(now), time.Microsecond)
	reset := q.latest.ResetAfter - now.Sub(q.latestAt)
	return Decision{Limit: q.latest.Limit, RetryAfter: retry, ResetAfter: max(reset, retry), Told: q.latest.Told}
}

// Call is a question that may be asked at once, because nobody stands before it. It ends
// with Done or with Wait. The zero Call is not a question.
type Call struct {
	queue    *queue
	question question
	arrival  uint64
	// Patient means that the limiter gives out turns, and is asked for one that comes in
	// time.
	Patient bool
	// Trip is how long an answer takes, as far as is known.
	Trip time.Duration
}

// Enter returns a Call if n events of key need not queue. ok is false if they must, or if
// end is not zero and they would come after it. The queue belongs to limiter and key. A
// nil limiter has no queue.
func Enter(limiter any, key string, n int, kind Kind, end time.Time) (c Call, ok bool) {
	c = Call{Patient: kind >= Turns, question: question{n: n, sent: time.Now()}}
	i := id{limiter, key}
	s := shardOf(i)
	if s == nil {
		return c, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue(i, kind)
	switch {
	case q.latest.Limit > 0 && n > q.latest.Limit: // it is never admitted, so it need not stand
		q.pending++
	case q.first != nil && q.room < q.events+n,
		q.pending > 0 && !q.several(n, false),
		!end.IsZero() && q.tooLate(end, false, q.notBefore, time.Now()):
		return Call{}, false
	default:
		q.ask(&c.question)
	}
	q.arrivals++
	c.queue, c.arrival, c.Patient, c.Trip = q, q.arrivals, q.kind >= Turns, q.trip
	return c, true
}

// Done ends c. Its question was answered by an admission or, if known is false, in a way
// that says nothing about the limit. Only the first call counts.
func (c *Call) Done(d *Decision, known bool) {
	q := c.queue
	if q == nil {
		return
	}
	c.queue = nil
	s := q.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	q.done(&c.question)
	switch {
	case q.empty(): // no waiter needs to know it
	case known && d.Allowed:
		now := time.Now()
		q.admitted(d, &c.question, now)
		q.remember(d, now)
	default:
		q.forget()
	}
	q.moved()
}

// Len is the number of queues, for tests.
func Len() (n int) {
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		n += len(s.queues)
		s.mu.Unlock()
	}
	return n
}
