package carrier

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	// mostTrips is how many connections a carrier uses at once. A few connections are
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

// Config describes a server, and the client that a store uses for it, to a [Carrier].
type Config[C any] struct {
	// Timeout is how long a call may take, if its context has no nearer deadline. It must be positive.
	Timeout time.Duration

	// Conns is the size of the client's pool, at least 1. The carrier uses at most 16 connections at once.
	Conns int

	// DialTimeout is how long the client may take to make a connection. If dials hang, the carrier lets them take half of
	// Conns, and the rest one by one over this time, so that a server that takes the place of another can be reached.
	DialTimeout time.Duration

	// Slack is how much longer than the shortest round trip of late one may take before the carrier takes the server for
	// overloaded. It is an eighth of Timeout at most. The default is 4 ms, for a server whose work takes microseconds. Set more if a
	// round trip waits for a disk or for locks.
	Slack time.Duration

	// OneFirst makes the first connection alone: no other is made until it has worked.
	OneFirst bool

	// Send makes the calls of a trip in one round trip on one connection. If the client has none, Send makes it.
	// Immediately before it writes the calls, it asks t.Writing().Begin(). If that is false, all callers have left, and
	// Send returns nil without writing. Otherwise it stores each reply in [Carried.Call] and calls [Carried.End]. Calls
	// that were not ended fail with the error that Send returns. Send returns nil if the connection works, and the
	// connection's error otherwise.
	//
	// A trip without calls only makes a connection or measures the round trip: Send asks the server for anything that it
	// answers quickly.
	//
	// Send waits for a connection until ctx is done, and for the server until the deadline of ctx, which is later. The
	// callers do not wait for it. If Send gave up sooner, the connection would have to be made again. For a client that
	// stops when its context is done, make another one of the deadline and context.WithoutCancel(ctx). If there is one
	// call, ctx has the values of its caller's context.
	//
	// Without Send, all calls go by Alone, and the carrier only refuses calls that could not be served in time.
	Send func(ctx context.Context, t *Trip[C]) error

	// Means returns what an error of Send or Alone means. The carrier itself recognizes dials that failed, by their
	// [net.OpError].
	Means func(err error) Meaning

	// Alone makes one call on a free connection, within its budget, on its caller's goroutine. It returns the call with
	// its reply, or an error and whether the call may have been sent. Without Alone, all calls go by Send.
	Alone func(b Budget, call C) (after C, sent bool, err error)

	// GiveBack gets each call that ran although its caller's context had ended, so that the store can give back what it
	// charged. It may be nil. It must not block.
	GiveBack func(call C)

	// Pool returns how many connections the client has: those in the pool that are free, and all. It may be nil. It must not
	// block.
	Pool func() (idle, total int)

	// Jitter returns a random time from 0 to most. By default, the carrier takes its own.
	Jitter func(most time.Duration) time.Duration

	// Dial makes a connection and closes it. The carrier calls it to find out why the client makes no connection. It may
	// be nil.
	Dial func(ctx context.Context) error
}

// Carrier sends the calls of a store to a server. It is made by [New] and safe for concurrent use. There is nothing to
// close: it has no goroutine while no call is under way.
//
// While a connection is free, a call may go alone, on its caller's goroutine and in its caller's time. All other calls
// wait for a connection, and then go together in one round trip, a [Trip].
//
// A trip has a goroutine of its own, because clients close a connection when the time of its call is up, even in the
// middle of a handshake. With many callers, or far from the server, they would then do nothing but make connections. So a
// trip has its own time, in which connections are made and late replies arrive. Callers leave by their own timers.
type Carrier[C any] struct {
	gate

	config Config[C]
	base   time.Time
	read   sync.Pool // of *batch: those that all callers have read

	mu       sync.Mutex // protects what is below
	conns    conns
	trips    int           // that callers wait for
	late     int           // trips that all callers have left, and that have not ended
	began    time.Time     // when the last trip began that was not full; or was last measured, if all go alone
	paused   time.Duration // of this process, until then: see measure
	timer    bool          // a timer is set for calls to go
	asking   bool          // why no connection is made: see diagnose
	ahead    queue[C]      // the calls that wait, and give room to others
	line     queue[C]      // the others
	distance distance
	length   time.Duration // of a trip, about
	quick    time.Duration // of a short trip, about
	delay    time.Duration // until a goroutine of this process runs, about
	pauses   pauses
	window   window
}

