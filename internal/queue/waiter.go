package queue

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	errorPause = 5 * time.Millisecond // after an error; each further one doubles it
	mostPause  = time.Second
	stale      = time.Second // the age from which an answer is checked when a waiter arrives
	mostEvents = 1 << 48     // equivalent to any larger number of events, and sums do not overflow
	handTries  = 8           // number of waiters that are tried to find one that can take a permit
)

// Errors of a wait that ends without a permit. Nothing is charged then.
var (
	ErrTooLate = errors.New("the wait would exceed the deadline")
	ErrNever   = errors.New("that many events are never admitted")
	ErrFull    = errors.New("all Places are taken")

	errDenied = errors.New("denied, and there is time to ask again")
)

// Asker asks a limiter for the events of one waiter, and keeps its answer.
type Asker interface {
	// Ask asks for the events, whose turn must come within d.
	Ask(ctx context.Context, d time.Duration) (Answer, error)
	// Refund refunds what the last Ask has charged, or what Take has received.
	Refund(ctx context.Context) error
	// Permit returns what Refund would refund, for the Take of another waiter.
	Permit() any
	Take(permit any)
	// MayHandOn reports whether the limiter decides by the key alone, so that another waiter may take
	// the permit.
	MayHandOn() bool
}

// Waiter is a call that waits, for a single Wait. As the context of a ratelimit.Wait, it is the Waiter of that call:
// its Context, Key, Kind, Max and Places are set, and the error is one of this package.
type Waiter struct {
	context.Context

	Limiter any // the queue belongs to the limiter and the key; may be nil
	Key     string
	N       int
	Size    int // events of each of N calls; the same for all waiters if it makes no difference
	Kind    Kind
	Asker   Asker
	Max     time.Duration // maximum wait; 0 if only ctx limits it
	Places  *Places       // the waiter needs one of them to sleep; nil if it needs none

	// If Asked is set, Answer is the limiter's answer to the last question. Otherwise, and for a
	// denial, it shows when the events could be admitted.
	Answer Answer

	Ahead int // events of those who wait for their turn or for an answer; set if the error is ErrFull and nothing was asked

	queue    *queue
	end      time.Time // the latest turn
	arrival  uint64
	hasPlace bool          // the waiter has a place
	wake     chan struct{} // of capacity 1; nil until the waiter is in the queue
	question question      // the last question
	due      time.Time     // the time of a permit

	// The shard's lock protects the fields below.
	element *list.Element // in the queue; nil if the waiter is not there
	refusal error         // set if the waiter was refused without asking
	permit  any           // from a waiter that has left
}

var waiters = sync.Pool{New: func() any { return new(Waiter) }}

// NewWaiter returns a Waiter, perhaps with the Asker of an earlier one.
func NewWaiter() *Waiter { return waiters.Get().(*Waiter) }

// Free makes w the Waiter of a later call. Clear its Asker before, so that it keeps nothing alive.
func (w *Waiter) Free() {
	a := w.Asker
	*w = Waiter{} // in place: a literal with the Asker would be copied
	w.Asker = a
	waiters.Put(w)
}

