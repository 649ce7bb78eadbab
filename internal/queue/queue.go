// Package queue keeps the waiters of a key in order of arrival, so that only the first of
// them asks the limiter.
//
// A queue belongs to one key of one limiter in this process. It exists while a call asks or
// waits in it. From each answer it reads when the next events fit, so that most questions
// are answered with an admission.
package queue

import (
	"container/list"
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
// known. plain reports whether they are known to be Plain, and delays whether they have
// AllowWithin. Other algorithms work as well, but some questions are needed to learn their Kind.
func KindOf(algorithm string, plain, delays bool) Kind {
	switch {
	case plain:
		return Plain
	case algorithm == "token_bucket":
		return Early
	case algorithm == "leaky_bucket":
		return Leaky
	case delays:
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
	v := reflect.ValueOf(i.limiter)
	if i.limiter == nil || v.Kind() != reflect.Pointer && !v.Comparable() || i != i { //nolint:gocritic,staticcheck // NaN
		return nil
	}
	return &shards[maphash.String(seed, i.key)%shardCount]
}

// queue is the waiters of a key, with what is known of its limiter. The shard's lock
// protects all of it.
type queue struct {
	id    id
	shard *shard
	pace

	line     list.List // of *waiter, in order of arrival
	arrivals uint64
	events   int       // of all in the line
	largest  int       // nobody in the line wants more
	soonest  time.Time // no deadline in the line is before it; zero if there is none
	holders  int       // waiters with a permit, who sleep until its time

	latest            Decision // for waiters that are refused without asking
	latestAt, renewed time.Time
	err               error         // of a store that is away: the next question may succeed
	pause             time.Duration // after err
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

func (q *queue) empty() bool { return q.pending == 0 && q.line.Len() == 0 && q.holders == 0 }

// first is the waiter that may ask next, nil if there is none.
func (q *queue) first() *waiter {
	if e := q.line.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// moved is called after each change. It wakes the first waiter, or removes the queue.
func (q *queue) moved() {
	s := q.shard
	if w := q.first(); w != nil {
		w.call()
	} else if q.empty() && s.queues != nil {
		delete(s.queues, q.id)
		*q = queue{} // so that it keeps nothing alive
		s.spare = q
	}
}

// insert puts w where it belongs by arrival. That is the end, but for waiters that have
// asked and were denied: those belong to the front.
func (q *queue) insert(w *waiter) {
	q.events += w.N
	q.bounds(w)
	if last := q.line.Back(); last == nil || last.Value.(*waiter).arrival < w.arrival {
		w.place = q.line.PushBack(w)
		return
	}
	e := q.line.Front()
	for e.Value.(*waiter).arrival < w.arrival {
		e = e.Next()
	}
	w.place = q.line.InsertBefore(w, e)
}

// bounds keeps largest and soonest true for w.
func (q *queue) bounds(w *waiter) {
	q.largest = max(q.largest, w.N)
	if !w.End.IsZero() && (q.soonest.IsZero() || w.End.Before(q.soonest)) {
		q.soonest = w.End
	}
}

func (q *queue) remove(w *waiter) {
	q.line.Remove(w.place)
	w.place = nil
	q.events -= w.N
}

// remember keeps an answer for waiters that will not ask. It refuses those that want more
// than the limit, and those whose permit is known to come too late. Who arrives later looks
// for itself whether its place in the line is. back is who has asked and will stand in the
// line again, nil if nobody does.
func (q *queue) remember(d *Decision, now time.Time, back *waiter) {
	told := q.latest.Told
	q.latest, q.latestAt = *d, now
	q.err, q.pause = nil, 0
	if d.Allowed { // the last denial is still the one that says why
		q.latest.Told = told
	}
	late := !q.soonest.IsZero() && q.soonest.Before(q.notBefore.Add(q.trip))
	placed := q.placed || q.base.IsZero()
	if !late && placed && !q.tooMany(q.largest) {
		return
	}
	q.placed = !q.base.IsZero()
	q.largest, q.soonest = 0, time.Time{}
	before := 0 // events of those who stay
	for e := q.line.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if back != nil && back.arrival < w.arrival {
			before, back = before+back.N, nil
		}
		never := q.tooMany(w.N) && !d.Elsewhere && w.Asker.Hands()
		turn := q.earliest(before + w.N)
		if !never && !q.tooLate(w.End, w.Timed, turn, now) {
			before += w.N
			q.bounds(w)
			continue
		}
		w.refusal = &Outcome{Verdict: TooLate, Denial: q.denial(turn, now)}
		if never {
			w.refusal.Verdict, w.refusal.Denial.RetryAfter = NeverAdmitted, Never
		}
		q.remove(w)
		w.call()
	}
}

// tooMany reports whether the last answer's limit is below n.
func (q *queue) tooMany(n int) bool { return q.latest.Limit > 0 && n > q.latest.Limit }

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
	case q.tooMany(n): // it is never admitted, so it need not stand
		q.pending++
	case q.line.Len() > 0 && q.room < q.events+n,
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
		q.remember(d, now, nil)
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
