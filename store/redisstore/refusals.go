package redisstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/waves"
)

// expected is what calls have to expect. It can be read without the lock, so that a refusal
// costs little.
type expected struct {
	inside atomic.Int64 // calls that have been admitted and not returned, but for those that go ahead
	ahead  atomic.Int64 // the same of those
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
		p.store.link.tooShort.Add(1)
		p.refusals.wait(b, b.end) // if the time is the caller's own, the error is that of the context
		return isFar
	}
	if b.ahead {
		e.ahead.Add(1)
		return nil
	}
	n := e.inside.Add(1)
	before := n + min(e.ahead.Load(), n) // those that go ahead have half of each trip at most
	wait := time.Duration((before - e.room.Load()) * e.pace.Load())
	full := n > longestLine || wait > p.timeout/4
	if !full && (b.own || wait <= 0 || wait+time.Duration(e.trip.Load()) <= b.left) {
		return nil
	}
	e.inside.Add(-1)
	if full || !p.outlast(b) {
		p.refusals.hold(b, p.store.jitter)
	}
	return p.queued()
}

// outlast waits for the end of a call that found no room before its caller's own deadline, and reports whether that is
// why: it ends with its context's error, which is no failure of a store that serves others.
func (p *pipeline) outlast(b *budget) bool {
	if b.own || p.queued() != isFull {
		return false
	}
	p.refusals.wait(b, b.end)
	return true
}

// looks reports whether a call that is too short for the way is sent all the same, to see
// whether the way is shorter now.
func (p *pipeline) looks(b *budget) bool {
	now := b.end.Add(-b.left)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trips > 0 || now.Sub(p.distance.looked) < min(max(p.timeout, p.distance.is()), lately) {
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

// refusals is how refused calls are told. Callers who have something better to do are told
// at once. But those who come back at once would take the processors from the server and
// from the other callers. So they are told when their time is nearly up, and not together.
type refusals struct {
	waves   *waves.Waves
	holding atomic.Int64 // calls that are not told yet
	loops   loops
}

// mostHeld is how many refused calls wait at most.
const mostHeld = 1 << 14

// hold waits until a refused call may be told.
func (r *refusals) hold(b *budget, jitter func(time.Duration) time.Duration) {
	if r.loops.atOnce(b.end.Sub(r.waves.Base)) {
		return
	}
	defer r.holding.Add(-1)
	if r.holding.Add(1) <= mostHeld {
		r.wait(b, b.end.Add(-jitter(max(b.left/2, 1))))
	}
}

// wait waits until about end, or the end of b's context.
func (r *refusals) wait(b *budget, end time.Time) {
	select {
	case <-r.waves.After(end).Over:
	case <-b.Done():
	}
}

// loops finds out whether refused callers come back at once. Then far more calls come in a
// period in which they are told at once than in one in which they are held. Both are tried
// now and then.
type loops struct {
	seen  atomic.Int64 // the number of the period, and the refused calls in it
	holds atomic.Bool
	limit atomic.Int64 // calls in a period, above which they come back

	mu         sync.Mutex // protects what is below
	left, next int        // periods to hold now, and the next time
}

const (
	listening  = 64 * time.Millisecond // a period
	countBits  = 32
	mostCount  = 1<<countBits - 1
	freely     = 1000 // calls in a period that are told at once in any case
	longestTry = 32   // periods from one try to the next

	// leastTry is how many periods tell how many come who are held. In the first some were told
	// at once, and in the second they come back.
	leastTry = 3
)

// atOnce reports whether a call that is refused is told at once. now is since some
// beginning.
func (l *loops) atOnce(now time.Duration) bool {
	period := int64(now/listening) + 1
	for {
		old := l.seen.Load()
		if old>>countBits < period {
			if l.seen.CompareAndSwap(old, period<<countBits) {
				l.turn(old&mostCount, period-old>>countBits)
			}
			continue
		}
		n := l.seen.Add(1) & mostCount
		if n <= freely {
			return true
		}
		if l.holds.Load() {
			return false
		}
		if n > l.limit.Load()+freely {
			l.hold()
			return false
		}
		return true
	}
}

// turn ends a period with n calls, some periods ago.
func (l *loops) turn(n, ago int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ago > 1: // a rest
		l.holds.Store(false)
		l.limit.Store(0)
		l.next = leastTry
	case l.holds.Load():
		l.limit.Store(n + n/2)
		if l.left--; l.left <= 0 {
			l.holds.Store(false)
		}
	default:
		l.next = leastTry
	}
}

// hold begins to hold.
func (l *loops) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds.Load() {
		return
	}
	l.left, l.next = l.next, min(2*l.next, longestTry)
	l.holds.Store(true)
}
