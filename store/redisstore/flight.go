package redisstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// mostFlights is how many connections a store uses at once. A few connections are
	// soon made again when they break. The fewer there are, the more calls share a trip.
	mostFlights = 16

	// mostTogether is the most calls of a flight. With 64 the server does nothing else
	// for about 0.5 ms.
	mostTogether = 64

	// A flight waits for the server for lasting, or for a multiple of the time that a
	// call has, if that is longer: a handshake takes several round trips. Its callers
	// have left long before.
	lasting      = time.Second
	lastingTimes = 10

	// crowded is the time after a call had to wait in which no call closes a connection
	// because of a late reply: others wait for it.
	crowded = time.Second

	// untilDial is the interval at which calls that may not dial yet look again.
	untilDial = 10 * time.Millisecond

	// leastDial is the time after which a dial may be taken for a hanging one.
	leastDial = 5 * time.Millisecond

	// rested is the time after which unused connections are no longer relied on.
	rested = time.Minute
)

// airline carries the calls of a *redis.Client. While a connection is free, a call goes
// alone, on its caller's goroutine and in its caller's time. All other calls are carried.
// They wait for a connection, and then go together in one round trip; each is its own
// EVALSHA with its own reply.
//
// They are carried by a flight, a goroutine with one connection. go-redis closes a
// connection when the time of its call is up, even in the middle of a handshake. Under
// many callers, or far from the server, it would then do nothing but make connections. So
// a flight has its own time, in which connections are made and late replies arrive.
// Callers leave by their own timers.
type airline struct {
	client  *redis.Client // keeps to a context's deadline
	alone   process
	timeout time.Duration
	most    int  // the most flights that callers wait for
	all     int  // the most flights, including those that all callers have left
	size    int  // of the pool
	hooks   bool // client is the user's own

	mu      sync.Mutex      // protects what is below
	flights int             // that callers wait for
	made    int             // of these, those whose connection has worked before
	left    int             // flights that all callers have left, and that have not ended
	reached bool            // a connection has worked before, or it does not matter
	clones  []*redis.Client // of client, not used by a flight now: see conn
	ready   int             // free connections that worked when they were last used
	used    time.Time       // when one was last used, about
	crowd   time.Time       // until then all calls are carried
	trip    time.Duration   // the length of a flight, about
	departs time.Time       // when the last flight began that was not full
	timer   bool            // a timer is set that calls depart
	waiting []*passenger    // in the order of arrival
	gone    int             // those of waiting that have left
	dials   dials
}

// passenger is a call that is carried. Whichever side sets claimed first has it: the
// caller who leaves, or the flight that boards.
type passenger struct {
	budget
	cmd      redis.Cmder
	claimed  atomic.Bool
	done     chan struct{} // closed when err and panicked are set
	err      error
	panicked any // the value that a hook panicked with
}

// flight is several calls on one connection. It makes the connection if there is none.
// Without calls, it does only that.
type flight struct {
	calls []*passenger
	end   time.Time // of the last of them
	made  bool      // it has taken one of the ready connections
	left  bool      // all callers have left; protected by airline.mu, as is
	ended bool
}

var (
	errQueued = errors.New("the call waited for others to end")
	errPanic  = errors.New("a hook panicked")
)

// newAirline returns the airline of client, which keeps to deadlines. client is the
// user's own with its hooks, or a clone.
func newAirline(client *redis.Client, timeout time.Duration, hooks bool) *airline {
	size := poolSize(client)
	return &airline{
		client: client, alone: direct(client, timeout), timeout: timeout,
		most: min(mostFlights, size), all: min(2*mostFlights, size), size: size,
		hooks: hooks, reached: !hooks,
		dials: newDials(size, client.Options().DialTimeout),
	}
}

// poolSize is how many connections c can have.
func poolSize(c *redis.Client) int {
	o := c.Options()
	if o.MaxActiveConns > 0 {
		return min(o.PoolSize, o.MaxActiveConns)
	}
	return o.PoolSize
}