// signal wakes w.
func (w *Waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Wait sleeps until it is w's turn, or until w will not get a turn. It holds the queue's lock,
// except during questions and sleeps.
func (w *Waiter) Wait(ctx context.Context) error {
	w.N = int(min(int64(w.N), mostEvents))
	q := lock(id{w.Limiter, w.Key}, w.Kind)
	defer w.finish(q.shard)
	w.queue = q
	now := time.Now()
	if err := w.arrive(ctx, now); err != nil {
		return err
	}
	for ; ; now = time.Now() {
		switch {
		case w.permit != nil:
			w.Asker.Take(w.permit)
			return w.sleepUntilDue(ctx)
		case w.refusal != nil:
			return w.refusal
		case ctx.Err() != nil:
			return w.leave(join(ctx.Err(), q.err))
		}
		next, at, ready := w.plan(now)
		switch {
		case w.element != nil && w.expired(ready && !at.After(now), now):
			w.Answer = q.denial(q.earliest(q.events), now)
			return w.leave(cmp.Or(q.err, ErrTooLate))
		case ready && !at.After(now):
			if err := w.ask(ctx, next, now); !errors.Is(err, errDenied) {
				return err
			}
		case w.element == nil && !w.takePlace():
			w.Ahead = q.events + q.pendingEvents
			return w.leave(cmp.Or(q.err, ErrFull))
		case w.element == nil:
			q.insert(w)
		default:
			if w.Max > 0 && (!ready || at.After(w.end)) {
				at, ready = w.end, true
			}
			w.sleep(ctx, at, ready)
		}
	}
}

// arrive determines until when w can wait. It ends the wait if w's turn is known to come later.
func (w *Waiter) arrive(ctx context.Context, now time.Time) error {
	q := w.queue
	q.arrivals++
	q.arrives(w.Size)
	w.arrival, w.end = q.arrivals, now.Add(cmp.Or(w.Max, 2*Forever))
	if deadline, ok := ctx.Deadline(); ok && !deadline.After(w.end) { // a turn at the deadline itself is too late
		w.end = deadline.Add(-1)
	}
	q.recheck(now)
	if t := q.earliest(q.events + w.N); !q.tooMany(w.N) && q.tooLate(w.end, t, now) {
		w.Answer = q.denial(t, now)
		return w.leave(ErrTooLate)
	}
	return nil
}

// takePlace takes a place, and reports whether w has one or needs none.
func (w *Waiter) takePlace() bool {
	p := w.Places
	if p == nil || w.hasPlace {
		return true
	}
	w.hasPlace = p.take()
	return w.hasPlace
}

// finish unlocks s, and releases w's place. (w's queue may be gone.)
func (w *Waiter) finish(s *shard) {
	if w.hasPlace {
		w.Places.taken.Add(-1)
	}
	s.mu.Unlock()
}

// plan returns what w asks next, and when, if that is known.
func (w *Waiter) plan(now time.Time) (next question, at time.Time, ready bool) {
	q := w.queue
	if w.question.sent.IsZero() && q.never(w.N, now) { // never admitted, so it need not wait, nor spend what others wait for
		return next, now, true
	}
	next.n = w.N
	fits := w.element == nil && q.room >= q.events+w.N // including all events before it
	if f := q.first(); f != nil && f.arrival < w.arrival && !fits {
		return next, now, false
	}
	at = q.due(w.N)
	known := !at.IsZero()
	if q.kind <= Bucket {
		lead := q.lead(q.events)
		next.within = 2 * lead
		if known {
			at = at.Add(-lead)
		}
	}
	if q.tooMany(w.N) || at.After(w.end) || (q.mixed && w.question.sent.IsZero() || q.guesses(w.N)) && at.Sub(now) > mostGuess { // ask, to find out
		at = now
	}
	if w.N >= q.denied && at.Before(q.rest) {
		at = q.rest
	}
	return next, at, q.pending == 0 || q.mayOverlap(w.N, known)
}

// ask asks the limiter, and sleeps until the turn that the limiter gives. It returns errDenied if w
// must wait in the queue again.
func (w *Waiter) ask(ctx context.Context, next question, now time.Time) error {
	q := w.queue
	if q.kind >= Turns && (w.hasPlace || w.Places == nil || !w.Places.Full()) {
		next.within, next.wholeTime = min(patience(w.end.Sub(now), q.trip), Forever), true
	} else if now.Add(next.within).After(w.end) {
		next.within, next.wholeTime = max(0, w.end.Sub(now)), true
	}
	next.sent = now
	q.remove(w)
	q.assumeCharged(&next)
	w.question = next
	q.wakeOrRemove() // the next waiter may be due as well
	err, a := w.askLimiter(ctx), &w.Answer
	if err == nil && a.Allowed && a.Delay <= 0 && q.empty() { // no other waiter needs the answer
		q.wakeOrRemove()
		return nil
	}
	err = w.learn(ctx, err)
	if q.wakeOrRemove(); a.Delay <= 0 || err != nil {
		return err
	}
	switch {
	case !w.takePlace():
		err = ErrFull
	case w.due.After(w.end):
		err = ErrTooLate
	default:
		return w.sleepUntilDue(ctx)
	}
	return cmp.Or(w.returnPermit(ctx), err)
}

// askLimiter asks w's question, without the lock. If the limiter panics, the other waiters continue.
func (w *Waiter) askLimiter(ctx context.Context) (err error) {
	q, returned := w.queue, false
	q.shard.mu.Unlock()
	defer func() {
		q.shard.mu.Lock()
		if q.done(&w.question); !returned {
			q.forget()
			q.wakeOrRemove()
		}
	}()
	w.Answer, err = w.Asker.Ask(ctx, w.question.within)
	w.Answer.Asked, returned = err == nil, true
	return err
}

// learn learns from the answer to w's question, and returns how the answer ends the wait, or
// errDenied if it does not.
func (w *Waiter) learn(ctx context.Context, err error) error {
	q, a, now := w.queue, &w.Answer, time.Now()
	switch {
	case err != nil:
		return w.failed(ctx, err, now)
	case a.Allowed:
		if w.due = now.Add(a.Delay); a.Delay > 0 {
			q.permits++
		}
		q.admitted(a, &w.question, now)
		q.remember(*a, now)
		return nil
	case a.RetryAfter == Never:
		q.forget() // the question was treated as charged
		q.remember(*a, now)
		return ErrNever
	}
	return w.denied(now)
}

// failed forgets what is known. w continues to wait if nothing was charged and there is time.
func (w *Waiter) failed(ctx context.Context, err error, now time.Time) error {
	q := w.queue
	q.forget()
	q.asked -= w.N // assume that nothing was charged: asking too early costs one question
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return join(err, q.err)
	case !errors.Is(err, store.ErrOverloaded) && !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil:
		return err
	}
	if q.pause == 0 || w.question.sent.After(q.failedAt) { // otherwise it was in progress when another question failed
		q.failedAt, q.pause = now, max(errorPause, min(2*q.pause, mostPause))
	}
	q.err, q.rest = err, q.failedAt.Add(q.pause)
	if q.rest.After(w.end) || !w.takePlace() {
		return err
	}
	q.insert(w)
	return errDenied
}

