package ratelimit

import "time"

// pair is the note of an [All] of two limits on an admission that its Result has room to
// describe, so that it allocates nothing. The fields of the Result that a Refund needs have
// another meaning then. At is when both parts were charged, and n is for how many events. Rate
// is the Remaining of the part that has not the least. Period is the ResetAfter of the part
// that has not the longest, in ns.
type pair struct {
	mark           Mark
	parts          []part
	least, longest int // which part has the least Remaining, and which the longest ResetAfter
}

// pairs are the notes of an All, by least and longest.
type pairs [2][2]pair

// newPairs returns nil if the parts are not two of the five.
func newPairs(parts []part) *pairs {
	if len(parts) != 2 || parts[0].core == nil || parts[1].core == nil {
		return nil
	}
	all := new(pairs)
	for least := range all {
		for longest := range all[least] {
			p := &all[least][longest]
			*p = pair{parts: parts, least: least, longest: longest}
			p.mark.note = p
		}
	}
	return all
}

// result makes whole, which is zero, the whole of two results of a call for n events. It does
// nothing, and is false, if that would not tell all of them.
func (all *pairs) result(results []Result, n int, whole *Result) bool {
	if all == nil || n > maxEvents || results[0].at != results[1].at {
		return false
	}
	for i := range all[0][0].parts {
		if !all[0][0].parts[i].plainly(&results[i], n) {
			return false
		}
	}
	least, longest := 0, 0
	if results[1].Remaining < results[0].Remaining {
		least = 1
	}
	if results[1].ResetAfter > results[0].ResetAfter {
		longest = 1
	}
	whole.Allowed, whole.Limit, whole.Remaining = true, results[least].Limit, results[least].Remaining
	whole.ResetAfter, whole.period = results[longest].ResetAfter, int64(results[1-longest].ResetAfter)
	whole.at, whole.n, whole.rate = results[0].at, int32(n), int32(results[1-least].Remaining)
	whole.mark = &all[least][longest].mark
	return true
}

// plainly is whether r has charged a call for n events under the constructor's limit, at once.
func (p *part) plainly(r *Result, n int) bool {
	l := &p.core.integers
	return int(r.n) == p.events(n) && r.Delay == 0 && r.mark == nil &&
		int64(r.Limit) == l.Burst && int64(r.rate) == l.Rate && r.period == l.Period
}

// joined is what r, which has p's mark, describes.
func (p *pair) joined(r *Result) *joined {
	var parts [2]Result
	for i := range parts {
		l := p.parts[i].core.integers
		parts[i] = Result{Allowed: true, Limit: int(l.Burst), Remaining: int(r.rate), ResetAfter: time.Duration(r.period)}
		parts[i].addReceipt(l, r.at, int64(p.parts[i].events(int(r.n))))
	}
	parts[p.least].Remaining = r.Remaining
	parts[p.longest].ResetAfter = r.ResetAfter
	j := join(parts[:])
	j.charged = int(r.n)
	return j
}