// process is the [process] of the client.
func (a *airline) process(b budget, cmd redis.Cmder, sent *sending) error {
	if !a.begin(b) {
		return a.carry(b, cmd)
	}
	err := errPanic
	defer func() {
		if f := a.end(b, err); f != nil {
			go a.fly(f)
		}
	}()
	err = a.alone(b, cmd, sent)
	return err
}

// begin reports whether a call has a connection to itself.
func (a *airline) begin(b budget) bool {
	now := b.end.Add(-a.timeout) // or earlier, if the deadline is the caller's
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ready == 0 || a.flights >= a.most || a.crowd.After(now) || now.Sub(a.used) > rested || a.gathering(now) > 0 {
		return false
	}
	a.departs = now
	a.ready--
	a.made++
	a.flights++
	return true
}

// end ends the flight of a call that went alone.
func (a *airline) end(b budget, err error) *flight {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over(true)
	a.settle(answeredBy(err), true, b.end.Add(-a.timeout))
	return a.depart()
}

// warmed notes how many connections there are, and what a round trip takes.
func (a *airline) warmed(conns int, trip time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reached = true
	a.ready, a.used, a.trip = conns, time.Now(), a.takenFor(trip)
}

// answeredBy reports whether err is a server's answer on a good connection.
func answeredBy(err error) bool { return err == nil || isAnswer(err) }

func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// over notes that callers wait for one flight less. Call it with the lock held.
func (a *airline) over(made bool) {
	a.flights--
	if made {
		a.made--
	}
}

// takenFor caps the estimate of a flight's length. The last quarter of the timeout is
// left out, so that some calls always have the time.
func (a *airline) takenFor(trip time.Duration) time.Duration {
	return min(trip, a.timeout-a.timeout/4)
}

// settle notes how the use of a connection ended. Call it with the lock held.
func (a *airline) settle(good, made bool, now time.Time) {
	switch {
	case good:
		a.reached = true
		a.ready++
		a.used = now
		a.dials.worked()
	case made: // whatever closed it may have closed all of them
		a.ready = 0
	}
}

// carry makes the call by a flight, and returns by b's end.
func (a *airline) carry(b budget, cmd redis.Cmder) error {
	p := &passenger{budget: b, cmd: cmd, done: make(chan struct{})}
	f, err := a.join(p)
	if err != nil {
		return err
	}
	if f != nil {
		go a.fly(f)
	}
	timer := time.NewTimer(time.Until(b.end))
	defer timer.Stop()
	select {
	case <-p.done:
		return p.answer()
	case <-b.Done():
	case <-timer.C:
	}
	if p.claimed.CompareAndSwap(false, true) {
		a.leave()
		return errQueued
	}
	select {
	case <-p.done:
		return p.answer()
	default:
		return context.DeadlineExceeded
	}
}

func (p *passenger) answer() error {
	if p.panicked != nil {
		panic(p.panicked)
	}
	return p.err
}

// join puts p into the line. If that makes a flight necessary, it returns the flight. It
// refuses p at once if so many wait that p would not be answered in time.
func (a *airline) join(p *passenger) (*flight, error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.used) > rested {
		a.ready = 0
	}
	if a.flights >= a.most {
		a.crowd = now.Add(crowded)
		trips := 1 + (len(a.waiting)-a.gone)/(a.most*mostTogether)
		if !p.loads && now.Add(time.Duration(trips)*a.trip).After(p.end) {
			return nil, errQueued
		}
	}
	a.waiting = append(a.waiting, p)
	return a.depart(), nil
}

// leave notes that a call has left the line. Now and then it removes those that have
// left, because the line would only grow while no flight departs.
func (a *airline) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone++; a.gone > mostTogether && a.gone > len(a.waiting)/2 {
		a.waiting = slices.DeleteFunc(a.waiting, func(p *passenger) bool { return p.claimed.Load() })
		a.gone = 0
	}
}

