package lease

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/store"
)

// caller waits for an answer. Whichever side sets done first, the caller leaving or the flight
// answering, decides which it is.
type caller struct {
	done  atomic.Bool
	ready chan struct{} // closed when the answer is there
	answer
}

type answer struct {
	result   ratelimit.Result
	err      error
	panicked any  // the value that the store panicked with
	again    bool // the limiter was closed: ask the store
}

func newCaller() *caller { return &caller{ready: make(chan struct{})} }

// tell answers c, unless it has left.
func (c *caller) tell(a answer) bool {
	if !c.done.CompareAndSwap(false, true) {
		return false
	}
	c.answer = a
	close(c.ready)
	return true
}

// wait returns the answer, or leaves when ctx ends.
func (c *caller) wait(ctx context.Context) (answer, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		if c.done.CompareAndSwap(false, true) {
			return answer{}, ctx.Err()
		}
		<-c.ready // the answer is being written
	}
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.answer, c.err
}

// flight is a call of the store for the next lease.
type flight struct {
	aboard     []*caller // who waited when it left
	want, owed int
	by         *store.Limit
}

// landing is what came back.
type landing struct {
	granted, forced int // events charged: those that fit, and of those owed the rest
	result          ratelimit.Result
	denial          ratelimit.Result // for those whom there is no room for
	err             error
	panicked        any
}

// depart readies a flight for those who wait, under the shard's lock. It is nil if the limiter
// is closed.
func (d *Limiter) depart(e *entry) *flight {
	if !d.begin() {
		return nil
	}
	now := d.now()
	d.tidy(e, *e.by, now)
	f := &flight{aboard: e.queue, owed: e.owed, by: e.by}
	f.want = e.ask(now, len(f.aboard), &d.terms)
	e.queue, e.flying = nil, true
	return f
}

// launch asks the store in another goroutine, unless that is under way. It is called under the
// shard's lock.
func (d *Limiter) launch(s *shard, e *entry) {
	if e.flying {
		return
	}
	f := d.depart(e)
	switch {
	case f == nil:
	case len(f.aboard) > 0:
		go d.fly(context.Background(), s, e, f) // no caller's: the store has a timeout
	default: // nobody waits: there may be one for each of many keys
		d.do(func(ctx context.Context) error {
			d.fly(ctx, s, e, f)
			return nil
		}, math.MaxInt)
	}
}

// fly asks the store for f, and tells those aboard.
func (d *Limiter) fly(ctx context.Context, s *shard, e *entry, f *flight) {
	defer d.running.Done()
	sent := d.now()
	l := f.ask(ctx, d.five, e.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.flying = false
	d.land(e, f, &l, sent)
	d.serve(s, e)
}

// ask asks the store for what is owed and for the next lease.
func (f *flight) ask(ctx context.Context, of *five.Limiter[ratelimit.Result], key string) (l landing) {
	defer func() { // a panic belongs on the callers' goroutines, which may expect it
		l.panicked = recover()
	}()
	if l.result, l.err = of.By(ctx, five.TakeUpTo, key, f.want, *f.by); l.err != nil {
		return l
	}
	l.denial, l.granted = l.result, l.result.Charged()
	if unpaid := f.owed - l.granted; unpaid > 0 { // full: what has happened is charged all the same
		if _, l.err = of.By(ctx, five.Overdraw, key, unpaid, *f.by); l.err != nil {
			return l
		}
		l.forced = unpaid
	}
	if l.granted < f.want && (l.granted > 0 || l.forced > 0) { // for how long is it full?
		l.denial, l.err = of.By(ctx, five.Peek, key, 1, *f.by)
	}
	if l.denial.Allowed { // room has come since
		const soon = time.Microsecond
		l.denial = ratelimit.Result{Limit: l.denial.Limit, RetryAfter: soon, ResetAfter: max(l.denial.ResetAfter, soon)}
	}
	return l
}

// land decides on those aboard by what the store has said, at its instant: whatever has lapsed
// since. So a store that answers more slowly than a life serves all the same.
func (d *Limiter) land(e *entry, f *flight, l *landing, sent time.Duration) {
	now, aboard := d.now(), f.aboard
	e.owed = max(0, e.owed-l.forced) // a Reset may have forgotten it
	if l.granted > 0 {
		d.stats.granted.Add(int64(l.granted))
		aboard = d.board(e, f, l, sent, now)
	}
	failed := l.err != nil || l.panicked != nil
	if !failed {
		d.stats.asked.Add(1)
	}
	switch {
	case failed:
		d.stats.lost.Add(1)
		e.failed()
		for _, c := range aboard {
			c.tell(answer{err: l.err, panicked: l.panicked})
		}
	case l.granted < f.want:
		d.turnAway(e, f, aboard, l.denial, sent, now)
	}
}

// board takes a grant, admits those aboard, and returns whom there is no room for.
func (d *Limiter) board(e *entry, f *flight, l *landing, sent, now time.Duration) []*caller {
	g := &grant{by: f.by}
	g.mark = *ratelimit.NewMark(d, ratelimit.SourceLease, g)
	g.result = l.result.WithMark(&g.mark)
	held := e.receive(grants{
		granted: l.granted, want: f.want, owed: f.owed, room: l.result.Remaining,
		sent: sent, now: now, window: untilWindowEnds(d.five.Algorithm, &l.result, *f.by),
	}, &d.terms)
	held.grant = g
	if f.by != e.by { // the limit has changed meanwhile
		defer d.giveUp(e)
	}
	direct := d.five.PartOf(l.result, 1).WithMark(ratelimit.NewMark(d, ratelimit.SourceStore, g))
	for i, c := range f.aboard {
		if held.left == 0 {
			return f.aboard[i:]
		}
		held.left--
		r := direct
		r.Remaining = min(r.Limit, r.Remaining+held.left)
		if !c.tell(answer{result: r}) {
			held.left++
		}
	}
	return nil
}

// turnAway tells a denial, and remembers it.
func (d *Limiter) turnAway(e *entry, f *flight, aboard []*caller, r ratelimit.Result, sent, now time.Duration) {
	if f.by == e.by { // or else it says nothing of today's limit
		e.refused(r.RetryAfter, pause(d.five.Algorithm, *e.by, d.terms.life), sent, now, &d.terms)
		e.denial = &denial{r, now}
		r.RetryAfter = max(r.RetryAfter, wholeMicros(e.denied-now))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	for _, c := range aboard {
		c.tell(answer{result: r})
	}
}

// serve decides on those who came during a flight, and asks again for the rest.
func (d *Limiter) serve(s *shard, e *entry) {
	now := d.now()
	for i, c := range e.queue {
		var a answer
		held := e.spend(now, 1)
		switch {
		case held != nil:
			if d.admit(&a.result, held, 1, now); !c.tell(a) {
				held.left++
			}
			continue
		case now < e.denied:
			d.deny(&a.result, e, now)
			c.tell(a)
			continue
		}
		e.queue = present(e.queue[i:])
		if len(e.queue) > 0 {
			d.launch(s, e)
		}
		break
	}
	for _, c := range e.queue { // they were served, or the limiter is closed
		c.tell(answer{again: true})
	}
	e.queue = nil
}

// present returns the callers who have not left.
func present(callers []*caller) []*caller {
	here := callers[:0]
	for _, c := range callers {
		if !c.done.Load() {
			here = append(here, c)
		}
	}
	return here
}
