package lease

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// caller waits for an answer.
type caller = pending.Call[answer]

type answer struct {
	reply store.Reply
	again bool // ask the store: the limit has changed, or the lease is closed
}

// fetch is a call of the store for the next lease.
type fetch struct {
	callers    []*caller // who waited when it began
	want, owed int
	limits     *limits
	patience   *pending.Patience // of who waits for it
}

// outcome is what came back.
type outcome struct {
	granted, forced int // events charged: those that fit, and of those owed the rest
	room            int // what the store has left after them
	at, reset       int64
	denial          store.Reply // a plain one, for those whom there is no room for
	err             error
	panicked        any
}

// newFetch readies a fetch for those who wait, under the shard's lock. It is nil if the limiter
// is closed.
func (d *Store) newFetch(e *entry) *fetch {
	if !d.begin() {
		return nil
	}
	now := d.now()
	d.tidy(e, now)
	f := &fetch{callers: e.queue, owed: e.owed, limits: e.limits, patience: d.patience}
	f.want = e.ask(now, len(f.callers), d.termsOf(e.ns))
	e.queue, e.fetching = nil, true
	return f
}

// startFetch asks the store in another goroutine, unless that is under way. It is called under the
// shard's lock.
func (d *Store) startFetch(s *shard, e *entry) {
	if e.fetching {
		return
	}
	f := d.newFetch(e)
	if f == nil {
		return
	}
	if len(f.callers) == 0 { // there may be one for each of many keys
		e.queued = e.queued || d.do(func(ctx context.Context) error { d.fetchAhead(ctx, s, e); return nil }, math.MaxInt)
	}
	if len(f.callers) == 0 && e.queued {
		e.ahead = f
		return
	}
	go d.doFetch(context.Background(), s, e, f) // somebody waits, or Close does: it may do no more jobs
}

// fetchAhead does what is queued of e, unless a caller has come for it.
func (d *Store) fetchAhead(ctx context.Context, s *shard, e *entry) {
	s.mu.Lock()
	f := e.ahead
	e.ahead, e.queued = nil, false
	s.mu.Unlock()
	if f != nil {
		d.doFetch(ctx, s, e, f)
	}
}

// begun is the fetch that waits for a worker, now that somebody waits for it; nil if there is none.
func (e *entry) begun() *fetch {
	f := e.ahead
	if f != nil {
		f.callers, f.limits = e.queue, e.limits
		f.want = max(f.want, f.owed+len(f.callers))
		e.queue, e.ahead = nil, nil
	}
	return f
}