// depart returns the flight that is to begin now, with its calls, or nil. Call it with
// the lock held, after each arrival and each end.
//
// The first connection of a client with hooks is made alone: see [airline.conn].
func (a *airline) depart() *flight {
	if len(a.waiting) == 0 || a.flights >= a.most || a.flights+a.left >= a.all || !a.reached && a.flights+a.left > 0 {
		return nil
	}
	now := time.Now()
	f := &flight{made: a.ready > 0}
	if d := a.gathering(now); f.made && d > 0 {
		a.later(d)
		return nil
	}
	if !f.made && !a.mayDial(now) {
		a.later(untilDial) // there may be no arrival or end before
		return nil
	}
	if most := f.takes(a); most > 0 {
		if f.calls = a.board(most); len(f.calls) == 0 {
			return nil
		}
	}
	f.end = now.Add(a.timeout)
	if f.calls != nil {
		f.end = latestEnd(f.calls)
	}
	if len(f.calls) < mostTogether {
		a.departs = now
	}
	a.flights++
	if f.made {
		a.ready--
		a.made++
	} else {
		a.dials.begin(now)
	}
	return f
}

// takes is how many calls f can carry. A flight that makes a connection takes none while
// others fly: it would be late, and the others are soon back. Otherwise it takes one,
// which is as fast as a call alone.
func (f *flight) takes(a *airline) int {
	switch {
	case f.made:
		return mostTogether
	case a.made > 0:
		return 0
	}
	return 1
}

// mayDial reports whether a flight may begin without a ready connection. A dial may have
// ended since. Nor does a dial hang in a place of the pool that holds a connection: there
// it was slow because others used all connections. Call it with the lock held.
func (a *airline) mayDial(now time.Time) bool {
	if a.dials.may(now) {
		return true
	}
	s := a.client.PoolStats()
	return s.IdleConns > 0 || a.size-int(s.TotalConns) < a.dials.free
}

// gathering is how long to wait for more passengers. If a flight takes a large part of
// the time that calls have, a call that waits for one to land would be late. So flights
// do not depart one by one until all have gone. They are spread over the time that one
// takes. Call it with the lock held.
func (a *airline) gathering(now time.Time) time.Duration {
	if a.flights == 0 || a.trip < a.timeout/8 || len(a.waiting) >= mostTogether {
		return 0
	}
	return a.trip/time.Duration(a.most) - now.Sub(a.departs)
}

// later calls depart in d. Call it with the lock held.
func (a *airline) later(d time.Duration) {
	if a.timer {
		return
	}
	a.timer = true
	time.AfterFunc(d, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.timer = false
		if f := a.depart(); f != nil {
			go a.fly(f)
		}
	})
}

// board removes from the line the passengers of a flight, at most most. It skips those
// that have left. It refuses those that have less time left than a flight takes, to have
// room for the others. If no flight is under way, it refuses only those whose time is up:
// the length of a flight may have changed.
func (a *airline) board(most int) []*passenger {
	var calls []*passenger
	seen, late := 0, time.Now()
	if a.made > 0 {
		late = late.Add(a.trip)
	}
	for _, p := range a.waiting {
		if len(calls) == most {
			break
		}
		seen++
		if !p.claimed.CompareAndSwap(false, true) {
			a.gone = max(0, a.gone-1) // or leave is about to count it
			continue
		}
		if p.end.Before(late) && !p.loads {
			p.err = errQueued
			close(p.done)
			continue
		}
		calls = append(calls, p)
	}
	clear(a.waiting[:seen])
	if a.waiting = a.waiting[seen:]; len(a.waiting) == 0 {
		a.waiting, a.gone = nil, 0
	}
	return calls
}

