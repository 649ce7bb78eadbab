package lease

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// fetch is a call of the store for claims to the same keys, and for leases of these. If there is not enough
// for all, it is a few calls.
type fetch struct {
	lacks    []lack
	claims   []claim
	shares   []share // of the keys
	sent     time.Duration
	patience *pending.Patience

	fit      int           // so many of the claims are charged, from the first on
	next     []store.Reply // in plain numbers, to the next claim, or to one event of each key if all claims fit; nil if not known
	nextN    []int64       // the events that next is about
	asked    int           // calls that the store has answered
	lost     bool          // what it was asked for may be charged
	err      error
	panicked any
}

// share is one key's part of a fetch.
type share struct {
	leads bool  // it fetches a lease
	n     int64 // events of the claims
	want  int64 // events to ask for: those of the claims, of the lease, and what is owed
	wish  int64 // events to ask for if there were any number
	owed  int64

	*grant
	granted, forced int64 // events charged: those that fit, and of those owed the rest
	left            int   // events of the lease, after the claims
}

// newFetch returns the next call for claims. It fetches a lease of each key of which nobody else does.
func (d *Store) newFetch(lacks []lack, claims []claim) *fetch {
	f := &fetch{lacks: lacks, claims: claims, shares: make([]share, len(lacks)), patience: d.patience}
	for i := range f.shares {
		n := f.sum(i, len(claims))
		f.shares[i] = share{n: n, want: n, wish: n}
	}
	for i := range f.shares {
		l := &lacks[i]
		l.shard.mu.Lock()
		d.lead(f, i)
		l.shard.mu.Unlock()
	}
	return f
}

// sum is how many events of key i the first n claims are for.
func (f *fetch) sum(i, n int) (sum int64) {
	for _, c := range f.claims[:n] {
		sum += c.n[i]
	}
	return sum
}

// upTo reports whether each claim is for one event of one key, so that the store can charge as many as fit.
func (f *fetch) upTo() bool { return len(f.shares) == 1 && f.shares[0].n == int64(len(f.claims)) }

// isFor reports whether the store is asked for what c needs, and nothing else.
func (f *fetch) isFor(c claim) bool {
	return len(f.claims) == 1 && f.claims[0].Call == c.Call &&
		!slices.ContainsFunc(f.shares, func(k share) bool { return k.want > k.n })
}

// lead makes f the call that fetches the next lease of key i, unless another one does. It is called under
// the shard's lock.
func (d *Store) lead(f *fetch, i int) {
	l, k := &f.lacks[i], &f.shares[i]
	e, now := l.entry, d.now()
	d.tidy(e, now)
	forgotten := l.shard.keys[d.seeds.In(e.ns, e.key)] != e
	if forgotten || e.fetching || e.limits != l.limits || !f.upTo() && (e.owed > 0 || e.spare.left > 0) || !d.begin() {
		return
	}
	e.fetching, k.leads = true, true
	k.owed = int64(e.owed)
	k.wish = max(k.owed+k.n, int64(e.ask(now, int(k.n), d.termsOf(e.ns))))
	if k.want = k.wish; !f.upTo() { // all or none: no more than there is, as far as is known
		k.want = max(k.n, min(k.wish, int64(e.remaining)))
	}
}

// run asks the store for f, answers its claims, and returns those that are to be asked for once more.
func (d *Store) run(ctx context.Context, f *fetch) (again []claim) {
	f.sent = d.now()
	f.ask(ctx, d.Store)
	d.stats.asked.Add(int64(f.asked))
	if f.lost {
		d.stats.lost.Add(1)
	}
	for i := range f.lacks {
		d.takeIn(f, i)
	}
	return d.answer(f)
}

// ask asks the store.
func (f *fetch) ask(ctx context.Context, of store.Store) {
	defer func() { // a panic belongs on the callers' goroutines, which may expect it
		f.panicked = recover()
	}()
	f.lost = true
	if f.upTo() {
		f.err = f.askUpTo(ctx, of)
	} else {
		f.err = f.askAll(ctx, of)
	}
	if f.lost = f.err != nil; f.err == nil && f.next == nil && f.nextN != nil {
		f.err = f.look(ctx, of)
	}
}

// askUpTo asks for as many events of one key as there are, and charges what is owed in any case.
func (f *fetch) askUpTo(ctx context.Context, of store.Store) error {
	l, k := &f.lacks[0], &f.shares[0]
	ns, key, by := l.request.Namespace, l.request.Key, l.limits.by
	r, err := store.TakeUpTo(ctx, of, ns, key, by, k.want)
	if f.patience.Heard(err); err != nil {
		return err
	}
	if r.OK() {
		f.charged(0, r, min(k.want, r.Available(ns.Rule, by)))
		f.fit = int(min(k.n, max(0, k.granted-k.owed)))
	}
	if unpaid := k.owed - k.granted; unpaid > 0 { // full: what has happened is charged all the same
		_, err := store.Overdraw(ctx, of, ns, key, by, unpaid, math.MaxInt32)
		if f.patience.Heard(err); err != nil {
			return err
		}
		k.forced = unpaid
	}
	f.asked++
	one := []int64{1}
	switch {
	case k.granted == 0 && k.forced == 0:
		f.nextN, f.next = one, []store.Reply{plain(ns.Rule, by, r, 1, 0)}
	case k.granted < k.want || k.room == 0 && k.forced == 0:
		f.foresee([]store.Reply{r}, one, k.granted < k.want)
	}
	return nil
}

