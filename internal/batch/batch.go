// Package batch combines many calls for the same keys into one call to a store.
package batch

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// Claim is a call that waits for N events of each key, all of them or none.
type Claim struct {
	*pending.Call[Verdict]
	N []int64
}

// NewClaim returns a call that waits for n(i) events of each key i.
func NewClaim(keys int, n func(i int) int64) Claim {
	c := Claim{pending.New[Verdict](), one}
	if keys > 1 || n(0) > 1 {
		c.N = make([]int64, keys)
		for i := range c.N {
			c.N[i] = n(i)
		}
	}
	return c
}

// Add appends c to waiting. Before waiting grows, claims whose callers have left are removed,
// because a call may hang.
func Add(waiting []Claim, c Claim) []Claim {
	if len(waiting) == cap(waiting) {
		waiting = slices.DeleteFunc(waiting, hasLeft)
		waiting = slices.Grow(waiting, len(waiting)+1)
	}
	return append(waiting, c)
}

// Next returns the claims that the store is asked for next, taken from left and then from waiting,
// and the other claims.
func Next(left, waiting []Claim) (next, others []Claim) {
	if len(left) > 0 {
		waiting = append(left, waiting...)
	}
	waiting = slices.DeleteFunc(waiting, hasLeft)
	n := min(len(waiting), mostClaims)
	return waiting[:n:n], waiting[n:]
}

func hasLeft(c Claim) bool { return c.Done() }

// Verdict is the answer to a Claim: whether it is admitted, and the reply for each key.
type Verdict struct {
	OK      bool
	Replies []store.Reply
}

// MostEvents is the largest number of events of a key for one Claim. mostClaims such claims, plus
// the events of a lease, are a number that a store accepts.
const (
	MostEvents = 1 << 16
	mostClaims = 1 << 13
)

// Part is what a Batch asks of one key, and what it got.
type Part struct {
	Sum  int64 // events of the claims
	Want int64 // events to ask for: Sum, those of a lease, and Owed
	Owed int64 // events that have already happened and are charged in any case

	Granted int64       // events that were charged
	Reply   store.Reply // the reply of the call that charged them
	Room    int64       // events left at the store after that call, or at its last denial
	Short   bool        // whether there was not enough room for all that was wanted
	Forced  int64       // events of Owed that were charged beyond the limit

	Last *pending.Answered // of the key; set by the caller, if others may wait
}

// Batch is one call to a store for all claims, or a few calls if there is not enough room for all
// of them.
type Batch struct {
	Requests []store.Request // for each claim, except for N; with the limits that the store is asked for
	Claims   []Claim         // in order of arrival
	Parts    []Part          // one for each request
	Patience *pending.Patience

	Fit      int           // how many of the claims are admitted, from the first on
	NextN    []int64       // the events of the first claim that is not admitted, or one of each key if all are
	Next     []store.Reply // the replies for NextN, which is not charged; nil if they are not known
	Asked    int           // calls for events that the store has answered
	Lost     bool          // whether the outcome of a call is unknown, so that events may have been charged
	Err      error
	Panicked any // what the store panicked with

	single struct { // Requests and Parts for a single key
		requests [1]store.Request
		parts    [1]Part
	}
}

// Make prepares b for claims on so many keys. The caller sets the Requests.
func (b *Batch) Make(keys int, claims []Claim, p *pending.Patience) {
	b.Claims, b.Patience = claims, p
	if b.Requests, b.Parts = b.single.requests[:], b.single.parts[:]; keys > 1 {
		b.Requests, b.Parts = make([]store.Request, keys), make([]Part, keys)
	}
	for i := range b.Parts {
		n := b.Events(i, len(claims))
		b.Parts[i] = Part{Sum: n, Want: n}
	}
}

// Heard records that the store has answered for the keys, unless err shows that it has not.
func (b *Batch) Heard(err error) {
	for i := range b.Parts {
		b.Patience.Heard(b.Parts[i].Last, err)
	}
}

// Events returns how many events of key i the first n claims need.
func (b *Batch) Events(i, n int) (sum int64) {
	for _, c := range b.Claims[:n] {
		sum += c.N[i]
	}
	return sum
}

// UpTo reports whether each claim is for one event of one key. The store is then asked for as many
// as fit.
func (b *Batch) UpTo() bool { return len(b.Parts) == 1 && b.Parts[0].Sum == int64(len(b.Claims)) }

