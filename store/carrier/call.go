package carrier

// A call: how it joins others or goes alone, how it waits, and how it leaves.

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

// enter decides how a call goes. If it returns no batch, the call goes alone, on a connection of its
// own. Otherwise it is call i of the batch.
func (cr *Carrier[C]) enter(b Budget, call C) (bt *batch[C], i int, now time.Time) {
	now = time.Now()
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if cr.config.Send == nil || cr.alone(b, now) {
		if cr.trips == 0 {
			cr.distance.probed = now
		}
		cr.begin(true)
		if cr.config.Send != nil {
			cr.began = now
		} else {
			cr.watchPauses(now)
		}
		return nil, 0, now
	}
	if cr.conns.forgetIdle(now) {
		cr.pulse.ask()
	}
	q := &cr.others
	if b.Ahead {
		q = &cr.ahead
	}
	if bt = q.last(now, cr.tripSize(), cr.timeout/spread); bt == nil {
		bt = cr.open(q, now)
	}
	i = len(bt.calls)
	bt.calls = append(bt.calls, Carried[C]{Call: call, ctx: b.Context, end: b.End.Sub(cr.base)})
	bt.living++
	q.living++
	cr.start(now)
	return bt, i, now
}

// open returns a new batch, which is the last of q.
func (cr *Carrier[C]) open(q *queue[C], now time.Time) *batch[C] {
	bt, _ := cr.read.Get().(*batch[C])
	if bt == nil {
		bt = new(batch[C])
	}
	bt.queue, bt.begun, bt.done = q, now, make(chan struct{})
	if bt.timer == nil {
		bt.timer = time.AfterFunc(cr.timeout, func() { cr.expire(bt) })
	} else {
		bt.timer.Reset(cr.timeout)
	}
	q.batches = append(q.batches, bt)
	return bt
}

// alone reports whether a call may go alone. When the time of such a call is up, its connection is closed, and others
// may wait for it. This is likely far from the server, or with the caller's own deadline, after which what the call has
// charged could not be refunded either. (After the store's own timeout, it stays charged in any case.)
func (cr *Carrier[C]) alone(b Budget, now time.Time) bool {
	distance := cr.distance.is()
	may := cr.config.Alone != nil && b.Own && !b.Together && distance > 0 && b.Left > 2*max(distance, cr.usualTrip)
	free := cr.waiting() == 0 && cr.conns.ready > 0 && now.Sub(cr.conns.used) <= rested && cr.trips < cr.mostTrips()
	return may && free && cr.gathering(now) <= 0
}

// finishAlone ends the trip of a call that went alone, as finish ends the others.
func (cr *Carrier[C]) finishAlone(began time.Time, err error) {
	now, good := time.Now(), cr.answered(err)
	cr.mu.Lock()
	defer cr.mu.Unlock()
	cr.over(true)
	if good {
		cr.distance.add(began, now)
	}
	cr.conns.release(good, !good && cr.lost(began, err), now)
	cr.start(now)
}

// lost reports whether a trip that ended in err may mean that all connections are lost. A late reply
// does not mean that if other replies have come since.
func (cr *Carrier[C]) lost(began time.Time, err error) bool {
	return !timedOut(err) || !cr.pulse.since(began)
}

// goAlone makes a call that has a connection to itself.
func (cr *Carrier[C]) goAlone(b Budget, call C, began time.Time) (C, error) {
	err := errPanic
	defer func() {
		cr.measure(began, err, b.Own)
		cr.finishAlone(began, err)
	}()
	after, sent, err2 := cr.config.Alone(b, call)
	if err2 == nil {
		err = nil
		cr.pulse.beat()
		return after, nil
	}
	failed := cr.Explain(err2, sent)
	err = err2                                  // not before, because Means may panic
	if f, ok := failed.(*Failure); ok && sent { //nolint:errorlint // just made
		if f.sent, f.ctxError = true, b.Over(); f.ctxError != nil {
			cr.config.GiveBack(after)
		}
	}
	return call, failed
}

