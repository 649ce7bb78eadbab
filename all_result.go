package ratelimit

import (
	"slices"
	"time"
)

// joined is the note of several limits ([All], [Decide]). It is never changed once a Result has it.
type joined struct {
	mark     Mark // that it is the note of: one allocation for both
	parts    []Result
	charged  int    // events, of the part that was charged most
	deniedBy string // the name of a part
	silent   uint16 // a bit for each part that has no say: a shadow, or one that was looked at
}

// speaks is whether part i was asked, and has a say in the whole.
func (j *joined) speaks(i int) bool { return j.silent>>i&1 == 0 && j.parts[i] != (Result{}) }

// join returns the note of parts, of which it makes a copy.
func join(parts []Result) *joined {
	if len(parts) > 2 {
		return &joined{parts: slices.Clone(parts)}
	}
	both := new(struct { // one allocation
		joined
		parts [2]Result
	})
	both.joined.parts = append(both.parts[:0], parts...)
	return &both.joined
}

// sum gives r what its parts leave: Limit and Remaining of the counted one with the least
// left, and the longest ResetAfter of all that are counted.
func (r *Result) sum(j *joined) {
	known := false
	for i := range j.parts {
		p := &j.parts[i]
		if !j.speaks(i) || !p.counted() {
			continue
		}
		if !known || p.Remaining < r.Remaining {
			r.Limit, r.Remaining, known = p.Limit, p.Remaining, true
		}
		r.ResetAfter = max(r.ResetAfter, p.ResetAfter)
	}
}

// markOf is j's mark, of this source.
func (j *joined) markOf(source Source) *Mark {
	j.mark = Mark{source: source, note: j}
	return &j.mark
}

// joined is that of the All that has decided, or nil.
func (r *Result) joined() *joined {
	switch note := r.together().(type) {
	case *joined:
		return note
	case *pair:
		return note.joined(r)
	}
	return nil
}

// together is the note of the several limits that have decided, a *joined or a *pair, or nil.
func (r *Result) together() any {
	for m := r.mark; m != nil; m = m.under {
		switch m.note.(type) {
		case *joined, *pair:
			return m.note
		}
	}
	return nil
}

// room is how many events fit, by the denial r: Remaining of those that deny.
func (r *Result) room() int {
	room, known := r.Remaining, false
	if j := r.joined(); j != nil {
		for i := range j.parts {
			if p := &j.parts[i]; j.speaks(i) && p.RetryAfter > 0 && (!known || p.room() < room) {
				room, known = p.room(), true
			}
		}
	}
	return room
}

// without is r, which has admitted a call for so many events, as it would be if n of them
// were given back at once. ResetAfter may be too long.
func (r Result) without(n, events int) Result {
	charged := r.Charged()
	if charged < events && n < events { // CountCalls gives all back or none
		return r
	}
	back := min(n, charged)
	if back <= 0 {
		return r
	}
	if j := r.joined(); j != nil {
		less := join(j.parts)
		less.charged, less.silent = charged-back, j.silent
		for i := range less.parts {
			less.parts[i] = less.parts[i].without(n, events)
		}
		r.mark, r.ResetAfter = r.mark.with(less), 0
		r.at, r.period, r.n, r.rate = 0, 0, 0, 0 // of a pair
		r.sum(less)
		return r
	}
	r.Remaining += min(back, r.Limit-r.Remaining)
	if r.n -= int32(back); r.n == 0 { // so that it is not given back twice
		r.at, r.period, r.rate = 0, 0, 0
		if r.Remaining == r.Limit {
			r.ResetAfter = 0
		}
	}
	return r
}

// with is m with j in place of the note of the All.
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

