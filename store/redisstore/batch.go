package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// maxBatch is the most calls in a script. A server does nothing else while it runs
// one: with 64 that is about 0.3 ms.
const maxBatch = 64

// maxFlights is how many calls and batches of a rule are under way at once. With one
// the server would wait while this process reads a reply and writes the next batch,
// and few callers would wait for no gain; with many, batches are small.
const maxFlights = 4

// WithBatching makes Take send the calls of many callers together, in one script for
// up to 64 of them, whatever their keys and limits: while four calls of an algorithm
// are under way, others wait for one of them to end, and then go together. Each is
// decided on as if it were alone, one after the other in the order in which they came.
//
// Use it where hundreds of callers ask at once: starting a script costs the server as
// much as a decision, and a round trip costs both sides more than either. A call that
// meets fewer than four others costs what it did. One that waits does so for part of a
// round trip, or for longer behind hundreds of others. Up to four goroutines for each
// algorithm send the batches, and end when nobody waits.
//
// A call whose time is up while it waits leaves, and is charged nothing: that is
// [store.ErrOverloaded], or the error of its context. One whose time is up while its
// batch is under way is [store.ErrTimeout], and its charge may stand. A batch whose reply
// is lost is not sent again, and each of its calls is ErrTimeout. A value that is not
// ours fails only the calls on its key. Where an answer proves that a batch, or calls
// within it, did not run, each of them goes on alone, as without batches. A batch has
// the time of the call in it that has most, and no waiter's context: hooks of the client
// see none of its values. If a hook panics, so does each call of the batch that has not
// left.
//
// The client must be a *redis.Client, of Sentinel or not: elsewhere keys are not all on
// one server, and New returns [store.ErrInvalidOption]. If its server is a node of a
// cluster, batches are refused, and help nobody.
//
// Take of events whose turn must come in time (AllowWithin of package ratelimit) goes
// alone, and so do TakeUpTo, TakeAll, Force, Peek, Refund and Reset.
func WithBatching() Option {
	return func(s *Store) error {
		s.batching = true
		return nil
	}
}

// queue is the calls of one rule.
type queue struct {
	script  *script
	mu      sync.Mutex // protects what is below
	flights int        // calls and batches under way
	waiting []*waiter  // in the order of arrival; none while there is room for a flight
}

// waiter is a call waiting for its answer. Whichever side sets done first, the waiter when
// its time is up or the sender of a batch, decides which it is.
type waiter struct {
	budget
	key   any // a string, of Redis
	limit store.Limit
	n     int64
	done  atomic.Bool
	ready chan struct{} // closed when answer is there
	answer
}

// answer is what a batch has brought a waiter, in a reply or one of the others.
type answer struct {
	reply    store.Reply
	fault    *fault
	err      error
	panicked any  // with what the client has panicked
	alone    bool // nothing ran, and the call has to go on its own
}

func (s *Store) queue(rule *store.Rule) *queue {
	if q, ok := s.queues.Load(rule); ok {
		return q.(*queue)
	}
	q, _ := s.queues.LoadOrStore(rule, &queue{script: newScript(rule.BatchScript(rule))})
	return q.(*queue)
}

// takeInBatch is Take, alone while there is room for a flight. What is proof that a
// batch did not run makes its waiters go on as they would without batches.
func (s *Store) takeInBatch(b budget, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if err := b.Err(); err != nil {
		return store.Reply{}, err
	}
	q := s.queue(ns.Rule)
	if q.begin() {
		defer s.land(q) // also if the client panics
		return s.call(b, ns, key, "take", l, n)
	}
	c := &waiter{budget: b, key: s.key(ns, key), limit: l, n: n, ready: make(chan struct{})}
	if batch := q.join(c); batch != nil {
		go s.serve(q, batch)
	}
	switch a := s.wait(c); {
	case a.panicked != nil:
		panic(a.panicked)
	case a.alone:
		return s.call(b, ns, key, "take", l, n)
	case a.fault != nil:
		return store.Reply{}, failure(b, *a.fault)
	default:
		return a.reply, a.err
	}
}

// begin begins a flight, if there is room.
func (q *queue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flights >= maxFlights {
		return false
	}
	q.flights++
	return true
}

// join puts c into the queue. It returns whom to serve if there is room by now.
func (q *queue) join(c *waiter) []*waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
	if q.flights >= maxFlights {
		return nil
	}
	q.flights++
	return q.next(nil)
}

// land ends the flight of a call that was made alone, or leaves it to a batch.
func (s *Store) land(q *queue) {
	if batch := q.board(nil); batch != nil {
		go s.serve(q, batch)
	}
}

