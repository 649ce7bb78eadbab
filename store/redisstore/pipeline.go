package redisstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// mostTrips is how many connections a store uses at once. A few connections are
	// soon made again when they break. The fewer there are, the more calls share a trip.
	mostTrips = 16

	// A trip waits for the server for lasting, or for a multiple of the time that a
	// call has, if that is longer: a handshake takes several round trips. Its callers
	// have left long before.
	lasting      = time.Second
	lastingTimes = 5

	// untilDial is the interval at which calls that may not dial yet look again.
	untilDial = 10 * time.Millisecond

	// leastDial is the time after which a dial may be taken for a hanging one.
	leastDial = 5 * time.Millisecond

	// longestLine is the most calls that are admitted at once.
	longestLine = 1 << 14

	// nearTrips is how many trips are under way at most near a server. For each tripStep of
	// distance there may be one more.
	nearTrips = 2
	tripStep  = 250 * time.Microsecond

	// slack is how much longer than the distance a trip may take before it counts as held up
	// by others.
	slack = 4 * time.Millisecond

	// spread is the part of the timeout in which calls may join a batch.
	spread = 32
)

// pipeline carries the calls of a *redis.Client. While a connection is free, a call goes
// alone, on its caller's goroutine and in its caller's time. All other calls are carried.
// They wait for a connection, and then go together in one round trip.
//
// They are carried by a trip, a goroutine with one connection. go-redis closes a
// connection when the time of its call is up, even in the middle of a handshake. Under
// many callers, or far from the server, it would then do nothing but make connections. So
// a trip has its own time, in which connections are made and late replies arrive.
// Callers leave by their own timers.
type pipeline struct {
	store   *Store
	client  *redis.Client // keeps to a context's deadline
	base    time.Time
	timeout time.Duration
	hooks   bool // client is the user's own

	expected expected
	refusals refusals
	waves    *waves
	read     sync.Pool // of *batch: those that all callers have read

	mu       sync.Mutex // protects what is below
	conns    conns
	trips    int             // that callers wait for
	late     int             // trips that all callers have left, and that have not ended
	clones   []*redis.Client // of client, not used by a trip now: see conn
	departs  time.Time       // when the last trip began that was not full
	timer    bool            // a timer is set that calls depart
	line     queue           // the calls that wait
	apart    time.Time       // until then each call has a script of its own
	distance distance
	length   time.Duration // of a trip, about
	quick    time.Duration // of a short trip, about
	delay    time.Duration // until a goroutine of this process runs, about
	window   window
}

var (
	errFar     = errors.New("a round trip takes longer than the call may")
	errQueued  = errors.New("no connection was free in time")
	errGivenUp = errors.New("another call had no time to wait for a connection")
	errApart   = errors.New("the call failed beside others")
	errPanic   = errors.New("a hook panicked")
)

// newPipeline returns the pipeline of client, which keeps to deadlines. client is the
// user's own with its hooks, or a clone.
func newPipeline(s *Store, client *redis.Client, hooks bool) *pipeline {
	size := poolSize(client)
	p := &pipeline{
		store: s, client: client, base: time.Now(), timeout: s.timeout, hooks: hooks, waves: newWaves(s.timeout),
		conns:  conns{client: client, size: size, most: min(mostTrips, size), reached: !hooks, dials: newDials(size, client.Options().DialTimeout)},
		window: window{calls: firstWindow},
	}
	p.refusals.waves = p.waves
	return p
}

// poolSize is how many connections c can have.
func poolSize(c *redis.Client) int {
	o := c.Options()
	if o.MaxActiveConns > 0 {
		return min(o.PoolSize, o.MaxActiveConns)
	}
	return o.PoolSize
}