// pair is the note of an [All] of two limits on a Result that has room to describe both, so that
// it allocates nothing. The fields of the Result that a Refund needs have another meaning then. N
// is for how many events they were charged, and at is when. Rate is the Remaining of the part
// that has not the least. Period is the ResetAfter of the part that has not the longest, in ns.
// If both deny, at is the RetryAfter of the part that has not the longest, in ns.
type pair struct {
	mark           Mark
	parts          []part
	least, longest int // which part has the least Remaining, and which the longest ResetAfter
	denied         denials
}

// denials says which of two parts deny.
type denials int

const (
	neither      denials = iota
	first                // alone
	second               // alone
	firstLonger          // both, and the first for as long as the second or longer
	secondLonger         // both
)

// longest is the part that denies for the longest.
func (d denials) longest() int { return int(d-1) & 1 }

func (d denials) both() bool { return d >= firstLonger }

// denies is whether part i does.
func (d denials) denies(i int) bool { return d.both() || d != neither && d.longest() == i }

// pairs are the notes of an All, by denied, least and longest.
type pairs [secondLonger + 1][2][2]pair

// newPairs returns nil if the parts are not two of the five.
func newPairs(parts []part) *pairs {
	if len(parts) != 2 || parts[0].core == nil || parts[1].core == nil {
		return nil
	}
	all := new(pairs)
	for denied := range all {
		for least := range all[denied] {
			for longest := range all[denied][least] {
				p := &all[denied][least][longest]
				*p = pair{parts: parts, least: least, longest: longest, denied: denials(denied)}
				p.mark.note = p
			}
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
	for i := range all[0][0][0].parts {
		if !all[0][0][0].parts[i].plainly(&results[i], n) {
			return false
		}
	}
	whole.Allowed, whole.at, whole.n = true, results[0].at, int32(n)
	all.sum(results, neither, whole)
	return true
}

// denial is result of two results at least one of which denies, so that nothing was charged.
func (all *pairs) denial(results []Result, whole *Result) bool {
	for i := range results {
		if results[i].mark != nil || results[i].Delay != 0 {
			return false
		}
	}
	denied := firstLonger
	switch p, q := &results[0], &results[1]; {
	case q.Allowed:
		denied = first
	case p.Allowed:
		denied = second
	case q.RetryAfter > p.RetryAfter:
		denied = secondLonger
	}
	whole.RetryAfter = results[denied.longest()].RetryAfter
	if denied.both() {
		whole.at = int64(results[1-denied.longest()].RetryAfter)
	}
	all.sum(results, denied, whole)
	return true
}

// sum is what result and denial share.
func (all *pairs) sum(results []Result, denied denials, whole *Result) {
	least, longest := 0, 0
	if results[1].Remaining < results[0].Remaining {
		least = 1
	}
	if results[1].ResetAfter > results[0].ResetAfter {
		longest = 1
	}
	whole.Limit, whole.Remaining = results[least].Limit, results[least].Remaining
	whole.ResetAfter, whole.period = results[longest].ResetAfter, int64(results[1-longest].ResetAfter)
	whole.rate = int32(results[1-least].Remaining)
	whole.mark = &all[denied][least][longest].mark
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
		parts[i] = Result{Allowed: !p.denied.denies(i), Limit: int(l.Burst), Remaining: int(r.rate), ResetAfter: time.Duration(r.period)}
		if p.denied == neither {
			parts[i].addReceipt(l, r.at, int64(p.parts[i].events(int(r.n))))
		}
		if p.denied.both() {
			parts[i].RetryAfter = time.Duration(r.at)
		}
	}
	parts[p.least].Remaining = r.Remaining
	parts[p.longest].ResetAfter = r.ResetAfter
	if p.denied != neither {
		parts[p.denied.longest()].RetryAfter = r.RetryAfter
	}
	j := join(parts[:])
	j.charged, j.deniedBy = int(r.n), p.deniedBy()
	return j
}

// deniedBy is the name of the part that denies for the longest.
func (p *pair) deniedBy() string {
	if p.denied == neither {
		return ""
	}
	return p.parts[p.denied.longest()].core.policyName
}
