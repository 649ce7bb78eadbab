package queue

import "time"

const (
	leastLag    = 4 * time.Millisecond
	mostLag     = 64 * time.Millisecond
	mostAhead   = 48 * time.Millisecond // for a long queue
	mostFlights = 64                    // questions under way
	guesses     = 8                     // that came true before the next one is slightly bolder: the step may be too long
)

// lane is a queue, with what is known of the limiter's answers. The shard's lock protects
// all of it.
type lane struct {
	id    id
	shard *shard

	first, last *waiter // the line, in order of arrival
	standing    int
	events      int       // of all in the line
	soonest     time.Time // no deadline in the line is before it; zero if none has one
	largest     int       // no waiter in the line wants more events
	seq         uint64

	flights, flying int    // questions under way, and their events
	departures      uint64 // questions
	landings        uint64 // answers
	holders         int    // waiters that have left the line with a permit whose time is to come

	kind  Kind
	token bool // a token bucket: ResetAfter gives the step
	leaky bool // a leaky bucket: the next turn is when it is empty
	tried bool // an early admission was tried, in vain
	free  bool // the last answer admitted everything: others need not wait for the next

	// What the answers have shown.
	known      bool          // base is set
	base       time.Time     // when the time of the next event begins to count
	room       int           // events that could go at base already
	step       time.Duration // from one event to the next; 0 if not known
	gap        time.Duration // the last step that was seen
	ticket     time.Time     // the last turn given out, for so many events; zero if there was none
	tickets    int
	number     uint64 // of the question that ticket answered
	rushed     int    // admissions that did not wait
	admissions int
	guessed    int       // steps that came true
	prior      time.Time // the last permit, and how many events it left; zero if there was none
	left       int
	full       time.Time // from then on all can go, if there are no other callers
	sure       time.Time // the first in the line cannot go before; zero if not known
	turn       time.Time // of a leaky bucket, the turn of the next event; zero if not known
	limit      int
	lag        time.Duration // how long after the time asked for the answer comes
	trip       time.Duration // of a question and its answer
	slow       time.Duration // the longest trip of late

	latest   Decision // for waiters that are refused without asking
	latestAt time.Time
	again    time.Time // when the first was made to ask again
}

func (ln *lane) begin(i id, s *shard, kind Kind) {
	*ln = lane{id: i, shard: s, kind: kind, lag: leastLag}
	switch kind {
	case Early:
		ln.token = true
	case Leaky:
		ln.kind, ln.leaky = Tickets, true
	}
}

func (ln *lane) arrival() uint64 {
	ln.seq++
	return ln.seq
}

func (ln *lane) depart(n int) {
	ln.flights, ln.flying = ln.flights+1, ln.flying+n
	ln.departures++
}

func (ln *lane) land(n int) {
	ln.flights, ln.flying = ln.flights-1, ln.flying-n
	ln.landings++
}

func (ln *lane) empty() bool { return ln.flights == 0 && ln.first == nil && ln.holders == 0 }

// moved is called after each change. It wakes the first in the line, or removes the lane.
func (ln *lane) moved() {
	s := ln.shard
	switch {
	case ln.first != nil:
		ln.first.call()
	case ln.empty() && s.lanes != nil:
		delete(s.lanes, ln.id)
		ln.id, ln.latest = id{}, Decision{} // so that it keeps nothing alive
		s.spare = ln
	}
}

// forget is for answers after which nothing is known.
func (ln *lane) forget() {
	ln.known, ln.room = false, 0
	ln.sure, ln.turn = time.Time{}, time.Time{}
}

// lead is how long before its time a permit is asked for, so that the answer is there in
// time. A long queue will use its permits in any case, so it asks further ahead. Then a
// process that stops for a moment need not lose any.
func (ln *lane) lead() time.Duration {
	ahead := time.Duration(0)
	if ln.step > 0 && ln.step < mostAhead {
		ahead = min(time.Duration(min(ln.events, 1<<20))*ln.step/16, mostAhead)
	}
	return max(ln.lag+ln.lag/2, ahead)
}

// insert puts w into the line by order of arrival. That is the end, except for waiters
// that have asked and were denied.
func (ln *lane) insert(w *waiter) {
	before := ln.last
	if ln.first != nil && w.seq < ln.last.seq {
		for before = nil; before.after(ln).seq < w.seq; {
			before = before.after(ln)
		}
	}
	w.prev, w.next = before, before.after(ln)
	if w.prev != nil {
		w.prev.next = w
	} else {
		ln.first = w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		ln.last = w
	}
	w.stands = true
	ln.standing++
	ln.events += w.n
	ln.largest = max(ln.largest, w.n)
	if !w.end.IsZero() && (ln.soonest.IsZero() || w.end.Before(ln.soonest)) {
		ln.soonest = w.end
	}
}

// after is the waiter behind w, or the first of ln if w is nil.
func (w *waiter) after(ln *lane) *waiter {
	if w == nil {
		return ln.first
	}
	return w.next
}

