package carrier

import (
	"context"
	"fmt"
	"time"
)

// conns has what is known of the connections of a client. Only trips make connections, and only a few
// at the same time.
type conns struct {
	pool    func() (idle, total int)
	size    int       // of the pool
	most    int       // connections that are used at the same time
	ready   int       // free connections that worked when they were last used
	busy    int       // connections of trips that callers wait for
	used    time.Time // when a connection was last used, about
	failed  time.Time // when a connection could last not be made
	reached bool      // a connection has worked, or the first need not be made alone
	dials   dials
}

// rested is the time after which unused connections are no longer relied on.
const rested = time.Minute

// release records how the use of a connection ended: whether the connection is good, and if not, whether
// others may be lost too.
func (c *conns) release(good, lost bool, now time.Time) {
	c.used = now
	switch {
	case good:
		c.reached = true
		c.ready++
		c.dials.worked()
	case lost:
		c.ready = 0
	}
}

// forgetIdle forgets connections that have been idle for long, and reports whether there were any.
func (c *conns) forgetIdle(now time.Time) bool {
	rests := c.ready > 0 && now.Sub(c.used) > rested
	if rests {
		c.ready = 0
	}
	return rests
}

// mayDial reports whether a trip may begin without a ready connection. Some of the dials that seem to
// hang may have ended. A dial in a place of the pool that holds a connection does not hang: it was only
// slow, because others used all connections.
//
// A client whose dials have failed refuses to dial for a while. Calls then wait for a connection in use,
// so that trips do not begin again and again.
func (c *conns) mayDial(now time.Time) bool {
	if c.busy > 0 && now.Sub(c.failed) < untilDial {
		return false
	}
	if c.dials.may(now) {
		return true
	}
	idle, total := c.pool()
	return idle > 0 || c.size-total < c.dials.free
}

// handshaking reports whether a handshake is in progress.
func (c *conns) handshaking() bool {
	_, total := c.pool()
	return total > c.ready+c.busy
}

// taken reports whether all places of the pool are taken.
func (c *conns) taken() bool {
	_, total := c.pool()
	return total >= c.size
}

// dials keeps some places of a pool free of hanging dials. A client may dial apart from the
// calls, for as long as its own timeout, and each dial holds a place in the pool. If dials of an
// unreachable host held all places, another host that takes its place could not be reached before they
// end. Therefore, only half of the places are given out immediately. The others follow one by one, over
// the time that a dial lasts.
type dials struct {
	free  int           // how many dials may begin without a pause
	pause time.Duration // between the dials that follow

	vain int       // dials begun since a connection last worked, and not ended
	last time.Time // when a dial last began
}

// mostDialPause is the longest pause, for clients that dial for very long. If
// a dial seems to hang, the machine may only have stopped for a moment.
const mostDialPause = time.Second

func newDials(size int, timeout time.Duration) dials {
	d := dials{free: max(1, size/2), pause: mostDialPause}
	if timeout > 0 {
		d.pause = min(timeout/time.Duration(max(1, size-d.free)), mostDialPause)
	}
	return d
}

// may reports whether a dial may begin.
func (d *dials) may(now time.Time) bool { return d.vain < d.free || now.Sub(d.last) >= d.pause }

func (d *dials) begin(now time.Time) { d.vain, d.last = d.vain+1, now }

// reached records that a dial did not hang, because it was the handshake that was slow.
func (d *dials) reached() { d.vain = max(0, d.vain-1) }

func (d *dials) worked() { d.vain = 0 }

// dialFailed records that t has made no connection.
func (cr *Carrier[C]) dialFailed(t *Trip[C], err error, now time.Time) {
	if hung := contextEnded(err) && t.end.Sub(t.begun) > leastDial; !t.left && !hung {
		cr.conns.dials.reached()
	}
	cr.conns.failed = now
	cr.diagnose(err)
}

// diagnose finds out why a trip that ended in err could make no connection. Because a client may dial several
// times before it returns an error, the carrier makes a dial of its own, one at a time.
func (cr *Carrier[C]) diagnose(err error) {
	if cr.pulse.noteDial(err) || cr.diagnosing || !contextEnded(err) {
		return
	}
	cr.diagnosing = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), cr.timeout)
		defer cancel()
		err := errDial // if Dial ends the goroutine
		defer func() {
			if r := recover(); r != nil { // there is no caller to panic for
				err = fmt.Errorf("%w: %v", errDial, r)
			}
			if err != nil {
				cr.pulse.cause.Store(&err)
			}
			cr.mu.Lock()
			defer cr.mu.Unlock()
			cr.diagnosing = false
		}()
		err = cr.config.Dial(ctx)
	}()
}
