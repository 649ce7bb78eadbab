package ratelimit

// Source says what made a [Result]: the limiter's store, or in its place a wrapper.
type Source uint8

const (
	// SourceStore is the limiter's own store: every Result of the five algorithms.
	SourceStore Source = iota
	// SourceFailOpen says that the store failed, and the event was let through
	// uncounted.
	SourceFailOpen
	// SourceFailClosed says that the store failed, and the event was refused.
	SourceFailClosed
	// SourceLocal says that the store failed, and a local limiter decided.
	SourceLocal
	// SourceDenyCache says that the store has denied before, until a time that is yet
	// to come.
	SourceDenyCache
	// SourceUnlimited says that the limit is [Unlimited], so that no store was asked.
	SourceUnlimited
	// SourceList says that the key is on a list (package accesslist), so that no limit
	// was asked.
	SourceList
)

func (s Source) String() string {
	switch s {
	case SourceFailOpen:
		return "fail_open"
	case SourceFailClosed:
		return "fail_closed"
	case SourceLocal:
		return "local"
	case SourceDenyCache:
		return "deny_cache"
	case SourceUnlimited:
		return "unlimited"
	case SourceList:
		return "list"
	}
	return "store"
}

// Source says what made the Result. That of a Failover says that the store did not
// answer: SourceFailOpen, SourceFailClosed and SourceLocal.
func (r Result) Source() Source {
	if r.details == nil {
		return SourceStore
	}
	return r.details.source
}

// Counted reports whether Limit and Remaining tell what is left of a limit. They do not
// where no limit has counted the events: those of [SourceFailOpen], [SourceFailClosed],
// [SourceUnlimited] and [SourceList], and an admission with a Limit of 0, such as that of
// a [Static].
func (r Result) Counted() bool {
	switch r.Source() {
	case SourceFailOpen, SourceFailClosed, SourceUnlimited, SourceList:
		return false
	}
	return !r.Allowed || r.Limit > 0
}

// uncounted is whether all limits that had a part in r are Unlimited.
func (r *Result) uncounted() bool { return r.Source() == SourceUnlimited }

// details is what wrappers tell in a Result. It is never changed once a Result
// has it.
type details struct {
	source Source
	denied bool // by one of parts, also where a wrapper lets it through: nothing is charged

	// Of a Failover: by itself, or nil. It takes its own part off before it hands a
	// Result on to the limiter that made it, which finds its own in under.
	by       *Failover
	under    *details
	byPolicy bool   // its policy decided, not the limiter that it wraps
	mirror   Result // of that limiter's admission on the local limiter
	short    int    // events of the admission that mirror lacks

	// Of several limits that decided together.
	parts    []Result
	deniedBy string
}

// byLimit is of all Results that Unlimited makes.
var byLimit = details{source: SourceUnlimited}

// Parts are the decisions of the single limits where several decided together
// ([All]), in the order of their policies ([Describer]), and nil elsewhere. The Result
// itself has the least Remaining of them, and the longest RetryAfter and ResetAfter.
// The slice must not be changed.
func (r Result) Parts() []Result {
	parts := r.parts()
	for i := range parts {
		if parts[i].parts() != nil {
			return flat(nil, parts)
		}
	}
	return parts
}

// parts are those of the [All] that has decided.
func (r Result) parts() []Result {
	if d := r.ofAll(); d != nil {
		return d.parts
	}
	return nil
}

// ofAll is what the [All] that has decided tells, or nil.
func (r Result) ofAll() *details {
	for d := r.details; d != nil; d = d.under {
		if d.parts != nil {
			return d
		}
	}
	return nil
}

// flat appends parts to dst, and in place of those that have parts these.
func flat(dst, parts []Result) []Result {
	for _, p := range parts {
		if inner := p.parts(); inner != nil {
			dst = flat(dst, inner)
		} else {
			dst = append(dst, p)
		}
	}
	return dst
}

// DeniedBy is the name (see [Policy]) of the limit that denied, where several decided
// together: of those that did, the one with the longest RetryAfter. It is "" for an
// admission, and for the decision of one limit.
func (r Result) DeniedBy() string {
	for d := r.details; d != nil; d = d.under {
		if d.deniedBy != "" {
			return d.deniedBy
		}
	}
	return ""
}
