package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// maxBatch is the most calls in a script. A server does nothing else while it runs a
// script, which is about 0.3 ms for 64 calls.
const maxBatch = 64

// maxFlights is how many calls and batches of a rule are under way at once. With one the
// server would wait while this process reads a reply and writes the next batch. With
// many, batches are small.
const maxFlights = 4

// WithBatching makes many calls in one script: up to 64 of an algorithm, whatever they
// ask, and whatever their keys and limits. While four calls of an algorithm are under
// way, others wait for one of them to end, and then go together. Each is decided on as if
// it were alone, in the order of arrival. Only TakeAll and Reset always go alone.
//
// Use it if hundreds of callers ask at once. Starting a script costs the server as much
// as a decision, and a round trip costs both sides more than either. A call that meets
// fewer than four others costs the same as without batching. A waiting call waits for
// part of a round trip, or longer behind hundreds of others. Up to four goroutines for
// each algorithm send the batches. They end when no call waits.
//
// A call whose time is up while it waits has not run. It fails with
// [store.ErrOverloaded] or the error of its context. If its time is up while its batch is
// under way, it fails with [store.ErrTimeout] and may have run. A batch whose reply is
// lost is not sent again: each of its calls fails with ErrTimeout. A value that is not
// ours fails only the calls on its key. If an answer proves that a batch, or some of its
// calls, did not run, those calls go on alone.
//
// A batch has the time of its most patient call, and no caller's context: hooks of the
// client see none of its values. If a hook panics, so does each call of the batch that
// has not left.
//
// The client must be a *redis.Client, with Sentinel or without: only then are all keys on
// one server. For others New returns [store.ErrInvalidOption]. A cluster node refuses
// batches, so do not use this option with one.
func WithBatching() Option {
	return func(s *Store) error {
		s.batching = true
		return nil
	}
}

// queue holds the waiting calls of one rule.
type queue struct {
	script  *script
	mu      sync.Mutex // protects what is below
	flights int        // calls and batches under way
	waiting []*waiter  // in the order of arrival; empty while there is room for a flight
}

// waiter is a call waiting for its answer. Whichever side sets done first, the waiter when
// its time is up or the sender of a batch, decides which it is.
type waiter struct {
	budget
	task
	key   any // a string, the Redis key
	done  atomic.Bool
	ready chan struct{} // closed when answer is set
	answer
}

// answer is the result of a waiter's call: a reply, or one of the other fields.
type answer struct {
	reply    store.Reply
	fault    *fault
	err      error
	panicked any  // the value that the client panicked with
	alone    bool // nothing ran, and the call has to go alone
}

func (s *Store) queue(rule *store.Rule) *queue {
	if q, ok := s.queues.Load(rule); ok {
		return q.(*queue)
	}
	q, _ := s.queues.LoadOrStore(rule, &queue{script: newScript(rule.BatchScript(rule))})
	return q.(*queue)
}

