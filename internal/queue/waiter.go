package queue

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	leastPause = time.Millisecond     // before asking again, if the limiter gives no better time
	errorPause = 5 * time.Millisecond // after the first error of a wait; each further one doubles it
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
	// last answer.
	Denial Decision
	Asked  bool          // the Denial is the limiter's answer to the last Ask,
	Within time.Duration // within this
	Err    error
}

// waiter is a Waiter in a line.
type waiter struct {
	*Waiter
	n        int
	end      time.Time
	lane     *lane
	seq      uint64
	wake     chan struct{} // of capacity 1
	question question      // the last one
	slow     time.Duration // how long its answer will take, as far as is known

	// The shard's lock protects all below.
	prev, next *waiter
	stands     bool
	alone      bool // it asks outside the line
	late       bool // refused; denial says why
	denial     Decision
	refusals   int // in a row
	again      bool
	permit     any // of a waiter that has left
	due        time.Time

	pause time.Duration // after an error, err
	err   error
}

// call wakes w.
func (w *waiter) call() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Wait sleeps until w has its turn, or will not get one. It continues a Turn, whose
// question was asked within d and answered by first or by err. If t is nil, it begins at
// the end of the line.
func (w *Waiter) Wait(ctx context.Context, t *Turn, d time.Duration, first Decision, err error) Outcome {
	c := &waiter{Waiter: w, n: w.N, end: w.End, wake: make(chan struct{}, 1)}
	i := id{w.Limiter, w.Key}
	s := shardOf(i)
	if s == nil {
		s = new(shard)
	}
	s.mu.Lock()
	if t != nil {
		if c.lane, c.seq = t.lane, t.seq; c.lane == nil {
			c.lane = new(lane)
			c.lane.begin(i, s, w.Kind)
			c.lane.depart(w.N)
		}
		t.lane = nil
		c.question = question{n: w.N, d: d, patient: t.Tickets, sent: time.Now(), number: t.number, landings: t.landings}
		if o, ended := c.answered(ctx, first, err); ended {
			return c.finish(ctx, o)
		}
	} else {
		c.lane = s.lane(i, w.Kind)
		c.seq = c.lane.arrival()
		if o, ended := c.arrive(); ended {
			return o
		}
	}
	return c.wait(ctx)
}

// arrive joins the end of the line, unless that would be in vain. It is called with the
// lock held, and unlocks if the wait has ended.
func (w *waiter) arrive() (Outcome, bool) {
	ln, now := w.lane, time.Now()
	if ln.limit > 0 && w.n > ln.limit {
		w.alone = true
		ln.depart(w.n)
		return Outcome{}, false
	}
	ln.askAgain(now)
	if !w.end.IsZero() {
		t := ln.sure
		if ln.turn.After(t) {
			t = ln.turn
		}
		if due, known := ln.due(ln.events, w.n, now); known && ln.kind == Early && due.After(t) {
			t = due
		}
		if t.After(w.end) || !w.Timed && ln.late(w.end) {
			o := Outcome{Verdict: TooLate, Denial: ln.refused(t, now)}
			s := ln.shard
			ln.moved()
			s.mu.Unlock()
			return o, true
		}
	}
	ln.insert(w)
	return Outcome{}, false
}

// askAgain lets the first in the line ask at once, if it would not ask for long and what
// is known is old. The limit may have changed, or the key may have been reset.
func (ln *lane) askAgain(now time.Time) {
	w := ln.first
	if w == nil || ln.flights > 0 || now.Sub(ln.latestAt) < stale || now.Sub(ln.again) < stale || w.question.at.Sub(now) < stale {
		return
	}
	w.again, w.refusals = false, 0
	ln.again = now // once is enough for a while, even if it fails
	ln.forget()
	w.call()
}