// IsOf reports whether the store is asked for c and nothing else.
func (b *Batch) IsOf(c Claim) bool {
	return len(b.Claims) == 1 && b.Claims[0].Call == c.Call &&
		!slices.ContainsFunc(b.Parts, func(p Part) bool { return p.Want > p.Sum })
}

// errExit is the error of all claims if a store ends its goroutine, as a failing test does.
var errExit = fmt.Errorf("%w: the store called runtime.Goexit, so the outcome is unknown", store.ErrTimeout)

// Ask asks s. A panic is kept and raised on the goroutines of the callers, which may expect it.
func (b *Batch) Ask(ctx context.Context, s store.Store) {
	ended := false
	defer func() {
		if b.Panicked = recover(); b.Panicked == nil && !ended {
			b.Err = errExit
		}
	}()
	b.Lost = true
	if b.UpTo() {
		b.Err = b.askUpTo(ctx, s)
	} else {
		b.Err = b.askAll(ctx, s)
	}
	if b.Lost = b.Err != nil; b.Err == nil && b.Next == nil && b.NextN != nil {
		b.Err = b.look(ctx, s)
	}
	b.deny()
	ended = true
}

var one = []int64{1} // for most claims

// askUpTo asks for as many events of one key as fit, and charges what is owed in any case.
func (b *Batch) askUpTo(ctx context.Context, s store.Store) error {
	q, p := b.Requests[0], &b.Parts[0]
	r, err := store.TakeUpTo(ctx, s, q.Namespace, q.Key, q.Limit, p.Want)
	if b.Heard(err); err != nil {
		return err
	}
	if r.OK() {
		b.charged(0, r, min(p.Want, r.Available(q.Namespace.Rule, q.Limit)))
		b.Fit = int(min(p.Sum, max(0, p.Granted-p.Owed)))
	}
	if unpaid := p.Owed - p.Granted; unpaid > 0 {
		_, err := store.Overdraw(ctx, s, q.Namespace, q.Key, q.Limit, unpaid, math.MaxInt32)
		if b.Heard(err); err != nil {
			return err
		}
		p.Forced = unpaid
	}
	b.Asked++
	p.Short = p.Granted < p.Want
	switch {
	case p.Granted == 0 && p.Forced == 0:
		b.NextN, b.Next = one, []store.Reply{r}
	case p.Short || p.Room == 0:
		b.foresee(one, p.Short)
	}
	return nil
}

// charged records that r has charged n events of key i.
func (b *Batch) charged(i int, r store.Reply, n int64) {
	q, p := &b.Requests[i], &b.Parts[i]
	p.Granted, p.Reply, p.Room = n, r, r.Report(q.Namespace.Rule, q.Limit, n, n).Remaining
}

// askAll asks for everything the parts want. If that is too much, it asks only for as many claims
// as there is room for, and for fewer while other callers take that room.
func (b *Batch) askAll(ctx context.Context, s store.Store) error {
	replies, exact := make([]store.Reply, len(b.Parts)), false
	for n := len(b.Claims); n > 0; n = b.fitting(replies, n) {
		exact = true // which several claims never are
		for i := range b.Parts {
			p := &b.Parts[i]
			if n < len(b.Claims) || b.Asked > 0 {
				p.Want = b.Events(i, n)
			}
			b.Requests[i].N, exact = p.Want, exact && p.Want == b.Claims[0].N[i]
		}
		err := s.Decide(ctx, b.Requests, replies)
		if b.Heard(err); err != nil {
			return err
		}
		if b.Asked++; store.AllOK(b.Requests, replies) {
			b.Fit = n
			for i, r := range replies {
				b.charged(i, r, b.Parts[i].Want)
			}
			break
		}
	}
	emptied := func(p Part) bool { return p.Room == 0 }
	switch {
	case b.Fit == 0 && exact:
		b.NextN, b.Next = b.Claims[0].N, replies
	case b.Fit < len(b.Claims):
		b.foresee(b.Claims[b.Fit].N, true)
	case slices.ContainsFunc(b.Parts, emptied): // worth a look if a lease has taken the last events
		look := slices.ContainsFunc(b.Parts, func(p Part) bool { return emptied(p) && p.Want > p.Sum })
		b.foresee(slices.Repeat([]int64{1}, len(b.Parts)), look)
	}
	return nil
}