func (ln *lane) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		ln.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		ln.last = w.prev
	}
	w.prev, w.next, w.stands = nil, nil, false
	ln.standing--
	ln.events -= w.n
	if ln.first == nil {
		ln.largest, ln.soonest = 0, time.Time{}
	}
}

// due is when n events behind others are due, as far as is known.
func (ln *lane) due(others, n int, now time.Time) (t time.Time, known bool) {
	need := others + n - ln.room
	switch {
	case need <= 0:
		return now, true
	case !ln.known, ln.step == 0, ln.step > Forever/time.Duration(need):
		return time.Time{}, false
	}
	return ln.base.Add(time.Duration(need) * ln.step), true
}

// early reports whether permits are asked for ahead of their time, if only to see whether
// that works.
func (ln *lane) early() bool { return ln.kind == Early || ln.kind == Unknown && !ln.tried }

// several reports whether n events can be asked for while other questions are under way:
// if one after the other would take longer than the limiter does. Questions may not
// arrive in quite the order in which they are sent. So turns are asked for one by one as
// far as that is fast enough.
func (ln *lane) several(n int, known bool) bool {
	switch {
	case ln.flights >= mostFlights:
		return false
	case ln.free:
		return true
	case ln.kind == Tickets:
		return ln.room >= n && ln.step > 0 && ln.trip > ln.step
	case ln.kind == Unknown && ln.admissions < 2: // it may give out turns
		return false
	}
	return ln.room >= n || ln.early() && known && ln.trip > ln.step
}

// roomForAll reports whether n more events could go at once, besides all that are in the
// line.
func (ln *lane) roomForAll(n int) bool {
	switch {
	case ln.free:
		return true
	case ln.kind == Tickets, ln.kind == Unknown && ln.admissions < 2:
		return false
	}
	return ln.room-ln.events >= n
}

// spend moves the time of the next event behind n events that are asked for.
func (ln *lane) spend(n int) {
	if t, known := ln.due(0, n, ln.base); known && n > ln.room {
		ln.base = t
	}
	ln.room = max(0, ln.room-n)
}

// question is what is asked, and why at that time.
type question struct {
	n       int
	d       time.Duration // the turn is to come within it
	patient bool          // d is the time that the waiter has
	due     time.Time     // when the events are due, as far as is known; zero if not known
	exact   bool          // due comes from a denial, and is not a guess

	number, landings uint64    // of the lane, when it was asked
	at, sent         time.Time // when it should be sent, zero if at once, and when it was
}

// admitted learns from an admission.
func (ln *lane) admitted(d *Decision, q *question, now time.Time) {
	ln.remember(d, now)
	ln.sure = time.Time{}
	ln.admissions++
	if d.Delay > 0 && q.d > 0 && !q.patient && ln.kind == Unknown {
		ln.kind = Early
	}
	permit, exact := now, false
	if turn := now.Add(d.Delay); ln.kind == Tickets {
		if !ln.ticket.IsZero() && q.number == ln.number+1 && d.Delay > 0 {
			ln.learn(turn.Sub(ln.ticket) / time.Duration(ln.tickets))
		}
		ln.ticket, ln.tickets = turn, q.n
		if next := turn.Add(time.Duration(q.n) * ln.step); !ln.leaky && next.After(ln.turn) {
			ln.nextTurn(next, now)
		}
	}
	switch {
	case ln.kind == Early && d.Delay > 0: // its time is between these two
		permit, exact = clamp(q.due, q.sent.Add(d.Delay), now.Add(d.Delay)), true
	case q.due.IsZero():
	case q.d == 0 || q.patient:
		permit, exact = clamp(q.due, time.Time{}, now), q.exact
		if exact || ln.step == 0 {
			break
		}
		if ln.guessed++; d.Remaining > 0 { // that many have come since
			ln.step = min(ln.step, now.Sub(ln.prior)/time.Duration(d.Remaining+q.n))
		} else if ln.guessed%guesses == 0 {
			ln.step -= ln.step / 4
		}
	default: // asked too late
		permit = clamp(q.due, q.sent, now)
		ln.lag = min(2*ln.lag, mostLag)
		ln.step -= ln.step / 8
	}
	next := q.number == ln.number+1
	switch counted := q.n - ln.left; {
	case ln.leaky && d.ResetAfter > d.Delay && !d.Elsewhere: // when it has drained; later if others take turns too
		ln.step = max(ln.step, (d.ResetAfter-d.Delay)/time.Duration(q.n))
	case ln.token && d.Delay > 0:
		ln.step = (d.ResetAfter - d.Delay) / time.Duration(max(d.Limit, 1))
	case ln.token && d.Remaining < d.Limit:
		ln.step = d.ResetAfter / time.Duration(d.Limit-d.Remaining)
	case exact && (ln.kind != Tickets || d.Delay == 0) && !ln.prior.IsZero() && next && counted > 0:
		ln.learn(permit.Sub(ln.prior) / time.Duration(counted))
	case ln.step == 0 && next && d.Delay == 0 && (d.Remaining < q.n || ln.kind == Tickets):
		if ln.rushed++; ln.rushed%4 == 0 { // events come faster than questions can be sent
			ln.step = ln.trip / 2
		}
	}
	if charged := d.Limit - d.Remaining; charged > 0 && d.Delay == 0 && d.ResetAfter > 0 {
		// All that is charged is gone at ln.full, so this is twice the step on average. A
		// longer guess, from permits that came in batches, would lose some.
		ln.step = min(ln.step, 2*ln.full.Sub(permit)/time.Duration(charged))
	}
	ln.number = max(ln.number, q.number)
	ln.prior, ln.left = permit, d.Remaining
	ln.known, ln.base = true, permit
	if d.Remaining > 0 {
		ln.base = now
	}
	// It is not known which of those under way came before. Nor is it known whether this
	// answer is still true, if a later question was answered faster.
	room := ln.room
	ln.room = d.Remaining
	ln.spend(ln.flying)
	if q.landings+1 != ln.landings {
		ln.room = min(ln.room, room)
	}
}