// wait is called with the lock held, and returns without.
func (w *waiter) wait(ctx context.Context) Outcome {
	ln, s := w.lane, w.lane.shard
	var timer *time.Timer
	for {
		now := time.Now()
		switch {
		case w.permit != nil:
			s.mu.Unlock()
			w.Asker.Take(w.permit)
			return w.sleep(ctx)
		case w.late:
			s.mu.Unlock()
			return w.tooLate(w.denial, false)
		case ctx.Err() != nil:
			w.leave()
			s.mu.Unlock()
			return Outcome{Verdict: Failed, Err: join(ctx.Err(), w.err)}
		}
		at, ready := w.plan(now)
		switch {
		case ready && !at.After(now):
			if !w.alone {
				ln.remove(w)
				ln.depart(w.n)
				ln.spend(w.n)
				ln.moved() // the next may be due as well
			}
			w.slow, w.question.number, w.question.landings = ln.slow, ln.departures, ln.landings
			s.mu.Unlock()
			d, err := w.ask(ctx, now)
			s.mu.Lock()
			if o, ended := w.answered(ctx, d, err); ended {
				return w.finish(ctx, o)
			}
			continue
		case w.Timed && !now.Before(w.end):
			t, _ := ln.due(ln.events-w.n, w.n, now)
			o := w.tooLate(ln.refused(t, now), false)
			w.leave()
			s.mu.Unlock()
			return o
		}
		s.mu.Unlock()
		if w.Timed && (!ready || at.After(w.end)) {
			at, ready = w.end, true
		}
		var ring <-chan time.Time
		if ready {
			if timer == nil {
				timer = time.NewTimer(at.Sub(now))
				defer timer.Stop()
			} else {
				timer.Reset(at.Sub(now))
			}
			ring = timer.C
		}
		select {
		case <-ring:
		case <-w.wake:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}

// plan is when w asks next, if that is known. It sets w.question.
func (w *waiter) plan(now time.Time) (at time.Time, ready bool) {
	ln := w.lane
	switch {
	case w.alone:
		w.question = question{n: w.n, patient: ln.kind == Tickets}
		return now, true
	case ln.first != w:
		return time.Time{}, false
	case w.again:
		return w.question.at, true
	}
	q := question{n: w.n, patient: ln.kind == Tickets}
	defer func() { w.question = q }()
	early := ln.kind == Early
	if early {
		q.d = 2 * ln.lead()
	}
	due, known := ln.due(0, w.n, now)
	switch {
	case ln.flights > 0 && !ln.several(w.n, known):
		return time.Time{}, false
	case ln.free, ln.room >= w.n, !known:
		return now, true
	case ln.early():
		q.d = 2 * ln.lead()
		at = due.Add(-ln.lead())
	default:
		if ln.full.Before(due) {
			due = ln.full
		}
		at = due
	}
	if !w.end.IsZero() && at.After(w.end) { // that is a guess: ask, to know it
		return now, true
	}
	q.due, q.at = due, at
	return at, true
}

// Patience is how far away a turn may be for a caller with this time left, if the answer
// takes trip.
func Patience(left, trip time.Duration) time.Duration {
	return max(0, left-min(trip, left/4))
}

// patience is how long w can wait from now on.
func (w *waiter) patience(now time.Time) time.Duration {
	if w.end.IsZero() {
		return Forever
	}
	return max(0, w.end.Sub(now))
}

// ask asks the limiter. If that panics, the other waiters go on.
func (w *waiter) ask(ctx context.Context, now time.Time) (Decision, error) {
	returned := false
	defer func() {
		if !returned {
			s := w.lane.shard
			s.mu.Lock()
			defer s.mu.Unlock()
			w.lane.land(w.n)
			w.lane.forget()
			w.lane.moved()
		}
	}()
	q := &w.question
	left := w.patience(now)
	if q.sent = now; q.patient {
		if q.d = left; !w.Timed { // the time that the answer takes counts as well
			q.d = Patience(left, w.slow)
		}
	}
	q.d = min(q.d, left)
	d, err := w.Asker.Ask(ctx, q.d)
	returned = true
	return d, err
}

// answered handles the answer to w's question. It is called with the lock held. If the
// wait has ended, it unlocks; otherwise w is in the line again.
func (w *waiter) answered(ctx context.Context, d Decision, err error) (Outcome, bool) {
	ln, s, q, now := w.lane, w.lane.shard, &w.question, time.Now()
	ln.land(w.n)
	w.again, w.alone = false, false
	var o Outcome
	switch {
	case err != nil:
		if w.failed(ctx, err, now) {
			return Outcome{}, false
		}
		o = Outcome{Verdict: Failed, Err: err}
		if w.err != nil {
			o.Err = w.err
		}
	case d.Allowed:
		ln.lags(q, now)
		ln.admitted(&d, q, now)
		if w.due = now.Add(d.Delay); d.Delay > 0 {
			ln.holders++
		}
		o = Outcome{Verdict: Admitted, Denial: d, Asked: true}
	case d.RetryAfter == Never:
		ln.remember(&d, now)
		ln.sendOut(w.n)
		o = Outcome{Verdict: NeverAdmitted, Denial: d, Asked: true}
	default:
		ln.lags(q, now)
		if w.denied(&d, now) {
			return Outcome{}, false
		}
		o = w.tooLate(d, true)
		o.Within = q.d
	}
	ln.moved()
	s.mu.Unlock()
	return o, true
}

// failed reports whether w stays in spite of err: nothing was charged, and there is time.
func (w *waiter) failed(ctx context.Context, err error, now time.Time) bool {
	w.lane.forget()
	w.err = nil
	if !errors.Is(err, store.ErrOverloaded) && !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
		return false
	}
	if w.pause = min(2*w.pause, mostPause); w.pause == 0 {
		w.pause = errorPause
	}
	if w.pause > w.patience(now) {
		return false
	}
	w.err = err
	w.comeBack(question{n: w.n, patient: w.lane.kind == Tickets, at: now.Add(w.pause)})
	return true
}

// comeBack puts w into the line again, to ask q.
func (w *waiter) comeBack(q question) {
	w.question, w.again = q, true
	w.lane.insert(w)
	w.lane.moved()
	w.call() // if it is not the first, it waits until it is
}

// denied reports whether w stays after a denial, because its turn can still come in time.
func (w *waiter) denied(d *Decision, now time.Time) bool {
	ln, q := w.lane, &w.question
	w.err, w.pause = nil, 0
	w.refusals++
	ln.remember(d, now)
	ln.room, ln.number = 0, max(ln.number, q.number)
	if d.Remaining >= w.n && (ln.kind == Unknown || ln.kind == Tickets) {
		// The events would fit: only their turn is too far away.
		ln.kind = Tickets
		turn := now.Add(min(d.RetryAfter, Forever) + q.d)
		if q.patient || !w.end.IsZero() && turn.After(w.end) { // as the patient question would be told
			ln.nextTurn(turn, now)
			return false
		}
		w.comeBack(question{n: w.n, patient: true, at: now})
		return true
	}
	retry := min(d.RetryAfter, Forever)
	if retry <= 0 { // none of the five algorithms, but Static may
		retry = leastPause
	}
	if ln.kind == Early {
		retry += q.d
		d.RetryAfter = retry
	}
	due := now.Add(retry)
	sure := due
	if ln.leaky {
		sure = now.Add(max(retry, min(d.ResetAfter, Forever)))
	}
	if !w.end.IsZero() && sure.After(w.end) {
		ln.known = false
		return false
	}
	if ln.known = ln.step > 0; ln.known {
		ln.base = due.Add(-time.Duration(w.n) * ln.step)
	}
	next := question{n: w.n, due: due, exact: true, at: now.Add(max(retry, leastPause)), patient: ln.kind == Tickets}
	try := ln.kind == Early
	if ln.kind == Unknown {
		switch {
		case q.d > 0 && !q.patient: // it was already tried
			ln.tried = true
		case w.refusals > 1: // RetryAfter is not exact, or others were faster
			next.patient = true
		case !ln.tried && ln.first != nil:
			try = true
		}
	}
	if try && !next.patient {
		next.d, next.at = 2*ln.lead(), due.Add(-ln.lead())
	}
	ln.sure = sure
	ln.sendAway(sure, now)
	w.comeBack(next)
	return true
}

// tooLate ends a wait without a charge.
func (w *waiter) tooLate(d Decision, asked bool) Outcome {
	if w.err != nil {
		return Outcome{Verdict: Failed, Err: w.err}
	}
	return Outcome{Verdict: TooLate, Denial: d, Asked: asked}
}

// leave takes w out of the line.
func (w *waiter) leave() {
	ln := w.lane
	switch {
	case w.alone:
		ln.land(w.n)
	case w.stands:
		next, first := w.next, ln.first == w
		ln.remove(w)
		if !first {
			return
		}
		if next != nil && next.n == w.n && !next.again { // then it takes w's place
			next.question, next.again = w.question, w.again
		} else {
			ln.sure = time.Time{}
		}
	}
	ln.moved()
}

// finish sleeps until the turn of an admitted waiter.
func (w *waiter) finish(ctx context.Context, o Outcome) Outcome {
	if o.Verdict != Admitted || o.Denial.Delay <= 0 {
		return o
	}
	late := !w.end.IsZero() && w.due.After(w.end)
	if w.Timed { // the time that the answer took does not count
		late = o.Denial.Delay > w.question.d
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
	ln, s := w.lane, w.lane.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	ln.holders--
	ln.moved()
	return Outcome{}
}

// handBack hands the permit to a waiter that waits for as many events, if that may have it, or
// refunds it.
func (w *waiter) handBack(ctx context.Context) error {
	s := w.lane.shard
	if w.Asker.Hands() && w.hand() {
		return nil
	}
	returned := 0
	defer func() { // also if Refund panics
		s.mu.Lock()
		defer s.mu.Unlock()
		w.lane.holders--
		w.lane.returned(returned)
		w.lane.moved()
	}()
	err := w.Asker.Refund(context.WithoutCancel(ctx))
	if err == nil {
		returned = w.n
	}
	return err
}

// hand hands w's permit to a waiter in the line.
func (w *waiter) hand() bool {
	ln, s := w.lane, w.lane.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	c := ln.first
	for range handings {
		if c == nil {
			return false
		}
		if c.n == w.n && (c.end.IsZero() || !w.due.After(c.end)) {
			ln.remove(c)
			c.permit, c.due = w.Asker.Permit(), w.due
			c.call()
			ln.moved()
			return true
		}
		c = c.next
	}
	return false
}

// returned lets the first in the line ask for n events earlier.
func (ln *lane) returned(n int) {
	if n == 0 {
		return
	}
	earlier := time.Duration(n) * ln.step
	ln.sure, ln.turn, ln.base = time.Time{}, time.Time{}, ln.base.Add(-earlier)
	if w := ln.first; w != nil && w.again && w.question.exact {
		if w.question.at = w.question.at.Add(-earlier); ln.step == 0 {
			w.question.at = time.Now()
		}
		w.question.exact = false
	}
}

// join is err, joined with the other error if there is one.
func join(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}
