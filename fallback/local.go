package fallback

import (
	"context"
	"errors"
	"math"

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
	p, err := f.counts.Peek(ctx, key)
	if err != nil {
		return 0, p, err
	}
	s, err := tallyOf(ctx, f.counts, key, p)
	if n = min(n, s.room); err != nil || n == 0 {
		return 0, p, err
	}
	r, err := ratelimit.Charge(ctx, l, key, n)
	return n, r, err
}

// handBack charges the limiter with what the local limiter has admitted to key in its place and
// still counts. The store may have been charged with a part of that already. At worst, the key pays
// that part twice, and never more than it has spent locally.
func (f *Limiter) handBack(ctx context.Context, key string) error {
	if f.owed.keys.Load() == 0 {
		return nil
	}
	owed := f.owed.take(key, f.breaker.now())
	if owed == (charge{}) { // nothing is owed, or another call is charging it, so the store works and decides this call
		return nil
	}
	var paid charge
	defer func() { f.owed.paid(key, paid) }()

	due := owed
	if p, err := f.counts.Peek(ctx, key); err == nil {
		if uncounted(p) || p.Limit == 0 { // checked with the current limit, which may have changed
			return nil
		}
		if s, err := tallyOf(ctx, f.counts, key, p); err == nil {
			due = due.still(s.held)
		}
	}
	granted, err := pay(ctx, f.limiter, key, due)
	if err != nil && !errors.Is(err, errUncounted) {
		return err // after a lost reply it may be charged again, which is better than not at all
	}
	paid = charge{owed.events - due.events + granted.events, owed.calls - due.calls + granted.calls}
	return nil
}

// still returns as much of c as is held. A part that no limit counts (-1) is reduced in the same
// ratio as the other part.
func (c charge) still(held charge) charge {
	part := func(n, of, whole int) int {
		if whole == 0 {
			return n
		}
		return int(exact.MulDivUp(int64(n), int64(of), 0, int64(whole)))
	}
	all := charge{min(c.events, held.events), min(c.calls, held.calls)}
	switch {
	case held.events < 0 && held.calls < 0:
		return c
	case held.events < 0:
		all.events = part(c.events, all.calls, c.calls)
	case held.calls < 0:
		all.calls = part(c.calls, all.events, c.events)
	}
	return all
}

// tally is what a local limiter counts for a key, and how many events it has room for.
type tally struct {
	held charge // -1 for events or calls that no limit counts
	room int
}

// tallyOf returns the tally of local, by its Peek p. Of several limits, the one that counts most is used, and the
// one with the least room. What the limiters of a First count adds up, because each event is charged to one.
func tallyOf(ctx context.Context, local ratelimit.Limiter, key string, p ratelimit.Result) (tally, error) {
	if see.Alternatives(local) { // the parts of p are those that were asked
		return tallyInside(ctx, local, key)
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
			s.held.calls = max(s.held.calls, n)
		default:
			s.held.events = max(s.held.events, n)
			if part.Counted() {
				s.room = min(s.room, part.Remaining)
			}
		}
	}
	return s, nil
}

func tallyInside(ctx context.Context, local ratelimit.Limiter, key string) (tally, error) {
	s, either := tally{charge{-1, -1}, math.MaxInt}, isFirst(local)
	if either {
		s.room = 0
	}
	for _, l := range see.Inside(local) {
		p, err := l.Peek(ctx, key)
		if err != nil {
			return s, err
		}
		inside, err := tallyOf(ctx, l, key, p)
		switch {
		case err != nil:
			return s, err
		case either:
			s.held = charge{sum(s.held.events, inside.held.events), sum(s.held.calls, inside.held.calls)}
			s.room = max(s.room, inside.room)
		default:
			s.held = charge{max(s.held.events, inside.held.events), max(s.held.calls, inside.held.calls)}
			s.room = min(s.room, inside.room)
		}
	}
	return s, nil
}

// sum adds numbers of which each may be unknown, which is -1.
func sum(a, b int) int {
	if a < 0 || b < 0 {
		return max(a, b)
	}
	return a + b
}

// owing is one limit of a limiter, with what it is charged with.
type owing struct {
	ratelimit.Limiter
	calls bool
}

// owingOf returns the limits of l, without slots, because holders take their slots again. Wrappers
// of other packages may change keys or costs, so they are asked as a whole.
func owingOf(l ratelimit.Limiter) (limits []owing) {
	k := see.Of(l)
	switch {
	case k == nil && !see.LookingOn(l), k != nil && (k.Algorithm != "" && !k.Calls || k.Alternatives):
		return []owing{{l, false}}
	case k != nil && k.Held:
		return nil
	case k != nil && k.Calls:
		return []owing{{k.ByEvents(), true}}
	}
	for _, inner := range see.Inside(l) {
		limits = append(limits, owingOf(inner)...)
	}
	return limits
}

// payTries is how often the limiter is asked for what is owed, in addition to once per limit. A
// denial shows how much room there is.
const payTries = 3

// errUncounted means that a limiter admits without counting. What is owed is then charged when it counts again.
var errUncounted = errors.New("fallback: the limiter does not count")

// pay charges l with as much of due as it has room for.
func pay(ctx context.Context, l ratelimit.Limiter, key string, due charge) (granted charge, err error) {
	if isFirst(l) {
		return payInTurn(ctx, l, key, due)
	}
	limits := owingOf(l)
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
		if err := fit(ctx, l, key, r, limits, &due); err != nil {
			return charge{}, err
		}
	}
	return charge{}, nil
}

// fit lowers due to what limits, those of from, which have denied it as r, have room for. The parts of a First are none
// of limits, so if there is one, each limit is asked.
func fit(ctx context.Context, from ratelimit.Limiter, key string, r ratelimit.Result, limits []owing, due *charge) error {
	if !see.Alternatives(from) {
		for i, part := range each(from, r) {
			if !part.Allowed && part.Counted() && part.Result != (ratelimit.Result{}) { // otherwise it was not asked
				n := limits[min(i, len(limits)-1)].part(due)
				*n = min(*n, part.Remaining)
			}
		}
		return nil
	}
	for _, l := range limits {
		p, err := l.Peek(ctx, key)
		if err != nil {
			return err
		}
		s, err := tallyOf(ctx, l.Limiter, key, p)
		if err != nil {
			return err
		}
		n := l.part(due)
		*n = min(*n, s.room)
	}
	return nil
}

// isFirst reports whether l itself is a First.
func isFirst(l ratelimit.Limiter) bool {
	k := see.Of(l)
	return k != nil && k.Alternatives
}

// payInTurn charges the limiters of first in their order, as the calls would have charged them, until due is paid.
// If one of them fails, what was charged until then is paid.
func payInTurn(ctx context.Context, first ratelimit.Limiter, key string, due charge) (paid charge, err error) {
	left := due
	for _, l := range see.Inside(first) {
		granted, err := pay(ctx, l, key, left)
		rest := charge{left.events - granted.events, left.calls - granted.calls}
		switch k := see.Behind(l); {
		case err != nil && left == due:
			return charge{}, err
		case err != nil:
			return charge{due.events - left.events, due.calls - left.calls}, nil //nolint:nilerr // the next call pays the rest, or returns the error
		case k.Calls:
			left = left.still(charge{-1, rest.calls})
		case k.Algorithm != "":
			left = left.still(charge{rest.events, -1})
		default:
			left = rest
		}
		if left == (charge{}) {
			break
		}
	}
	return charge{due.events - left.events, due.calls - left.calls}, nil
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
