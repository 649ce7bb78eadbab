// Package batch asks a store once for many calls for the same keys.
package batch

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
)

// Claim is a call that waits for N events of each key: all of them or none.
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

// Add adds c to those who wait. Before they need more room, those go who have left: a call may hang.
func Add(waiting []Claim, c Claim) []Claim {
	if len(waiting) == cap(waiting) {
		waiting = slices.DeleteFunc(waiting, hasLeft)
		waiting = slices.Grow(waiting, len(waiting)+1)
	}
	return append(waiting, c)
}

// Next returns those of left, and then of waiting, whom the store is asked for next, and the others.
func Next(left, waiting []Claim) (next, others []Claim) {
	if len(left) > 0 {
		waiting = append(left, waiting...)
	}
	waiting = slices.DeleteFunc(waiting, hasLeft)
	n := min(len(waiting), mostClaims)
	return waiting[:n:n], waiting[n:]
}

func hasLeft(c Claim) bool { return c.Done() }

// Verdict is the answer to a Claim: whether it is admitted, and the reply of each key.
type Verdict struct {
	OK      bool
	Replies []store.Reply
}

// MostEvents is the most events of a key that a Claim may be for. So many claims at once and the events of a lease
// are a number that a store can be asked for.
const (
	MostEvents = 1 << 16
	mostClaims = 1 << 13
)

// Part is what a Batch asks of one key, and what it has of it.
type Part struct {
	Sum  int64 // events of the claims
	Want int64 // events to ask for: Sum, those of a lease, and what is Owed
	Owed int64 // events that have happened, and are charged in any case

	Granted int64       // events that were charged
	Reply   store.Reply // that of the call that charged them
	Room    int64       // events that the store has left: then, or by its last denial
	Short   bool        // there was no room for all that was wanted
	Forced  int64       // events of those Owed that were charged beyond the limit
}

// Batch is one call of a store for all claims, or a few calls if there is not enough for all of them.
type Batch struct {
	Requests []store.Request // of each claim but for N, under the limits that the store is asked
	Claims   []Claim         // in order of arrival
	Parts    []Part          // of the requests
	Patience *pending.Patience

	Fit      int           // so many of the claims are admitted, from the first on
	NextN    []int64       // the events of the first claim that is not, or one of each key if there is none
	Next     []store.Reply // to NextN, which are not charged; nil if it is not known
	Asked    int           // calls for events that the store has answered
	Lost     bool          // what it was asked for may be charged
	Err      error
	Panicked any // of the store

	alone struct { // Requests and Parts of one key
		requests [1]store.Request
		parts    [1]Part
	}
}

// Make readies b for claims to so many keys, of which the caller sets the Requests.
func (b *Batch) Make(keys int, claims []Claim, p *pending.Patience) {
	b.Claims, b.Patience = claims, p
	if b.Requests, b.Parts = b.alone.requests[:], b.alone.parts[:]; keys > 1 {
		b.Requests, b.Parts = make([]store.Request, keys), make([]Part, keys)
	}
	for i := range b.Parts {
		n := b.Events(i, len(claims))
		b.Parts[i] = Part{Sum: n, Want: n}
	}
}

// Events is how many events of key i the first n claims are for.
func (b *Batch) Events(i, n int) (sum int64) {
	for _, c := range b.Claims[:n] {
		sum += c.N[i]
	}
	return sum
}

// UpTo reports whether each claim is for one event of one key. The store is then asked for as many as fit.
func (b *Batch) UpTo() bool { return len(b.Parts) == 1 && b.Parts[0].Sum == int64(len(b.Claims)) }

// IsOf reports whether c is all that the store is asked for.
func (b *Batch) IsOf(c Claim) bool {
	return len(b.Claims) == 1 && b.Claims[0].Call == c.Call &&
		!slices.ContainsFunc(b.Parts, func(p Part) bool { return p.Want > p.Sum })
}

// errExit is the error of all claims if a store ends the goroutine that asks it, as a test that fails does.
var errExit = fmt.Errorf("%w: the store has ended its goroutine, the outcome is unknown", store.ErrTimeout)