// fitting returns how many of the first n claims, which replies deny, there is room for. It returns
// n if only the leases did not fit.
func (b *Batch) fitting(replies []store.Reply, n int) int {
	leased := slices.ContainsFunc(b.Parts, func(p Part) bool { return p.Want > p.Sum })
	room := make([]int64, len(replies))
	for i, r := range replies {
		room[i] = r.Available(b.Requests[i].Namespace.Rule, b.Requests[i].Limit)
		b.Parts[i].Room = room[i]
	}
	for c := range n {
		short := false
		for i := range room {
			room[i] -= b.Claims[c].N[i]
			b.Parts[i].Short = room[i] < 0
			short = short || b.Parts[i].Short
		}
		if short {
			return c
		}
	}
	if leased {
		return n
	}
	return 0 // the store denies although it reports enough room
}

// foresee computes Next for n from the replies to what was charged. If these do not show enough and
// look is true, it leaves Next to look.
func (b *Batch) foresee(n []int64, look bool) {
	if b.NextN = n; !look {
		b.NextN = nil
	}
	next := make([]store.Reply, len(b.Parts))
	for i := range b.Parts {
		q, p := &b.Requests[i], &b.Parts[i]
		if !p.tells(q.Namespace.Rule) {
			return
		}
		reset := p.Reply.Report(q.Namespace.Rule, q.Limit, p.Granted, p.Granted).Reset
		next[i] = p.Reply.After(q.Namespace.Rule, p.Granted)
		next[i].Outcome = store.AdmittedIf(p.Room >= n[i])
		if q.Namespace.Rule.Name == fixedWindow { // the window may have begun with these events
			next[i].Z = reset
		}
	}
	b.Next, b.NextN = next, n
}

const fixedWindow = "fixed_window"

// tells reports whether the reply to what was charged shows what comes next. A log's reply does not
// show when its events leave, nor does that of a sliding window with another Period.
func (p *Part) tells(rule *store.Rule) bool {
	switch rule.Name {
	case fixedWindow, "sliding_window", "token_bucket", "leaky_bucket":
		return p.Granted > 0 && p.Forced == 0 && !p.Reply.Plain() && p.Reply.Y >= 0
	}
	return false
}

// look asks for the reply to NextN without charging it.
func (b *Batch) look(ctx context.Context, s store.Store) error {
	requests, replies := slices.Clone(b.Requests), make([]store.Reply, len(b.Parts))
	for i := range requests {
		requests[i].Op, requests[i].N = store.OpLook, b.NextN[i]
	}
	err := s.Decide(ctx, requests, replies)
	if b.Heard(err); err != nil {
		return err
	}
	b.Next = replies
	return nil
}

// deny turns Next into a denial if one is due. If room has appeared since the store denied, the
// denial is a short one.
func (b *Batch) deny() {
	short := func(p Part) bool { return p.Short }
	known := slices.ContainsFunc(b.Parts, short)
	if b.Next == nil || !store.AllOK(b.Requests, b.Next) || b.Fit == len(b.Claims) && !known {
		return
	}
	for i, r := range b.Next {
		const soon = 1 // µs
		if q, p := &b.Requests[i], &b.Parts[i]; p.Short || !known {
			reset := r.Report(q.Namespace.Rule, q.Limit, b.NextN[i], 0).Reset
			b.Next[i] = store.Reply{Outcome: store.DeniedPlainly, X: soon, Y: min(p.Room, b.NextN[i]-1), Z: max(soon, reset)}
		}
	}
}

// Answer answers the claims. It returns those for a different number of events than the one that
// was denied, because the store must be asked again for them. It calls admitted for each claim that
// is admitted, to set its replies, and left for each of these whose caller has left.
func (b *Batch) Answer(admitted, left func(c Claim, replies []store.Reply)) (again []Claim) {
	all := make([]store.Reply, b.Fit*len(b.Parts))
	for _, c := range b.Claims[:b.Fit] {
		replies := all[:len(b.Parts):len(b.Parts)]
		all = all[len(b.Parts):]
		if admitted(c, replies); !c.Answer(Verdict{true, replies}, nil) {
			left(c, replies)
		}
	}
	for _, c := range b.Claims[b.Fit:] {
		switch {
		case b.Panicked != nil:
			c.Panic(b.Panicked)
		case b.Err != nil:
			c.Answer(Verdict{}, b.Err)
		case slices.Equal(c.N, b.NextN):
			c.Answer(Verdict{Replies: b.Next}, nil)
		default:
			again = append(again, c)
		}
	}
	return again
}
