package redisstore

import (
	"context"
	"math"
	"runtime"
	"time"
)

// ways is how many trips there may be. Near the server a call that goes with others is
// cheaper, and far from it one that waits for others is late.
func (p *pipeline) ways() int {
	if way := p.distance.is(); way > 0 {
		return min(p.conns.most, nearTrips+int(way/tripStep))
	}
	return p.conns.most
}

// most is how many trips callers wait for at most. A few calls take less time each by itself than in
// turns together.
func (p *pipeline) most() int {
	most := p.window.trips(p.ways())
	if n := p.expected.inside.Load(); n <= fewCalls {
		most = max(most, min(int(n), p.conns.most))
	}
	return most
}

// batch is how many calls are in each trip.
func (p *pipeline) batch() int { return p.window.batch(p.ways()) }

// begin notes a trip that begins. If none was under way, there was nothing to answer.
func (p *pipeline) begin(made bool) {
	if made && p.trips+p.late == 0 {
		p.pulse.ask()
	}
	p.trips++
	if made {
		p.conns.ready--
		p.conns.busy++
	}
}

// over notes that callers wait for one trip less.
func (p *pipeline) over(made bool) {
	p.trips--
	if made {
		p.conns.busy--
	}
}

// start begins all trips that may begin.
func (p *pipeline) start(now time.Time) {
	for t := p.next(now); t != nil; t = p.next(now) {
		go p.run(t)
		if !t.made {
			return // as many connections as calls come
		}
	}
}

// next returns the trip that is to begin now, with its calls, or nil. Call it after each
// arrival and each end.
//
// The first connection of a client with hooks is made alone: see [pipeline.conn].
func (p *pipeline) next(now time.Time) *trip {
	defer p.count()
	if p.waiting() == 0 || p.full() {
		return nil
	}
	made := p.conns.ready > 0
	looks := made && p.waiting() >= p.batch() && p.distance.due(now)
	if looks && p.trips > 0 {
		return nil
	}
	if d := p.gathering(now); made && d > 0 {
		p.later(d)
		return nil
	}
	if !made && !p.conns.mayDial(now) {
		p.later(untilDial) // there may be no arrival or end before
		return nil
	}
	t := &trip{made: made, begun: now, end: now.Add(p.timeout)}
	t.list = t.first[:0]
	if looks {
		p.distance.looked = now
	} else if made || p.conns.busy == 0 { // one that makes a connection would be late, and the others are soon back
		if p.fill(t); t.calls == 0 {
			return nil
		}
	}
	if t.calls < p.batch() {
		p.began = now
	}
	p.begin(made)
	if !made {
		p.conns.dials.begin(now)
	}
	p.watch(t)
	t.paused = p.pauses.until(now)
	p.watchPauses(now)
	return t
}

// full reports whether as many trips are under way as may be.
func (p *pipeline) full() bool {
	all := p.trips + p.late
	return p.trips >= p.most() || all >= min(2*p.ways(), p.conns.size) || !p.conns.reached && all > 0
}

// watchPauses sets the timer of pauses, if there is none.
func (p *pipeline) watchPauses(now time.Time) {
	if p.pauses.begin(now) {
		time.AfterFunc(tick, p.tick)
	}
}

// tick looks whether this process has stood still, while trips are under way.
func (p *pipeline) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pauses.until(now)
	if p.pauses.due = (time.Time{}); p.trips > 0 {
		p.watchPauses(now)
	}
}

// watch abandons a trip without calls, which have ends of their own, when its time is up.
func (p *pipeline) watch(t *trip) {
	if t.calls > 0 {
		return
	}
	time.AfterFunc(p.timeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.abandon(t)
	})
}

// gathering is how long calls still wait for others although a connection is free. Far
// from the server a trip that begins as soon as it can carries few, and those that come
// next wait until it is back. So their beginnings are spread over the time that one takes.
func (p *pipeline) gathering(now time.Time) time.Duration {
	if p.trips == 0 || p.distance.is() < slack || p.waiting() >= p.batch() {
		return 0
	}
	return p.length/time.Duration(p.most()) - now.Sub(p.began)
}

// later has trips begin in d.
func (p *pipeline) later(d time.Duration) {
	if p.timer {
		return
	}
	p.timer = true
	time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = false
		p.start(time.Now())
	})
}

// fill has batches go with t: as many of those that go ahead as are in a full trip, and as many of
// the others. So neither kind waits for long, whatever comes of the other. It leaves calls out that have
// less time left than a trip takes. If no trip is under way, it leaves out only those whose time is up:
// the length of a trip may have changed. One that its callers have left is under way while the server answers.
func (p *pipeline) fill(t *trip) {
	late := t.begun.Sub(p.base)
	if p.conns.busy > 0 || p.late > 0 && p.pulse.since(t.begun.Add(-p.timeout)) {
		late += p.quick
	}
	p.fillFrom(&p.ahead, t, late)
	p.fillFrom(&p.line, t, late)
}