// New returns a carrier. It does no I/O. It returns [store.ErrInvalidOption] if the timeout or the number of connections
// is not positive, or if Means, or both Send and Alone, are nil.
func New[C any](config Config[C]) (*Carrier[C], error) {
	switch {
	case config.Timeout <= 0:
		return nil, fmt.Errorf("%w: the timeout %v of a carrier is not positive", store.ErrInvalidOption, config.Timeout)
	case config.Conns < 1:
		return nil, fmt.Errorf("%w: a carrier has %d connections, want at least 1", store.ErrInvalidOption, config.Conns)
	case config.Send == nil && config.Alone == nil, config.Means == nil:
		return nil, fmt.Errorf("%w: a carrier needs Means, and Send or Alone", store.ErrInvalidOption)
	}
	if config.Slack <= 0 {
		config.Slack = slack
	}
	if config.GiveBack == nil {
		config.GiveBack = func(C) {}
	}
	if config.Pool == nil {
		config.Pool = func() (idle, total int) { return 0, 0 }
	}
	if config.Dial == nil {
		config.Dial = func(context.Context) error { return nil }
	}
	if config.Jitter == nil {
		config.Jitter = rand.N[time.Duration]
	}
	now := time.Now()
	cr := &Carrier[C]{
		config: config, base: now,
		conns: conns{
			pool: config.Pool, size: config.Conns, most: min(mostTrips, config.Conns),
			reached: !config.OneFirst, dials: newDials(config.Conns, config.DialTimeout),
		},
		window: newWindow(),
	}
	cr.timeout, cr.pulse.base = config.Timeout, now
	cr.refusals.waves, cr.refusals.jitter = waves.New(config.Timeout), config.Jitter
	return cr, nil
}

// Admit admits a call, which then has to Leave, or returns the error of a call that could not be served in time. Callers
// that come back immediately are refused late, so that they leave the processor to others. Call it before the command is
// built, so that a refusal costs little.
func (cr *Carrier[C]) Admit(b *Budget) error {
	b.gate = &cr.gate // which may not be the one that it began with
	if f := cr.refuses(b, cr.looks); f != nil {
		return b.fail(f)
	}
	return nil
}

// Do makes one attempt at an admitted call, and returns the call with its reply. If the server answered with an error, Do
// returns that error. All other errors are a [*Failure]: pass it to [Budget.Again], and at the end to [Budget.Fail]. Do
// panics if Send or Alone does.
//
// A call may be tried by several carriers, if it turns out to belong to another server. It leaves the one that admitted it.
func (cr *Carrier[C]) Do(b Budget, call C) (C, error) {
	bt, i, began := cr.enter(b, call)
	if bt == nil {
		return cr.goAlone(b, call, began)
	}
	after, err := cr.wait(b, bt, i)
	if err != nil {
		return call, err
	}
	return after, nil
}

// Stats is what a carrier knows of its calls. Overloaded and TooShort only grow.
type Stats struct {
	UnderWay   int64         // calls that were admitted and have not left
	Overloaded int64         // calls that ended with [store.ErrOverloaded], and were not sent
	TooShort   int64         // calls that had less time than a round trip, and were not sent
	Waiting    int           // calls that wait for a trip
	Trips      int           // trips under way that callers wait for
	Busy       int           // connections that these have
	Late       int           // trips under way that all callers have left
	RoundTrip  time.Duration // the shortest of late; 0: not known
}

// Stats returns what the carrier knows now.
func (cr *Carrier[C]) Stats() Stats {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	return Stats{
		UnderWay:   cr.expected.inside.Load() + cr.expected.ahead.Load(),
		Overloaded: cr.overloaded.Load(), TooShort: cr.tooShort.Load(),
		Waiting: cr.waiting(), Trips: cr.trips, Busy: cr.conns.busy, Late: cr.late, RoundTrip: time.Duration(cr.expected.way.Load()),
	}
}