// charged notes that the store has charged n events of key i, with the reply r.
func (f *fetch) charged(i int, r store.Reply, n int64) {
	l, k := &f.lacks[i], &f.shares[i]
	says := r.Report(l.request.Namespace.Rule, l.limits.by, n, n)
	k.granted, k.grant = n, &grant{at: r.X, reset: says.Reset, room: int(says.Remaining), limits: l.limits}
}

// askAll asks for all claims and for leases. If that is too much, it asks for as many claims as there is
// room for, in their order, and for no leases. It asks for fewer while others take that room meanwhile.
func (f *fetch) askAll(ctx context.Context, of store.Store) error {
	requests, replies := f.requests(store.OpTake), make([]store.Reply, len(f.shares))
	for n := len(f.claims); n > 0 && f.fit == 0; {
		for i := range requests {
			requests[i].N = f.shares[i].want
		}
		err := of.Decide(ctx, requests, replies)
		if f.patience.Heard(err); err != nil {
			return err
		}
		f.asked++
		if allOK(requests, replies) {
			f.fit = n
			for i := range requests {
				f.charged(i, replies[i], requests[i].N)
			}
			break
		}
		n = f.fitting(replies, n)
		for i := range f.shares {
			f.shares[i].want = f.sum(i, n)
		}
	}
	switch {
	case f.fit == 0 && slices.EqualFunc(requests, f.claims[0].n, func(r store.Request, n int64) bool { return r.N == n }):
		f.nextN, f.next = f.claims[0].n, f.plain(requests, replies)
	case f.fit < len(f.claims):
		f.foresee(replies, f.claims[f.fit].n, true)
	case slices.ContainsFunc(f.shares, func(k share) bool { return k.room == 0 }):
		emptied := slices.ContainsFunc(f.shares, func(k share) bool { return k.room == 0 && k.n < k.want && k.want < k.wish })
		f.foresee(replies, slices.Repeat([]int64{1}, len(f.shares)), emptied) // a lease has taken the last of what there was
	}
	return nil
}

// foresee finds what the next n events of each key are told, from the replies to what was charged. If these do
// not tell, it is left to a look, if that is worth it: the reply of a log does not say when its events leave.
func (f *fetch) foresee(replies []store.Reply, n []int64, look bool) {
	next := make([]store.Reply, len(replies))
	for i, r := range replies {
		rule, by, k := f.lacks[i].request.Namespace.Rule, f.lacks[i].limits.by, &f.shares[i]
		const converted = -1 // Y of a sliding window that was counted under another Period is at most that
		if k.grant == nil || k.forced > 0 || rule.NewLog != nil || r.Plain() || r.Y <= converted {
			if look {
				f.nextN = n
			}
			return
		}
		r = r.After(rule, k.granted)
		r.Outcome = store.AdmittedIf(int64(k.room) >= n[i])
		next[i] = plain(rule, by, r, n[i], 0)
		next[i].Z = k.reset
		if rule.Name == fixedWindow && !r.OK() && n[i] <= by.Burst { // whose first event begins the window
			next[i].X = k.reset
		}
	}
	f.next, f.nextN = next, n
}

// fitting is how many of the n first claims, which the store has denied, there is room for.
func (f *fetch) fitting(replies []store.Reply, n int) int {
	room := make([]int64, len(replies))
	for i := range replies {
		room[i] = replies[i].Available(f.lacks[i].request.Namespace.Rule, f.lacks[i].limits.by)
	}
	for c := range n {
		for i := range room {
			if room[i] -= f.claims[c].n[i]; room[i] < 0 {
				return c
			}
		}
	}
	if slices.ContainsFunc(f.shares, func(k share) bool { return k.want > k.n }) { // it was the leases
		return n
	}
	return 0 // the store denies what it says there is room for
}

// requests are what the store is asked for, but for the numbers.
func (f *fetch) requests(op store.Op) []store.Request {
	requests := make([]store.Request, len(f.lacks))
	for i := range f.lacks {
		requests[i] = f.lacks[i].request
		requests[i].Limit, requests[i].Op = f.lacks[i].limits.by, op
	}
	return requests
}

