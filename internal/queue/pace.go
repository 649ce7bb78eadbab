package queue

import "time"

const (
	leastLead   = 6 * time.Millisecond
	mostLead    = 96 * time.Millisecond
	mostAhead   = 48 * time.Millisecond // for a long queue
	leastPause  = time.Millisecond      // before asking again, if the limiter gives no better time
	mostPending = 64                    // questions under way, and
	mostFar     = 1024                  // as many if the limiter is so fast and far that they are needed
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

	// Of several limits, the one that will be exhausted for longest.
	parts              bool
	partStep, partWait time.Duration
}

// Part tells d of one of several limits that have decided together. The ResetAfter of d
// may be of another one than its Remaining.
func (d *Decision) Part(limit, remaining int, reset, delay time.Duration) {
	p := Decision{Limit: limit, Remaining: remaining, ResetAfter: reset, Delay: delay}
	step := p.step(Early)
	if wait := time.Duration(1-remaining) * step; !d.parts || wait > d.partWait {
		d.parts, d.partStep, d.partWait = true, step, wait
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
	order   int // how many events were asked for until then, these included; 0 outside the queue
	answers int // that had come when it was asked
	sent    time.Time
	within  time.Duration
	patient bool // within is all the time that the waiter has
}

// pace is what is known of when a limiter admits events.
type pace struct {
	kind    Kind
	foreign bool // the algorithm is not known
	turns   bool // it has given out turns
	denied  bool // of an Unknown limiter, when it was asked ahead of time

	room      int           // events that fit now
	free      bool          // no limit has counted the last admission: others need not wait
	base      time.Time     // the next event fits a step after it; zero if that is not known
	placed    bool          // who came before base was known has been refused if its turn is too late
	step      time.Duration // from one event to the next, 0 if not known
	pending   int           // questions under way
	unknown   int           // events of those
	asked     int           // events
	answers   int           // of all questions
	answered  int           // the order of the last question that was answered
	notBefore time.Time     // nobody gets a permit before it; zero if not known
	rest      time.Time     // nobody asks before it
	trip      time.Duration // of a question and its answer, the longest of late

	// Of a foreign limiter, to check its ResetAfter against its RetryAfter.
	permit time.Time     // the last one; zero if there was none
	gap    time.Duration // the longest time from one event to the next that a denial has shown
}

func newPace(kind Kind) pace {
	return pace{kind: kind, foreign: kind == Unknown || kind == Turns, turns: kind == Leaky}
}

// forget is for answers after which nothing is known.
func (p *pace) forget() {
	p.room, p.free, p.placed = 0, false, false
	p.base, p.notBefore, p.permit = time.Time{}, time.Time{}, time.Time{}
}

// span is the time that n events take. A foreign limiter may have told when another limit of
// its own is as if new, so its denials must have shown that it takes as long.
func (p *pace) span(n int) time.Duration {
	step := p.step
	if p.foreign {
		step = min(step, p.gap)
	}
	if n <= 0 || step <= Forever/time.Duration(n) {
		return time.Duration(max(n, 0)) * step
	}
	return Forever
}

// due is when n events fit. It is zero if they fit now, or nobody knows.
func (p *pace) due(n int) time.Time {
	if n <= p.room || p.base.IsZero() {
		return time.Time{}
	}
	return p.base.Add(p.span(n - p.room))
}

// earliest is before when nobody gets a permit, as far as is known, and n events do not fit.
func (p *pace) earliest(n int) time.Time {
	if due := p.due(n); p.kind == Early && due.After(p.notBefore) {
		return due
	}
	return p.notBefore
}

// spend takes n events as charged.
func (p *pace) spend(n int) {
	if t := p.due(n); !t.IsZero() {
		p.base = t
	}
	p.room = max(0, p.room-n)
}

// ask spends the events of a question that is about to be asked.
func (p *pace) ask(a *question) {
	p.spend(a.n)
	p.pending, p.unknown, p.asked = p.pending+1, p.unknown+a.n, p.asked+a.n
	a.order, a.answers = p.asked, p.answers
}

// done is called when a question has ended.
func (p *pace) done(a *question) {
	p.pending--
	p.answers++
	if a.order > 0 {
		p.unknown -= a.n
	}
}

// several reports whether n events can be asked for while others are. If they fit now, they
// can. Ahead of time they are asked for one after the other as long as that is as fast as
// the limit, since questions may overtake each other. So it is with turns.
func (p *pace) several(n int, ahead bool) bool {
	far := p.step > 0 && p.trip > p.step
	switch {
	case p.pending >= p.mostPending():
		return false
	case p.room >= n:
		return !p.turns || far || p.free
	}
	return ahead && (p.kind == Early || p.kind == Unknown && !p.denied) && far
}

// mostPending is how many questions are under way at most: twice as many as the rate has in a trip, if that
// is more.
func (p *pace) mostPending() int {
	if p.step <= 0 {
		return mostPending
	}
	return max(mostPending, int(min(2*p.trip/p.step, mostFar)))
}

// lead is how long before its time a permit is asked for, so that the answer is there in
// time. A long queue of events will use its permits in any case, so it asks further ahead.
// Then a process that stops for a moment need not lose any.
func (p *pace) lead(events int) time.Duration {
	ahead := time.Duration(0)
	if p.step < mostAhead {
		ahead = min(time.Duration(min(events, 1<<20))*p.step/16, mostAhead)
	}
	return max(min(p.trip+p.trip/2, mostLead), leastLead, ahead)
}

// heard is called with each answer. It returns about when the limiter gave it.
func (p *pace) heard(a *question, now time.Time) time.Time {
	trip := now.Sub(a.sent)
	p.trip = max(trip, p.trip-p.trip/16)
	return a.sent.Add(trip / 2)
}

// admitted learns from an admission.
func (p *pace) admitted(d *Decision, a *question, now time.Time) {
	at := p.heard(a, now)
	if p.kind == Unknown && a.within > 0 {
		if d.Delay > 0 {
			p.kind = Early
		} else if p.denied {
			p.kind = Plain
		}
	}
	permit := at.Add(d.Delay)
	p.notBefore, p.rest, p.free = time.Time{}, time.Time{}, d.Limit == 0
	if p.kind >= Turns && !p.free {
		p.turns = p.turns || d.Delay > 0
		if p.notBefore = now.Add(d.Delay + p.span(a.n)); p.kind == Leaky && !d.Elsewhere {
			p.notBefore = now.Add(d.ResetAfter)
		}
	} else {
		at = permit
	}
	p.permit = at
	// It is not known which of those under way came before. Nor is it known whether this
	// answer is still true, if a later question was answered faster.
	room := max(0, d.Remaining-p.unknown)
	if a.answers+1 != p.answers {
		room = min(room, p.room)
	}
	p.room = room
	if a.order < p.answered {
		return
	}
	p.answered = a.order
	p.step = d.step(p.kind)
	p.base = at.Add(p.span(p.asked - a.order - d.Remaining))
}

// refused learns from a denial with room for the events: only their turn is too far away.
func (p *pace) refused(d *Decision, a *question, now time.Time) {
	p.heard(a, now)
	p.kind, p.turns, p.free = max(p.kind, Turns), true, false
	p.room, p.base = d.Remaining, now
	turn := now.Add(min(d.RetryAfter, Forever) + a.within)
	if p.notBefore.After(now) { // the turn of the last admission
		p.gap = turn.Sub(p.notBefore) / time.Duration(a.n)
	}
	p.notBefore = turn
}

// exhausted learns from any other denial.
func (p *pace) exhausted(d *Decision, a *question, now time.Time, events int) {
	p.heard(a, now)
	due := now.Add(min(max(d.RetryAfter, 0), Forever))
	p.rest, p.free = now.Add(leastPause), false
	if p.kind == Early {
		due = due.Add(a.within)
	}
	if !p.permit.IsZero() {
		p.gap = max(p.gap, due.Sub(p.permit)/time.Duration(a.n))
	}
	p.notBefore = due
	if reset := now.Add(min(d.ResetAfter, Forever)); p.kind == Leaky && !d.Elsewhere && reset.After(due) {
		p.notBefore = reset
	}
	if p.kind == Unknown && a.within > 0 {
		p.denied = true
	}
	if p.kind == Unknown && a.within > 0 || d.Elsewhere && a.within == 0 && p.kind != Plain { // ask at due, not before
		due = due.Add(p.lead(events))
	}
	p.answered = max(p.answered, a.order)
	p.step = d.step(p.kind)
	p.room, p.base = 0, due.Add(-p.span(a.n))
}

// returned learns that n events were given back.
func (p *pace) returned(n int) {
	p.notBefore = time.Time{}
	if p.span(n) == 0 {
		p.base = time.Time{}
	} else if !p.base.IsZero() {
		p.base = p.base.Add(-p.span(n))
	}
}

// tooLate reports whether a permit of time t comes after end. If the caller is not timed,
// the time that the answer takes counts as well, since turns are given for what then is left.
func (p *pace) tooLate(end time.Time, timed bool, t, now time.Time) bool {
	switch {
	case end.IsZero(), t.IsZero():
		return false
	case timed || p.kind < Turns:
		return t.After(end)
	}
	return t.Sub(now) > Patience(end.Sub(now), p.trip)
}

// Patience is how far away a turn may be for a caller with this time left, if the answer
// takes trip.
func Patience(left, trip time.Duration) time.Duration {
	return max(0, left-min(trip, left/4))
}
