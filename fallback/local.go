package fallback

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/exact"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// mirrored is the note on admissions of the store that were also charged to the local limiter.
type mirrored struct {
	mark  ratelimit.Mark // of this note, in the same allocation
	local ratelimit.Result
	short int // events that local was not charged with
}

// upTo charges a limiter with as many of n events as it has room for.
type upTo func(ctx context.Context, l ratelimit.Limiter, key string, n int) (granted int, r ratelimit.Result, err error)

// mirror charges n events, which the store has decided on as r, to the local limiter too, as far as
// it has room. Errors are ignored, because the only consequence is that the local limiter knows
// less.
func (f *Limiter) mirror(ctx context.Context, key string, n int, r ratelimit.Result, charge upTo) ratelimit.Result {
	if f.local == nil || !r.Allowed || uncounted(r) {
		return r
	}
	granted, local, err := charge(lasting(ctx), f.local, key, n)
	if err != nil || granted == 0 {
		return r
	}
	m := &mirrored{local: local, short: n - granted}
	m.mark = *ratelimit.NewMark(f, ratelimit.SourceStore, m)
	return r.WithMark(&m.mark)
}

// chargeUpTo is an upTo that uses Charge and counts neither calls nor slots, because the call has
// already been charged with them. Concurrent calls see the same room.
func (f *Limiter) chargeUpTo(ctx context.Context, l ratelimit.Limiter, key string, n int) (int, ratelimit.Result, error) {
	counter := f.facts().counter
	p, err := counter.Peek(ctx, key)
	if err != nil {
		return 0, p, err
	}
	s, err := tallyOf(ctx, counter, key, p, charge{})
	if n = min(n, s.room); err != nil || n == 0 {
		return 0, p, err
	}
	r, err := ratelimit.Charge(ctx, l, key, n)
	return n, r, err
}

// payDebt charges the limiter with what the local limiter has admitted to key in its place and
// still counts. The store may have been charged with a part of that already. At worst, the key pays
// that part twice, and never more than it has spent locally.
func (f *Limiter) payDebt(ctx context.Context, key string) error {
	if f.owed.keys.Load() == 0 {
		return nil
	}
	was := f.owed.take(key, f.breakers.now())
	owed, doubt := was.charge, was.doubt
	if owed == (charge{}) { // nothing is owed, or another call is charging it, so the store works and decides this call
		return nil
	}
	var paid charge
	defer func() { f.owed.paid(key, paid, doubt) }()

	due := owed
	counter := f.facts().counter
	if p, err := counter.Peek(ctx, key); err == nil {
		if uncounted(p) || p.Limit == 0 { // checked with the current limit, which may have changed
			return nil
		}
		if s, err := tallyOf(ctx, counter, key, p, owed); err == nil {
			due = due.still(s.counted)
		}
	}
	doubt = true // even if pay panics
	granted, err := pay(see.Trying(ctx), f.limiter, key, due, was.doubt)
	paid = charge{owed.events - due.events + granted.events, owed.calls - due.calls + granted.calls}
	switch {
	case err == nil, errors.Is(err, errUncounted):
		doubt = false
		return nil
	case unsent(err):
		doubt = was.doubt
	}
	return err // after a lost reply it may be charged again, which is better than not at all
}

// still returns as much of c as is counted. A part that no limit counts (-1) is reduced in the same
// ratio as the other part.
func (c charge) still(counted charge) charge {
	part := func(n, of, whole int) int {
		if whole == 0 {
			return n
		}
		return int(exact.MulDivUp(int64(n), int64(of), 0, int64(whole)))
	}
	all := charge{min(c.events, counted.events), min(c.calls, counted.calls)}
	switch {
	case counted.events < 0 && counted.calls < 0:
		return c
	case counted.events < 0:
		all.events = part(c.events, all.calls, c.calls)
	case counted.calls < 0:
		all.calls = part(c.calls, all.events, c.events)
	}
	return all
}

// tally is what a local limiter counts for a key, and how many events it has room for.
type tally struct {
	counted charge // -1 for events or calls that no limit counts
	room    int
}

