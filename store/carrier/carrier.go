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
	// mostConns is how many connections a carrier uses at the same time. A few connections are
	// soon made again when they break. The fewer there are, the more calls share a trip.
	mostConns = 16

	// A trip waits for the server for lasting, or for lastingTimes the timeout if that is longer,
	// because a handshake takes several round trips. Its callers have left long before that.
	lasting      = time.Second
	lastingTimes = 5

	// untilDial is the interval at which calls that may not dial yet look again.
	untilDial = 10 * time.Millisecond

	// leastDial is the time after which a dial may count as hanging.
	leastDial = 5 * time.Millisecond

	// mostAdmitted is the most calls that are admitted at the same time.
	mostAdmitted = 1 << 14

	// nearTrips is the most trips in progress near a server. There may be one more for each tripStep
	// of distance. If there are at most fewCalls calls, each may have a trip of its own.
	nearTrips = 2
	fewCalls  = 4
	tripStep  = 250 * time.Microsecond

	// slack is how much longer than the distance a trip may take before it counts as held up
	// by others.
	slack = 4 * time.Millisecond

	// Calls may join a batch until timeout/spread after its first call.
	spread = 32
)

// Config describes a server, and the client that a store uses for it, to a [Carrier].
type Config[C any] struct {
	// Timeout is how long a call may take, if its context has no nearer deadline. It must be positive.
	Timeout time.Duration

	// Conns is the size of the client's pool, at least 1. The carrier uses at most 16 connections at once.
	Conns int

	// DialTimeout is how long the client may take to make a connection. If dials hang, the carrier lets them take half of
	// Conns, and the rest one by one over this time, so that a server that takes the place of another can be reached. 0 means
	// that only the operating system ends a dial. The rest then follow one each second.
	DialTimeout time.Duration

	// Slack is how much longer than the shortest recent round trip one may take before the carrier takes the server for
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
	// charged. It may be nil. It must not block or panic.
	GiveBack func(call C)

	// Pool returns how many connections the client has: those in the pool that are free, and all. It may be nil. It must not
	// block or panic.
	Pool func() (idle, total int)

	// Jitter returns a random time, at least 0 and below most. By default, the carrier takes its own.
	Jitter func(most time.Duration) time.Duration

	// Dial makes a connection and closes it. The carrier calls it to find out why the client makes no connection: its error,
	// or its panic, is then in the errors of calls. It may be nil.
	Dial func(ctx context.Context) error
}

// Carrier sends the calls of a store to a server. It is made by [New] and safe for concurrent use. There is nothing to
// close: soon after the last call, it has no goroutine.
//
// While a connection is free, a call may go alone, on its caller's goroutine and in its caller's time. All other calls
// wait for a connection, and then go together in one round trip, a [Trip].
//
// A trip has a goroutine of its own, because clients close a connection when the time of its call is up, even in the
// middle of a handshake. With many callers, or far from the server, they would then do nothing but make connections.
// A trip therefore has its own time, in which connections are made and late replies arrive. Callers leave by their own timers.
type Carrier[C any] struct {
	admission

	config Config[C]
	base   time.Time
	read   sync.Pool // of each *batch that all callers have read

	mu            sync.Mutex // protects what is below
	conns         conns
	trips         int           // trips that callers wait for
	late          int           // trips that all callers have left, and that have not ended
	began         time.Time     // when the last trip that was not full began, or when one was last measured, if all calls go alone
	paused        time.Duration // the pauses of this process until began: see measure
	timer         *time.Timer   // starts trips when it is due
	due           time.Time     // when that is; zero if it is not set
	diagnosing    bool          // whether a dial finds out why no connection is made: see diagnose
	ahead         queue[C]      // the calls that wait, and go ahead because they make room for others
	others        queue[C]      // the other calls that wait
	skippedOthers bool          // whether the last trip was without others: see fill
	distance      distance
	usualTrip     time.Duration // how long a trip takes, about
	quickTrip     time.Duration // how long a short trip takes, about
	delay         time.Duration // until a goroutine of this process runs, about
	pauses        pauses
	window        window
}

