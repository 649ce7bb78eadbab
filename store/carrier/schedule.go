package carrier

import (
	"math"
	"runtime"
	"time"
)

// tripsByDistance returns how many trips may be in progress, whatever the window. Near the server, calls that share a trip are
// cheaper. Far from it, a call that waits for others is late.
func (cr *Carrier[C]) tripsByDistance() int {
	if distance := cr.distance.is(); distance > 0 {
		return min(cr.conns.most, nearTrips+int(distance/tripStep))
	}
	return cr.conns.most
}

// mostTrips returns how many trips may be in progress while callers wait. A few calls finish sooner if each
// has a trip of its own than if they share trips one after the other.
func (cr *Carrier[C]) mostTrips() int {
	most := cr.window.trips(cr.tripsByDistance())
	if n := cr.forecast.admitted.Load(); n <= fewCalls {
		most = max(most, min(int(n), cr.conns.most))
	}
	return most
}

// tripSize returns how many calls are in a full trip.
func (cr *Carrier[C]) tripSize() int { return cr.window.tripSize(cr.tripsByDistance()) }

// begin records that a trip begins. If no other is in progress, the server had nothing to answer.
func (cr *Carrier[C]) begin(connected bool) {
	if connected && cr.trips+cr.late == 0 {
		cr.pulse.ask()
	}
	cr.trips++
	if connected {
		cr.conns.ready--
		cr.conns.busy++
	}
}

// over records that callers wait for one trip less.
func (cr *Carrier[C]) over(connected bool) {
	cr.trips--
	if connected {
		cr.conns.busy--
	}
}

// start begins all trips that may begin.
func (cr *Carrier[C]) start(now time.Time) {
	for t := cr.next(now); t != nil; t = cr.next(now) {
		go cr.run(t)
		if !t.connected {
			return // at most one new connection for each call that comes
		}
	}
}

// next returns the trip that is to begin now, with its calls, or nil. It is called after each arrival
// of a call and each end of a trip.
//
// The first connection may have to be made alone: see [Config.OneFirst].
func (cr *Carrier[C]) next(now time.Time) *Trip[C] {
	defer cr.count()
	if cr.waiting() == 0 || cr.full() {
		return nil
	}
	connected := cr.conns.ready > 0
	probes := connected && cr.waiting() >= cr.tripSize() && cr.distance.due(now)
	if probes && cr.trips > 0 { // no trip begins until those in progress are back, so that the next can measure alone
		return nil
	}
	if d := cr.gathering(now); connected && d > 0 {
		cr.later(now.Add(d))
		return nil
	}
	if !connected && !cr.conns.mayDial(now) {
		cr.later(now.Add(untilDial)) // before that, nothing might arrive or end
		return nil
	}
	t := &Trip[C]{connected: connected, begun: now, end: now.Add(cr.timeout)}
	t.list = t.first[:0]
	if probes {
		cr.distance.probed = now
	} else if connected || cr.conns.busy == 0 { // a trip that makes a connection would be late, and the busy ones are soon back
		if cr.fill(t); t.calls == 0 {
			return nil
		}
	}
	if t.calls < cr.tripSize() {
		cr.began = now
	}
	cr.begin(connected)
	if !connected {
		cr.conns.dials.begin(now)
	}
	cr.watch(t)
	t.paused = cr.pauses.until(now)
	cr.watchPauses(now)
	return t
}

// full reports whether no more trips may begin.
func (cr *Carrier[C]) full() bool {
	all := cr.trips + cr.late
	return cr.trips >= cr.mostTrips() || all >= min(2*cr.tripsByDistance(), cr.conns.size) || !cr.conns.reached && all > 0
}

// watch abandons a trip without calls when its time is up. Calls would have timers of their own.
func (cr *Carrier[C]) watch(t *Trip[C]) {
	if t.calls > 0 {
		return
	}
	time.AfterFunc(cr.timeout, func() {
		cr.mu.Lock()
		defer cr.mu.Unlock()
		cr.abandon(t)
	})
}

// gathering returns how long calls still wait for others although a connection is free. Far from the
// server, a trip that starts as soon as it can carries few calls, and the next calls wait until it is
// back. Trips therefore start at intervals that are spread over the time of one trip.
func (cr *Carrier[C]) gathering(now time.Time) time.Duration {
	if cr.trips == 0 || cr.distance.is() < slack || cr.waiting() >= cr.tripSize() {
		return 0
	}
	return cr.usualTrip/time.Duration(cr.mostTrips()) - now.Sub(cr.began)
}