// board is whom the flight takes next. If it is nobody, the flight has ended.
func (q *queue) board(last []*waiter) []*waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next(last)
}

// next is board, under the lock, in the memory of the last batch.
func (q *queue) next(last []*waiter) []*waiter {
	batch, seen, now := last[:0], 0, time.Now()
	for _, c := range q.waiting {
		if len(batch) == maxBatch {
			break
		}
		seen++
		// A waiter whose time is up leaves by itself: its timer may be late on a busy machine.
		if c.end.After(now) && c.done.CompareAndSwap(false, true) { // else it has left
			batch = append(batch, c)
		}
	}
	clear(q.waiting[:seen])
	q.waiting = q.waiting[seen:]
	if len(batch) == 0 {
		q.flights--
		return nil
	}
	return batch
}

// serve sends batches until nobody waits.
func (s *Store) serve(q *queue, batch []*waiter) {
	for batch != nil {
		s.takeEach(q.script, batch)
		for _, c := range batch {
			close(c.ready)
		}
		batch = q.board(batch)
	}
}

// takeEach makes the calls of batch in one script, in one attempt.
func (s *Store) takeEach(sc *script, batch []*waiter) {
	defer func() { // whoever calls from where a panic is expected is to have it there
		if p := recover(); p != nil {
			all(batch, answer{panicked: p})
		}
	}()
	args, op, err := s.batchArgs(sc, batch)
	if err != nil {
		all(batch, answer{err: err})
		return
	}
	val, f := s.try(latest(batch), sc, op, args)
	if f != nil {
		all(batch, answer{fault: f, alone: f.again || refusesBatches(f.err)})
		return
	}
	list, err := decisions(val, len(batch))
	if err != nil {
		all(batch, answer{err: err})
		return
	}
	for i, c := range batch {
		c.answer = answerOf(list, i)
	}
}

// refusesBatches reports whether err is the answer of a server that may do for one key
// what it does not do for several: they are on different nodes, or not all of them are
// this user's. It is proof that nothing ran.
func refusesBatches(err error) bool {
	return redis.HasErrorPrefix(err, "CROSSSLOT") || redis.HasErrorPrefix(err, "NOPERM")
}

func all(batch []*waiter, a answer) {
	for _, c := range batch {
		c.answer = a
	}
}

// latest is the budget of a batch: no waiter's context, and the latest of their ends.
func latest(batch []*waiter) budget {
	b := budget{Context: context.Background()}
	for _, c := range batch {
		if c.end.After(b.end) {
			b.end, b.own = c.end, c.own
		}
	}
	return b
}

// batchArgs is the EVALSHA of scripts/batch.lua for batch, and what it is to do.
func (s *Store) batchArgs(sc *script, batch []*waiter) ([]any, operation, error) {
	args := make([]any, 0, keyArg+len(batch)+7)
	args = append(args, evalsha, sc.sha, len(batch))
	for _, c := range batch {
		args = append(args, c.key)
	}
	op := operation{"take", len(args)}
	args = append(args, nil)
	for from, to := 0, 0; from < len(batch); from = to {
		c := batch[from]
		for to = from; to < len(batch) && batch[to].limit == c.limit && batch[to].n == c.n; {
			to++
		}
		args = append(args, to-from, c.limit.Rate, c.limit.Period, c.limit.Burst, c.n)
	}
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return nil, op, err
		}
		args = append(args, now)
	}
	return args, op, nil
}

// refusal is what a script says of one call that failed.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it a [redis.Error].
func (refusal) RedisError() {}

// answerOf is decision i of a batch.
func answerOf(list []any, i int) answer {
	if text, failed := list[4*i].(string); failed {
		f := answered(refusal(text), text)
		return answer{fault: &f, alone: f.again}
	}
	reply, err := decision(list, i)
	return answer{reply: reply, err: err}
}

// wait returns what a batch has brought c, or what there is to say when its time is
// up before.
func (s *Store) wait(c *waiter) answer {
	timer := time.NewTimer(time.Until(c.end))
	defer timer.Stop()
	select {
	case <-c.ready:
		return c.answer
	case <-c.Done():
	case <-timer.C:
	}
	if c.done.CompareAndSwap(false, true) {
		return answer{fault: &fault{class: store.ErrOverloaded, what: "nothing was sent", err: errQueued}}
	}
	select {
	case <-c.ready:
		return c.answer
	default:
		f := s.unknown(errUnderWay)
		return answer{fault: &f}
	}
}

var errUnderWay = errors.New("the batch is under way")