func latestEnd(calls []*passenger) time.Time {
	end := calls[0].end
	for _, p := range calls[1:] {
		if p.end.After(end) {
			end = p.end
		}
	}
	return end
}

// fly makes the calls of f, and then those of the flights that follow.
func (a *airline) fly(f *flight) {
	for f != nil {
		f = a.flyOnce(f)
	}
}

func (a *airline) flyOnce(f *flight) (next *flight) {
	begun := time.Now()
	late := time.AfterFunc(f.end.Sub(begun), func() { a.abandon(f) })
	err := a.send(f, begun)
	late.Stop()
	runtime.Gosched() // callers that return at once then go together again
	return a.land(f, err, begun)
}

// abandon ends f for the line: its callers have left.
func (a *airline) abandon(f *flight) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.ended {
		return
	}
	f.left = true
	a.left++
	a.over(f.made)
	if !f.made && int(a.client.PoolStats().TotalConns) > a.ready+a.made { // a handshake is under way
		a.dials.reached()
	}
	if next := a.depart(); next != nil {
		go a.fly(next)
	}
}

// land ends f, and returns the flight that follows.
func (a *airline) land(f *flight, err error, begun time.Time) *flight {
	now, good := time.Now(), answeredBy(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	f.ended = true
	if f.left {
		a.left--
	} else {
		a.over(f.made)
	}
	if took := now.Sub(begun); good && f.made {
		if a.trip > 0 {
			took = a.trip + (took-a.trip)/4
		}
		a.trip = a.takenFor(took)
	}
	if hung := timeUp(err) && f.end.Sub(begun) > leastDial; !good && !f.made && !f.left && !hung {
		a.dials.reached()
	}
	a.settle(good, f.made, now)
	return a.depart()
}

// conn returns a connection to send several calls over, and a function that ends its use.
// A pipeline of the client itself would have a pool of its own. In a first handshake
// go-redis (9.23) changes settings that a client shares with its Conns, without a common
// lock. So each Conn belongs to a clone that nothing else uses. A client with hooks has
// no such clones.
func (a *airline) conn() (conn *redis.Conn, end func()) {
	if a.hooks {
		conn = a.client.Conn()
		return conn, func() { _ = conn.Close() }
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var clone *redis.Client
	if n := len(a.clones); n > 0 {
		clone, a.clones = a.clones[n-1], a.clones[:n-1]
	} else {
		clone = a.client.WithTimeout(a.client.Options().ReadTimeout)
	}
	conn = clone.Conn()
	return conn, func() {
		_ = conn.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.clones = append(a.clones, clone) // there are no more clones than flights
	}
}

// send makes the calls of f. It returns the error of the connection, or the server's last
// answer.
func (a *airline) send(f *flight, now time.Time) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errPanic
			for _, c := range f.calls {
				c.panicked = p
			}
		}
		for _, c := range f.calls {
			close(c.done)
		}
	}()
	values := context.Background()
	if len(f.calls) == 1 { // hooks see the values of a caller's context
		values = context.WithoutCancel(f.calls[0].Context)
	}
	wait := f.end.Sub(now)
	ctx, cancel := context.WithDeadline(values, f.end.Add(-wait/4))
	defer cancel()
	ctx = patient{ctx, now.Add(max(lasting, lastingTimes*a.timeout))}
	switch len(f.calls) {
	case 0:
		return a.client.Process(ctx, command{redis.NewCmd(ctx, "time")})
	case 1:
		c := f.calls[0]
		c.err = a.client.Process(ctx, c.cmd)
		return c.err
	}
	conn, end := a.conn()
	defer end()
	pipe := conn.Pipeline()
	for _, c := range f.calls {
		_ = pipe.Process(ctx, c.cmd)
	}
	_, err = pipe.Exec(ctx)
	for _, c := range f.calls {
		c.err = c.cmd.Err()
		err = c.err // if a connection breaks, all the following calls fail too
	}
	return err
}
