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
	}
	return "store"
}

// Source says what made the Result. Anything but [SourceStore] and
// [SourceDenyCache] means that the store did not answer.
func (r Result) Source() Source {
	if r.details == nil {
		return SourceStore
	}
	return r.details.source
}

// details is what wrappers tell in a Result. It is never changed once a Result
// has it.
type details struct {
	source Source

	// Of a Failover: by itself, or nil. It takes its own part off before it hands a
	// Result on to the limiter that made it, which finds its own in under.
	by       *Failover
	under    *details
	byPolicy bool   // its policy decided, not the limiter that it wraps
	mirror   Result // of that limiter's admission on the local limiter
	short    int    // events of the admission that mirror lacks
}
