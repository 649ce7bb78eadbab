package ratelimit

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// Result is a decision. Its durations are whole microseconds, rounded up. Results can be compared
// with ==.
type Result struct {
	Allowed    bool
	Limit      int           // the most events that could be admitted at one instant (rate, or burst)
	Remaining  int           // events that would be admitted now, 0 to Limit
	RetryAfter time.Duration // 0 if allowed; the exact wait after which the same call would be allowed; Never if it never would
	ResetAfter time.Duration // the time until the key is in its initial state
	Delay      time.Duration // how long an admitted event must wait (LeakyBucket, AllowWithin); otherwise 0

	// What a Refund needs. A [pair] uses these fields in another way.
	at      int64 // when the events were charged, Unix µs of the store's clock
	period  int64 // of the limit that they were charged under, µs
	n, rate int32 // how many were charged, or 0; the Rate of that limit, negated if they left a bucket above a Burst other than Limit

	mark *Mark // nil unless a wrapper had a part in it
}

// String returns a short text for logs and tests. Its form may change:
//
//	denied by "per_user" (local), 2 of 5 left, retry after 1.2s
func (r Result) String() string {
	s := "denied"
	if r.Allowed {
		s = "allowed"
	}
	if name := r.DeniedBy(); name != "" {
		s += " by " + strconv.Quote(name)
	}
	if source := r.Source(); source != SourceStore {
		s += " (" + source.String() + ")"
	}
	if of := r.denier(); r.Counted() && (r.Allowed || of.Remaining > 0) {
		s += fmt.Sprintf(", %d of %d left", of.Remaining, of.Limit)
	}
	switch {
	case r.Allowed && r.Delay > 0:
		s += ", delayed by " + r.Delay.String()
	case r.RetryAfter == Never:
		s += ", never admitted"
	case r.RetryAfter > 0:
		s += ", retry after " + r.RetryAfter.String()
	}
	if r.Allowed && r.ResetAfter > 0 {
		s += ", reset in " + r.ResetAfter.String()
	}
	return s
}

// Charged returns the number of events that can be refunded. It is 0 for limiters that are not
// built on this package.
func (r Result) Charged() int {
	if j, ok := r.together().(*joined); ok {
		return j.charged
	}
	return int(r.n)
}

// Counted reports whether Limit and Remaining describe a limit. They do not for [SourceFailOpen],
// [SourceFailClosed], [SourceUnlimited] and [SourceBan], nor for admissions by a list or with a Limit
// of 0.
func (r Result) Counted() bool { return r.counted() }

func (r *Result) counted() bool {
	switch r.source() {
	case SourceFailOpen, SourceFailClosed, SourceUnlimited, SourceBan:
		return false
	case SourceList:
		return !r.Allowed
	}
	return !r.Allowed || r.Limit > 0
}

// DeniedBy returns the name (see [Policy]) of the limit that denied the call. If several limits denied
// it, that is the one with the longest RetryAfter. For a single limit and for an admission it is "".
func (r Result) DeniedBy() string {
	if r.Allowed { // a wrapper may admit what a limit has denied
		return ""
	}
	switch note := r.together().(type) {
	case *joined:
		return note.deniedBy
	case *pair:
		return note.deniedBy()
	}
	return ""
}

// Source is the origin of a [Result].
type Source uint8

// The origins of a Result.
const (
	SourceStore      Source = iota // the limiter's own store
	SourceFailOpen                 // the store failed, and the event was let through
	SourceFailClosed               // the store failed, and the event was refused
	SourceLocal                    // the store failed, and a local limiter decided; if a local ban denied, it is SourceBan
	SourceDenyCache                // the store has denied before (package denycache)
	SourceUnlimited                // the limit is [Unlimited]
	SourceZeroRate                 // the Rate is 0
	SourceList                     // the key is on a list (package accesslist)
	SourceLease                    // this process decided by what it holds (package lease)
	SourceBan                      // the key is banned ([Ban])
)

var sourceNames = [...]string{
	"store", "fail_open", "fail_closed", "local", "deny_cache", "unlimited", "zero_rate", "list", "lease", "ban",
}

// String returns the Source as text, such as "fail_open".
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "source(" + strconv.Itoa(int(s)) + ")"
}

// MarshalText returns the text of String.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Source returns the origin of the Result.
func (r Result) Source() Source { return r.source() }

