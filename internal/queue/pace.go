package queue

import (
	"math"
	"time"
)

// Kind describes how a limiter admits events that have to wait.
type Kind uint8

const (
	// Unknown means that only the RetryAfter is known. The limiter is asked as if it were Early.
	Unknown Kind = iota
	// Early admits some events before their time. Delay is the remaining time.
	Early
	// Bucket is Early, with one event per step.
	Bucket
	// Plain admits events only when their time has come.
	Plain
	// Leased is Plain, but events that others have taken in advance may be returned before their
	// time.
	Leased
	// Turns admits events into a queue of its own. Delay is the time until their turn. The limiter
	// is asked for any turn that comes in time.
	Turns
	// Leaky is Turns, and no turn comes before the ResetAfter of the last answer.
	Leaky
	// Foreign may have turns, and is asked for any turn.
	Foreign
)

// Joint returns the Kind of two limiters that decide together.
func Joint(a, b Kind) Kind {
	switch {
	case a == b:
		return a
	case min(a, b) >= Plain && max(a, b) < Foreign: // nothing is admitted before its time
		return min(max(a, b), Turns)
	case min(a, b) == Unknown || max(a, b) >= Turns:
		return Unknown
	}
	return Early
}

const (
	leastLead   = 6 * time.Millisecond
	mostLead    = 96 * time.Millisecond
	mostAhead   = 48 * time.Millisecond  // for a long queue
	leastPause  = time.Millisecond       // before asking again, if the limiter gives no better time
	mostGuess   = 200 * time.Millisecond // of a sleep until a time that is not known
	mostPending = 64                     // questions in progress
	mostFar     = 1024                   // questions in progress if the limiter is so fast and far away that more are needed
)

// Never is the RetryAfter of events that are never admitted, however long the caller waits.
const Never time.Duration = 1<<63 - 1

// Forever is a patience without limit.
const Forever = 100 * 365 * 24 * time.Hour

// Answer is the part of a limiter's answer that a queue needs.
type Answer struct {
	Allowed          bool
	Limit, Remaining int
	RetryAfter       time.Duration
	ResetAfter       time.Duration
	Delay            time.Duration
	Elsewhere        bool // the decision comes from another limiter than usual
	Alternatives     bool // another limiter, with another Limit, may decide the next time
	Info             any  // for a denial: more information for waiters that are refused without asking
	Asked            bool // the decision is the answer to the waiter's own question

	// If several limits decide, these fields describe the one that will be exhausted for the
	// longest time.
	parts     bool
	partStep  time.Duration
	partWait  float64       // ns; the product may exceed 292 years
	partEarly bool          // the limit has a Delay
	partPlain bool          // the limit admits nothing before its time
	late      time.Duration // how much later than the question allowed the turn of a bucket comes
}

// Part adds p to a. p is the decision of one of several limits that have decided together. It has the
// given kind, and its unit is n events: 1, or the events of a call if calls are counted. The
// ResetAfter of a may come from another limit than its Remaining.
func (a *Answer) Part(kind Kind, n int, p Answer) {
	p.Limit, p.Remaining = max(p.Limit/n, min(p.Limit, 1)), p.Remaining/n
	if n > 1 && p.Limit > 0 && p.Remaining < a.Remaining {
		a.Limit, a.Remaining = p.Limit, p.Remaining
	}
	if kind == Bucket && !a.Allowed {
		a.late = max(a.late, p.RetryAfter)
	}
	step := p.step(kind)
	if wait := float64(1-p.Remaining) * float64(step); a.partStep == 0 || step > 0 && wait > a.partWait {
		a.parts, a.partStep, a.partWait = true, step, wait
		a.partEarly, a.partPlain = p.Delay > 0, kind == Plain || kind == Leased
	}
}

// step returns the time from one event to the next while the limit is exhausted: the charged events
// are gone within ResetAfter. It is exact for the two buckets, and a mean for the windows. It is 0
// if a does not show it.
func (a *Answer) step(kind Kind) time.Duration {
	if a.parts {
		return a.partStep
	}
	reset := a.ResetAfter
	if kind < Turns { // ResetAfter counts from the permit's time
		reset -= a.Delay
	}
	if charged := a.Limit - a.Remaining; charged > 0 {
		return max(0, reset/time.Duration(charged))
	}
	return 0
}

// question is a question to a limiter.
type question struct {
	n         int
	order     int // number of events asked for until then, including these
	answers   int // number of answers that had come when it was asked
	sent      time.Time
	within    time.Duration
	wholeTime bool // within is all of the waiter's time
}

