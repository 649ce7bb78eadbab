package lease

import (
	"context"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// claim is a list that waits for what it lacks: n events of each key.
type claim struct {
	*pending.Call[verdict]
	n []int64
}

// verdict is the answer to a claim: whether all is charged, and the replies.
type verdict struct {
	all     bool
	replies []store.Reply
	again   bool // the store is to be asked for this claim alone
}

// A line asks the store for so many claims at once, of so many events each. That is no more of a key than
// may be held.
const (
	mostClaims = 1 << 13
	mostShared = 1 << 16
)

// line is the claims of one set of keys, in order of arrival. The store is asked for all of them at
// once, by one such call after the other. The shard of the first key protects it.
type line struct {
	lacks  []lack // of each claim, but for the numbers
	claims []claim
}

func newClaim(lacks []lack) claim {
	c := claim{pending.New[verdict](), make([]int64, len(lacks))}
	for i := range lacks {
		c.n[i] = lacks[i].request.N
	}
	return c
}

// shareable is whether claims of these can be decided on together: leases can be had of all.
func shareable(lacks []lack) bool {
	return !slices.ContainsFunc(lacks, func(l lack) bool {
		return l.entry == nil || !l.request.Votes() || l.request.N > mostShared
	})
}

// stand has c stand in the line of its keys. The first one in it has the store asked.
func (d *Store) stand(lacks []lack, c claim) {
	s, e := lacks[0].shard, lacks[0].entry
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ln := range e.lines {
		if ln.isOf(lacks) {
			ln.claims = append(ln.claims, c)
			return
		}
	}
	ln := &line{lacks, []claim{c}}
	e.lines = append(e.lines, ln)
	go d.serveLine(s, e, ln)
}

// isOf is whether ln is of these keys, under these limits.
func (ln *line) isOf(lacks []lack) bool {
	return slices.EqualFunc(ln.lacks, lacks, func(a, b lack) bool { return a.entry == b.entry && a.limits == b.limits })
}

// serveLine decides on those who stand in ln, until nobody does.
func (d *Store) serveLine(s *shard, e *entry, ln *line) {
	for again := []claim(nil); ; {
		s.mu.Lock()
		claims := slices.DeleteFunc(append(again, ln.claims...), func(c claim) bool { return c.Done() })
		n := min(len(claims), mostClaims)
		claims, ln.claims = claims[:n:n], claims[n:]
		if n == 0 {
			e.lines = slices.DeleteFunc(e.lines, func(other *line) bool { return other == ln })
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		again = d.decideTogether(ln.lacks, claims)
	}
}

// decideTogether asks the store for all claims at once, and for leases. If that is too much, it asks for as
// many as there is room for, in their order, and denies the others. It returns those whose room others
// have taken meanwhile.
func (d *Store) decideTogether(lacks []lack, claims []claim) (again []claim) {
	b := d.takeTogether(lacks, claims, true)
	if b.decides(claims) {
		return nil
	}
	fit := b.fit(claims)
	if fit > 0 {
		if some := d.takeTogether(lacks, claims[:fit], false); !some.decides(claims[:fit]) {
			b, fit = some, min(some.fit(claims[:fit]), fit-1)
			again = claims[:fit]
		}
	}
	b.deny(claims[fit:])
	return again
}

// batch is a call of the store for several claims.
type batch struct {
	d        *Store
	lacks    []lack // with the numbers of all claims
	sent     time.Duration
	replies  []store.Reply // of the store
	all      bool          // whether it admits all
	shares   []share       // then, of each key
	before   []int64       // or else the events of the claims that fit,
	blocked  []bool        // and which keys have no room for the next one
	err      error
	panicked any
}

// share is a grant with what is left of it after all claims.
type share struct {
	*grant
	left int
}

// takeTogether asks the store for what the claims lack and, if ahead, for leases. It takes these in.
func (d *Store) takeTogether(lacks []lack, claims []claim, ahead bool) *batch {
	b := &batch{d: d, lacks: slices.Clone(lacks), replies: make([]store.Reply, len(lacks)), shares: make([]share, len(lacks)), before: make([]int64, len(lacks)), blocked: make([]bool, len(lacks))}
	for i := range b.lacks {
		l := &b.lacks[i]
		l.request.N = 0
		for _, c := range claims {
			l.request.N += c.n[i]
		}
		l.want = l.request.N
		l.leads = d.leadFor(l, ahead)
	}
	b.sent = d.now()
	b.ask()
	for i := range b.lacks {
		b.takeIn(i)
	}
	return b
}

// ask asks the store. A panic belongs on the callers' goroutines, which may expect it.
func (b *batch) ask() {
	defer func() {
		if b.panicked = recover(); b.err != nil || b.panicked != nil {
			b.d.stats.lost.Add(1)
		} else {
			b.d.stats.asked.Add(1)
		}
	}()
	ctx := context.Background() // no caller's: the store has a timeout
	b.err = b.d.Store.Decide(ctx, requestsOf(b.lacks), b.replies)
	if b.d.patience.Heard(b.err); b.err != nil {
		return
	}
	b.all = allOK(b.lacks, b.replies)
	for i := range b.lacks {
		if l := &b.lacks[i]; b.all && l.leads {
			l.full = b.d.fullAfter(ctx, l, b.replies[i])
		}
	}
}

// leadFor makes the next call one that fetches a lease of l, unless one is under way.
func (d *Store) leadFor(l *lack, ahead bool) bool {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	e, now := l.entry, d.now()
	d.tidy(e, now)
	swept := l.shard.keys[d.seeds.In(e.ns, e.key)] != e
	if swept || e.fetching || e.owed > 0 || e.spare.left > 0 || e.limits != l.limits || !d.begin() {
		return false
	}
	e.fetching = true
	l.wish = max(l.want, int64(e.ask(now, int(l.want), d.termsOf(e.ns))))
	if ahead { // all or none: no more than there is, as far as is known
		l.want = max(l.want, min(l.wish, int64(e.remaining)))
	}
	return true
}

// fullAfter is the denial that the next event of l meets after r, if r admits about all there is.
// It is nil if there is more, or nobody has looked.
func (d *Store) fullAfter(ctx context.Context, l *lack, r store.Reply) *store.Reply {
	ns, by := l.request.Namespace, l.limits.by
	if l.want == l.request.N || l.want == l.wish || r.Available(ns.Rule, by)-l.want >= l.wish {
		return nil
	}
	denial, err := denialOf(ctx, d.Store, d.patience, ns, l.request.Key, by, 1)
	if err != nil { // then it is learned from the next call
		return nil
	}
	return &denial
}

// takeIn takes the lease of key i, or what the store has said of it.
func (b *batch) takeIn(i int) {
	d, l, r := b.d, &b.lacks[i], b.replies[i]
	if b.all {
		says := r.Report(l.request.Namespace.Rule, l.limits.by, l.want, l.want)
		b.shares[i].grant = &grant{at: r.X, reset: says.Reset, room: int(says.Remaining), limits: l.limits}
	}
	if !l.leads {
		return
	}
	defer d.running.Done()
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	now, e := d.now(), l.entry
	e.fetching = false
	defer d.serve(l.shard, e)
	switch {
	case b.err != nil || b.panicked != nil:
		e.failed()
	case b.all:
		b.shares[i].left = d.takeLease(l, b.shares[i].grant, b.sent, now)
	case e.limits == l.limits: // or else it says nothing of today's limit
		if e.remaining = int(b.room(i)); e.remaining > 0 {
			e.denied, e.last = 0, &remembered{fits(e.ns.Rule, l.limits.by, r, 1), now}
		}
	}
}

// takeLease takes what g has for others, and returns how much that is.
func (d *Store) takeLease(l *lack, g *grant, sent, now time.Duration) int {
	e, n := l.entry, int(l.request.N)
	d.stats.granted.Add(l.want)
	held := e.receive(grants{
		granted: int(l.want), want: int(l.wish), room: g.room,
		sent: sent, now: now, window: untilWindowEnds(e.ns.Rule.Name, g.reset, l.limits.by),
	}, d.termsOf(e.ns))
	held.grant = g
	held.left -= n
	left := held.left
	e.remaining, e.last = g.room, nil
	if l.full != nil && l.limits == e.limits {
		d.remember(e, *l.full, sent, now)
	}
	if l.limits != e.limits { // the limit has changed meanwhile
		d.giveUp(e)
	}
	return left
}

// fits is r, a reply beside a denial, as one to n events that there is room for.
func fits(rule *store.Rule, by store.Limit, r store.Reply, n int64) store.Reply {
	told := plain(rule, by, r, n, 0)
	told.Outcome = store.AdmittedPlainly
	return told
}

// decides answers the claims that b is of, unless they are denied.
func (b *batch) decides(claims []claim) bool {
	switch {
	case b.panicked != nil:
		for _, c := range claims {
			c.Panic(b.panicked)
		}
	case b.err != nil:
		for _, c := range claims {
			c.Answer(verdict{}, b.err)
		}
	case b.all:
		b.admit(claims)
	default:
		return false
	}
	return true
}

// admit admits the claims. What is of those who have left goes back.
func (b *batch) admit(claims []claim) {
	after := make([]int, len(b.lacks)) // events of the claims that follow
	for i := range b.lacks {
		after[i] = int(b.lacks[i].request.N)
	}
	for _, c := range claims {
		v := verdict{all: true, replies: make([]store.Reply, len(c.n))}
		for i, n := range c.n {
			after[i] -= int(n)
			v.replies[i] = b.shares[i].admit(store.AdmittedPlainly, b.shares[i].left+after[i], n)
		}
		if c.Answer(v, nil) {
			continue
		}
		for i, n := range c.n {
			request := b.lacks[i].request
			request.N = n
			b.d.putBack(&request, v.replies[i])
		}
	}
}

// room is how many events of key i there are beside a denial.
func (b *batch) room(i int) int64 {
	l := &b.lacks[i]
	return b.replies[i].Available(l.request.Namespace.Rule, l.limits.by)
}

// fit is how many of the claims there is room for, from the first on. The next one is blocked.
func (b *batch) fit(claims []claim) (fit int) {
	for _, c := range claims {
		blocked := false
		for i, n := range c.n {
			b.blocked[i] = b.before[i]+n > b.room(i)
			blocked = blocked || b.blocked[i]
		}
		if blocked {
			break
		}
		for i, n := range c.n {
			b.before[i] += n
		}
		fit++
	}
	return fit
}

// deny denies claims. The first and those that are alike are told for how long. The others ask the store.
func (b *batch) deny(claims []claim) {
	if len(claims) == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			for _, c := range claims {
				c.Panic(p)
			}
		}
	}()
	v, err := b.denial(claims[0].n)
	for _, c := range claims {
		if slices.Equal(c.n, claims[0].n) {
			c.Answer(v, err)
		} else {
			c.Answer(verdict{again: true}, nil)
		}
	}
}

