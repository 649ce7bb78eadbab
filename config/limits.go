package config

import (
	"context"
	"errors"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// limits are the limits of one text, on one store. They mark what they have charged, so that the
// limits of another text know where to refund it. They never change.
type limits struct {
	see.Wrapper
	*around
	all   ratelimit.Limiter // the wrapped limiter: the single limit, or an All
	spec  *spec
	parts []ratelimit.Limiter // each limit alone, as in spec.limits, and then the slots
	ban   *bans               // nil if there is none
	owner *Limiters
	mark  *ratelimit.Mark // the owner's mark on what these limits have charged
}

type around = ratelimit.Around

// bans are the bans of a text, without the limits that they are around.
type bans struct{ *ratelimit.Ban }

// Reset implements [ratelimit.Limiter].
func (b *bans) Reset(ctx context.Context, key string) error { return b.Lift(ctx, key) }

// newLimits makes a limiter for each limit, by its place in parts, and one for all of them. Bans
// are stored on the store on.
func (ls *Limiters) newLimits(s *spec, on store.Store, one func(i int) (ratelimit.Limiter, error)) (*limits, error) {
	l := &limits{Wrapper: see.Has(see.Traits{Observes: true}), spec: s, owner: ls}
	for i := range s.parts() {
		part, err := one(i)
		if err != nil {
			return nil, err
		}
		l.parts = append(l.parts, part)
	}
	l.all = l.parts[0]
	var err error
	if len(l.parts) > 1 || s.several {
		if l.all, err = ratelimit.NewAll(l.parts...); err != nil {
			return nil, err
		}
	}
	if s.ban != nil {
		l.ban = new(bans)
		if l.ban.Ban, err = ratelimit.NewBan(l.all, on, *s.ban, ratelimit.WithName(s.name)); err != nil {
			return nil, err
		}
		l.all = l.ban.Ban
	}
	l.mark = ratelimit.NewMark(ls, ratelimit.SourceStore, l)
	l.around, err = ratelimit.NewAround(l.all, l.decide)
	return l, err
}

// decide marks a Result if it has charged anything. A Result that has charged nothing stays as it
// is, because a mark would change its Source.
func (l *limits) decide(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
	r, err := c.Inside(ctx)
	if r.Charged() > 0 {
		r = r.WithMark(l.mark)
	}
	return r, err
}

// Refund refunds each count that was charged, wherever it is now.
func (l *limits) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	under, note, _ := charged.Unmark(l.owner)
	former, _ := note.(*limits)
	if former == nil || former == l {
		return l.around.Refund(ctx, key, under, n)
	}
	parts := under.Parts()
	if parts == nil {
		parts = []ratelimit.Part{{Result: under, Limiter: former.all}}
	}
	only, whole := see.PartOf(ctx), n >= under.Charged()
	var errs []error
	for i, part := range parts {
		slots := i == len(former.spec.limits)
		switch {
		case part.Charged() == 0: // a Charge takes no slots, and charges nothing at a Rate of 0
		case slots && (!whole || only == see.Rates), !slots && only == see.Slots: // as an All does
		case slots: // slots are always the same, and only the former limiter knows how many events the call was for
			errs = append(errs, former.parts[i].Refund(ctx, key, part.Result, n))
		default:
			errs = append(errs, l.counter(former, i).Refund(ctx, key, part.Result, n))
		}
	}
	return errors.Join(errs...)
}

// count identifies what the keys of a name have spent.
type count struct {
	name      string
	algorithm string
	period    ratelimit.Limit
	local     bool // in memory, instead of on the store
}

// addTo records the limiters of l in counts.
func (l *limits) addTo(counts map[count]ratelimit.Limiter, local bool) {
	for i, part := range l.parts {
		c := l.spec.count(i)
		c.local = local
		counts[c] = part
	}
	if l.ban != nil { // bans with another time for the denials are others
		counts[count{l.spec.name, "ban", ratelimit.Limit{Period: l.spec.ban.Within}, local}] = l.ban
	}
}

// parts returns the number of limits, including slots.
func (s *spec) parts() int {
	if s.slots > 0 {
		return len(s.limits) + 1
	}
	return len(s.limits)
}

// count returns what limit i counts. Slots are the same count whatever their life.
func (s *spec) count(i int) count {
	if i == len(s.limits) {
		return count{name: s.name, algorithm: inflight.Algorithm}
	}
	return count{name: s.counts(), algorithm: s.algorithm, period: period(s.limits[i])}
}

// has reports whether part is a part of l. A nil l has none.
func (l *limits) has(part ratelimit.Limiter) bool {
	return l != nil && (slices.Contains(l.parts, part) || part == ratelimit.Limiter(l.ban))
}

// counter returns the limiter of l that has the count of former's limit i. If there is none, it
// returns former's own limiter, whose count may be needed again.
func (l *limits) counter(former *limits, i int) ratelimit.Limiter {
	for same, part := range l.parts {
		if l.spec.count(same) == former.spec.count(i) {
			return part
		}
	}
	return former.parts[i]
}
