package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// First is a [Limiter] that asks several limiters in their order. Only the first one that admits a call is
// charged for it. Use it for a monthly plan and then prepaid credits, for one supplier and then another, or for a
// tenant's own share and then what the others leave ([WithReserved]). To require several limits at once, make an [All]
// of them one of the limiters.
//
// Limiters with built-in algorithms on the same store, and Alls of them, are asked together, on Redis by one
// script. On a cluster or a ring, this needs the same key or hash tag. Other limiters are asked one after the
// other. If one of them returns an error, the call returns it, and the limiters after it are not asked.
//
// Bound: the sum of the bounds of the limiters.
//
// The [Result] is that of the limiter that admitted the call, or of the one with the shortest RetryAfter.
// [Result.Parts] has the decisions of all limiters that were asked. Those with events [Result.Charged] are of the
// limiter that was charged, and a Refund or a Settle goes to it. A First keeps no state of its own.
type First struct {
	known
	limiters
	members [][]member  // one list per limiter
	joint   store.Store // the store of all members, or nil: see jointOf
}

// NewFirst returns a limiter that asks 1 to 16 limiters in their order. An All counts as the limiters in it.
// NewFirst returns [ErrInvalidOption] if a limiter overrules others, as a [Ban] or a list of package accesslist
// does, or if it counts slots (package inflight). It also returns ErrInvalidOption if two limiters share their
// counts ([WithName]) but do not have the same Option [WithKeyFunc].
func NewFirst(limiters ...Limiter) (*First, error) {
	f := &First{limiters: slices.Clone(limiters)}
	size := 0
	for _, l := range limiters {
		members, err := membersOf(l)
		if err != nil {
			return nil, err
		}
		if err := mayBeOneOf(l); err != nil {
			return nil, err
		}
		size += len(members)
		f.members = append(f.members, members)
	}
	if size == 0 || size > maxLimits {
		return nil, fmt.Errorf("%w: %d limiters, want 1 to %d", ErrInvalidOption, size, maxLimits)
	}
	if err := oneKeyEach(coresOf(nil, f)); err != nil {
		return nil, err
	}
	f.joint = jointOf(f.members)
	f.known = see.NewCore[Limiter](f, see.Known[Limiter]{Key: f.keyFunc(), Alternatives: true, Local: noLocal})
	return f, nil
}

// jointOf returns the store of all members if one call to it can decide on all of them, and nil otherwise.
func jointOf(lists [][]member) (joint store.Store) {
	for _, members := range lists {
		for _, m := range members {
			if m.core == nil || m.core.joint == nil || joint != nil && m.core.joint != joint {
				return nil
			}
			joint = m.core.joint
		}
	}
	return joint
}

// mayBeOneOf refuses limiters that a First would bypass.
func mayBeOneOf(l Limiter) error {
	inside, ok := see.Answering(l)
	if !ok {
		inside, ok = see.First[banner](l)
	}
	if ok {
		return fmt.Errorf("%w: a First cannot contain a %T: put the %[2]T around the First", ErrInvalidOption, inside)
	}
	if see.Held(l) {
		return fmt.Errorf("%w: a First cannot contain limiters of slots: call inflight.Hold for each of them", ErrInvalidOption)
	}
	return nil
}

// Allow implements [Limiter].
func (f *First) Allow(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, key, 1, asking{what: toTake})
}

// AllowN implements [Limiter].
func (f *First) AllowN(ctx context.Context, key string, n int) (Result, error) {
	return f.decide(ctx, key, n, asking{what: toTake})
}

// AllowWithin implements [Delayer]. The first limiter that admits the events within d is charged, even if a later
// one would admit them sooner: for the earliest turn, use [Wait].
func (f *First) AllowWithin(ctx context.Context, key string, n int, d time.Duration) (Result, error) {
	return f.decide(ctx, key, n, asking{toTakeWithin, d})
}

// Peek implements [Limiter].
func (f *First) Peek(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, key, 1, asking{what: toPeek})
}