// enter finds a way for a call. If it returns no batch, the call has a connection to
// itself. Otherwise it is carried, as call i of the batch.
func (p *pipeline) enter(b budget, c *call) (bt *batch, i int, now time.Time) {
	now = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lone(b, now) {
		if p.trips == 0 {
			p.distance.looked = now
		}
		p.begin(true)
		p.departs = now
		return nil, 0, now
	}
	if p.conns.expire(now) {
		p.store.link.pulse.ask()
	}
	if bt = p.line.last(now, p.batch(), p.timeout/spread); bt == nil {
		bt = p.open(now)
	}
	i = len(bt.calls)
	bt.calls = append(bt.calls, *c)
	bt.calls[i].ctx, bt.calls[i].end = b.Context, b.end.Sub(p.base)
	bt.living++
	p.line.living++
	p.start(now)
	return bt, i, now
}

// open returns a new batch, which is the last of the queue.
func (p *pipeline) open(now time.Time) *batch {
	bt, _ := p.read.Get().(*batch)
	if bt == nil {
		bt = new(batch)
		bt.timer = time.AfterFunc(p.timeout, func() { p.expire(bt) })
	} else {
		bt.timer.Reset(p.timeout)
	}
	bt.begun, bt.done = now, make(chan struct{})
	p.line.batches = append(p.line.batches, bt)
	return bt
}

// lone reports whether a call may go alone. Far from the server that could close a
// connection which others wait for.
func (p *pipeline) lone(b budget, now time.Time) bool {
	way := p.distance.is()
	return way > 0 && b.left > 2*max(way, p.length) && p.line.living == 0 && p.conns.ready > 0 && p.trips < p.most() &&
		now.Sub(p.conns.used) <= rested && p.gathering(now) <= 0
}

// ways is how many trips there may be. Near the server a call that goes with others is
// cheaper, and far from it one that waits for others is late.
func (p *pipeline) ways() int {
	if way := p.distance.is(); way > 0 {
		return min(p.conns.most, nearTrips+int(way/tripStep))
	}
	return p.conns.most
}

// most is how many trips callers wait for at most, and batch is how many calls are in each.
func (p *pipeline) most() int  { return p.window.trips(p.ways()) }
func (p *pipeline) batch() int { return p.window.batch(p.ways()) }