// doFetch asks the store for f, and tells its callers.
func (d *Store) doFetch(ctx context.Context, s *shard, e *entry, f *fetch) {
	defer d.running.Done()
	sent := d.now()
	l := f.ask(ctx, d.Store, e.ns, e.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.fetching = false
	d.decideOn(e, f, &l, sent)
	d.serve(s, e)
}

// ask asks the store for what is owed and for the next lease.
func (f *fetch) ask(ctx context.Context, of store.Store, ns *store.Namespace, key string) (l outcome) {
	defer func() { // a panic belongs on the callers' goroutines, which may expect it
		l.panicked = recover()
	}()
	by, rule := f.limits.by, ns.Rule
	var r store.Reply
	r, l.err = store.TakeUpTo(ctx, of, ns, key, by, int64(f.want))
	if f.patience.Heard(l.err); l.err != nil {
		return l
	}
	if r.OK() {
		granted := min(int64(f.want), r.Available(rule, by))
		says := r.Report(rule, by, granted, granted)
		l.granted, l.room, l.at, l.reset = int(granted), int(says.Remaining), r.X, says.Reset
	}
	if unpaid := f.owed - l.granted; unpaid > 0 { // full: what has happened is charged all the same
		_, l.err = store.Overdraw(ctx, of, ns, key, by, int64(unpaid), math.MaxInt32)
		if f.patience.Heard(l.err); l.err != nil {
			return l
		}
		l.forced = unpaid
	}
	if l.granted < f.want && (l.granted > 0 || l.forced > 0) {
		l.denial, l.err = denialOf(ctx, of, f.patience, ns, key, by, 1)
	} else {
		l.denial = plain(rule, by, r, 1, 0)
	}
	return l
}

// denialOf asks for how long a key has no room for n events.
func denialOf(ctx context.Context, of store.Store, patience *pending.Patience, ns *store.Namespace, key string, by store.Limit, n int64) (store.Reply, error) {
	r, err := store.Peek(ctx, of, ns, key, by, n)
	if patience.Heard(err); err != nil {
		return r, err
	}
	denial := plain(ns.Rule, by, r, n, 0)
	if denial.OK() { // room has come since
		const soon = 1 // µs
		denial = store.Reply{Outcome: store.DeniedPlainly, X: soon, Z: max(soon, denial.Z)}
	}
	return denial, nil
}

// decideOn decides on the callers by what the store has said, at its instant: whatever has lapsed
// since. So a store that answers more slowly than a life serves all the same.
func (d *Store) decideOn(e *entry, f *fetch, l *outcome, sent time.Duration) {
	now, callers := d.now(), f.callers
	e.owed = max(0, e.owed-l.forced) // a Reset may have forgotten it
	if l.granted > 0 {
		d.stats.granted.Add(int64(l.granted))
		callers = d.admitCallers(e, f, l, sent, now)
	}
	failed := l.err != nil || l.panicked != nil
	if !failed {
		d.stats.asked.Add(1)
	}
	switch {
	case failed:
		d.stats.lost.Add(1)
		e.failed()
		for _, c := range callers {
			if l.panicked != nil {
				c.Panic(l.panicked)
			}
			c.Answer(answer{}, l.err)
		}
	case l.granted < f.want:
		d.denyCallers(e, f, callers, l.denial, sent, now)
	}
}

// admitCallers takes a grant, admits the callers, and returns whom there is no room for.
func (d *Store) admitCallers(e *entry, f *fetch, l *outcome, sent, now time.Duration) []*caller {
	g := &grant{at: l.at, reset: l.reset, room: l.room, limits: f.limits}
	held := e.receive(grants{
		granted: l.granted, want: f.want, owed: f.owed, room: l.room,
		sent: sent, now: now, window: untilWindowEnds(e.ns.Rule.Name, l.reset, f.limits.by),
	}, d.termsOf(e.ns))
	held.grant = g
	e.remaining = l.room
	if f.limits != e.limits { // the limit has changed meanwhile
		defer d.giveUp(e)
	}
	for i, c := range f.callers {
		if held.left == 0 {
			return f.callers[i:]
		}
		held.left--
		if !c.Answer(answer{reply: g.admit(store.AdmittedPlainly, held.left, 1)}, nil) {
			held.left++
		}
	}
	return nil
}

// denyCallers tells a denial, and remembers it.
func (d *Store) denyCallers(e *entry, f *fetch, callers []*caller, r store.Reply, sent, now time.Duration) {
	if f.limits == e.limits { // or else it says nothing of today's limit
		r = d.remember(e, r, sent, now)
	}
	for _, c := range callers {
		c.Answer(answer{reply: r}, nil)
	}
}

// remember remembers the denial r, and returns it as the next ones are.
func (d *Store) remember(e *entry, r store.Reply, sent, now time.Duration) store.Reply {
	e.refused(micros(r.X), pause(e.ns.Rule.Name, e.limits.by, d.terms.life), sent, now, d.termsOf(e.ns))
	e.last, e.remaining = &remembered{r, now}, 0
	r.X = max(r.X, inMicros(e.denied-now))
	r.Z = max(r.Z, r.X)
	return r
}

// serve decides on those who came during a fetch, and asks again for the rest.
func (d *Store) serve(s *shard, e *entry) {
	now := d.now()
	for i, c := range e.queue {
		held := e.spend(now, 1)
		switch {
		case held != nil:
			if !c.Answer(answer{reply: d.admit(held, 1)}, nil) {
				held.left++
			}
			continue
		case now < e.denied:
			c.Answer(answer{reply: d.deny(e, now)}, nil)
			continue
		}
		e.queue = slices.DeleteFunc(e.queue[i:], (*caller).Done)
		if len(e.queue) > 0 {
			d.startFetch(s, e)
		}
		break
	}
	for _, c := range e.queue { // they were served, or the limiter is closed
		c.Answer(answer{again: true}, nil)
	}
	e.queue = nil
}