// New returns a carrier. It does no I/O. It returns [store.ErrInvalidOption] if the timeout or the number of connections
// is not positive, or if Means, or both Send and Alone, are nil.
func New[C any](config Config[C]) (*Carrier[C], error) {
	switch {
	case config.Timeout <= 0:
		return nil, fmt.Errorf("%w: Config.Timeout is %v, want above 0", store.ErrInvalidOption, config.Timeout)
	case config.Conns < 1:
		return nil, fmt.Errorf("%w: Config.Conns is %d, want at least 1", store.ErrInvalidOption, config.Conns)
	case config.Send == nil && config.Alone == nil, config.Means == nil:
		return nil, fmt.Errorf("%w: Config has no Means, or neither Send nor Alone", store.ErrInvalidOption)
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
			pool: config.Pool, size: config.Conns, most: min(mostConns, config.Conns),
			reached: !config.OneFirst, dials: newDials(config.Conns, config.DialTimeout),
		},
		window: newWindow(),
	}
	cr.timeout, cr.pulse.base = config.Timeout, now
	cr.refusal.waves, cr.refusal.jitter = waves.New(config.Timeout), config.Jitter
	return cr, nil
}

// Admit admits a call, which then has to Leave, or returns the error of a call that could not be served in time. Callers
// that come back immediately are refused late, so that they leave the processor to others. Call it before the command is
// built, so that a refusal costs little.
func (cr *Carrier[C]) Admit(b *Budget) error {
	b.admission = &cr.admission // the call may have begun with another carrier
	if f := cr.admitOrHold(b, cr.takeProbe); f != nil {
		return b.fail(f)
	}
	return nil
}

// Do makes one attempt at an admitted call, and returns the call with its reply. If the server answered with an error, Do
// returns that error. All other errors are a [*Failure]: pass it to [Budget.Again], and at the end to [Budget.Fail]. Do
// panics if Send, Alone or Means does.
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
	Trips      int           // trips in progress that callers wait for
	Busy       int           // connections that these have
	Late       int           // trips in progress that all callers have left
	RoundTrip  time.Duration // the shortest recent round trip; 0 if it is not known
}

// Stats returns what the carrier knows now.
func (cr *Carrier[C]) Stats() Stats {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	return Stats{
		UnderWay:   cr.forecast.admitted.Load() + cr.forecast.ahead.Load(),
		Overloaded: cr.overloaded.Load(), TooShort: cr.tooShort.Load(),
		Waiting: cr.waiting(), Trips: cr.trips, Busy: cr.conns.busy, Late: cr.late, RoundTrip: time.Duration(cr.forecast.distance.Load()),
	}
}

// Idle reports whether no call has used the carrier for an hour.
func (cr *Carrier[C]) Idle() bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	return cr.forecast.admitted.Load()+cr.forecast.ahead.Load() == 0 && time.Since(cr.conns.used) > time.Hour && time.Since(cr.base) > time.Hour
}

func (cr *Carrier[C]) waiting() int { return cr.ahead.living + cr.others.living }

// Warmed tells the carrier that the store has made so many connections, and how long a round trip took.
func (cr *Carrier[C]) Warmed(conns int, took time.Duration) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	now := time.Now()
	cr.pulse.beat()
	cr.conns.reached = true
	cr.conns.ready, cr.conns.used = conns, now
	cr.usualTrip = took
	cr.distance.probed = now.Add(-took)
	cr.distance.add(cr.distance.probed, now)
	cr.distance.probed = now
	cr.count()
}

// takeProbe reports whether a call that has less time than a round trip takes is sent anyway, to see
// whether round trips are shorter now. If so, no other is for a while.
func (cr *Carrier[C]) takeProbe(now time.Time) bool {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if cr.trips > 0 || now.Sub(cr.distance.probed) < min(max(cr.timeout, cr.distance.is()), lately) {
		return false
	}
	cr.distance.probed = now
	return true
}

// count updates the forecast.
func (cr *Carrier[C]) count() {
	room, trip := cr.mostTrips()*cr.tripSize(), time.Duration(0)
	if cr.trips > 0 {
		trip = cr.quickTrip
	}
	cr.forecast.room.Store(int64(room))
	cr.forecast.perCall.Store(int64(cr.usualTrip) / int64(room))
	cr.forecast.tripTime.Store(int64(trip))
	cr.forecast.distance.Store(int64(cr.distance.is()))
}
