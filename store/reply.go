package store

import (
	"math"

	"github.com/ratelimit-go/ratelimit/internal/exact"
)

// Reply is a decision. X, Y and Z describe the key before the decision, and the rule defines their
// meaning, except that X of an admission is the time of the charge, At of its [Receipt]. In the reply
// of a store that wraps another one, they may be plain numbers instead: see [Outcome].
type Reply struct {
	Outcome
	X, Y, Z int64
}

// Outcome is whether events are admitted, and which store decided.
//
// A store that wraps another one may answer without asking it, or by a different limit. Its Outcome
// is then neither Denied nor Admitted, and the numbers of the [Reply] are plain:
//
//   - X is the RetryAfter of a denial in µs, or [Never]. The events may fit sooner. For an
//     admission it is the time of the charge, as in all admissions.
//   - Y is how many events there was room for before this decision. For an admission ahead of its
//     time, it is minus the Delay in µs.
//   - Z is ResetAfter in µs, after this decision.
type Outcome uint8

// The outcomes. The zero Outcome is a denial.
const (
	Denied          Outcome = 0 // by the store, in the rule's numbers
	Admitted        Outcome = 1 // by the store, in the rule's numbers
	DeniedPlainly   Outcome = 2 // by the store, in plain numbers
	AdmittedPlainly Outcome = 3 // by the store, in plain numbers
	DeniedByCache   Outcome = 4 // because the store has denied before
	DeniedByLease   Outcome = 6 // because the store has denied a lease before
	AdmittedByLease Outcome = 7 // with events that were charged before
	NotAsked        Outcome = 8 // for an alternative after one that was admitted; the reply has no other meaning
)

// Never is the X of a plain denial for which waiting will not help.
const Never = math.MaxInt64

// AdmittedIf returns Admitted if ok is true, and otherwise Denied.
func AdmittedIf(ok bool) Outcome {
	if ok {
		return Admitted
	}
	return Denied
}

// OK reports whether the events are admitted.
func (o Outcome) OK() bool { return o&1 != 0 }

// Plain reports whether the numbers of the Reply are plain.
func (o Outcome) Plain() bool { return o > Admitted }

// Report is the content of a reply in plain numbers: a number of events, and three durations in µs.
// Retry has a meaning only in a denial. (Go keeps at most four fields in registers.)
type Report struct {
	Remaining, Retry, Reset, Delay int64
}

// Report returns the content of r, a reply of rule to a decision under l on n events, after the
// given number of events have been charged: all n or none.
func (r Reply) Report(rule *Rule, l Limit, n, charged int64) Report {
	if r.Plain() {
		return Report{Remaining: max(0, r.Y-charged), Retry: r.X, Reset: r.Z, Delay: max(0, -r.Y)}
	}
	return rule.Report(l, r, n, charged)
}

// Available returns how many events the decision with reply r would have admitted, 0 or more.
func (r Reply) Available(rule *Rule, l Limit) int64 {
	if r.Plain() {
		return max(0, r.Y)
	}
	return rule.Available(l, r)
}

// After returns what r becomes after n events have been charged.
func (r Reply) After(rule *Rule, n int64) Reply {
	if r.Plain() {
		r.Y -= n
		return r
	}
	return rule.After(r, n)
}

// Plainly returns r, a reply to a decision under l on n events, in plain numbers. If r admits the
// events, charged is how many are charged: all n or none. Stores that wrap others and decide by a
// different limit use it.
func (r Reply) Plainly(rule *Rule, l Limit, n, charged int64) Reply {
	if r.Plain() {
		return r
	}
	p := Reply{Outcome: DeniedPlainly, X: r.X}
	if r.OK() {
		p.Outcome = AdmittedPlainly
	} else {
		charged = 0
	}
	says := r.Report(rule, l, n, charged)
	p.Y, p.Z = r.Available(rule, l), says.Reset
	switch {
	case says.Delay > 0:
		p.Y = -says.Delay
	case n > l.Burst:
		p.X = Never
	case !r.OK():
		p.X = says.Retry
	}
	return p
}

// Receipt returns a receipt for n of the events that the admission r has charged.
func (r Reply) Receipt(rule *Rule, l Limit, charged, n int64) Receipt {
	return NewReceipt(l, r.X, r.Report(rule, l, charged, charged).Reset, n)
}

// Receipt identifies a past admission, of which a part is to be refunded.
type Receipt struct {
	At        int64 // when it was admitted, in Unix µs of the store's clock
	Due       int64 // At + ResetAfter: when the key would have been fully reset
	Rate      int64 // of the limit under which it was admitted
	Period    int64 // of that limit, µs
	Overdrawn bool  // whether it left a bucket above its Burst, which is then not reduced to the current Burst
	N         int64 // how many of its events to refund, 1 to 2^31-1
}

// NewReceipt returns a receipt for n events that were charged under l at the time at, in Unix µs,
// after which the key would have been fully reset within reset µs.
func NewReceipt(l Limit, at, reset, n int64) Receipt {
	return Receipt{
		At:        at,
		Due:       at + reset,
		Rate:      l.Rate,
		Period:    l.Period,
		Overdrawn: exact.AtMost(l.Burst, l.Period, l.Rate, reset-1), // a full bucket would have drained sooner
		N:         n,
	}
}
