package inflight

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// heldSlots are the slots that one answer has charged.
type heldSlots struct {
	charged   ratelimit.Result // the answer
	taken     []heldSlot
	first     [1]heldSlot // of taken, in one allocation; it stays after the Release, for Token
	lastFree  bool        // whether one of them was the last free slot
	beside    bool        // whether a local limiter may hold other slots for the whole
	slotsOnly bool        // whether the answer is that of slots, without any rates
}

// heldSlot is one slot of one limiter.
type heldSlot struct {
	limiter ratelimit.Limiter // to which it is released
	answer  ratelimit.Result  // the answer of limiter
	core    *ratelimit.Custom // the limiter that renews it
	toTake  bool              // it was admitted in an outage, together with other slots of an All
	life    time.Duration
	until   time.Time // the earliest time at which it may expire
	yields  bool      // it is left to other processes after the Release
	gone    bool      // it was released, or has expired since the Release
}

// note records the slots of r, the answer to q, which was asked at the time asked. For an All, these
// are the slots of its parts. If, in an outage, one limiter has decided for all parts, each slot is
// still to be taken.
func (ps *heldSlots) note(q *question, r ratelimit.Result, asked time.Time) {
	ps.charged = r
	if q.core != nil {
		ps.slotsOnly = true
		ps.add(q.core, q.core, r, false, asked)
		return
	}
	limits := several(q.limiter)
	if limits == nil {
		_, counts := slotsIn(q.limiter)
		ps.slotsOnly = counts && r.Parts() == nil // a local limiter may be an All
		ps.addOf(q.limiter, r, false, asked)
		return
	}
	ps.beside = true
	whole := innermost(q.limiter, r)
	parts := whole.Parts()
	if isStandIn(whole) && !areOf(cores(q.limiter), parts) {
		for _, l := range limits {
			ps.addOf(l, ratelimit.Result{}, true, asked)
		}
		return
	}
	for i := range parts {
		ps.addOf(parts[i].Limiter, parts[i].Result, false, asked)
	}
}

// areOf reports whether one of parts belongs to one of cores.
func areOf(cores []*ratelimit.Custom, parts []ratelimit.Part) bool {
	return slices.ContainsFunc(parts, func(p ratelimit.Part) bool {
		core, ok := slotsIn(p.Limiter)
		return ok && slices.Contains(cores, core)
	})
}

// addOf adds the slot of l, which answered r, if l counts slots and has charged one.
func (ps *heldSlots) addOf(l ratelimit.Limiter, r ratelimit.Result, toTake bool, asked time.Time) {
	if core, ok := slotsIn(l); ok {
		ps.add(l, core, r, toTake, asked)
	}
}

// add adds the slot of l, which counts the slots of core.
func (ps *heldSlots) add(l ratelimit.Limiter, core *ratelimit.Custom, r ratelimit.Result, toTake bool, asked time.Time) {
	p := heldSlot{limiter: l, answer: r, core: core, toTake: toTake, life: core.Limit().Period}
	p.until = asked.Add(p.life)
	if p.charged().Charged() > 0 || p.standsIn() {
		ps.lastFree = ps.lastFree || p.lastFree()
		if ps.taken == nil {
			ps.taken = ps.first[:0]
		}
		ps.taken = append(ps.taken, p)
	}
}

// inMemory reports whether all slots are in this process's memory, where releasing takes no time.
func (ps *heldSlots) inMemory() bool {
	for i := range ps.taken {
		if ps.taken[i].life != forever || ps.taken[i].toTake {
			return false
		}
	}
	return true
}

// passed reports whether a slot may have expired by now. It also checks the wall clock, because the
// monotonic clock stops while the machine sleeps.
func (ps *heldSlots) passed(now time.Time) bool {
	for i := range ps.taken {
		if p := &ps.taken[i]; p.life < forever && p.counted() && (!now.Before(p.until) || !now.Round(0).Before(p.until.Round(0))) {
			return true
		}
	}
	return false
}

// due reports whether to renew p: when a third of its lifetime has passed, which plan's timer may
// be a little early for, or in every tick if the store does not count it.
func (p *heldSlot) due(now time.Time) bool {
	return !p.counted() || p.until.Sub(now) <= p.life*7/10
}

// charged returns the answer of core.
func (p *heldSlot) charged() ratelimit.Result { return innermost(p.limiter, p.answer) }

// counted reports whether the store counts p.
func (p *heldSlot) counted() bool {
	charged := p.charged()
	return charged.Charged() > 0 && charged.Source() == ratelimit.SourceStore
}

// lastFree reports whether p was the last free slot of its limit.
func (p *heldSlot) lastFree() bool { return p.charged().Remaining == 0 }

// scarce reports whether another process may lack p: it was the last free slot, and a store counts it.
func (p *heldSlot) scarce() bool { return p.life < forever && p.counted() && p.lastFree() }

// standsIn reports whether p was admitted without the store, in an outage.
func (p *heldSlot) standsIn() bool { return p.toTake || isStandIn(p.charged()) }

// isStandIn reports whether r was decided without the store, in an outage.
func isStandIn(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceFailOpen || s == ratelimit.SourceLocal
}