func (r *Result) source() Source {
	for m := r.mark; m != nil; m = m.under {
		if m.source != SourceStore {
			return m.source
		}
	}
	if r.mark == nil && !r.Allowed && r.Limit == 0 && r.RetryAfter == Never { // the Result of a Rate of 0
		return SourceZeroRate
	}
	return SourceStore
}

// The marks on all Results of Unlimited, of limits that are reserved as a whole, and of caches that have decided.
var (
	byStore     = Mark{source: SourceStore}
	byUnlimited = Mark{source: SourceUnlimited}
	byDenyCache = Mark{source: SourceDenyCache}
	byLease     = Mark{source: SourceLease}
)

// markOf returns the mark of a decision that a cache made, or nil if the store itself made it.
func markOf(o store.Outcome) *Mark {
	switch o {
	case store.DeniedByCache:
		return &byDenyCache
	case store.DeniedByLease, store.AdmittedByLease:
		return &byLease
	}
	return nil
}

// uncounted reports whether r has charged nothing because no limit counts it. A list that denies is a
// limit of 0.
func (r *Result) uncounted() bool {
	s := r.source()
	return s == SourceUnlimited || s == SourceList && r.Limit > 0
}

// withoutStore makes r, which is zero, the decision of a Rate of 0 or of Unlimited.
func (r *Result) withoutStore(l store.Limit) {
	if l.Rate == 0 {
		r.RetryAfter = Never
		return
	}
	r.Allowed, r.Limit, r.Remaining, r.mark = true, maxEvents, maxEvents, &byUnlimited
}

// report fills the exported fields. (It and addReceipt are small enough to be inlined.)
func (r *Result) report(v store.Report, ok bool, n, capacity int64) {
	r.Allowed = ok
	r.Limit = int(capacity)
	r.Remaining = int(v.Remaining)
	if !ok {
		r.RetryAfter = time.Duration(v.Retry) * time.Microsecond
		if n > capacity {
			r.RetryAfter = Never
		}
	}
	r.ResetAfter = time.Duration(v.Reset) * time.Microsecond
	r.Delay = time.Duration(v.Delay) * time.Microsecond
}

// leave subtracts the reserved events from Limit and Remaining. If it leaves nothing, a mark distinguishes the
// denial from that of a Rate of 0.
func (r *Result) leave(reserved int) {
	r.Limit, r.Remaining = max(0, r.Limit-reserved), max(0, r.Remaining-reserved)
	if r.Limit == 0 && !r.Allowed && r.mark == nil {
		r.mark = &byStore
	}
}

// leaveDebt is leave for a Charge, which may have left a bucket above its Burst.
func (r *Result) leaveDebt(reserved int) {
	if reserved > 0 && r.n > 0 && r.receipt(1).Overdrawn {
		r.rate = -r.rate
	}
	r.leave(reserved)
}

// addReceipt fills the fields that a Refund of an admission needs.
func (r *Result) addReceipt(l store.Limit, at, charged int64) {
	if charged > 0 {
		r.at, r.period, r.n, r.rate = at, l.Period, int32(charged), int32(l.Rate)
	}
}

// receipt returns the receipt of n of the events that r admitted.
func (r *Result) receipt(n int64) store.Receipt {
	l := store.Limit{Rate: int64(max(r.rate, -r.rate)), Period: r.period, Burst: int64(r.Limit)}
	return store.NewReceipt(l, r.at, r.ResetAfter.Microseconds(), min(n, int64(r.n)))
}

// Mark is a note that a wrapper puts on its Results and finds again in Refund. One Mark can serve all
// Results with the same note.
type Mark struct {
	owner  any
	source Source
	note   any
	under  *Mark // the mark that the Result had before
}

// NewMark returns a Mark of owner, which is a pointer to a wrapper. [Result.Source] of a marked Result
// is source, unless source is SourceStore, which leaves it as it was.
func NewMark(owner any, source Source, note any) *Mark {
	source = min(source, SourceBan) // the last Source
	return &Mark{owner: owner, source: source, note: note}
}

// WithMark returns r with the mark m on top of the marks that it has.
func (r Result) WithMark(m *Mark) Result {
	if r.mark != nil && m != nil {
		above := *m
		above.under = r.mark
		m = &above
	}
	if m != nil {
		r.mark = m
	}
	return r
}

// Unmark returns the note that owner put on r, and r without that mark, as the wrapped limiter expects it.
func (r Result) Unmark(owner any) (under Result, note any, ok bool) {
	for m := r.mark; m != nil; m = m.under {
		if m.owner != nil && m.owner == owner {
			r.mark = m.under
			return r, m.note, true
		}
	}
	return r, nil, false
}
