package queue

import (
	"container/list"
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	errorPause = 5 * time.Millisecond // after an error; each further one doubles it
	mostPause  = time.Second
	stale      = time.Second // the age at which knowledge is checked when a waiter arrives
	handings   = 8           // waiters that are tried for one that can take a permit
)

// Asker asks a limiter for the events of one waiter, and keeps its answer.
type Asker interface {
	// Ask asks for the events, whose turn must come within d.
	Ask(ctx context.Context, d time.Duration) (Decision, error)
	// Refund gives back what the last Ask has charged, or what Take has received.
	Refund(ctx context.Context) error
	// Permit is what Refund would give back, for another waiter's Take.
	Permit() any
	Take(permit any)
	// Hands reports whether the limiter decides by the key alone, so that another waiter may
	// have the permit.
	Hands() bool
}

// Waiter is a call that waits.
type Waiter struct {
	Limiter any // as for Enter
	Key     string
	N       int
	Kind    Kind
	Asker   Asker
	End     time.Time // the latest turn; zero if any will do
	Timed   bool      // ctx may last longer than End
}

// Verdict is how a wait ends.
type Verdict uint8

const (
	// Admitted means that the waiter has slept until its turn.
	Admitted Verdict = iota
	// TooLate means that nothing is charged: the turn would come after End.
	TooLate
	// NeverAdmitted means that nothing is charged: the events can never be admitted.
	NeverAdmitted
	// Failed comes with an error.
	Failed
)

// Outcome is a Verdict, with a denial or an error.
type Outcome struct {
	Verdict Verdict
	// Denial is the limiter's. If the waiter did not ask, it is made from the limiter's
	// last answer. Its RetryAfter is the time until the events could go.
	Denial Decision
	Asked  bool // the Denial is the limiter's answer to the last Ask
	Err    error
}

// waiter is a Waiter in a queue.
type waiter struct {
	*Waiter
	queue    *queue
	arrival  uint64
	wake     chan struct{} // of capacity 1
	question question      // the last one
	due      time.Time     // of a permit

	// The shard's lock protects all below.
	place   *list.Element // in the line; nil if it is not there
	refusal *Outcome      // if it was refused without asking
	permit  any           // of a waiter that has left
}

// call wakes w.
func (w *waiter) call() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Wait sleeps until w has its turn, or will not get one. It continues a Call that was asked
// within d and answered by first or by err. If c is nil, it begins at the end of the queue.
func (w *Waiter) Wait(ctx context.Context, c *Call, d time.Duration, first Decision, err error) Outcome {
	me := &waiter{Waiter: w, wake: make(chan struct{}, 1)}
	i := id{w.Limiter, w.Key}
	s := shardOf(i)
	if s == nil {
		s = new(shard)
	}
	s.mu.Lock()
	if c == nil {
		me.queue = s.queue(i, w.Kind)
		me.queue.arrivals++
		me.arrival = me.queue.arrivals
		if o, ended := me.arrive(); ended {
			return o
		}
		return me.wait(ctx)
	}
	if me.queue, me.arrival = c.queue, c.arrival; me.queue == nil {
		me.queue = &queue{id: i, shard: s, pace: newPace(w.Kind)}
		me.queue.pending = 1
	}
	me.question = c.question
	me.question.within, me.question.patient = d, c.Patient
	c.queue = nil
	if o, ended := me.answered(ctx, first, err); ended {
		return me.finish(ctx, o)
	}
	return me.wait(ctx)
}

// arrive joins the end of the queue, unless that would be in vain. It is called with the
// lock held, and unlocks if the wait has ended.
func (w *waiter) arrive() (Outcome, bool) {
	q, now := w.queue, time.Now()
	q.renew(now)
	t := q.earliest(q.events + w.N)
	if q.tooLate(w.End, w.Timed, t, now) {
		o := Outcome{Verdict: TooLate, Denial: q.denial(t, now)}
		s := q.shard
		q.moved()
		s.mu.Unlock()
		return o, true
	}
	q.insert(w)
	return Outcome{}, false
}

// renew lets the first waiter ask at once, if it would not ask for long and what is known
// is old. The limit may have changed, or the key may have been reset.
func (q *queue) renew(now time.Time) {
	w := q.first()
	if w == nil || q.pending > 0 || now.Sub(q.latestAt) < stale || now.Sub(q.renewed) < stale {
		return
	}
	if _, at, _ := w.plan(now); at.Sub(now) < stale {
		return
	}
	q.renewed = now // once is enough for a while, even if it fails
	q.forget()
	w.call()
}

