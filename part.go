package ratelimit

import (
	"iter"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Part is the decision of one of several limits. See [Result.Parts].
type Part struct {
	Result          // zero if the limit was not asked, because another one had already denied
	Limiter Limiter // the limiter that decided, which can refund the Result
}

// Name returns the name of the limit (see [Policy]), as [Result.DeniedBy] does. If the Limiter has
// decided for several limits at once, Name returns the name of the first one. It returns "" if the Limiter
// is not of this module, and wraps none that is.
func (p Part) Name() string {
	if core := coreOf(p.Limiter); core != nil {
		return core.policyName
	}
	if name := p.DeniedBy(); name != "" {
		return name
	}
	if p.Source() == SourceBan { // the ban has denied, and not a limit inside it
		if b, ok := see.First[banner](p.Limiter); ok {
			return b.(banner).banName()
		}
	}
	if names := see.Names(p.Limiter); len(names) > 0 {
		return names[0]
	}
	return ""
}

// Parts returns the decisions of the individual limits ([All], [First], [Decide]), in their order, or nil
// for a single limit. Do not modify the slice.
//
// A wrapper that has decided for several limits at once, as a [Ban] does while a key is banned, is a
// single Part.
func (r Result) Parts() []Part {
	j := r.joined()
	if j == nil {
		return nil
	}
	for i := range j.parts {
		if j.parts[i].together() != nil {
			return flat(nil, j.parts)
		}
	}
	return j.parts
}

// flat appends parts to dst. A part that has parts itself is replaced by them.
func flat(dst, parts []Part) []Part {
	for i := range parts {
		if inner := parts[i].joined(); inner != nil {
			dst = flat(dst, inner.parts)
		} else {
			dst = append(dst, parts[i])
		}
	}
	return dst
}

// joined is the note of several limits ([All], [Decide]). It is never changed once a Result has it.
type joined struct {
	mark     Mark // the mark with this note, in the same allocation
	parts    []Part
	charged  int    // events charged to the part that was charged most
	deniedBy string // the name of a part
	order    chargeOrder
	voters   voters
	either   bool // set by a [First]: one part decides, and others may have more room
}

// voters has a bit for each part that was asked and counts in the whole decision. Shadows and looks do not
// count.
type voters uint16

func (v voters) has(i int) bool { return v>>i&1 == 1 }

// chargeOrder has the number of the call that charged each part, from 0, in orderBits each. A decision makes at most
// maxLimits calls that charge.
type chargeOrder uint64

const orderBits = 4

// lastFirst returns the indices of n parts, those charged last first, because a leaky bucket that two of them
// charged refunds only the end of its queue.
func (o chargeOrder) lastFirst(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for call := chargeOrder(maxLimits); call > 0; call-- {
			for i := n - 1; i >= 0; i-- {
				if o>>(orderBits*i)&(1<<orderBits-1) == call-1 && !yield(i) {
					return
				}
			}
		}
	}
}

func (j *joined) lastFirst() iter.Seq[int] { return j.order.lastFirst(len(j.parts)) }

// join returns the note of a copy of parts.
func join(parts []Part, v voters) *joined {
	if len(parts) > 2 {
		return &joined{parts: slices.Clone(parts), voters: v}
	}
	both := new(struct { // one allocation
		joined
		parts [2]Part
	})
	both.joined.parts, both.voters = append(both.parts[:0], parts...), v
	return &both.joined
}

// ofParts makes r, which is zero, the Result of j's parts. It returns the index of the part that denies, whose
// name the caller adds, or -1.
func (r *Result) ofParts(j *joined, denied bool) (denier int) {
	source := SourceUnlimited
	denier, r.Allowed = -1, !denied
	for i := range j.parts {
		p := &j.parts[i].Result
		if !j.voters.has(i) {
			continue
		}
		if !denied {
			r.Delay = max(r.Delay, p.Delay)
		} else if !p.Allowed && (denier < 0 || p.RetryAfter > r.RetryAfter) {
			r.RetryAfter, denier = p.RetryAfter, i
		}
		if s := p.source(); weights[s] > weights[source] {
			source = s
		}
	}
	if denier >= 0 {
		source = j.parts[denier].source()
	}
	if source == SourceUnlimited || source == SourceList && r.Allowed { // unless sum finds a part that is counted
		r.least(j)
	}
	r.sum(j)
	j.mark = Mark{source: source, note: j}
	r.mark = &j.mark
	return denier
}