// denied ends the wait if the turn cannot come in time. It makes RetryAfter the whole time until
// the events could be admitted, from which the limiter has subtracted the time that the question
// allowed.
func (w *Waiter) denied(now time.Time) error {
	q, asked, a, err := w.queue, &w.question, &w.Answer, errDenied
	if !w.takePlace() { // the question was for a turn without a sleep
		q.forget()
		return ErrFull
	}
	if asked.n == 0 { // it was asked out of turn, and what is known is of the waiters before it
		if q.tooLate(w.end, now.Add(min(a.RetryAfter, Forever)), now) {
			return ErrTooLate
		}
		return err
	}
	late := asked.wholeTime && a.late > 0 && q.kind != Bucket // the RetryAfter of a bucket shows it
	if late {
		a.RetryAfter = max(a.RetryAfter, min(a.late, Forever)+asked.within)
	}
	turns := a.Remaining >= w.N && (q.kind >= Turns || q.kind == Unknown)
	if turns {
		q.refused(a, asked, now)
	} else {
		q.exhausted(a, asked, now)
	}
	if turns || q.kind == Bucket {
		a.RetryAfter = min(a.RetryAfter, Forever) + asked.within
	}
	if turns && asked.wholeTime || late || q.tooLate(w.end, q.notBefore, now) {
		if err = ErrTooLate; q.mixed { // what is known may be of its larger call
			q.forget()
		}
	} else {
		q.insert(w)
	}
	q.remember(*a, now) // it may refuse w because of its place
	return err
}

// expired reports whether w has no more time. A waiter that is about to ask, but has no time for
// the answer, makes way for the waiters behind it.
func (w *Waiter) expired(asks bool, now time.Time) bool {
	if asks {
		return now.Add(w.queue.trip * 3 / 2).After(w.end)
	}
	return w.Max > 0 && !now.Before(w.end)
}

// leave removes w from the queue, which may end the queue.
func (w *Waiter) leave(err error) error {
	if w.queue.mixed && w.queue.first() == w { // what is known may be of its larger call
		w.queue.forget()
	}
	w.queue.remove(w)
	w.queue.wakeOrRemove()
	return err
}

// sleep sleeps until t, if ready, or until w is woken or ctx ends. It does not hold the lock
// meanwhile.
func (w *Waiter) sleep(ctx context.Context, t time.Time, ready bool) {
	s := w.queue.shard // if w is refused during the sleep, the queue may end
	s.mu.Unlock()
	defer s.mu.Lock()
	var ring <-chan time.Time
	if ready {
		timer := time.NewTimer(time.Until(t))
		defer timer.Stop()
		ring = timer.C
	}
	select {
	case <-ring:
	case <-w.wake:
	case <-ctx.Done():
	}
}

// sleepUntilDue sleeps until w's turn, or passes the permit on.
func (w *Waiter) sleepUntilDue(ctx context.Context) error {
	for time.Now().Before(w.due) {
		if ctx.Err() != nil {
			return join(ctx.Err(), w.returnPermit(ctx))
		}
		w.sleep(ctx, w.due, true)
	}
	w.queue.permits--
	w.queue.wakeOrRemove()
	return nil
}

// returnPermit passes the permit to a waiter for the same number of events, if that waiter may have it,
// or refunds it.
func (w *Waiter) returnPermit(ctx context.Context) (err error) {
	q, returned := w.queue, false
	if w.Asker.MayHandOn() && w.handOn() {
		return nil
	}
	q.shard.mu.Unlock()
	defer func() { // even if Refund panics
		q.shard.mu.Lock()
		q.permits--
		if returned {
			q.forget()
		}
		q.wakeOrRemove()
	}()
	err = w.Asker.Refund(context.WithoutCancel(ctx))
	returned = err == nil
	return err
}

// handOn passes w's permit to a waiter in the queue.
func (w *Waiter) handOn() bool {
	q := w.queue
	for e, tried := q.waiters.Front(), 0; e != nil && tried < handTries; e, tried = e.Next(), tried+1 {
		next := e.Value.(*Waiter)
		if next.N == w.N && !w.due.After(next.end) {
			q.remove(next)
			next.permit, next.due = w.Asker.Permit(), w.due
			next.signal()
			q.wakeOrRemove()
			return true
		}
	}
	return false
}

// join returns err, joined with the other error if there is one.
func join(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}