// learn takes the lesser of the last two steps. A longer gap may hold permits that others
// took, or that were not asked for, and windows give permits in batches.
func (ln *lane) learn(gap time.Duration) {
	if gap <= 0 {
		return
	}
	if ln.flights > 0 && ln.step > 0 { // the times of permits are known to within a trip
		ln.step = min(max(gap, ln.step-ln.step/8), ln.step+ln.step/8)
		return
	}
	if ln.gap > 0 {
		ln.step = min(gap, ln.gap)
	}
	ln.gap = gap
}

// lags learns how late an answer comes, at most.
func (ln *lane) lags(q *question, now time.Time) {
	trip := now.Sub(q.sent)
	ln.trip += (trip - ln.trip) / 4
	ln.slow = max(trip, ln.slow-ln.slow/16)
	lag := trip
	if !q.at.IsZero() {
		lag = now.Sub(q.at)
	}
	ln.lag = min(max(lag, ln.lag-ln.lag/128, leastLag), mostLag)
}

// clamp is t between least and most, or most if t is not known.
func clamp(t, least, most time.Time) time.Time {
	switch {
	case t.IsZero(), t.After(most):
		return most
	case t.Before(least):
		return least
	}
	return t
}

// remember keeps the latest decision. Waiters that want more than can ever be admitted
// learn it at once.
func (ln *lane) remember(d *Decision, now time.Time) {
	told := ln.latest.Told
	ln.latest, ln.latestAt, ln.full = *d, now, now.Add(d.ResetAfter)
	ln.free = d.Free
	if d.Allowed { // the last denial is still the one that says why
		ln.latest.Told = told
	}
	if ln.leaky && !d.Elsewhere {
		ln.nextTurn(ln.full, now)
	}
	if ln.limit = d.Limit; d.Limit > 0 && ln.largest > d.Limit {
		ln.sendOut(d.Limit + 1)
	}
}

// nextTurn is for limiters that give out turns: no other turn comes before t.
func (ln *lane) nextTurn(t, now time.Time) {
	ln.turn = t
	ln.sendAway(t.Add(min(ln.slow, mostLag)), now)
}

// late reports whether the next turn comes too late for end, including the answer's way.
func (ln *lane) late(end time.Time) bool {
	if ln.turn.IsZero() {
		return false
	}
	now := time.Now()
	return ln.turn.Sub(now) > Patience(end.Sub(now), ln.slow)
}

// sendOut lets waiters that want n events or more ask by themselves, since they can never
// have them.
func (ln *lane) sendOut(n int) {
	ln.largest = 0
	for w := ln.first; w != nil; {
		next := w.next
		if w.n >= n && w.refusals == 0 {
			ln.remove(w)
			ln.depart(w.n)
			w.alone = true
			w.call()
		} else {
			ln.largest = max(ln.largest, w.n)
		}
		w = next
	}
}

// sendAway refuses the waiters whose deadline is before t, when the first in the line can
// go at the earliest.
func (ln *lane) sendAway(t, now time.Time) {
	if ln.soonest.IsZero() || !ln.soonest.Before(t) {
		return
	}
	ln.soonest = time.Time{}
	for w := ln.first; w != nil; {
		next := w.next
		switch {
		case w.end.IsZero():
		case w.end.Before(t):
			ln.remove(w)
			w.late, w.denial = true, ln.refused(t, now)
			w.call()
		case ln.soonest.IsZero() || w.end.Before(ln.soonest):
			ln.soonest = w.end
		}
		w = next
	}
}

// refused is the denial of waiters that would be due at t, made from the latest decision.
func (ln *lane) refused(t, now time.Time) Decision {
	retry := max(t.Sub(now), time.Microsecond)
	reset := ln.latest.ResetAfter - now.Sub(ln.latestAt)
	return Decision{Limit: ln.latest.Limit, RetryAfter: retry, ResetAfter: max(reset, retry), Told: ln.latest.Told}
}