// fillFrom has batches of q go with t, but for calls that end before late.
func (p *pipeline) fillFrom(q *queue, t *trip, late time.Duration) {
	for room, before := p.batch(), t.calls; room > 0; room = p.batch() - (t.calls - before) {
		if t.calls == before { // the first goes however large it is
			room = math.MaxInt
		}
		bt := q.take(room)
		if bt == nil {
			return
		}
		for i := range bt.calls {
			c := &bt.calls[i]
			if !c.left && c.end < late {
				c.left, c.err = true, errQueued
				bt.living--
			}
			c.goes = !c.left
		}
		if bt.living == 0 { // they are told when their time is up
			continue
		}
		bt.trip = t
		t.list = append(t.list, bt)
		t.calls += bt.living
		t.batches++
		if end := bt.begun.Add(p.timeout); end.After(t.end) {
			t.end = end
		}
	}
}

// run makes the trip t, and then those that follow.
func (p *pipeline) run(t *trip) {
	end := func(err error) {
		ended := time.Now()
		runtime.Gosched() // callers that return at once then go together again
		t = p.finish(t, err, ended, time.Since(ended))
	}
	defer func() {
		if t != nil { // a hook has ended this goroutine
			end(errPanic)
			go p.run(t)
		}
	}()
	for t != nil {
		end(p.send(t))
	}
}

// finish ends t, and returns the trip that follows.
func (p *pipeline) finish(t *trip, err error, now time.Time, delay time.Duration) *trip {
	good := answeredBy(err)
	if good {
		p.pulse.beat()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.ended = true
	for _, c := range t.gone {
		if c.goes && c.err == nil {
			p.store.giveBack(c, c.values)
		}
	}
	if t.left {
		p.late--
	} else {
		p.over(t.made)
	}
	took := now.Sub(t.begun)
	switch {
	case good && t.made && !t.twice:
		p.learn(t, now, took, delay)
	case good && took < p.distance.is(): // although it did more
		p.distance.add(t.begun, now)
	}
	if !good && !t.made {
		p.unmade(t, err, now)
	}
	p.conns.settle(good, !good && t.made && p.lost(t.begun, err), now)
	next := p.next(now)
	if next != nil && next.made {
		p.start(now)
	}
	return next
}

// unmade notes that t has made no connection.
func (p *pipeline) unmade(t *trip, err error, now time.Time) {
	if hung := timeUp(err) && t.end.Sub(t.begun) > leastDial; !t.left && !hung {
		p.conns.dials.reached()
	}
	p.conns.failed = now
	p.diagnose(err)
}

// learn learns from a trip.
func (p *pipeline) learn(t *trip, now time.Time, took, delay time.Duration) {
	p.delay += (delay - p.delay) / 8
	p.distance.add(t.begun, now)
	if t.calls == 0 {
		return
	}
	if p.length == 0 {
		p.length = took
	}
	switch {
	case t.left: // it waited for a server that stood still, or for calls that are not sent any more
	case took < p.quick || p.quick == 0:
		p.quick = (took + p.quick) / 2
	default:
		p.quick += (took - p.quick) / 16
	}
	p.length = min(p.length+(took-p.length)/4, p.timeout-p.timeout/4)
	way := p.distance.is()
	may := way + max(min(p.timeout/8, slack), way/4) + 2*p.delay
	may = max(may, min(may+p.pauses.until(now)-t.paused, p.timeout/2))
	p.window.learn(t.calls, p.ways(), t.begun, now, may)
}

// diagnose finds out why a trip that ended in err could make no connection. go-redis dials five times, for
// half a second, before it says so. So a call of the dialer's own asks, one at a time.
func (p *pipeline) diagnose(err error) {
	if p.pulse.undialed(err) || p.asking || !timeUp(err) {
		return
	}
	p.asking = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
		defer cancel()
		o := p.client.Options()
		conn, err := o.Dialer(ctx, o.Network, o.Addr)
		if err == nil {
			_ = conn.Close()
		} else {
			p.pulse.cause.Store(&err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
	}()
}

// abandon ends t for the line: its callers have left.
func (p *pipeline) abandon(t *trip) {
	if t.ended || t.left {
		return
	}
	t.left = true
	now := time.Now()
	if t.made && p.pauses.until(now)-t.paused < p.timeout/2 { // else this process had no time for the replies
		p.window.lose(p.ways(), t.begun, now)
	}
	p.late++
	p.over(t.made)
	if !t.made && p.conns.shaking() {
		p.conns.dials.reached()
	}
	p.start(now)
}