// look asks what the next ones are told.
func (f *fetch) look(ctx context.Context, of store.Store) error {
	requests, replies := f.requests(store.OpLook), make([]store.Reply, len(f.lacks))
	for i := range requests {
		requests[i].N = f.nextN[i]
	}
	err := of.Decide(ctx, requests, replies)
	if f.patience.Heard(err); err != nil {
		return err
	}
	f.next = f.plain(requests, replies)
	if !slices.ContainsFunc(f.next, func(r store.Reply) bool { return !r.OK() }) { // room has come since
		const soon = 1 // µs
		for i, r := range f.next {
			f.next[i] = store.Reply{Outcome: store.DeniedPlainly, X: soon, Z: max(soon, r.Z)}
		}
	}
	return nil
}

// plain is replies to what was not charged, in plain numbers.
func (f *fetch) plain(requests []store.Request, replies []store.Reply) []store.Reply {
	for i, r := range replies {
		replies[i] = plain(requests[i].Namespace.Rule, requests[i].Limit, r, requests[i].N, 0)
	}
	return replies
}

// takeIn takes the lease of key i, and what the store has said of it. The lease has its life whatever has
// lapsed meanwhile, so that a store that answers more slowly than a life serves all the same.
func (d *Store) takeIn(f *fetch, i int) {
	l, k := &f.lacks[i], &f.shares[i]
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	e, now := l.entry, d.now()
	if k.leads {
		defer d.running.Done()
		defer d.wake(e)
		e.fetching = false
		e.owed = max(0, e.owed-int(k.forced)) // a Reset may have forgotten it
		if k.granted > 0 {
			d.takeLease(f, i, now)
		}
		if f.lost {
			e.failed()
		}
	}
	if f.next != nil && l.limits == e.limits { // or else it says nothing of today's limit
		f.next[i] = d.learn(e, f.next[i], f.nextN[i], f.sent, now)
	}
}

// takeLease takes what was granted of key i, less what the claims have of it.
func (d *Store) takeLease(f *fetch, i int, now time.Duration) {
	l, k := &f.lacks[i], &f.shares[i]
	e := l.entry
	d.stats.granted.Add(k.granted)
	held := e.receive(grants{
		granted: int(k.granted), want: int(k.wish), owed: int(k.owed), room: k.room,
		sent: f.sent, now: now, window: untilWindowEnds(e.ns.Rule.Name, k.reset, l.limits.by),
	}, d.termsOf(e.ns))
	held.grant = k.grant
	held.left -= int(f.sum(i, f.fit))
	k.left = held.left
	e.remaining, e.last = k.room, nil
	if held != &e.slot && held != &e.spare { // there is no place for it
		d.giveBack(e, held.grant, held.left)
	}
	if l.limits != e.limits { // the limit has changed meanwhile
		d.giveUp(e)
	}
}

// learn remembers r, a plain reply of the store to n events that were not charged. It returns what those
// are told who ask for as many.
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

// answer answers the claims, and returns those that are for other numbers of events than the one that was
// denied.
func (d *Store) answer(f *fetch) (again []claim) {
	after := make([]int64, len(f.shares)) // events of the claims that follow
	for i := range after {
		after[i] = f.sum(i, f.fit)
	}
	for _, c := range f.claims[:f.fit] {
		v := verdict{true, make([]store.Reply, len(c.n))}
		for i, n := range c.n {
			after[i] -= n
			v.replies[i] = f.shares[i].admit(store.AdmittedPlainly, f.shares[i].left+int(after[i]), n)
		}
		if c.Answer(v, nil) {
			continue
		}
		requests := f.requests(store.OpTake)
		for i, n := range c.n {
			requests[i].N = n
		}
		d.putBack(requests, v.replies, nil)
	}
	for _, c := range f.claims[f.fit:] {
		switch {
		case f.panicked != nil:
			c.Panic(f.panicked)
		case f.err != nil:
			c.Answer(verdict{}, f.err)
		case slices.Equal(c.n, f.nextN):
			c.Answer(verdict{false, f.next}, nil)
		default:
			again = append(again, c)
		}
	}
	return again
}

// fetchAhead fetches the next lease of e while there is still something, or charges what is owed. It waits
// for a worker: there may be one for each of many keys. It is called under the shard's lock.
func (d *Store) fetchAhead(s *shard, e *entry) {
	if e.fetching || e.queued {
		return
	}
	e.queued = d.do(func(ctx context.Context) error {
		l := lack{request: store.Request{Namespace: e.ns, Key: e.key}, shard: s, entry: e}
		f := &fetch{lacks: []lack{l}, shares: make([]share, 1), patience: d.patience}
		s.mu.Lock()
		e.queued, f.lacks[0].limits = false, e.limits
		if e.low() || e.owed > 0 { // or else a caller has come for it
			d.lead(f, 0)
		}
		s.mu.Unlock()
		if f.shares[0].leads {
			d.run(ctx, f)
		}
		return nil
	}, math.MaxInt)
}