// denial is the denial of n events of each key.
func (b *batch) denial(n []int64) (v verdict, err error) {
	if !slices.Contains(b.blocked, true) { // the store denies what it says there is room for
		return verdict{again: true}, nil
	}
	v.replies = make([]store.Reply, len(n))
	for i, n := range n {
		l, told := &b.lacks[i], &v.replies[i]
		rule, by := l.request.Namespace.Rule, l.limits.by
		switch {
		case !b.blocked[i]:
			*told = fits(rule, by, b.replies[i], n)
			told.Y -= b.before[i]
			continue
		case l.want == n: // exactly what was asked for
			*told = plain(rule, by, b.replies[i], n, 0)
		default:
			b.sent = b.d.now()
			*told, err = denialOf(context.Background(), b.d.Store, b.d.patience, l.request.Namespace, l.request.Key, by, n)
			if err != nil {
				return verdict{}, err
			}
		}
		if n == 1 {
			*told = b.d.rememberFor(l, *told, b.sent)
		}
	}
	return v, nil
}

// rememberFor remembers the denial r of l, if it says something of today's limit.
func (d *Store) rememberFor(l *lack, r store.Reply, sent time.Duration) store.Reply {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if l.entry.limits != l.limits {
		return r
	}
	return d.remember(l.entry, r, sent, d.now())
}