// Charge charges n events to the first limiter that has room for them, or else to the last one. A Settle charges
// the limiter that its events were reserved from.
func (f *First) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	i, err := f.payer(ctx, key, n)
	if err != nil {
		return Result{}, err
	}
	parts := f.parts()
	if parts[i].Result, err = Charge(ctx, f.limiters[i], key, n); err != nil {
		return Result{}, err
	}
	return f.result(parts, i), nil
}

// payer returns which limiter a Charge of n events is for.
func (f *First) payer(ctx context.Context, key string, n int) (int, error) {
	if i := f.charged(see.Settled[Result](ctx)); i >= 0 {
		return i, nil
	}
	last := len(f.limiters) - 1
	for i, l := range f.limiters[:last] {
		r, err := l.Peek(ctx, key)
		if err != nil || r.Allowed && r.fits(l, n) {
			return i, err
		}
	}
	return last, nil
}

// fits reports whether a Charge of n events of l has room, according to r, which l returned. A limit that counts
// calls is not charged.
func (r *Result) fits(l Limiter, n int) bool {
	j := r.joined()
	if j == nil {
		return r.Remaining >= see.Events(l, n)
	}
	for i := range j.parts {
		if p := &j.parts[i]; j.voters.has(i) && !p.fits(p.Limiter, n) {
			return false
		}
	}
	return true
}

// parts returns the parts of a Result, with no limiter asked yet.
func (f *First) parts() []Part {
	parts := make([]Part, len(f.limiters))
	for i, l := range f.limiters {
		parts[i].Limiter = l
	}
	return parts
}

// Refund refunds n events to the limiter that was charged.
func (f *First) Refund(ctx context.Context, key string, charged Result, n int) error {
	if err := f.check(ctx, key, n); err != nil {
		return err
	}
	i, own := f.chosen(charged)
	if i < 0 || !charged.Allowed {
		return errNothingCharged
	}
	return f.limiters[i].Refund(ctx, key, own, n)
}

// chosen returns which limiter decided r, and its own Result. i is -1 if f did not return r.
func (f *First) chosen(r Result) (i int, own Result) {
	_, note, _ := r.Unmark(f)
	if j, ok := note.(*joined); ok {
		i = bits.TrailingZeros16(uint16(j.voters))
		return i, j.parts[i].Result
	}
	return -1, own
}

// charged returns which limiter r charged, also if r is of a limiter around f. It returns -1 if that is not known.
func (f *First) charged(r Result) int {
	if i, own := f.chosen(r); own.Allowed && i >= 0 {
		return i
	}
	for m := r.mark; m != nil; m = m.under {
		switch note := m.note.(type) {
		case *chargeNote:
			return f.charged(note.charged)
		case *joined:
			for _, p := range note.parts {
				if i := f.charged(p.Result); i >= 0 {
					return i
				}
			}
		}
	}
	return -1
}

// errFirstLocal: after an outage, a fallback knows how many events of a key it admitted, but not by which limiter.
var errFirstLocal = fmt.Errorf("%w: FailLocal cannot divide a First into shares: put a fallback around each of its limiters", ErrInvalidOption)

func noLocal(store.Store, int) (Limiter, error) { return nil, errFirstLocal }

// decide implements AllowN, AllowWithin and Peek.
func (f *First) decide(ctx context.Context, key string, n int, how asking) (Result, error) {
	if err := f.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	parts, err := f.parts(), error(nil)
	if f.joint != nil && how.what != toPeek { // a look denies nothing, so no alternative would follow
		err = f.askTogether(ctx, key, n, how, parts)
	} else {
		err = f.askInTurn(ctx, key, n, how, parts, 0)
	}
	if err != nil {
		return Result{}, err
	}
	for i := range parts {
		if parts[i].Allowed {
			return f.result(parts, i), nil
		}
	}
	return f.result(parts, soonest(parts)), nil
}