// enter finds a way for a call. If it returns no batch, the call has a connection to
// itself. Otherwise it is carried, as call i of the batch.
func (cr *Carrier[C]) enter(b Budget, call C) (bt *batch[C], i int, now time.Time) {
	now = time.Now()
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if cr.config.Send == nil || cr.alone(b, now) {
		if cr.trips == 0 {
			cr.distance.looked = now
		}
		cr.begin(true)
		if cr.config.Send != nil {
			cr.began = now
		} else {
			cr.watchPauses(now)
		}
		return nil, 0, now
	}
	if cr.conns.expire(now) {
		cr.pulse.ask()
	}
	line := &cr.line
	if b.Ahead {
		line = &cr.ahead
	}
	if bt = line.last(now, cr.batch(), cr.timeout/spread); bt == nil {
		bt = cr.open(line, now)
	}
	i = len(bt.calls)
	bt.calls = append(bt.calls, Carried[C]{Call: call, ctx: b.Context, end: b.End.Sub(cr.base)})
	bt.living++
	line.living++
	cr.start(now)
	return bt, i, now
}

// Idle reports whether no call has used the carrier for an hour.
func (cr *Carrier[C]) Idle() bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	return cr.trips+cr.late+cr.waiting() == 0 && cr.expected.inside.Load()+cr.expected.ahead.Load() == 0 && time.Since(cr.conns.used) > time.Hour && time.Since(cr.base) > time.Hour
}

// waiting is how many calls wait.
func (cr *Carrier[C]) waiting() int { return cr.ahead.living + cr.line.living }

// open returns a new batch, which is the last of line.
func (cr *Carrier[C]) open(line *queue[C], now time.Time) *batch[C] {
	bt, _ := cr.read.Get().(*batch[C])
	if bt == nil {
		bt = new(batch[C])
	}
	bt.line, bt.begun, bt.done = line, now, make(chan struct{})
	if bt.timer == nil {
		bt.timer = time.AfterFunc(cr.timeout, func() { cr.expire(bt) })
	} else {
		bt.timer.Reset(cr.timeout)
	}
	line.batches = append(line.batches, bt)
	return bt
}

// alone reports whether a call may go alone. Far from the server that could close a
// connection which others wait for. A caller's own deadline would do so, too, and what the call has
// charged could not be given back. (The store's own timeout leaves it charged in any case.)
func (cr *Carrier[C]) alone(b Budget, now time.Time) bool {
	way := cr.distance.is()
	return cr.config.Alone != nil && b.Own && way > 0 && b.Left > 2*max(way, cr.length) && cr.waiting() == 0 && cr.conns.ready > 0 && cr.trips < cr.most() &&
		now.Sub(cr.conns.used) <= rested && cr.gathering(now) <= 0
}

// exit ends the trip of a call that went alone.
func (cr *Carrier[C]) exit(began time.Time, err error) {
	now, good := time.Now(), cr.answered(err)
	cr.mu.Lock()
	defer cr.mu.Unlock()
	cr.over(true)
	if good {
		cr.distance.add(began, now)
	}
	cr.conns.settle(good, !good && cr.lost(began, err), now)
	cr.start(now)
}

// lost reports whether a trip that ended in err has perhaps lost all connections. A late
// reply beside others that came is no sign of that.
func (cr *Carrier[C]) lost(began time.Time, err error) bool {
	return !timedOut(err) || !cr.pulse.since(began)
}

// Warmed tells the carrier that the store has made so many connections, and how long a round trip took.
func (cr *Carrier[C]) Warmed(conns int, took time.Duration) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	now := time.Now()
	cr.pulse.beat()
	cr.conns.reached = true
	cr.conns.ready, cr.conns.used = conns, now
	cr.length = took
	cr.distance.looked = now.Add(-took)
	cr.distance.add(cr.distance.looked, now)
	cr.distance.looked = now
	cr.count()
}

// goAlone makes a call that has a connection to itself.
func (cr *Carrier[C]) goAlone(b Budget, call C, began time.Time) (C, error) {
	err := errPanic
	defer func() {
		cr.measure(began, err, b.Own)
		cr.exit(began, err)
	}()
	after, sent, err2 := cr.config.Alone(b, call)
	if err = err2; err == nil {
		cr.pulse.beat()
		return after, nil
	}
	failed := cr.Explain(err, sent)
	if f, ok := failed.(*Failure); ok && sent { //nolint:errorlint // just made
		if f.sent, f.over = true, b.Over(); f.over != nil {
			cr.config.GiveBack(after)
		}
	}
	return call, failed
}