// tallyOf returns the tally of local for a key that owes this, by its Peek p. Of several limits, the one that counts
// most is used, and the one with the least room. What the limiters of a First count adds up, because each call is
// charged to one.
func tallyOf(ctx context.Context, local ratelimit.Limiter, key string, p ratelimit.Result, owed charge) (tally, error) {
	if see.Alternatives(local) { // the parts of p are those that were asked
		return tallyInside(ctx, local, key, owed)
	}
	s := tally{charge{-1, -1}, math.MaxInt}
	for _, part := range each(local, p) {
		n, l := part.Limit-part.Remaining, see.Behind(part.Limiter)
		if !part.Counted() {
			n = 0
		}
		switch {
		case l.Held: // holders of slots take them again
		case l.Calls:
			s.counted.calls = max(s.counted.calls, n)
		default:
			s.counted.events = max(s.counted.events, n)
			if part.Counted() {
				s.room = min(s.room, part.Remaining)
			}
		}
	}
	return s, nil
}

func tallyInside(ctx context.Context, local ratelimit.Limiter, key string, owed charge) (tally, error) {
	s, sum, either := tally{charge{-1, -1}, math.MaxInt}, charge{}, isFirst(local)
	if either {
		s.room = 0
	}
	for _, l := range see.Inside(local) {
		p, err := l.Peek(ctx, key)
		if err != nil {
			return s, err
		}
		inside, err := tallyOf(ctx, l, key, p, owed)
		if err != nil {
			return s, err
		}
		s.counted = charge{max(s.counted.events, inside.counted.events), max(s.counted.calls, inside.counted.calls)}
		if either { // one counts the events of its calls, and another one the calls
			still := owed.still(inside.counted)
			sum = charge{sum.events + still.events, sum.calls + still.calls}
			s.room = max(s.room, inside.room)
		} else {
			s.room = min(s.room, inside.room)
		}
	}
	if either && s.counted.events >= 0 {
		s.counted.events = sum.events
	}
	if either && s.counted.calls >= 0 {
		s.counted.calls = sum.calls
	}
	return s, nil
}

// owing is one limit of a limiter, with what it is charged with.
type owing struct {
	ratelimit.Limiter
	calls bool
}

// waysOf returns the lists of limits that can pay for l, in the order in which calls try them: each limiter of a
// First is another way. Slots are in none, because holders take their slots again. Wrappers of other packages may
// change keys or costs, so they are asked as a whole.
func waysOf(l ratelimit.Limiter) (ways [][]owing) {
	k := see.Of(l)
	switch {
	case k == nil && !see.Observing(l) && !see.Held(l), k != nil && k.Algorithm != "" && !k.Calls && !k.Held:
		return [][]owing{{{l, false}}}
	case k != nil && k.Held:
		return [][]owing{nil}
	case k != nil && k.Calls:
		return [][]owing{{{k.ByEvents(), true}}}
	case isFirst(l):
		for _, inside := range see.Inside(l) {
			ways = append(ways, waysOf(inside)...)
		}
		return ways
	}
	ways = [][]owing{nil}
	for _, inside := range see.Inside(l) {
		var longer [][]owing
		for _, way := range ways {
			for _, more := range waysOf(inside) {
				longer = append(longer, slices.Concat(way, more))
			}
		}
		ways = longer
	}
	return ways
}

// payTries is how often the limiter is asked for what is owed, in addition to once per limit. A
// denial shows how much room there is.
const payTries = 3

// errUncounted means that a limiter admits without counting. What is owed is then charged when it counts again.
var errUncounted = errors.New("fallback: the limiter does not count")

// pay charges l with as much of due as it has room for. If one of several ways fails, what was charged until then
// is paid. With doubt, it first sends a Peek to the limits of later ways, which a Peek of l need not ask.
func pay(ctx context.Context, l ratelimit.Limiter, key string, due charge, doubt bool) (paid charge, err error) {
	left, ways := due, waysOf(l)
	for i, limits := range ways {
		if doubt && i > 0 {
			err = peekEach(ctx, limits, key)
		}
		var granted charge
		if err == nil {
			granted, err = payBy(ctx, limits, key, left, i < len(ways)-1)
		}
		switch {
		case err != nil:
			return charge{due.events - left.events, due.calls - left.calls}, err
		case granted == left:
			return due, nil
		}
		left = left.still(rest(limits, left, granted))
	}
	return charge{due.events - left.events, due.calls - left.calls}, nil
}

