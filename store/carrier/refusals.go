package carrier

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
	"github.com/ratelimit-go/ratelimit/store"
)

// admission admits calls to a server, and refuses those that it cannot serve in time.
type admission struct {
	timeout  time.Duration // of a call
	pulse    pulse
	forecast forecast
	refusal  refusalDelay

	overloaded atomic.Int64 // calls that ended with ErrOverloaded
	tooShort   atomic.Int64 // calls that had less time than a round trip takes
}

// silent reports whether the server has been silent for so long that a call which waits
// for a connection is really waiting for the server.
func (a *admission) silent() bool { return a.pulse.silent(max(leastSilence, 2*a.timeout)) }

// noRoom returns the failure of a call that found no room.
func (a *admission) noRoom() *Failure {
	if cause := a.pulse.cause.Load(); cause != nil {
		return &Failure{Class: store.ErrUnavailable, What: unsentText + ": no connection was made", Err: *cause}
	}
	if a.silent() {
		return failSilent
	}
	return failFull
}

// admitOrHold returns the failure of a call that cannot be served in time, as soon as its caller may get it.
// Otherwise it admits the call and returns nil. A call that has less time than a round trip takes is admitted anyway
// if takeProbe returns true, to see whether round trips are shorter now.
func (a *admission) admitOrHold(b *Budget, takeProbe func(now time.Time) bool) *Failure {
	f := &a.forecast
	if !b.Ahead && b.Left < time.Duration(f.distance.Load()) && !takeProbe(b.End.Add(-b.Left)) {
		a.tooShort.Add(1)
		a.refusal.wait(b, b.End) // if the time is the caller's own, the error is that of the context
		return failFar
	}
	if b.Ahead {
		f.ahead.Add(1)
		return nil
	}
	n := f.admitted.Add(1)
	before := n + min(f.ahead.Load(), mostAhead*n)
	wait := time.Duration((before - f.room.Load()) * f.perCall.Load())
	full := n > mostAdmitted || wait > a.timeout/4
	if !full && (b.Own || wait <= 0 || wait+time.Duration(f.tripTime.Load()) <= b.Left) {
		return nil
	}
	f.admitted.Add(-1)
	if full || !a.waitOutDeadline(b) {
		a.refusal.hold(b)
	}
	return a.noRoom()
}

// waitOutDeadline reports whether a call found no room only because its caller's own deadline is near, and then waits for that
// deadline. The call ends with its context's error, because a store that serves other callers has not failed.
func (a *admission) waitOutDeadline(b *Budget) bool {
	if b.Own || a.noRoom() != failFull {
		return false
	}
	a.refusal.wait(b, b.End)
	return true
}

// forecast is what calls have to expect. It can be read without the lock, so that a refusal
// costs little.
type forecast struct {
	admitted atomic.Int64 // calls that have been admitted and not returned, except those that go ahead
	ahead    atomic.Int64 // calls that go ahead, and have not returned
	room     atomic.Int64 // calls that may be in progress before one must wait
	perCall  atomic.Int64 // ns until the next one is served
	tripTime atomic.Int64 // ns that a trip takes now
	distance atomic.Int64 // ns that the shortest trip takes
}

// refusalDelay decides when refused calls get their error. Normally, they get it immediately. If callers
// retry immediately, however, they take CPU time from the server and from other callers. Their errors
// are then held until their time is nearly up, and do not come all at the same time.
type refusalDelay struct {
	waves    *waves.Waves
	jitter   func(most time.Duration) time.Duration // a random time below most
	holding  atomic.Int64                           // calls whose errors are held
	retriers retriers
}

// mostHeld is the most refused calls that wait.
const mostHeld = 1 << 14

// hold waits until a refused call may get its error.
func (r *refusalDelay) hold(b *Budget) {
	if r.retriers.immediately(b.End.Sub(r.waves.Base)) {
		return
	}
	defer r.holding.Add(-1)
	if r.holding.Add(1) <= mostHeld {
		r.wait(b, b.End.Add(-r.jitter(max(b.Left/2, 1))))
	}
}

// wait waits until about end, or the end of b's context.
func (r *refusalDelay) wait(b *Budget, end time.Time) {
	select {
	case <-r.waves.After(end).Over:
	case <-b.Done():
	}
}

// retriers finds out whether refused callers retry immediately. If they do, far more calls arrive in a
// period that refuses immediately than in one that holds refusals. From time to time, it tries both.
type retriers struct {
	seen  atomic.Int64 // the number of the period, and the refused calls in it
	holds atomic.Bool  // whether refusals are held in this period
	limit atomic.Int64 // calls in a period, above which they come back

	mu                   sync.Mutex // protects the fields below
	periods, nextPeriods int        // periods in which refusals are still held now, and will be the next time
}

const (
	periodLength = 64 * time.Millisecond
	countBits    = 32
	mostCount    = 1<<countBits - 1
	freely       = 100 // calls in a period that are always refused immediately: 1,600 a second
	longestTry   = 32  // periods from one try to the next

	// leastTry is the number of periods that it takes to count callers while refusals are held. In the
	// first period, some were still refused immediately, and in the second they come back.
	leastTry = 3
)

// immediately reports whether a refused call gets its error at once, and counts it. end is the end of the call,
// since a fixed instant. It determines the period, because reading the clock costs more.
func (r *retriers) immediately(end time.Duration) bool {
	period := int64(end/periodLength) + 1
	for {
		old := r.seen.Load()
		if old>>countBits < period {
			if r.seen.CompareAndSwap(old, period<<countBits) {
				r.nextPeriod(old&mostCount, period-old>>countBits)
			}
			continue
		}
		n := r.seen.Add(1) & mostCount
		if n <= freely {
			return true
		}
		if r.holds.Load() {
			return false
		}
		if n > r.limit.Load()+freely {
			r.startHolding()
			return false
		}
		return true
	}
}

// nextPeriod ends a period with n calls, some periods ago.
func (r *retriers) nextPeriod(n, ago int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ago > 1: // a rest
		r.holds.Store(false)
		r.limit.Store(0)
		r.nextPeriods = leastTry
	case r.holds.Load():
		r.limit.Store(n + n/2)
		if r.periods--; r.periods <= 0 {
			r.holds.Store(false)
		}
	default:
		r.nextPeriods = leastTry
	}
}

// startHolding begins periods in which refusals are held.
func (r *retriers) startHolding() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds.Load() {
		return
	}
	r.periods, r.nextPeriods = r.nextPeriods, min(2*r.nextPeriods, longestTry)
	r.holds.Store(true)
}
