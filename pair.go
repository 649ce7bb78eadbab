package ratelimit

import "time"

// pair is the note of an [All] of two limits on a Result that describes both parts by itself. Because
// such a Result needs no allocation, an All of two takes half the time. Its fields that a Refund needs
// have another meaning: n is the number of events that were charged, and at is when. The rate is the
// Remaining of the part that does not have the least. The period is the ResetAfter of the part that
// does not have the longest, in ns. If one part denies, at is its RetryAfter, in ns, because a wrapper
// may change the RetryAfter of the Result. Two parts that deny do not fit.
type pair struct {
	mark           Mark
	members        []member
	least, longest int // the parts with the least Remaining, and with the longest ResetAfter
	denied         denials
}

// denials records which of two parts denies.
type denials int

const (
	neither denials = iota
	firstDenies
	secondDenies
)

// pairs are the notes of an All, indexed by denied, least and longest.
type pairs [secondDenies + 1][2][2]pair

// newPairs returns nil unless there are two members, both with a core.
func newPairs(members []member) *pairs {
	if len(members) != 2 || members[0].core == nil || members[1].core == nil {
		return nil
	}
	all := new(pairs)
	for denied := range all {
		for least := range all[denied] {
			for longest := range all[denied][least] {
				p := &all[denied][least][longest]
				*p = pair{members: members, least: least, longest: longest, denied: denials(denied)}
				p.mark.note = p
			}
		}
	}
	return all
}

// describe makes whole, which is zero, the Result of a call for n events that the two parts have decided
// together. It does nothing and returns false if whole cannot describe both parts.
func (all *pairs) describe(two []Part, n int, whole *Result) bool {
	if all == nil || n > maxEvents {
		return false
	}
	of, first, second := all[0][0][0].members, &two[0].Result, &two[1].Result
	if !of[0].plainly(first) || !of[1].plainly(second) {
		return false
	}
	denied := neither
	switch {
	case first.Allowed && second.Allowed:
		if first.at != second.at || !of[0].charged(first, n) || !of[1].charged(second, n) {
			return false
		}
		whole.Allowed, whole.at, whole.n = true, first.at, int32(n)
	case !first.Allowed && !second.Allowed:
		return false
	case second.Allowed:
		denied = firstDenies
		whole.RetryAfter, whole.at = first.RetryAfter, int64(first.RetryAfter)
	default:
		denied = secondDenies
		whole.RetryAfter, whole.at = second.RetryAfter, int64(second.RetryAfter)
	}
	least, longest := 0, 0
	if second.Remaining < first.Remaining {
		least = 1
	}
	if second.ResetAfter > first.ResetAfter {
		longest = 1
	}
	whole.Limit, whole.Remaining = two[least].Limit, two[least].Remaining
	whole.ResetAfter, whole.period = two[longest].ResetAfter, int64(two[1-longest].ResetAfter)
	whole.rate = int32(two[1-least].Remaining)
	whole.mark = &all[denied][least][longest].mark
	return true
}

// plainly reports whether r can be a decision under the constructor's limit, by the store itself, with a Rate
// above 0 and without a Delay.
func (p *member) plainly(r *Result) bool {
	return r.mark == nil && r.Delay == 0 && r.Limit > 0 && int64(r.Limit) == p.core.integers.Burst
}

// charged reports whether r has charged a call for n events under the constructor's limit.
func (p *member) charged(r *Result, n int) bool {
	l := &p.core.integers
	return int(r.n) == p.events(n) && int64(r.rate) == l.Rate && r.period == l.Period
}

// joined returns what r, which has p's mark, describes.
func (p *pair) joined(r *Result) *joined {
	var parts [2]Part
	for i := range parts {
		l, part := p.members[i].core.integers, &parts[i]
		part.Limiter = p.members[i].limiter
		part.Allowed, part.Limit = int(p.denied) != i+1, int(l.Burst)
		part.Remaining, part.ResetAfter = int(r.rate), time.Duration(r.period)
		if p.denied == neither {
			part.addReceipt(l, r.at, int64(p.members[i].events(int(r.n))))
		} else if !part.Allowed {
			part.RetryAfter = time.Duration(r.at)
		}
	}
	parts[p.least].Remaining = r.Remaining
	parts[p.longest].ResetAfter = r.ResetAfter
	j := join(parts[:], 1<<len(parts)-1)
	j.charged, j.deniedBy = int(r.n), p.deniedBy()
	return j
}

// deniedBy returns the name of the part that denies, or "".
func (p *pair) deniedBy() string {
	if p.denied == neither {
		return ""
	}
	return p.members[p.denied-1].core.policyName
}