// later starts trips at that time, unless they start sooner.
func (cr *Carrier[C]) later(at time.Time) {
	if !cr.due.IsZero() && !at.Before(cr.due) {
		return
	}
	cr.due = at
	if cr.timer != nil {
		cr.timer.Reset(time.Until(at))
		return
	}
	cr.timer = time.AfterFunc(time.Until(at), func() {
		cr.mu.Lock()
		defer cr.mu.Unlock()
		cr.due = time.Time{}
		cr.start(time.Now())
	})
}

// fill adds waiting calls to t: up to a full trip of calls that go ahead, and as many of the others, so
// that neither kind waits long for the other. If still more go ahead, they take the room of the others too in every
// second trip, because a call for several limits makes room by a call for each of them. It leaves out calls that have less
// time left than a trip takes. If no trip is in progress, it leaves out only calls whose time is up, because the length
// of a trip may have changed. A trip that its callers have left counts as in progress while the server answers.
func (cr *Carrier[C]) fill(t *Trip[C]) {
	back := t.begun.Sub(cr.base)
	if cr.conns.busy > 0 || cr.late > 0 && cr.pulse.since(t.begun.Add(-cr.timeout)) {
		back += cr.quickTrip
	}
	cr.fillFrom(&cr.ahead, t, back)
	second := &cr.others
	if cr.skippedOthers = cr.ahead.living > 0 && (!cr.skippedOthers || cr.others.living == 0); cr.skippedOthers {
		second = &cr.ahead
	}
	cr.fillFrom(second, t, back)
}

// mostAhead is how many calls go ahead of each of the others at most: a whole trip, and half of the next.
const mostAhead = 3

// fillFrom adds batches of q to t, except for calls whose time is up when it is back.
func (cr *Carrier[C]) fillFrom(q *queue[C], t *Trip[C], back time.Duration) {
	for room, before := cr.tripSize(), t.calls; room > 0; room = cr.tripSize() - (t.calls - before) {
		if t.calls == before { // the first batch goes, however large it is
			room = math.MaxInt
		}
		bt := q.take(room)
		if bt == nil {
			return
		}
		for i := range bt.calls {
			c := &bt.calls[i]
			if !c.left && c.end < back {
				c.left, c.err = true, errQueued
				bt.living--
			}
			c.goes = !c.left
		}
		if bt.living == 0 { // the calls get their error when the batch's time is up
			continue
		}
		bt.trip = t
		t.list = append(t.list, bt)
		t.calls += bt.living
		t.batches++
		if end := bt.begun.Add(cr.timeout); end.After(t.end) {
			t.end = end
		}
	}
}

// run makes the trip t, and then those that follow.
func (cr *Carrier[C]) run(t *Trip[C]) {
	end := func(err error) {
		ended := time.Now()
		runtime.Gosched() // callers that come back immediately then go together again
		ending := t
		t = cr.finish(t, err, ended, time.Since(ended))
		for _, c := range ending.gone {
			cr.giveBack(c)
		}
	}
	defer func() {
		if t != nil { // Send has ended this goroutine
			end(errPanic)
			go cr.run(t)
		}
	}()
	for t != nil {
		end(cr.send(t))
	}
}

// finish ends t, and returns the trip that follows.
func (cr *Carrier[C]) finish(t *Trip[C], err error, now time.Time, delay time.Duration) *Trip[C] {
	good := cr.answered(err)
	if good {
		cr.pulse.beat()
	}
	cr.mu.Lock()
	defer cr.mu.Unlock()
	t.ended = true
	if t.left {
		cr.late--
	} else {
		cr.over(t.connected)
	}
	took := now.Sub(t.begun)
	switch {
	case good && t.connected && !t.twice:
		cr.learn(t, now, took, delay)
	case good && took < cr.distance.is(): // the trip was short, although it did more
		cr.distance.add(t.begun, now)
	}
	unused := err == errGivenUp //nolint:errorlint // just that
	if !good && !unused && !t.connected {
		cr.dialFailed(t, err, now)
	}
	cr.conns.release(good || unused, !good && t.connected && cr.lost(t.begun, err), now)
	next := cr.next(now)
	if next != nil && next.connected {
		cr.start(now)
	}
	return next
}

// abandon records that all callers have left t, which ends without them.
func (cr *Carrier[C]) abandon(t *Trip[C]) {
	if t.ended || t.left {
		return
	}
	t.left = true
	now := time.Now()
	if t.connected && cr.pauses.until(now)-t.paused < cr.timeout/2 { // or else this process had no time to read replies
		cr.window.lose(cr.tripsByDistance(), t.begun, now)
	}
	cr.late++
	cr.over(t.connected)
	if !t.connected && cr.conns.handshaking() {
		cr.conns.dials.reached()
	}
	cr.start(now)
}
