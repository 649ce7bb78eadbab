package lease

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/store"
)

// fetch is a call to the store for claims on the same keys, and for leases of these keys. Misses, portions,
// Requests and Parts have the same indexes, one for each key.
type fetch struct {
	batch.Batch
	misses   []miss
	portions []portion
	single   [1]portion // the portions for a single key
	sent     time.Duration
	left     bool // whether the outcome is unknown because its only caller has left
}

var fetches = sync.Pool{New: func() any { return new(fetch) }}

// portion is one key's part of a fetch.
type portion struct {
	leases bool  // whether the fetch asks for a lease of the key
	wish   int64 // events to ask for if there were enough
	*grant
	left int // events of the lease, and of the claims not yet answered
}

// newFetch returns the next call for claims. It fetches a lease of each key unless another call is
// fetching one. If the claims are for one key, newFetch may return nil: either events that arrived
// in the meantime answer the first claim, or wait is true and another call is fetching a lease.
func (d *Store) newFetch(misses []miss, claims []batch.Claim) (f *fetch, wait bool) {
	f = fetches.Get().(*fetch)
	f.misses = misses
	f.Make(len(misses), claims, d.patience)
	if f.portions = f.single[:]; len(misses) > 1 {
		f.portions = make([]portion, len(misses))
	}
	for i := range misses {
		m := &misses[i]
		f.Requests[i] = m.request
		f.Requests[i].Limit = m.limits.by
		f.Parts[i].Last = &m.entry.answered
		m.shard.mu.Lock()
		alone := len(claims) > 0 && len(misses) == 1 && m.entry.limits == m.limits && !d.closed.Load()
		answered := alone && m.answered(d.now(), claims[0].N[0])
		wait = alone && !answered && m.entry.fetching
		if !answered && !wait {
			d.addLease(f, i)
		}
		m.shard.mu.Unlock()
		if answered || wait {
			return nil, wait
		}
	}
	return f, false
}

// answered reports whether the answer to a call for n events is held or known.
func (m *miss) answered(now time.Duration, n int64) bool {
	e := m.entry
	return e.left >= int(n) && now < e.until || e.spare.left >= int(n) && now < e.spare.until || n == 1 && now < e.denied
}

// addLease makes f fetch the next lease of key i, unless another call does, or f fetches ahead and
// nothing is needed. The caller holds the shard's lock.
func (d *Store) addLease(f *fetch, i int) {
	m, k, p := &f.misses[i], &f.portions[i], &f.Parts[i]
	e, now := m.entry, d.now()
	d.tidy(e, now)
	forgotten := m.shard.keys[d.seeds.In(e.ns, e.key)] != e
	needed := len(f.Claims) > 0 || e.low() && now >= e.denied || e.owed > 0
	room := f.UpTo() || e.owed == 0 && e.spare.left == 0
	if forgotten || e.fetching || e.limits != m.limits || !needed || !room || !d.begin() {
		return
	}
	e.fetching, k.leases = true, true
	p.Owed = int64(e.due())
	k.wish = int64(e.ask(now, int(p.Sum), d.termsOf(e.ns))) // Owed+Sum or more, because claims find no spare lease here
	if p.Want = k.wish; !f.UpTo() {                         // all or none, so ask for no more than there is, as far as is known
		p.Want = max(p.Sum, min(k.wish, int64(e.remaining)))
	}
}

// run asks the store for f, answers its claims, and returns those that must be asked for again.
func (d *Store) run(ctx context.Context, f *fetch) (again []batch.Claim) {
	defer func() { // even if the store ends the goroutine
		f.left = f.Lost && ctx.Err() != nil
		again = d.land(f)
		*f = fetch{}
		fetches.Put(f)
	}()
	f.sent = d.now()
	f.Ask(ctx, d.inner)
	return nil
}

// land takes in what the store has answered to f, and answers its claims.
func (d *Store) land(f *fetch) (again []batch.Claim) {
	d.stats.asked.Add(int64(f.Asked))
	if f.Lost {
		d.stats.lost.Add(1)
	}
	for i := range f.misses {
		f.portions[i].left = int(f.Events(i, f.Fit))
		d.takeIn(f, i)
	}
	return f.Answer(func(c batch.Claim, replies []store.Reply) {
		for i, n := range c.N {
			f.portions[i].left -= int(n)
			replies[i] = f.portions[i].admit(store.AdmittedPlainly, f.portions[i].left, n)
		}
	}, func(c batch.Claim, replies []store.Reply) {
		for i, n := range c.N {
			r := f.misses[i].request
			r.N = n
			d.putBackOne(&r, replies[i])
		}
	})
}