// weights ranks sources, to choose the Source of several limits that admit. A store that did not
// answer outweighs one that did, and both outweigh a limit that needs no store.
var weights = [...]uint8{
	SourceUnlimited: 0, SourceList: 1, SourceZeroRate: 2, SourceStore: 3, SourceLease: 3,
	SourceFailOpen: 4, SourceFailClosed: 4, SourceLocal: 4, SourceDenyCache: 4, SourceBan: 4,
}

// least sets Limit and Remaining to the least of j's voters. These may be 0, because a Slowdown may have
// admitted what a list denied.
func (r *Result) least(j *joined) {
	r.Limit, r.Remaining = maxEvents, maxEvents
	for i := range j.parts {
		if p := &j.parts[i]; j.voters.has(i) {
			r.Limit, r.Remaining = min(r.Limit, p.Limit), min(r.Remaining, p.Remaining)
		}
	}
}

// sum sets Limit and Remaining to those of the counted part with the least Remaining, and ResetAfter
// to the longest of all counted parts.
func (r *Result) sum(j *joined) {
	known := false
	for i := range j.parts {
		p := &j.parts[i].Result
		if !j.voters.has(i) || !p.counted() {
			continue
		}
		if !known || p.Remaining < r.Remaining {
			r.Limit, r.Remaining, known = p.Limit, p.Remaining, true
		}
		r.ResetAfter = max(r.ResetAfter, p.ResetAfter)
	}
}

// joined returns the note of the limits that have decided, or nil for a single limit.
func (r *Result) joined() *joined {
	switch note := r.together().(type) {
	case *joined:
		return note
	case *pair:
		return note.joined(r)
	}
	return nil
}

// together returns the same note as it is stored, a *joined or a *pair, or nil.
func (r *Result) together() any {
	for m := r.mark; m != nil; m = m.under {
		switch m.note.(type) {
		case *joined, *pair:
			return m.note
		}
	}
	return nil
}

// denier returns the decision of the limit that denied r, the one with the longest RetryAfter. It
// returns r if r admits, or is the decision of a single limit.
func (r Result) denier() Result {
	if j := r.joined(); j != nil && !r.Allowed {
		for i := range j.parts {
			if p := &j.parts[i]; j.voters.has(i) && p.RetryAfter == r.RetryAfter {
				return p.denier()
			}
		}
	}
	return r
}

// room returns how many events fit according to r, a denial of n: the least Remaining of the parts that
// deny or, for a First, the most.
func (r *Result) room(n int) int {
	room, known := r.Remaining, false
	if j := r.joined(); j != nil {
		for i := range j.parts {
			p := &j.parts[i]
			switch fit := p.room(n); {
			case j.either && fit < n && (!known || fit > room):
				room, known = fit, true
			case !j.either && j.voters.has(i) && p.RetryAfter > 0 && (!known || fit < room):
				room, known = fit, true
			}
		}
	}
	return room
}

// without returns r, which has admitted a call for events, as it would be if n of them were refunded
// immediately. ResetAfter may be too long.
func (r Result) without(n, events int) Result {
	charged := r.Charged()
	if charged < events && n < events { // CountCalls refunds all events or none
		return r
	}
	back := min(n, charged)
	if back <= 0 {
		return r
	}
	if j := r.joined(); j != nil {
		less := join(j.parts, j.voters)
		less.charged, less.order = charged-back, j.order
		for i := range less.parts {
			p := &less.parts[i]
			p.Result = p.without(n, events)
		}
		r.mark, r.ResetAfter = r.mark.with(less), 0
		r.sum(less)
		return r
	}
	r.Remaining += min(back, r.Limit-r.Remaining)
	if r.n -= int32(back); r.n == 0 { // so that nothing is refunded twice
		r.at, r.period, r.rate = 0, 0, 0
		if r.Remaining == r.Limit {
			r.ResetAfter = 0
		}
	}
	return r
}

// with returns m with j in place of the note of the All.
func (m *Mark) with(j *joined) *Mark {
	above := *m
	switch m.note.(type) {
	case *joined, *pair:
		j.mark, j.mark.note = above, j
		return &j.mark
	}
	above.under = m.under.with(j)
	return &above
}
