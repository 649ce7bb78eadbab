package carrier

import (
	"slices"
	"sync/atomic"
	"time"
)

// batch is a list of calls that wait together, and then go together. They share a channel and a timer,
// so that a call that waits costs little.
type batch[C any] struct {
	calls []Carried[C]
	queue *queue[C]     // in which the calls wait
	begun time.Time     // when the first call came
	timer *time.Timer   // ends the calls when their time is up
	ended atomic.Bool   // whichever sets it, timer or trip, decides how the calls end
	done  chan struct{} // closed when the calls have ended

	unread atomic.Int64 // calls that have not read how they ended, if the batch may be used again

	// Carrier.mu protects the fields below until done is closed.
	trip   *Trip[C] // that carries the batch, or nil
	living int      // calls that have not left
	err    error    // of all calls, if their time is up
	sent   bool     // whether the batch was written, if the time is up
}

// clear resets b, except for its memory and its timer.
func (b *batch[C]) clear() {
	clear(b.calls)
	b.calls, b.done, b.trip, b.living = b.calls[:0], nil, nil, 0
	b.ended.Store(false)
}

// outcome is [Carrier.outcome] for call i of b, which is done. A call that did not go with the others was
// not sent.
func (b *batch[C]) outcome(i int) (err error, sent bool) { //nolint:revive // sent is about err
	if b.err != nil && !b.calls[i].goes {
		return errQueued, false
	}
	return b.err, b.sent
}

// queue is a list of batches in the order in which they came. Batches that all callers have left are removed later.
type queue[C any] struct {
	batches []*batch[C]
	living  int // calls in it
	dead    int // batches in it that all callers have left
}

// last returns the batch that the next call may join, or nil. Its calls end together, so
// none may have come long after the first. A batch that all have left stays dead.
func (q *queue[C]) last(now time.Time, most int, spread time.Duration) *batch[C] {
	if n := len(q.batches); n > 0 {
		last := q.batches[n-1]
		if last.living > 0 && len(last.calls) < most && now.Sub(last.begun) < spread && !last.ended.Load() {
			return last
		}
	}
	return nil
}

// drop records that n calls have left b, which waits.
func (b *batch[C]) drop(n int) {
	q := b.queue
	b.living -= n
	q.living -= n
	if b.living > 0 {
		return
	}
	if q.dead++; q.dead > 16 && q.dead > len(q.batches)/2 {
		q.batches = slices.DeleteFunc(q.batches, func(b *batch[C]) bool { return b.living == 0 })
		q.dead = 0
	}
}

// take removes the first batch with living calls, if they are at most most.
func (q *queue[C]) take(most int) *batch[C] {
	for len(q.batches) > 0 {
		b := q.batches[0]
		if b.living > most {
			return nil
		}
		q.first()
		if b.living > 0 {
			q.living -= b.living
			return b
		}
		q.dead--
	}
	return nil
}

func (q *queue[C]) first() {
	if len(q.batches) == 1 { // the memory is used again
		q.batches[0] = nil
		q.batches = q.batches[:0]
		return
	}
	q.batches[0] = nil
	q.batches = q.batches[1:]
}