// wait returns how call i of bt ended, by b's end.
func (cr *Carrier[C]) wait(b Budget, bt *batch[C], i int) (call C, _ error) {
	err, sent := cr.outcome(b, bt, i)
	left := err != nil && sent
	if err == nil {
		c := &bt.calls[i] // which does not move any more
		if r := bt.trip.panicked; r != nil {
			panic(r)
		}
		call, err, sent = c.Call, c.err, bt.trip.state.state.Load() == written
		if bt.unread.Add(-1) == 0 {
			bt.clear()
			cr.read.Put(bt)
		}
		if err == nil {
			cr.pulse.beat()
			return call, nil
		}
	}
	switch err {
	case errQueued: //nolint:errorlint // one that is wrapped is another carrier's
		return call, cr.queued()
	case errGivenUp:
		f := *cr.queued()
		f.Err, f.Again = err, true
		return call, &f
	}
	failed := cr.Explain(err, sent)
	if f, ok := failed.(*Failure); ok && left { //nolint:errorlint // just made
		if f.sent, f.over = true, b.Over(); f.over != nil {
			cr.forsake(bt, i)
		}
	}
	return call, failed
}

// forsake has what call i of bt charges given back: its caller has left since its context has ended.
func (cr *Carrier[C]) forsake(bt *batch[C], i int) {
	cr.mu.Lock()
	c, ended := &bt.calls[i], bt.trip.ended
	if !ended {
		bt.trip.gone = append(bt.trip.gone, c)
	}
	cr.mu.Unlock()
	if ended {
		cr.giveBack(c)
	}
}

// giveBack has what c charged given back, after its trip.
func (cr *Carrier[C]) giveBack(c *Carried[C]) {
	if c.goes && c.err == nil {
		cr.config.GiveBack(c.Call)
	}
}

// outcome waits until call i of bt has ended, or its time is up. Without an error, the
// call knows how it ended.
func (cr *Carrier[C]) outcome(b Budget, bt *batch[C], i int) (err error, sent bool) { //nolint:revive // sent is about err
	var end <-chan time.Time
	if before := bt.begun.Add(cr.timeout).Sub(b.End); before > min(cr.timeout/spread, waves.MostApart) && (b.Own || b.Done() == nil) {
		timer := time.NewTimer(time.Until(b.End)) // it has been tried before, or has no time of its own
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
	cr.mu.Lock()
	defer cr.mu.Unlock()
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
		return cr.waited(bt), false
	}
	sent = bt.trip.leave()
	return cr.timeUp(bt, sent), sent
}

// timeUp is the error of calls whose time is up while their trip is under way. If they were
// not sent although there is a connection, or a server that has answered lately, they waited
// for others, or for a processor.
func (cr *Carrier[C]) timeUp(bt *batch[C], sent bool) error {
	if !sent && (bt.trip.made || !cr.silent()) {
		return cr.waited(bt)
	}
	return context.DeadlineExceeded
}

// waited is the error of calls of bt that were not sent: whether they have waited for a connection in
// use, or for one that could not be made meanwhile.
func (cr *Carrier[C]) waited(bt *batch[C]) error {
	if cr.conns.ready+cr.conns.busy > 0 || cr.conns.taken() || cr.conns.failed.Before(bt.begun) {
		return errQueued
	}
	return errUnmade
}

// expire ends the calls of a batch whose time is up.
func (cr *Carrier[C]) expire(bt *batch[C]) {
	if !bt.ended.CompareAndSwap(false, true) {
		return
	}
	defer close(bt.done)
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if bt.trip == nil {
		bt.err = cr.waited(bt)
		if bt.living > 0 {
			bt.lose(bt.living)
		}
		return
	}
	bt.sent = bt.trip.leave()
	bt.err = cr.timeUp(bt, bt.sent)
	if bt.trip.batches--; bt.trip.batches == 0 {
		cr.abandon(bt.trip)
	}
}

// looks reports whether a call that is too short for the way is sent all the same, to see
// whether the way is shorter now.
func (cr *Carrier[C]) looks(now time.Time) bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if cr.trips > 0 || now.Sub(cr.distance.looked) < min(max(cr.timeout, cr.distance.is()), lately) {
		return false
	}
	cr.distance.looked = now
	return true
}

// count notes what calls have to expect.
func (cr *Carrier[C]) count() {
	room, trip := cr.most()*cr.batch(), time.Duration(0)
	if cr.trips > 0 {
		trip = cr.quick
	}
	cr.expected.room.Store(int64(room))
	cr.expected.pace.Store(int64(cr.length) / int64(room))
	cr.expected.trip.Store(int64(trip))
	cr.expected.way.Store(int64(cr.distance.is()))
}