// wait waits for call i of bt until b's end, and returns it with its reply, or its error.
func (cr *Carrier[C]) wait(b Budget, bt *batch[C], i int) (call C, _ error) {
	err, sent := cr.outcome(b, bt, i)
	left := err != nil && sent // its time is up while it is under way
	if err == nil {            // err and sent are now those of its trip
		c := &bt.calls[i] // calls do not move once the batch has ended
		if r := bt.trip.panicked; r != nil {
			panic(r)
		}
		call, err, sent = c.Call, c.err, bt.trip.writing.Begun()
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
		return call, cr.noRoom()
	case errGivenUp:
		f := *cr.noRoom()
		f.Err, f.Again = err, true
		return call, &f
	}
	failed := cr.Explain(err, sent)
	if f, ok := failed.(*Failure); ok && left { //nolint:errorlint // just made
		if f.sent, f.ctxError = true, b.Over(); f.ctxError != nil {
			cr.forsake(bt, i)
		}
	}
	return call, failed
}

// forsake has the charge of call i of bt refunded, because its caller left when its context ended.
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

// giveBack has the charge of c refunded, after its trip.
func (cr *Carrier[C]) giveBack(c *Carried[C]) {
	if c.goes && c.err == nil {
		cr.config.GiveBack(c.Call)
	}
}

// outcome waits until call i of bt has ended, or its time is up. If it returns no error, how the call
// ended is in the call.
func (cr *Carrier[C]) outcome(b Budget, bt *batch[C], i int) (err error, sent bool) { //nolint:revive // sent is about err
	var end <-chan time.Time
	if before := bt.begun.Add(cr.timeout).Sub(b.End); before > min(cr.timeout/spread, waves.MostApart) && (b.Own || b.Done() == nil) {
		timer := time.NewTimer(time.Until(b.End)) // b ends before bt: after an earlier attempt, or by a deadline without a Done
		defer timer.Stop()
		end = timer.C
	} else if b.Done() == nil {
		<-bt.done
		return bt.outcome(i)
	}
	select {
	case <-bt.done:
		return bt.outcome(i)
	case <-b.Done():
	case <-end:
	}
	cr.mu.Lock()
	defer cr.mu.Unlock()
	select {
	case <-bt.done:
		return bt.outcome(i)
	default:
	}
	c := &bt.calls[i]
	if c.left {
		return errQueued, false
	}
	c.left = true
	if bt.trip == nil {
		bt.drop(1)
		return cr.unsentError(bt), false
	}
	sent = bt.trip.leave()
	return cr.timeUpError(bt, sent), sent
}

// timeUpError returns the error of calls whose time is up during their trip. If they were not sent although
// the trip has a connection, or the server has answered recently, they waited for other calls, or for
// a processor.
func (cr *Carrier[C]) timeUpError(bt *batch[C], sent bool) error {
	if !sent && (bt.trip.connected || !cr.silent()) {
		return cr.unsentError(bt)
	}
	return context.DeadlineExceeded
}

// unsentError returns the error of calls of bt that were not sent: errQueued if they waited for a connection
// in use, or errUnconnected if they waited for one that could not be made meanwhile.
func (cr *Carrier[C]) unsentError(bt *batch[C]) error {
	if cr.conns.ready+cr.conns.busy > 0 || cr.conns.taken() || cr.conns.failed.Before(bt.begun) {
		return errQueued
	}
	return errUnconnected
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
		bt.err = cr.unsentError(bt)
		if bt.living > 0 {
			bt.drop(bt.living)
		}
		return
	}
	bt.sent = bt.trip.leave()
	bt.err = cr.timeUpError(bt, bt.sent)
	if bt.trip.batches--; bt.trip.batches == 0 {
		cr.abandon(bt.trip)
	}
}