// Ask asks s. A panic of it is kept for the goroutines of the callers, which may expect it.
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

var one = []int64{1} // of most claims

// askUpTo asks for as many events of one key as there are, and charges what is owed in any case.
func (b *Batch) askUpTo(ctx context.Context, s store.Store) error {
	q, p := b.Requests[0], &b.Parts[0]
	r, err := store.TakeUpTo(ctx, s, q.Namespace, q.Key, q.Limit, p.Want)
	if b.Patience.Heard(err); err != nil {
		return err
	}
	if r.OK() {
		b.charged(0, r, min(p.Want, r.Available(q.Namespace.Rule, q.Limit)))
		b.Fit = int(min(p.Sum, max(0, p.Granted-p.Owed)))
	}
	if unpaid := p.Owed - p.Granted; unpaid > 0 {
		_, err := store.Overdraw(ctx, s, q.Namespace, q.Key, q.Limit, unpaid, math.MaxInt32)
		if b.Patience.Heard(err); err != nil {
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

// charged notes that r has charged n events of key i.
func (b *Batch) charged(i int, r store.Reply, n int64) {
	q, p := &b.Requests[i], &b.Parts[i]
	p.Granted, p.Reply, p.Room = n, r, r.Report(q.Namespace.Rule, q.Limit, n, n).Remaining
}

// askAll asks for all that the parts want. If that is too much, it asks for as many claims as there is room
// for, and for nothing else. It asks for fewer while others take that room meanwhile.
func (b *Batch) askAll(ctx context.Context, s store.Store) error {
	replies, exact := make([]store.Reply, len(b.Parts)), false
	for n := len(b.Claims); n > 0; n = b.fitting(replies, n) {
		exact = n == 1
		for i := range b.Parts {
			p := &b.Parts[i]
			if n < len(b.Claims) || b.Asked > 0 {
				p.Want = b.Events(i, n)
			}
			b.Requests[i].N, exact = p.Want, exact && p.Want == b.Claims[0].N[i]
		}
		err := s.Decide(ctx, b.Requests, replies)
		if b.Patience.Heard(err); err != nil {
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
	case slices.ContainsFunc(b.Parts, emptied): // a look is worth it if a lease has taken the last events
		look := slices.ContainsFunc(b.Parts, func(p Part) bool { return emptied(p) && p.Want > p.Sum })
		b.foresee(slices.Repeat([]int64{1}, len(b.Parts)), look)
	}
	return nil
}

// fitting is how many of the first n claims, which replies deny, there is room for: n if it was the leases for
// which there was none.
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
	return 0 // the store denies what it says there is room for
}

// foresee finds Next for n from the replies to what was charged. If these do not tell, it is left to a look, if
// that is wanted.
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
		if q.Namespace.Rule.Name == fixedWindow { // it may have begun with these events
			next[i].Z = reset
		}
	}
	b.Next, b.NextN = next, n
}

const fixedWindow = "fixed_window"

// tells reports whether the reply to what was charged says what comes next. That of a log does not say when its
// events leave, nor does that of a sliding window of another Period.
func (p *Part) tells(rule *store.Rule) bool {
	switch rule.Name {
	case fixedWindow, "sliding_window", "token_bucket", "leaky_bucket":
		return p.Granted > 0 && p.Forced == 0 && !p.Reply.Plain() && p.Reply.Y >= 0
	}
	return false
}

// look asks what NextN would be told.
func (b *Batch) look(ctx context.Context, s store.Store) error {
	requests, replies := slices.Clone(b.Requests), make([]store.Reply, len(b.Parts))
	for i := range requests {
		requests[i].Op, requests[i].N = store.OpLook, b.NextN[i]
	}
	err := s.Decide(ctx, requests, replies)
	if b.Patience.Heard(err); err != nil {
		return err
	}
	b.Next = replies
	return nil
}

// deny makes Next a denial if one is due. Room may have come since the store has denied: then it is soon.
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

// Answer answers the claims, and returns those that are for other numbers of events than the one that was
// denied: the store is to be asked again for them. It calls admitted for each claim that is admitted, to
// set its replies, and left for each of those whose caller has left.
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
