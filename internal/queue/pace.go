package queue

import (
	"math"
	"time"
)

// Kind is how a limiter admits events that have to wait.
type Kind uint8

const (
	// Unknown is what nothing is known of but its RetryAfter. It is asked as Early is.
	Unknown Kind = iota
	// Early admits some events before their time. Delay is the time that remains.
	Early
	// Bucket is Early, one event each step.
	Bucket
	// Plain admits events when their time has come, and not before.
	Plain
	// Leased is Plain, but events that others have taken ahead may come back before their time.
	Leased
	// Turns admits events into a queue of its own. Delay is the time until their turn. It is
	// asked for any turn that comes in time.
	Turns
	// Leaky is Turns, none of which comes before the ResetAfter of the last answer.
	Leaky
	// Foreign may have turns, and is asked for any.
	Foreign
)

// Joint is the Kind of two limiters that decide together.
func Joint(a, b Kind) Kind {
	switch {
	case a == b:
		return a
	case min(a, b) >= Plain && max(a, b) < Foreign: // nothing is admitted ahead
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
	mostPending = 64                     // questions under way, and
	mostFar     = 1024                   // as many if the limiter is so fast and far that they are needed
)

// Never is the RetryAfter of events that are never admitted, however long the wait.
const Never time.Duration = 1<<63 - 1

// Forever is a patience without end.
const Forever = 100 * 365 * 24 * time.Hour

// Decision is the part of a limiter's answer that a queue needs.
type Decision struct {
	Allowed          bool
	Limit, Remaining int
	RetryAfter       time.Duration
	ResetAfter       time.Duration
	Delay            time.Duration
	Elsewhere        bool // another limiter than usual has decided
	Told             any  // of a denial: what more those are to be told who are refused without asking
	Asked            bool // it is the answer to a waiter's own question

	// Of several limits, the one that will be exhausted for longest.
	parts     bool
	partStep  time.Duration
	partWait  float64       // ns; the product may be above 292 years
	partEarly bool          // it has a Delay
	partPlain bool          // it admits nothing ahead
	late      time.Duration // that the turn of a bucket comes later than was asked for
}

// Part tells d of p, the decision of one of several limits that have decided together, of that
// kind and in units of n events: of 1, or of a call where calls are counted. The ResetAfter of d
// may be of another one than its Remaining.
func (d *Decision) Part(kind Kind, n int, p Decision) {
	p.Limit, p.Remaining = max(p.Limit/n, min(p.Limit, 1)), p.Remaining/n
	if n > 1 && p.Limit > 0 && p.Remaining < d.Remaining {
		d.Limit, d.Remaining = p.Limit, p.Remaining
	}
	if kind == Bucket && !d.Allowed {
		d.late = max(d.late, p.RetryAfter)
	}
	step := p.step(kind)
	if wait := float64(1-p.Remaining) * float64(step); d.partStep == 0 || step > 0 && wait > d.partWait {
		d.parts, d.partStep, d.partWait = true, step, wait
		d.partEarly, d.partPlain = p.Delay > 0, kind == Plain || kind == Leased
	}
}

// step is the time from one event to the next while the limit is exhausted: what is charged
// goes within ResetAfter. It is exact for the two buckets, and the mean for the windows. It
// is 0 if d says nothing of it.
func (d *Decision) step(kind Kind) time.Duration {
	if d.parts {
		return d.partStep
	}
	reset := d.ResetAfter
	if kind < Turns { // it counts from the permit's time on
		reset -= d.Delay
	}
	if charged := d.Limit - d.Remaining; charged > 0 {
		return max(0, reset/time.Duration(charged))
	}
	return 0
}

// question is what was asked of a limiter.
type question struct {
	n       int
	order   int // how many events were asked for until then, these included
	answers int // that had come when it was asked
	sent    time.Time
	within  time.Duration
	patient bool // within is all the time that the waiter has
}

// pace is what is known of when a limiter admits events.
type pace struct {
	kind      Kind
	room      int           // events that fit now
	turns     bool          // it gives out turns
	ahead     int           // 1 after an admission ahead of time, -1 after a denial: whether it pays to ask ahead
	base      time.Time     // the next event fits a step after it; zero if that is not known
	placed    bool          // who came before base was known has been refused if its turn is too late
	step      time.Duration // from one event to the next, 0 if not known
	longest   time.Duration // step, since the mean of a window that ends soon is short
	told      bool          // step is of one limit, as each of several was told
	plain     bool          // and that one admits nothing ahead
	pending   int           // questions under way
	unknown   int           // events of those
	asked     int           // events
	answers   int           // of all questions
	answered  int           // the order of the last question that was answered
	notBefore time.Time     // no permit comes before it; zero if not known
	denied    int           // that and rest are known of so many events or more
	rest      time.Time     // nobody asks before it
	since     time.Time     // of the first of the last denials in a row; zero if the last answer was none
	trip      time.Duration // of a question and its answer, the longest of late
}

// forget is for answers after which nothing is known.
func (p *pace) forget() {
	p.room, p.denied, p.placed = 0, 0, false
	p.base, p.notBefore, p.rest, p.since = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

// span is the time that n events take, as far as it is known. It is negative for the time that
// -n took.
func (p *pace) span(n int) time.Duration {
	switch {
	case n < 0:
		return -p.span(-max(n, -math.MaxInt))
	case n == 0, !p.told && (p.kind == Turns || p.kind == Foreign || p.kind == Unknown): // which may tell when another limit is as if new
		return 0
	case p.step <= Forever/time.Duration(n):
		return time.Duration(n) * p.step
	}
	return Forever
}

// due is when n events fit. It is zero if they fit now, or nobody knows.
func (p *pace) due(n int) time.Time {
	if n <= p.room || p.base.IsZero() {
		return time.Time{}
	}
	t := p.base.Add(p.span(n - p.room))
	if p.kind == Leaky && t.After(p.notBefore) && !p.notBefore.IsZero() { // when it is empty: it may have a part of an event
		return p.notBefore
	}
	return t
}

// guesses reports whether due is a guess: of a window's mean, or of a bucket that may have a part of
// an event. After a denial it is one for fewer events.
func (p *pace) guesses(n int) bool {
	switch {
	case p.ahead < 0:
		return n < p.denied
	case p.kind >= Turns:
		return p.told
	}
	return p.ahead == 0 || p.kind != Bucket
}

// earliest is before when n events do not fit, and nobody gets a permit for them, as far as is
// known.
func (p *pace) earliest(n int) (t time.Time) {
	if n >= p.denied {
		t = p.notBefore
	}
	due := p.due(n)
	if p.guesses(n) && !due.IsZero() { // it may have a part of an event
		due = due.Add(-p.step)
	}
	if (p.kind == Bucket || p.ahead > 0) && due.After(t) {
		return due
	}
	return t
}

// ask takes the events of a question that is about to be asked as charged.
func (p *pace) ask(a *question) {
	if t := p.due(a.n); !t.IsZero() {
		p.base = t
	}
	p.room = max(0, p.room-a.n)
	p.pending, p.unknown, p.asked = p.pending+1, p.unknown+a.n, p.asked+a.n
	a.order, a.answers = p.asked, p.answers
}

// done is called when a question has ended.
func (p *pace) done(a *question) {
	p.pending--
	p.answers++
	p.unknown -= a.n
}

// several reports whether n events can be asked for while others are. If they fit now, they
// can. Ahead of time they are asked for one after the other as long as that is as fast as
// the limit, since questions may overtake each other. So it is with turns.
func (p *pace) several(n int, ahead bool) bool {
	far, most := p.longest > 0 && p.trip > p.longest, mostPending
	if far { // twice as many as the rate has in a trip
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
	return ahead && far && (p.kind == Bucket || p.kind < Bucket && p.ahead >= 0 && !p.plain)
}

// lead is how long before its time a permit is asked for, so that the answer is there in
// time. A long queue of events will use its permits in any case, so it asks further ahead.
// Then a process that stops for a moment need not lose any.
func (p *pace) lead(events int) time.Duration {
	if p.step >= mostAhead {
		events = 0
	}
	ahead := time.Duration(min(events, 1<<20)) * p.step / 16
	return max(min(p.trip+p.trip/2, mostLead), leastLead, min(ahead, mostAhead))
}

// heard is called with each answer. It returns about when the limiter gave it.
func (p *pace) heard(a *question, now time.Time) time.Time {
	trip := now.Sub(a.sent)
	p.trip = max(trip, p.trip-p.trip/4)
	return a.sent.Add(trip / 2)
}

// heed takes the step from d.
func (p *pace) heed(d *Decision) {
	p.step, p.told, p.plain = d.step(p.kind), d.parts, d.partPlain
	p.longest = max(p.step, p.longest-p.longest/4)
}

// admitted learns from an admission.
func (p *pace) admitted(d *Decision, a *question, now time.Time) {
	at := p.heard(a, now)
	p.notBefore, p.rest, p.since, p.denied = time.Time{}, time.Time{}, time.Time{}, 0
	counted := d.Limit > 0 // or else others need not wait
	p.turns = p.kind >= Turns && counted && (p.turns || p.kind < Foreign || d.Delay > 0)
	if p.kind >= Turns && counted {
		if p.notBefore = now.Add(d.Delay); p.kind == Leaky && !d.Elsewhere {
			p.notBefore = now.Add(d.ResetAfter)
		}
	} else {
		at = at.Add(d.Delay)
	}
	if p.ahead = 0; d.Delay > 0 && (!d.parts || d.partEarly) {
		p.ahead = 1
	}
	// It is not known which of those under way came before. Nor is it known whether this
	// answer is still true, if a later question was answered faster.
	room := max(0, d.Remaining-p.unknown)
	if a.answers+1 != p.answers {
		room = min(room, p.room)
	}
	p.room = room
	if a.order >= p.answered {
		p.answered = a.order
		p.heed(d)
		p.base = at.Add(p.span(p.asked - a.order - d.Remaining + room))
	}
}

// refused learns from a denial with room for the events: only their turn is too far away.
func (p *pace) refused(d *Decision, a *question, now time.Time) {
	p.heard(a, now)
	if p.kind == Unknown {
		p.kind = Turns
	}
	p.turns, p.room, p.base, p.denied, p.ahead = true, d.Remaining, now, 0, 0
	p.notBefore = now.Add(min(d.RetryAfter, Forever) + a.within)
}

// exhausted learns from any other denial. At RetryAfter the same question is admitted: only of
// the buckets is it known what that says of more events, or of fewer.
func (p *pace) exhausted(d *Decision, a *question, now time.Time) {
	p.heard(a, now)
	p.answered = max(p.answered, a.order)
	p.heed(d)
	due := now.Add(min(max(d.RetryAfter, 0), Forever))
	p.placed = p.placed && p.ahead != 0 // or else by a guess
	p.rest, p.notBefore, p.denied, p.ahead = now.Add(leastPause), due, a.n, -1
	p.room, p.base = 0, due.Add(-p.span(a.n))
	if p.since.IsZero() {
		p.since = now
	}
	switch reset := now.Add(min(d.ResetAfter, Forever)); {
	case p.kind == Leaky && !d.Elsewhere && reset.After(due):
		p.notBefore = reset
	case p.kind == Bucket && !d.Elsewhere: // then the events still have to wait for as long as the question left them
		p.base, p.notBefore = p.base.Add(a.within), due.Add(a.within)
	case p.kind != Leaky:
		p.base = time.Time{}
		if again := now.Add(max(stale, now.Sub(p.since))); p.kind == Leased && again.Before(due) { // so no wait is twice as long
			due = again
		}
		if due.After(p.rest) {
			p.rest = due
		}
	}
}

// tooLate reports whether a permit of time t comes after end. The time that the answer takes
// counts as well where turns are given, since they are for what then is left.
func (p *pace) tooLate(end, t, now time.Time) bool {
	if t.IsZero() || p.kind < Turns {
		return t.After(end)
	}
	return t.Sub(now) > patience(end.Sub(now), p.trip)
}

// patience is how far away a turn may be for a caller with this time left, if the answer
// takes trip.
func patience(left, trip time.Duration) time.Duration {
	return max(0, left-min(trip, left/4))
}
