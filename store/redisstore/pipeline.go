package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/waves"
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
	// distance there may be one more. Of up to fewCalls each has one of its own.
	nearTrips = 2
	fewCalls  = 4
	tripStep  = 250 * time.Microsecond

	// slack is how much longer than the distance a trip may take before it counts as held up
	// by others.
	slack = 4 * time.Millisecond

	// spread is the part of the timeout in which calls may join a batch.
	spread = 32
)

// pipeline carries the calls of a server. While a connection is free, a call goes
// alone, on its caller's goroutine and in its caller's time. All other calls are carried.
// They wait for a connection, and then go together in one round trip.
//
// They are carried by a trip, a goroutine with one connection. go-redis closes a
// connection when the time of its call is up, even in the middle of a handshake. Under
// many callers, or far from the server, it would then do nothing but make connections. So
// a trip has its own time, in which connections are made and late replies arrive.
// Callers leave by their own timers.
type pipeline struct {
	*server // whose client keeps to a context's deadline

	store *Store
	base  time.Time
	hooks bool // client is the user's own

	expected expected
	refusals refusals
	waves    *waves.Waves
	read     sync.Pool // of *batch: those that all callers have read

	mu       sync.Mutex // protects what is below
	conns    conns
	trips    int             // that callers wait for
	late     int             // trips that all callers have left, and that have not ended
	clones   []*redis.Client // of client, not used by a trip now: see conn
	began    time.Time       // when the last trip began that was not full
	timer    bool            // a timer is set for calls to go
	asking   bool            // why no connection is made: see diagnose
	ahead    queue           // the calls that wait, and give room to others
	line     queue           // the others
	apart    time.Time       // until then each call has a script of its own
	distance distance
	length   time.Duration // of a trip, about
	quick    time.Duration // of a short trip, about
	delay    time.Duration // until a goroutine of this process runs, about
	pauses   pauses
	window   window
}

var (
	errFar     = errors.New("a round trip takes longer than the call may")
	errQueued  = errors.New("no connection was free in time")
	errUnmade  = errors.New("no connection was made in time")
	errGivenUp = errors.New("another call had no time to wait for a connection")
	errApart   = errors.New("the call failed beside others")
	errPanic   = errors.New("a hook panicked")
	errExit    = errors.New("redisstore: a hook has ended its goroutine") // what callers panic with then
)

// newPipeline returns the pipeline of a server, whose client keeps to deadlines. The client is the
// user's own with its hooks, or a clone.
func newPipeline(s *Store, v *server, hooks bool) *pipeline {
	client := v.client
	size := poolSize(client)
	p := &pipeline{
		server: v, store: s, base: time.Now(), hooks: hooks, waves: waves.New(s.timeout),
		conns:  conns{client: client, size: size, most: min(mostTrips, size), reached: !hooks, dials: newDials(size, client.Options().DialTimeout)},
		window: newWindow(),
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
	if p.alone(b, now) {
		if p.trips == 0 {
			p.distance.looked = now
		}
		p.begin(true)
		p.began = now
		return nil, 0, now
	}
	if p.conns.expire(now) {
		p.pulse.ask()
	}
	line := &p.line
	if b.ahead {
		line = &p.ahead
	}
	if bt = line.last(now, p.batch(), p.timeout/spread); bt == nil {
		bt = p.open(line, now)
	}
	i = len(bt.calls)
	bt.calls = append(bt.calls, *c)
	bt.calls[i].ctx, bt.calls[i].end = b.Context, b.end.Sub(p.base)
	bt.living++
	line.living++
	p.start(now)
	return bt, i, now
}

// forgotten reports whether nobody has used the pipeline for so long that its server is no longer one
// of a client's.
func (p *pipeline) forgotten() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trips+p.late+p.waiting() == 0 && p.expected.inside.Load()+p.expected.ahead.Load() == 0 && time.Since(p.conns.used) > time.Hour && time.Since(p.base) > time.Hour
}

// waiting is how many calls wait.
func (p *pipeline) waiting() int { return p.ahead.living + p.line.living }