// wait is called with the lock held, and returns without.
func (w *waiter) wait(ctx context.Context) Outcome {
	s := w.queue.shard
	for {
		now := time.Now()
		if o, ended := w.ended(ctx); ended {
			s.mu.Unlock()
			if w.permit != nil {
				w.Asker.Take(w.permit)
				return w.sleep(ctx)
			}
			return o
		}
		next, at, ready := w.plan(now)
		if ready && !at.After(now) {
			if o, ended := w.ask(ctx, next, now); ended {
				return w.finish(ctx, o)
			}
			continue
		}
		if w.Timed && !now.Before(w.End) {
			o := w.expired(now)
			s.mu.Unlock()
			return o
		}
		s.mu.Unlock()
		if w.Timed && (!ready || at.After(w.End)) {
			at, ready = w.End, true
		}
		var ring <-chan time.Time
		if ready {
			ring = time.After(at.Sub(now))
		}
		select {
		case <-ring:
		case <-w.wake:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}

// ended reports whether the wait has ended without a question of w's. If it has not got a
// permit, w is no longer in the queue.
func (w *waiter) ended(ctx context.Context) (Outcome, bool) {
	q := w.queue
	switch {
	case w.permit != nil:
		return Outcome{}, true
	case w.refusal != nil:
		return *w.refusal, true
	case ctx.Err() != nil:
		o := Outcome{Verdict: Failed, Err: join(ctx.Err(), q.err)}
		w.leave() // which may end q
		return o, true
	}
	return Outcome{}, false
}

// expired is the end of a wait at its end.
func (w *waiter) expired(now time.Time) Outcome {
	q := w.queue
	o := Outcome{Verdict: TooLate, Denial: q.denial(q.earliest(q.events), now)}
	if q.err != nil {
		o = Outcome{Verdict: Failed, Err: q.err}
	}
	w.leave()
	return o
}

// plan is what w asks next, and when, if that is known.
func (w *waiter) plan(now time.Time) (next question, at time.Time, ready bool) {
	q := w.queue
	next = question{n: w.N, patient: q.kind >= Turns}
	if q.first() != w {
		return next, now, false
	}
	at = q.due(w.N)
	known := !at.IsZero()
	if q.kind == Early || q.kind == Unknown && known && q.events > w.N { // it pays to learn the kind
		lead := q.lead(q.events)
		next.within = 2 * lead
		if known {
			at = at.Add(-lead)
		}
	}
	if q.tooMany(w.N) || !w.End.IsZero() && at.After(w.End) { // that is a guess: ask, to know it
		at = now
	}
	if at.Before(q.rest) {
		at = q.rest
	}
	return next, at, q.pending == 0 || q.several(w.N, known)
}

// patience is how long w can wait from now on.
func (w *waiter) patience(now time.Time) time.Duration {
	if w.End.IsZero() {
		return Forever
	}
	return max(0, w.End.Sub(now))
}

// ask asks the limiter. It is called with the lock held. If the wait has ended, it unlocks;
// otherwise w is in the queue again. If the limiter panics, the other waiters go on.
func (w *waiter) ask(ctx context.Context, next question, now time.Time) (Outcome, bool) {
	q, s, left := w.queue, w.queue.shard, w.patience(now)
	if next.sent = now; next.patient {
		if next.within = left; !w.Timed { // the time that the answer takes counts as well
			next.within = Patience(left, q.trip)
		}
	}
	next.within = min(next.within, left)
	q.remove(w)
	q.ask(&next)
	q.moved() // the next may be due as well
	w.question = next
	s.mu.Unlock()
	returned := false
	defer func() {
		if !returned {
			s.mu.Lock()
			defer s.mu.Unlock()
			q.done(&w.question)
			q.forget()
			q.moved()
		}
	}()
	d, err := w.Asker.Ask(ctx, next.within)
	returned = true
	s.mu.Lock()
	return w.answered(ctx, d, err)
}

// answered handles the answer to w's question. It is called with the lock held. If the
// wait has ended, it unlocks; otherwise w is in the queue again.
func (w *waiter) answered(ctx context.Context, d Decision, err error) (Outcome, bool) {
	q, s, now := w.queue, w.queue.shard, time.Now()
	q.done(&w.question)
	o, ended := Outcome{Denial: d, Asked: true}, true
	switch {
	case err != nil:
		o, ended = w.failed(ctx, err, now)
	case d.Allowed:
		q.admitted(&d, &w.question, now)
		q.remember(&d, now, nil)
		if w.due = now.Add(d.Delay); d.Delay > 0 {
			q.holders++
		}
	case d.RetryAfter == Never:
		o.Verdict = NeverAdmitted
		q.remember(&d, now, nil)
	default:
		o.Verdict = TooLate
		ended = w.denied(&o.Denial, now)
	}
	if !ended {
		q.insert(w)
	}
	q.moved()
	if ended {
		s.mu.Unlock()
	}
	return o, ended
}

// failed forgets what is known. w stays if nothing was charged and there is time.
func (w *waiter) failed(ctx context.Context, err error, now time.Time) (o Outcome, ended bool) {
	q := w.queue
	q.forget()
	o = Outcome{Verdict: Failed, Err: err}
	if !errors.Is(err, store.ErrOverloaded) && !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
		return o, true
	}
	q.err, q.pause = err, max(errorPause, min(2*q.pause, mostPause))
	q.rest = now.Add(q.pause)
	return o, q.pause > w.patience(now)
}

// denied reports whether a denial ends the wait, because the turn cannot come in time. It
// makes RetryAfter the whole time until the events could go, which a patient or early
// question has shortened.
func (w *waiter) denied(d *Decision, now time.Time) (ends bool) {
	q, a := w.queue, &w.question
	turns := d.Remaining >= w.N && q.kind != Plain && q.kind != Early
	if turns {
		q.refused(d, a, now)
	} else {
		q.exhausted(d, a, now, q.events)
	}
	back := w
	if ends = turns && a.patient || q.tooLate(w.End, true, q.notBefore, now); ends {
		back = nil
	}
	q.remember(d, now, back)
	if turns || q.kind == Early {
		d.RetryAfter = min(d.RetryAfter, Forever) + a.within
	}
	return ends
}

// leave takes w out of the queue.
func (w *waiter) leave() {
	if w.place != nil {
		w.queue.remove(w)
	}
	w.queue.moved()
}

// finish sleeps until the turn of an admitted waiter.
func (w *waiter) finish(ctx context.Context, o Outcome) Outcome {
	if o.Verdict != Admitted || o.Denial.Delay <= 0 {
		return o
	}
	late := !w.End.IsZero() && w.due.After(w.End)
	if w.Timed { // the time that the answer took does not count
		late = o.Denial.Delay > w.question.within
	}
	if late {
		if err := w.handBack(ctx); err != nil {
			return Outcome{Verdict: Failed, Err: err}
		}
		o.Verdict = TooLate
		return o
	}
	return w.sleep(ctx)
}

// sleep sleeps until w is due, or hands the permit on.
func (w *waiter) sleep(ctx context.Context) Outcome {
	timer := time.NewTimer(time.Until(w.due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		if time.Now().Before(w.due) { // otherwise the turn came first
			return Outcome{Verdict: Failed, Err: join(ctx.Err(), w.handBack(ctx))}
		}
	}
	q, s := w.queue, w.queue.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	q.holders--
	q.moved()
	return Outcome{}
}

// handBack hands the permit to a waiter that waits for as many events, if that may have it,
// or refunds it.
func (w *waiter) handBack(ctx context.Context) error {
	q, s := w.queue, w.queue.shard
	if w.Asker.Hands() && w.hand() {
		return nil
	}
	returned := 0
	defer func() { // also if Refund panics
		s.mu.Lock()
		defer s.mu.Unlock()
		q.holders--
		if returned > 0 {
			q.returned(returned)
		}
		q.moved()
	}()
	err := w.Asker.Refund(context.WithoutCancel(ctx))
	if err == nil {
		returned = w.N
	}
	return err
}

// hand hands w's permit to a waiter in the queue.
func (w *waiter) hand() bool {
	q, s := w.queue, w.queue.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	for e, tried := q.line.Front(), 0; e != nil && tried < handings; e, tried = e.Next(), tried+1 {
		next := e.Value.(*waiter)
		if next.N == w.N && (next.End.IsZero() || !w.due.After(next.End)) {
			q.remove(next)
			next.permit, next.due = w.Asker.Permit(), w.due
			next.call()
			q.moved()
			return true
		}
	}
	return false
}

// join is err, joined with the other error if there is one.
func join(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}