// askTogether asks the store of all limiters in one call. If the store cannot decide on the keys together, or if
// limits of an All have the same state but need separate requests, it asks one limiter after the other.
func (f *First) askTogether(ctx context.Context, key string, n int, how asking, parts []Part) (err error) {
	list := begin(how, nil) // has the requests of all alternatives, and their replies
	list.requests = list.arrays.requests[:0]
	var few [4]*decision // on the stack
	alternatives, together, failed := f.alternatives(ctx, key, n, list, few[:0])
	defer func() {
		clear(list.requests)
		list.end()
		for _, d := range alternatives {
			d.end()
		}
	}()
	if !together {
		return f.askApart(ctx, key, n, how, alternatives, parts)
	}
	replies := list.replies[:len(list.requests)]
	if len(replies) > 0 {
		err = f.joint.Decide(ctx, list.requests, replies)
	}
	if errors.Is(err, see.ErrApart) {
		whole := alternatives
		if failed != nil {
			whole = whole[:len(whole)-1]
		}
		for _, d := range whole {
			d.apart = true
		}
		return f.askApart(ctx, key, n, how, whole, parts)
	}
	for i, d := range alternatives {
		own := replies[:len(d.requests)]
		replies = replies[len(own):]
		if err == nil && i == len(alternatives)-1 {
			err = failed
		}
		if d.answer(ctx, own, err, &parts[i].Result); err != nil || !d.denied {
			return err
		}
	}
	return nil
}

// alternatives appends one decision per limiter to ds, and their requests to list. It stops after a limiter that
// admits without the store, or that fails, which matters only if no limiter before it admits. together reports
// whether one call can decide on the requests.
func (f *First) alternatives(ctx context.Context, key string, n int, list *decision, ds []*decision) (_ []*decision, together bool, failed error) {
	for i, l := range f.limiters {
		all, _ := l.(*All)
		d := begin(list.how, all)
		ds = append(ds, d)
		for _, m := range f.members[i] {
			d.add(m, key, n, false)
		}
		together, failed = d.appendRequests(ctx, list)
		switch {
		case failed != nil:
			return ds, true, failed
		case !together, len(d.group) == 0 && !d.denied:
			return ds, together, nil
		}
	}
	return ds, true, nil
}

// answer makes res the Result of d, which is an alternative, or notifies the observers of err.
func (d *decision) answer(ctx context.Context, replies []store.Reply, err error, res *Result) {
	d.callCount = 1
	if err == nil {
		d.readAll(replies)
	} else {
		for _, e := range d.group {
			e.err = err
		}
	}
	if d.conclude(ctx, err); err == nil {
		d.fill(ctx, res)
	}
}

// askApart decides on one alternative after the other, until one admits, and then asks the limiters after them.
func (f *First) askApart(ctx context.Context, key string, n int, how asking, alternatives []*decision, parts []Part) error {
	for i, d := range alternatives {
		if err := d.decide(ctx); err != nil {
			return err
		}
		if d.fill(ctx, &parts[i].Result); !d.denied {
			return nil
		}
	}
	return f.askInTurn(ctx, key, n, how, parts, len(alternatives))
}

// askInTurn asks one limiter after the other, from the given one on, until one admits.
func (f *First) askInTurn(ctx context.Context, key string, n int, how asking, parts []Part, from int) (err error) {
	for i := from; i < len(parts); i++ {
		l := f.limiters[i]
		if parts[i].Result, err = how.ask(ctx, l, key, n); err != nil || parts[i].Allowed {
			return err
		}
	}
	return nil
}

// soonest returns the index of the first part with the shortest RetryAfter.
func soonest(parts []Part) (least int) {
	for i := range parts {
		if parts[i].RetryAfter < parts[least].RetryAfter {
			least = i
		}
	}
	return least
}

// result returns the Result of limiter i, with all parts.
func (f *First) result(parts []Part, i int) Result {
	r := parts[i].Result
	j := &joined{parts: parts, voters: 1 << i, charged: r.Charged(), either: true}
	if !r.Allowed {
		j.deniedBy = parts[i].Name()
	}
	j.mark = Mark{owner: f, source: r.source(), note: j}
	r.mark = &j.mark
	return r
}

var _ complete = (*First)(nil)