// open returns a new batch, which is the last of line.
func (p *pipeline) open(line *queue, now time.Time) *batch {
	bt, _ := p.read.Get().(*batch)
	if bt == nil {
		bt = new(batch)
	}
	bt.line, bt.begun, bt.done = line, now, make(chan struct{})
	if bt.timer == nil {
		bt.timer = time.AfterFunc(p.timeout, func() { p.expire(bt) })
	} else {
		bt.timer.Reset(p.timeout)
	}
	line.batches = append(line.batches, bt)
	return bt
}

// alone reports whether a call may go alone. Far from the server that could close a
// connection which others wait for. A caller's own deadline would do so, too, and what the call has
// charged could not be given back. (The store's own timeout leaves it charged in any case.)
func (p *pipeline) alone(b budget, now time.Time) bool {
	way := p.distance.is()
	return b.own && way > 0 && b.left > 2*max(way, p.length) && p.waiting() == 0 && p.conns.ready > 0 && p.trips < p.most() &&
		now.Sub(p.conns.used) <= rested && p.gathering(now) <= 0
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
	return !timedOut(err) || !p.pulse.since(began)
}

// warmed notes how many connections there are, and what a round trip takes.
func (p *pipeline) warmed(conns int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pulse.beat()
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
	left := err != nil && sent
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
			p.pulse.beat()
			p.store.link.answered(key)
			return values, nil
		}
	}
	switch {
	case errors.Is(err, errQueued):
		return nil, p.queued()
	case errors.Is(err, errApart):
		return nil, &fault{err: err}
	case errors.Is(err, errGivenUp):
		f := *p.queued()
		f.err, f.made, f.again = err, nil, true
		return nil, &f
	}
	f := p.store.failed(p.server, key, err, sent)
	if left {
		if f.sent, f.over = true, over(b); f.over != nil {
			p.forsake(bt, i)
		}
	}
	return nil, f
}

// forsake has what call i of bt charges given back: its caller has left since its context has ended.
func (p *pipeline) forsake(bt *batch, i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c := &bt.calls[i]; {
	case !bt.trip.ended:
		bt.trip.gone = append(bt.trip.gone, c)
	case c.goes && c.err == nil:
		p.store.giveBack(c, c.values)
	}
}

// outcome waits until call i of bt has ended, or its time is up. Without an error, the
// call knows how it ended.
func (p *pipeline) outcome(b budget, bt *batch, i int) (err error, sent bool) { //nolint:revive // sent is about err
	var end <-chan time.Time
	if before := bt.begun.Add(p.timeout).Sub(b.end); before > min(p.timeout/spread, waves.MostApart) && (b.own || b.Done() == nil) {
		timer := time.NewTimer(time.Until(b.end)) // it has been tried before, or has no time of its own
		defer timer.Stop()
		end = timer.C
	} else if b.Done() == nil {
		<-bt.done
		return bt.timeUp(i)
	}
	select {
	case <-bt.done:
		return bt.timeUp(i)
	case <-b.Done():
	case <-end:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-bt.done:
		return bt.timeUp(i)
	default:
	}
	c := &bt.calls[i]
	if c.left {
		return errQueued, false
	}
	c.left = true
	if bt.trip == nil {
		bt.lose(1)
		return p.waited(bt), false
	}
	sent = bt.trip.leave()
	return p.timeUp(bt, sent), sent
}

// timeUp is the error of calls whose time is up while their trip is under way. If they were
// not sent although there is a connection, or a server that has answered lately, they waited
// for others, or for a processor.
func (p *pipeline) timeUp(bt *batch, sent bool) error {
	if !sent && (bt.trip.made || !p.silent()) {
		return p.waited(bt)
	}
	return context.DeadlineExceeded
}

// waited is the error of calls of bt that were not sent: whether they have waited for a connection in
// use, or for one that could not be made meanwhile.
func (p *pipeline) waited(bt *batch) error {
	if p.conns.ready+p.conns.busy > 0 || taken(p.client) || p.conns.failed.Before(bt.begun) {
		return errQueued
	}
	return errUnmade
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
		bt.err = p.waited(bt)
		if bt.living > 0 {
			bt.lose(bt.living)
		}
		return
	}
	bt.sent = bt.trip.leave()
	bt.err = p.timeUp(bt, bt.sent)
	if bt.trip.batches--; bt.trip.batches == 0 {
		p.abandon(bt.trip)
	}
}
