// Package queue keeps the waiters of a key in a queue, in order of arrival, so that only
// the first of them asks the limiter.
//
// A lane is the queue of one key of one limiter in this process. It exists while a call
// asks or waits in it. It learns from answers when the next events will be admitted, so
// that most questions are answered with an admission.
package queue

import (
	"hash/maphash"
	"reflect"
	"sync"
	"time"
)

// Decision is the part of a limiter's answer that a lane needs.
type Decision struct {
	Allowed          bool
	Limit, Remaining int
	RetryAfter       time.Duration
	ResetAfter       time.Duration
	Delay            time.Duration
	Elsewhere        bool // another limiter than usual has decided
	Free             bool // admitted, and no limit is known to count it
	Told             any  // of a denial: what more those are to be told who are refused without asking
}

// Never is the RetryAfter of events that are never admitted, however long the wait.
const Never time.Duration = 1<<63 - 1

// Forever is a patience without end.
const Forever = 100 * 365 * 24 * time.Hour

// Kind is how a limiter admits events that have to wait.
type Kind uint8

const (
	// Unknown is learned by asking.
	Unknown Kind = iota
	// Plain admits events when their time has come, and not before.
	Plain
	// Early admits events some time before their time. Delay is the time that remains.
	Early
	// Tickets admits events into a queue of the limiter's own. Delay is the time until
	// their turn.
	Tickets
	// Leaky is Tickets of a leaky bucket: no turn comes before the ResetAfter of the last
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
	return Tickets // an admission has its Delay, if any
}

type id struct {
	limiter any
	key     string
}

// shardCount is how many locks the keys are spread over, so that two calls rarely share
// one.
const shardCount = 64

type shard struct {
	mu    sync.Mutex // protects all below, and the lanes
	lanes map[id]*lane
	spare *lane     // the last one that was removed
	_     [5]uint64 // so that no two shards share a cache line
}

var (
	seed   = maphash.MakeSeed()
	shards [shardCount]shard
)

// shardOf returns the shard of i's lane, or nil if i cannot be a map key. A limiter that
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

// lane returns the lane of i, and makes it if there is none. Call it with the lock held.
func (s *shard) lane(i id, kind Kind) *lane {
	if ln := s.lanes[i]; ln != nil {
		return ln
	}
	ln := s.spare
	if s.spare = nil; ln == nil {
		ln = new(lane)
	}
	ln.begin(i, s, kind)
	if s.lanes == nil {
		s.lanes = make(map[id]*lane)
	}
	s.lanes[i] = ln
	return ln
}

// Turn is a question that may be asked at once, because the line is empty. It ends with
// Land or with Wait. The zero Turn is not a question.
type Turn struct {
	lane             *lane
	seq              uint64
	number, landings uint64
	n                int
	Tickets          bool // the limiter is known to give out turns of its own
	// Trip is how long an answer takes, as far as is known.
	Trip time.Duration
}

// Enter returns a Turn if n events of key need not queue. ok is false if they must, or if
// end is not zero and they would come after it. The queue belongs to limiter and key. A
// nil limiter has no queue.
func Enter(limiter any, key string, n int, kind Kind, end time.Time) (t Turn, ok bool) {
	t = Turn{n: n, Tickets: kind >= Tickets}
	i := id{limiter, key}
	s := shardOf(i)
	if s == nil {
		return t, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ln := s.lane(i, kind)
	switch {
	case ln.first != nil && !ln.roomForAll(n), ln.flights > 0 && !ln.several(n, false), !end.IsZero() && ln.late(end):
		return Turn{}, false
	case ln.flights > 0, ln.first != nil:
		ln.spend(n)
	}
	t.lane, t.seq, t.Tickets, t.Trip = ln, ln.arrival(), ln.kind == Tickets, ln.slow
	ln.depart(n)
	t.number, t.landings = ln.departures, ln.landings
	return t, true
}

// Land ends t. Its question was answered by an admission or, if known is false, in a way
// that says nothing about the limit. Only the first call counts.
func (t *Turn) Land(d *Decision, known bool) {
	ln := t.lane
	if ln == nil {
		return
	}
	t.lane = nil
	s := ln.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	ln.land(t.n)
	switch {
	case ln.empty(): // no waiter needs to know it
	case known && d.Allowed:
		now := time.Now()
		ln.admitted(d, &question{n: t.n, sent: now, number: t.number, landings: t.landings}, now)
	default:
		ln.forget()
	}
	ln.moved()
}

// Len is the number of lanes, for tests.
func Len() (n int) {
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		n += len(s.lanes)
		s.mu.Unlock()
	}
	return n
}