// begin notes a trip that begins. If none was under way, there was nothing to answer.
func (p *pipeline) begin(made bool) {
	if made && p.trips+p.late == 0 {
		p.store.link.pulse.ask()
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

// exit ends the trip of a call that went alone.
func (p *pipeline) exit(began time.Time, err error) {
	now, good := time.Now(), answeredBy(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over(true)
	if good {
		p.distance.add(began, now)
	}
	p.conns.settle(good, !good && p.lost(began, err), now)
	p.start(now)
}

// lost reports whether a trip that ended in err has perhaps lost all connections. A late
// reply beside others that came is no sign of that.
func (p *pipeline) lost(began time.Time, err error) bool {
	return !timedOut(err) || !p.store.link.pulse.since(began)
}

// start begins all trips that may begin.
func (p *pipeline) start(now time.Time) {
	for t := p.depart(now); t != nil; t = p.depart(now) {
		go p.travel(t)
		if !t.made {
			return // as many connections as calls come
		}
	}
}

// warmed notes how many connections there are, and what a round trip takes.
func (p *pipeline) warmed(conns int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.store.link.pulse.beat()
	p.conns.reached = true
	p.conns.ready, p.conns.used = conns, now
	p.length = took
	p.distance.looked = now.Add(-took)
	p.distance.add(p.distance.looked, now)
	p.distance.looked = now
	p.count()
}

// answeredBy reports whether err is a server's answer on a good connection.
func answeredBy(err error) bool { return err == nil || isAnswer(err) }

func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// wait returns how call i of bt, which is of key, ended, by b's end.
func (p *pipeline) wait(b budget, bt *batch, i int, key string) ([]int64, *fault) {
	err, sent := p.outcome(b, bt, i)
	if err == nil {
		c := &bt.calls[i] // which does not move any more
		if r := bt.trip.panicked; r != nil {
			panic(r)
		}
		values := c.values
		err, sent = c.err, bt.trip.sending.state.Load() == written
		if bt.unread.Add(-1) == 0 {
			bt.clear()
			p.read.Put(bt)
		}
		if err == nil {
			p.store.link.answered(key)
			return values, nil
		}
	}
	switch {
	case errors.Is(err, errQueued):
		p.refusals.full.Add(1)
		return nil, p.store.queued()
	case errors.Is(err, errApart):
		return nil, &fault{err: err}
	case errors.Is(err, errGivenUp):
		return nil, &fault{err: err, again: true}
	}
	return nil, p.store.failed(key, err, sent)
}

// outcome waits until call i of bt has ended, or its time is up. Without an error, the
// call knows how it ended.
func (p *pipeline) outcome(b budget, bt *batch, i int) (err error, sent bool) { //nolint:revive // sent is about err
	var end <-chan time.Time
	if before := bt.begun.Add(p.timeout).Sub(b.end); before > p.timeout/spread && (b.own || b.Done() == nil) {
		timer := time.NewTimer(time.Until(b.end)) // it has been tried before, or has no time of its own
		defer timer.Stop()
		end = timer.C
	} else if b.Done() == nil {
		<-bt.done
		return bt.err, bt.sent
	}
	select {
	case <-bt.done:
		return bt.err, bt.sent
	case <-b.Done():
	case <-end:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-bt.done:
		return bt.err, bt.sent
	default:
	}
	c := &bt.calls[i]
	if c.left {
		return errQueued, false
	}
	c.left = true
	if bt.trip == nil {
		p.line.lose(bt, 1)
		return errQueued, false
	}
	sent = bt.trip.leave()
	return p.timeUp(bt, sent), sent
}

// timeUp is the error of calls whose time is up while their trip is under way. If they were
// not sent although there is a connection, or a server that has answered lately, they waited
// for others, or for a processor.
func (p *pipeline) timeUp(bt *batch, sent bool) error {
	if !sent && (bt.trip.made || !p.store.silent()) {
		return errQueued
	}
	return context.DeadlineExceeded
}

// expire ends the calls of a batch whose time is up.
func (p *pipeline) expire(bt *batch) {
	if !bt.ended.CompareAndSwap(false, true) {
		return
	}
	defer close(bt.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	if bt.trip == nil {
		bt.err = errQueued
		if bt.living > 0 {
			p.line.lose(bt, bt.living)
		}
		p.count()
		return
	}
	bt.sent = bt.trip.leave()
	bt.err = p.timeUp(bt, bt.sent)
	if bt.trip.batches--; bt.trip.batches == 0 {
		p.abandon(bt.trip)
	}
}

// abandon ends t for the line: its callers have left.
func (p *pipeline) abandon(t *trip) {
	if t.ended || t.left {
		return
	}
	t.left = true
	p.late++
	p.over(t.made)
	if !t.made && p.conns.shaking() {
		p.conns.dials.reached()
	}
	p.start(time.Now())
}

// expected is what calls have to expect. It can be read without the lock, so that a refusal
// costs little.
type expected struct {
	inside atomic.Int64 // calls that have been admitted and not returned
	room   atomic.Int64 // of them, those that need not wait
	pace   atomic.Int64 // ns until the next one is served
	trip   atomic.Int64 // ns that a trip takes now
	way    atomic.Int64 // ns that the way takes
}

// refuses returns the fault of a call that cannot be served in time, when its caller may be
// told. Otherwise it has admitted the call.
func (p *pipeline) refuses(b *budget) *fault {
	e := &p.expected
	if b.left < time.Duration(e.way.Load()) && !p.looks(b) {
		p.refusals.far.Add(1)
		p.refusals.wait(b, b.end) // if the time is the caller's own, the error is that of the context
		return isFar
	}
	n := e.inside.Add(1)
	wait := time.Duration((n - e.room.Load()) * e.pace.Load())
	if n <= longestLine && wait <= p.timeout/4 && (b.own || wait <= 0 || wait+time.Duration(e.trip.Load()) <= b.left) {
		return nil
	}
	e.inside.Add(-1)
	p.refusals.full.Add(1)
	p.refusals.hold(b)
	return p.store.queued()
}

// looks reports whether a call that is too short for the way is sent all the same, to see
// whether the way is shorter now.
func (p *pipeline) looks(b *budget) bool {
	now := b.end.Add(-b.left)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trips > 0 || now.Sub(p.distance.looked) < max(p.timeout, p.distance.is()) {
		return false
	}
	p.distance.looked = now
	return true
}

// count notes what calls have to expect.
func (p *pipeline) count() {
	room, trip := p.most()*p.batch(), time.Duration(0)
	if p.trips > 0 {
		trip = p.quick
	}
	p.expected.room.Store(int64(room))
	p.expected.pace.Store(int64(p.length) / int64(room))
	p.expected.trip.Store(int64(trip))
	p.expected.way.Store(int64(p.distance.is()))
}

// depart returns the trip that is to begin now, with its calls, or nil. Call it after each
// arrival and each end.
//
// The first connection of a client with hooks is made alone: see [pipeline.conn].
func (p *pipeline) depart(now time.Time) *trip {
	defer p.count()
	most := p.most()
	if p.line.living == 0 || p.trips >= most || p.trips+p.late >= min(2*p.ways(), p.conns.size) || !p.conns.reached && p.trips+p.late > 0 {
		return nil
	}
	made := p.conns.ready > 0
	looks := made && p.line.living >= p.batch() && p.distance.due(now)
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
		if p.board(t); t.calls == 0 {
			return nil
		}
	}
	if t.calls < p.batch() {
		p.departs = now
	}
	p.begin(made)
	if !made {
		p.conns.dials.begin(now)
	}
	if t.calls == 0 {
		time.AfterFunc(p.timeout, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.abandon(t)
		})
	}
	return t
}

// gathering is how long calls still wait for others although a connection is free. Far
// from the server a trip that departs as soon as it can carries few, and those that come
// next wait until it is back. So the departures are spread over the time that one takes.
func (p *pipeline) gathering(now time.Time) time.Duration {
	if p.trips == 0 || p.length < p.timeout/8 || p.line.living >= p.batch() {
		return 0
	}
	return p.length/time.Duration(p.most()) - now.Sub(p.departs)
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

// board has batches go with t. It leaves calls out that have less time left than a trip
// takes. If no trip is under way, it leaves out only those whose time is up: the length
// of a trip may have changed.
func (p *pipeline) board(t *trip) {
	late := t.begun.Sub(p.base)
	if p.conns.busy > 0 {
		late += p.quick
	}
	for room := p.batch(); room > 0; room = p.batch() - t.calls {
		if t.calls == 0 {
			room = 1 << 20
		}
		bt := p.line.take(room)
		if bt == nil {
			return
		}
		for i := range bt.calls {
			c := &bt.calls[i]
			if !c.left && c.end < late {
				c.left, c.err = true, errQueued
				bt.living--
			}
			c.aboard = !c.left
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

// travel makes the trip t, and then those that follow.
func (p *pipeline) travel(t *trip) {
	for t != nil {
		err := p.send(t)
		landed := time.Now()
		runtime.Gosched() // callers that return at once then go together again
		t = p.land(t, err, landed, time.Since(landed))
	}
}

// land ends t, and returns the trip that follows.
func (p *pipeline) land(t *trip, err error, now time.Time, delay time.Duration) *trip {
	good := answeredBy(err)
	if good {
		p.store.link.pulse.beat()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.ended = true
	if t.left {
		p.late--
	} else {
		p.over(t.made)
	}
	took := now.Sub(t.begun)
	if good && t.made && !t.twice {
		p.learn(t, now, took, delay)
	}
	if hung := timeUp(err) && t.end.Sub(t.begun) > leastDial; !good && !t.made && !t.left && !hung {
		p.conns.dials.reached()
	}
	p.conns.settle(good, !good && t.made && p.lost(t.begun, err), now)
	next := p.depart(now)
	if next != nil && next.made {
		p.start(now)
	}
	return next
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
	if took < p.quick || p.quick == 0 {
		p.quick = (took + p.quick) / 2
	} else {
		p.quick += (took - p.quick) / 16
	}
	p.length = min(p.length+(took-p.length)/4, p.timeout-p.timeout/4)
	way := p.distance.is()
	may := way + max(min(p.timeout/8, slack), way/4) + 2*p.delay
	p.window.landed(t.calls, p.ways(), t.begun, now, may)
}