// takeIn receives the lease of key i, and the store's answers about it. Its lifetime counts from
// when it was requested. Events that came too late lapse.
func (d *Store) takeIn(f *fetch, i int) {
	m, k, p := &f.misses[i], &f.portions[i], &f.Parts[i]
	rule, by := m.request.Namespace.Rule, m.limits.by
	report := p.Reply.Report(rule, by, p.Granted, p.Granted)
	k.grant = &grant{at: p.Reply.X, reset: report.Reset, room: int(report.Remaining), limits: m.limits}
	d.stats.granted.Add(p.Granted)
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	e, now := m.entry, d.now()
	if k.leases {
		defer d.running.Done()
		defer d.wake(e)
		e.fetching = false
		e.owed = max(0, e.owed-int(p.Forced)) // a Reset may have cleared it
		if p.Granted > 0 {
			d.takeLease(f, i, now)
		}
		switch {
		case f.left: // which says nothing about the store
			e.size = 0 // the demand for the last lease has been judged: see ask
		case f.Lost:
			e.failed()
		default:
			e.unsure = false
		}
		if p.Forced > 0 && (f.Next == nil || m.limits != e.limits) {
			e.full = max(e.full, now+lengthened(refill(by.Burst, by))) // it is not known for how long, but for no longer
		}
	}
	if f.Next == nil {
		return
	}
	f.Next[i] = f.Next[i].Plainly(rule, by, f.NextN[i], 0)
	if m.limits == e.limits { // otherwise it says nothing about the current limit
		f.Next[i] = d.learn(e, f.Next[i], f.NextN[i], f.sent, now)
	}
}

// takeLease receives what was granted for key i, minus what the claims need.
func (d *Store) takeLease(f *fetch, i int, now time.Duration) {
	m, k, p := &f.misses[i], &f.portions[i], &f.Parts[i]
	e := m.entry
	owed := e.owed
	held := e.receive(answer{
		granted: int(p.Granted), want: int(k.wish), owed: int(p.Owed), room: k.room,
		sent: f.sent, now: now, window: untilWindowEnds(e.ns.Rule.Name, k.reset, m.limits.by),
	}, d.termsOf(e.ns))
	held.grant = k.grant
	if n := owed - e.owed; n > 0 {
		e.lastPaid = payment{k.grant, e.owedSince, n}
	}
	held.left -= k.left
	k.left += held.left
	e.remaining, e.last = k.room, nil
	if held != &e.lease && held != &e.spare { // there is no room for it
		d.giveBack(e, held.grant, held.left)
	}
	if m.limits != e.limits { // the limit has changed in the meantime
		d.giveUp(e)
	}
}

// learn remembers r, a plain reply of the store to n events that were not charged. It returns the
// reply for calls for n events.
func (d *Store) learn(e *entry, r store.Reply, n int64, sent, now time.Duration) store.Reply {
	switch {
	case n == 1 && !r.OK():
		e.refused(micros(r.X), pause(e.ns.Rule.Name, e.limits.by, d.terms.life), sent, now, d.termsOf(e.ns))
		e.last, e.remaining = &remembered{r, now}, 0
		r.X = max(r.X, inMicros(e.denied-now))
		r.Z = max(r.Z, r.X)
	case r.Y > 0:
		one := r
		one.Outcome = store.AdmittedPlainly
		e.denied, e.last, e.remaining = 0, &remembered{one, now}, int(r.Y)
	}
	return r
}

// fetchAhead fetches the next lease of e before the current one is used up, or charges what is
// owed. It uses a worker, because it may be needed for many keys at the same time. The caller holds
// the shard's lock.
func (d *Store) fetchAhead(s *shard, e *entry) {
	if e.fetching || e.queued {
		return
	}
	e.queued = true
	d.do(func(ctx context.Context) error {
		s.mu.Lock()
		e.queued = false
		m := miss{request: store.Request{Namespace: e.ns, Key: e.key}, limits: e.limits, shard: s, entry: e}
		s.mu.Unlock()
		if f, _ := d.newFetch([]miss{m}, nil); f.portions[0].leases { // f is not nil, because there is no claim to answer
			d.run(ctx, f)
		}
		return nil
	}, math.MaxInt)
}