// callInBatch is call. The call goes alone while there is room for a flight, and
// otherwise waits for a batch. If there is proof that the batch did not run, it goes on
// alone.
func (s *Store) callInBatch(b budget, ns *store.Namespace, key string, t task) (store.Reply, error) {
	if err := b.Err(); err != nil {
		return store.Reply{}, err
	}
	q := s.queue(ns.Rule)
	if q.begin() {
		defer s.land(q) // also if the client panics
		return s.callAlone(b, ns, key, t)
	}
	c := &waiter{budget: b, task: t, key: s.key(ns, key), ready: make(chan struct{})}
	if batch := q.join(c); batch != nil {
		go s.serve(q, batch)
	}
	switch a := s.wait(c); {
	case a.panicked != nil:
		panic(a.panicked)
	case a.alone:
		return s.callAlone(b, ns, key, t)
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

// join puts c into the queue. If there is room for a flight by now, it returns the batch
// to serve.
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

// land ends the flight of a call that went alone, or hands it to a batch.
func (s *Store) land(q *queue) {
	if batch := q.board(nil); batch != nil {
		go s.serve(q, batch)
	}
}

// board returns the next batch of the flight. If it is empty, the flight has ended.
func (q *queue) board(last []*waiter) []*waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next(last)
}

// next is board, with the lock held. It reuses the memory of the last batch.
func (q *queue) next(last []*waiter) []*waiter {
	batch, seen, now := last[:0], 0, time.Now()
	for _, c := range q.waiting {
		if len(batch) == maxBatch {
			break
		}
		seen++
		// A waiter whose time is up is not taken: its timer may be late on a busy
		// machine.
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

// serve sends batches until no call waits.
func (s *Store) serve(q *queue, batch []*waiter) {
	for batch != nil {
		s.callEach(q.script, batch)
		for _, c := range batch {
			close(c.ready)
		}
		batch = q.board(batch)
	}
}

// callEach makes the calls of batch in one script, in one attempt.
func (s *Store) callEach(sc *script, batch []*waiter) {
	defer func() { // a panic belongs on the callers' goroutines, which may expect it
		if p := recover(); p != nil {
			all(batch, answer{panicked: p})
		}
	}()
	args, op, err := s.batchArgs(sc, batch)
	if err != nil {
		all(batch, answer{err: err})
		return
	}
	cmd, f := s.try(latest(batch), sc, op, args)
	if f != nil {
		all(batch, answer{fault: f, alone: f.again || refusesBatches(f.err)})
		return
	}
	list, err := decisions(cmd.(command).Val(), len(batch))
	if err != nil {
		all(batch, answer{err: err})
		return
	}
	for i, c := range batch {
		c.answer = answerOf(list, i)
	}
}

// refusesBatches reports whether err is the answer of a server that may accept one key
// but not several. Either they are on different nodes, or the user may not use all of
// them. It proves that nothing ran.
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

// batchArgs returns the EVALSHA of scripts/batch.lua for batch, and its operation.
func (s *Store) batchArgs(sc *script, batch []*waiter) ([]any, operation, error) {
	args := make([]any, 0, keyArg+len(batch)+9)
	args = append(args, evalsha, sc.sha, len(batch))
	for _, c := range batch {
		args = append(args, c.key)
	}
	op := operation{name: "batch", at: len(args), mixed: true}
	args = append(args, nil, "")
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return nil, op, err
		}
		args[len(args)-1] = now
	}
	for from, to := 0, 0; from < len(batch); from = to {
		first := &batch[from].task
		for to = from; to < len(batch) && first.equal(&batch[to].task); {
			to++
		}
		args = first.appendTo(s, sc, append(args, to-from, first.op))
	}
	return args, op, nil
}

func (t *task) equal(u *task) bool {
	return t.op == u.op && t.limit == u.limit && t.n == u.n && slices.Equal(t.more, u.more)
}

// refusal is the error of one call in a script's reply.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it a [redis.Error].
func (refusal) RedisError() {}

// decisions returns the elements of a batch's reply, which has n decisions.
func decisions(val any, n int) ([]any, error) {
	list, ok := val.([]any)
	if !ok || len(list) != 4*n {
		return nil, fmt.Errorf("%w: reply is %T of %d elements, not a list of %d", store.ErrStore, val, len(list), 4*n)
	}
	return list, nil
}

// answerOf is decision i of a batch.
func answerOf(list []any, i int) answer {
	if text, failed := list[4*i].(string); failed {
		f := answered(refusal(text), text)
		return answer{fault: &f, alone: f.again}
	}
	var v [4]int64
	for j := range v {
		var ok bool
		if v[j], ok = list[4*i+j].(int64); !ok {
			return answer{err: fmt.Errorf("%w: element %d of the reply is %T, not an integer", store.ErrStore, 4*i+j, list[4*i+j])}
		}
	}
	reply, err := decision(v)
	return answer{reply: reply, err: err}
}

// wait returns the answer of c's batch, or the error if c's time is up first.
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