// pace is what is known about when a limiter admits events.
type pace struct {
	kind          Kind
	room          int           // number of events that fit now
	turns         bool          // the limiter gives out turns
	early         int           // 1 after an early admission, -1 after a denial; shows whether asking early helps
	base          time.Time     // the next event fits one step after it; zero if it is not known
	turnsChecked  bool          // waiters that came before base was known have been refused if their turn is too late
	step          time.Duration // from one event to the next; 0 if it is not known
	longest       time.Duration // the longest recent step, because the mean of a window that ends soon is short
	single        bool          // step belongs to one limit, because the answer had each of several limits
	plain         bool          // the limit of step admits nothing before its time
	size          int           // the Size of the last waiter; 0 if there was none
	mixed         bool          // calls differ in size, so that step and room are not those of the next one
	pending       int           // questions in progress
	pendingEvents int           // events of those
	asked         int           // events
	answers       int           // to all questions
	answered      int           // the order of the last answered question
	notBefore     time.Time     // no permit comes before this time; zero if it is not known
	denied        int           // notBefore and rest apply to this number of events or more
	rest          time.Time     // nobody asks before this time
	since         time.Time     // the first of the latest consecutive denials; zero if the last answer was an admission
	trip          time.Duration // the longest recent round trip
}

// forget is called after answers that make everything unknown.
func (p *pace) forget() {
	p.room, p.denied, p.turnsChecked = 0, 0, false
	p.base, p.notBefore, p.rest, p.since = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

// arrives notes the Size of a waiter.
func (p *pace) arrives(size int) {
	p.mixed, p.size = p.mixed || p.size > 0 && p.size != size, size
}

// span returns the time that n events take, as far as it is known. If n is negative, it returns the
// negated time that -n events took.
func (p *pace) span(n int) time.Duration {
	switch {
	case n < 0:
		return -p.span(-max(n, -math.MaxInt))
	case n == 0, !p.single && (p.kind == Turns || p.kind == Foreign || p.kind == Unknown): // the answer may show when another limit is full again
		return 0
	case p.step <= Forever/time.Duration(n):
		return time.Duration(n) * p.step
	}
	return Forever
}

// due returns when n events fit. It is zero if they fit now, or if the time is not known.
func (p *pace) due(n int) time.Time {
	if n <= p.room || p.base.IsZero() {
		return time.Time{}
	}
	t := p.base.Add(p.span(n - p.room))
	if p.kind == Leaky && t.After(p.notBefore) && !p.notBefore.IsZero() { // notBefore is when the bucket is empty: until then, it may hold a part of an event
		return p.notBefore
	}
	return t
}

// guesses reports whether due is a guess, because of a window's mean, or of a bucket that may hold
// a part of an event. After a denial, it is a guess for fewer events.
func (p *pace) guesses(n int) bool {
	switch {
	case p.early < 0:
		return n < p.denied
	case p.kind >= Turns:
		return p.single
	}
	return p.early == 0 || p.kind != Bucket
}

// earliest returns a time before which n events do not fit, and nobody gets a permit for them, as
// far as is known.
func (p *pace) earliest(n int) (t time.Time) {
	if n >= p.denied {
		t = p.notBefore
	}
	due := p.due(n)
	if p.mixed {
		due = time.Time{}
	}
	if p.guesses(n) && !due.IsZero() { // the bucket may hold a part of an event
		due = due.Add(-p.step)
	}
	if (p.kind == Bucket || p.early > 0) && due.After(t) {
		return due
	}
	return t
}

// assumeCharged treats the events of a question that is about to be asked as charged.
func (p *pace) assumeCharged(q *question) {
	if t := p.due(q.n); !t.IsZero() {
		p.base = t
	}
	p.room = max(0, p.room-q.n)
	p.pending, p.pendingEvents, p.asked = p.pending+1, p.pendingEvents+q.n, p.asked+q.n
	q.order, q.answers = p.asked, p.answers
}

// done is called when a question has ended.
func (p *pace) done(q *question) {
	p.pending--
	p.answers++
	p.pendingEvents -= q.n
}

// mayOverlap reports whether n events can be asked for while other questions are in progress. They can
// if they fit now. Events that do not fit yet are asked for one after the other as long as that is
// as fast as the limit, because questions may overtake each other. The same applies to turns.
func (p *pace) mayOverlap(n int, known bool) bool {
	far, most := p.longest > 0 && p.trip > p.longest, mostPending
	if far { // twice as many as the rate admits in a round trip
		most = max(most, int(min(2*p.trip/p.longest, mostFar)))
	}
	switch {
	case p.pending >= most:
		return false
	case p.room >= n:
		return !p.turns || far
	case p.kind == Unknown && time.Duration(p.pending)*p.longest > p.lead(0): // more may be denied
		return false
	}
	return known && far && (p.kind == Bucket || p.kind < Bucket && p.early >= 0 && !p.plain)
}

// lead returns how long before its time a permit is asked for, so that the answer arrives in time.
// A long queue of events will use its permits in any case, so it asks even earlier. A process that
// pauses for a moment then need not lose any.
func (p *pace) lead(events int) time.Duration {
	if p.step >= mostAhead {
		events = 0
	}
	ahead := time.Duration(min(events, 1<<20)) * p.step / 16
	return max(min(p.trip+p.trip/2, mostLead), leastLead, min(ahead, mostAhead))
}

// measureTrip learns how long the round trip of q took, and returns approximately when the limiter answered.
func (p *pace) measureTrip(q *question, now time.Time) time.Time {
	trip := now.Sub(q.sent)
	p.trip = max(trip, p.trip-p.trip/4)
	return q.sent.Add(trip / 2)
}

// learnStep takes the step from a.
func (p *pace) learnStep(a *Answer) {
	p.step, p.single, p.plain = a.step(p.kind), a.parts, a.partPlain
	p.longest = max(p.step, p.longest-p.longest/4)
}

// admitted learns from an admission.
func (p *pace) admitted(a *Answer, q *question, now time.Time) {
	at := p.measureTrip(q, now)
	p.notBefore, p.rest, p.since, p.denied = time.Time{}, time.Time{}, time.Time{}, 0
	counted := a.Limit > 0 // otherwise others need not wait
	p.turns = p.kind >= Turns && counted && (p.turns || p.kind < Foreign || a.Delay > 0)
	if p.kind >= Turns && counted {
		if p.notBefore = now.Add(a.Delay); p.kind == Leaky && !a.Elsewhere {
			p.notBefore = now.Add(a.ResetAfter)
		}
	} else {
		at = at.Add(a.Delay)
	}
	if p.early = 0; a.Delay > 0 && (!a.parts || a.partEarly) {
		p.early = 1
	}
	// It is not known which of the questions in progress came before. Nor is it known whether this
	// answer is still true, if a later question was answered faster.
	room := max(0, a.Remaining-p.pendingEvents)
	if q.answers+1 != p.answers {
		room = min(room, p.room)
	}
	p.room = room
	if q.order >= p.answered {
		p.answered = q.order
		p.learnStep(a)
		p.base = at.Add(p.span(p.asked - q.order - a.Remaining + room))
	}
}

// refused learns from a denial with room for the events, whose turn is only too far away.
func (p *pace) refused(a *Answer, q *question, now time.Time) {
	p.measureTrip(q, now)
	if p.kind == Unknown {
		p.kind = Turns
	}
	p.turns, p.room, p.base, p.denied, p.early = true, a.Remaining, now, 0, 0
	p.notBefore = now.Add(min(a.RetryAfter, Forever) + q.within)
}

// exhausted learns from any other denial. At RetryAfter, the same question is admitted. Only for
// the buckets is it known what that means for more or fewer events.
func (p *pace) exhausted(a *Answer, q *question, now time.Time) {
	p.measureTrip(q, now)
	p.answered = max(p.answered, q.order)
	p.learnStep(a)
	due := now.Add(min(max(a.RetryAfter, 0), Forever))
	p.turnsChecked = p.turnsChecked && p.early != 0 // otherwise base was a guess
	p.rest, p.notBefore, p.denied, p.early = now.Add(leastPause), due, q.n, -1
	p.room, p.base = 0, due.Add(-p.span(q.n))
	if p.since.IsZero() {
		p.since = now
	}
	switch reset := now.Add(min(a.ResetAfter, Forever)); {
	case p.kind == Leaky && !a.Elsewhere && reset.After(due):
		p.notBefore = reset
	case p.kind == Bucket && !a.Elsewhere: // the events then still have to wait for the time that the question allowed
		p.base, p.notBefore = p.base.Add(q.within), due.Add(q.within)
	case p.kind != Leaky:
		p.base = time.Time{}
		if again := now.Add(max(stale, now.Sub(p.since))); p.kind == Leased && again.Before(due) { // so that no wait is twice as long
			due = again
		}
		if due.After(p.rest) {
			p.rest = due
		}
	}
}

// tooLate reports whether a permit of time t comes after end. If the limiter gives turns, the time
// that the answer takes counts as well, because turns are for the time that is left then.
func (p *pace) tooLate(end, t, now time.Time) bool {
	if t.IsZero() || p.kind < Turns {
		return t.After(end)
	}
	return t.Sub(now) > patience(end.Sub(now), p.trip)
}

// patience returns how far away a turn may be for a caller with left time left, if the answer takes
// trip.
func patience(left, trip time.Duration) time.Duration {
	return max(0, left-min(trip, left/4))
}