// peekEach sends a Peek to each of limits, and returns the first error.
func peekEach(ctx context.Context, limits []owing, key string) error {
	for _, l := range limits {
		if _, err := l.Peek(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// rest returns what is left of due after limits were charged with granted: -1 for a part that none of several limits counts.
func rest(limits []owing, due, granted charge) charge {
	left := charge{-1, -1}
	for i := range limits {
		*limits[i].part(&left) = *limits[i].part(&due) - *limits[i].part(&granted)
	}
	return left
}

// payBy charges limits with as much of due as they have room for. If another way follows, it pays for whole calls, of
// which all limits have room for the events.
func payBy(ctx context.Context, limits []owing, key string, due charge, more bool) (granted charge, err error) {
	if len(limits) == 1 && !limits[0].calls && due.events > 0 {
		n, r, err := ratelimit.AllowUpTo(ctx, limits[0].Limiter, key, due.events)
		if err == nil && uncounted(r) { // checked with the current limit, which may have changed
			return charge{}, errUncounted
		}
		return charge{n, due.calls}, err
	}
	for range payTries + len(limits) {
		asks, most := make([]ratelimit.Ask, len(limits)), 0
		for i, l := range limits {
			n := *l.part(&due)
			asks[i] = ratelimit.Ask{Limiter: l.Limiter, Key: key, N: n, Look: n == 0}
			most = max(most, n)
		}
		if most == 0 {
			return due, nil
		}
		r, err := ratelimit.Decide(ctx, asks...)
		switch {
		case err != nil:
			return charge{}, err
		case r.Allowed && uncounted(r):
			return charge{}, errUncounted
		case r.Allowed:
			return due, nil
		}
		all := due
		if err := fit(ctx, key, r, limits, &due); err != nil {
			return charge{}, err
		}
		if more {
			byEvents, byCalls := all.still(charge{due.events, -1}), all.still(charge{-1, due.calls})
			due = charge{min(byEvents.events, byCalls.events), min(byEvents.calls, byCalls.calls)}
		}
	}
	return charge{}, nil
}

// fit lowers due to what limits, which have denied it as r, have room for.
func fit(ctx context.Context, key string, r ratelimit.Result, limits []owing, due *charge) error {
	parts := r.Parts()
	for i := range limits {
		l, room := &limits[i], math.MaxInt
		if len(parts) == len(limits) {
			if p := &parts[i]; !p.Allowed && p.Counted() && p.Result != (ratelimit.Result{}) { // otherwise it was not asked
				room = p.Remaining
			}
		} else { // a wrapper of another package has several limits
			p, err := l.Peek(ctx, key)
			if err != nil {
				return err
			}
			s, err := tallyOf(ctx, l.Limiter, key, p, *due)
			if err != nil {
				return err
			}
			room = s.room
		}
		n := l.part(due)
		*n = min(*n, room)
	}
	return nil
}

// isFirst reports whether l itself is a First.
func isFirst(l ratelimit.Limiter) bool {
	k := see.Of(l)
	return k != nil && k.Alternatives
}

// part returns the part of c that l is charged with.
func (l *owing) part(c *charge) *int {
	if l.calls {
		return &c.calls
	}
	return &c.events
}

// each returns the parts of r, a Result of l, or r itself if l is a single limit.
func each(l ratelimit.Limiter, r ratelimit.Result) []ratelimit.Part {
	if parts := r.Parts(); parts != nil {
		return parts
	}
	return []ratelimit.Part{{Result: r, Limiter: l}}
}

// uncounted reports whether no limit counts r, so that it does not reduce what is owed.
func uncounted(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceUnlimited || s == ratelimit.SourceList
}
