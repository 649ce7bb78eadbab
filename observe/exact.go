package observe

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const defaultExactKeys = 10_000

// Exact compares decisions with those of an exact log, on a share of the keys. It is a
// [ratelimit.Observer]. It tells how many admissions exceed Rate within the last Period, and
// how many denials were needless: by an estimate, such as that of [ratelimit.SlidingWindow],
// or by the edge of a window.
//
// The log is a [ratelimit.SlidingLog] in memory, of the events that the limiter has admitted
// through this process. So use it where this process alone decides on a key, or as a trial.
// It is for limiters of one limit for all keys; give one with [ratelimit.CountCalls] to
// [ratelimit.WithObserver], which tells of one event a call. Decisions that no limit has made are
// left out: those of lists and of Unlimited, and those while a store fails.
//
// Decisions on one key at the same instant may reach the log in another order. What is charged
// after the fact ([ratelimit.Charge]) counts as an admission. No observer is told of refunds: what is
// given back stays in the log for its Period, so that more admissions seem to be beyond.
//
// A decision costs a hash of the key. One on a key of the share costs one to two decisions of
// the log besides, and such a key takes 260 bytes and 7 for each event of its last Period.
// There are at most 10,000 of them, or [WithMaxKeys].
//
// It is safe for concurrent use. Make it by [NewExact].
type Exact struct {
	log   ratelimit.Limiter
	seed  maphash.Seed
	share float64 // of 2^53

	admitted, beyond, denied, needless atomic.Int64
}

// ExactOption configures an [Exact].
type ExactOption func(*exactOptions)

type exactOptions struct{ maxKeys int }

// WithMaxKeys bounds the keys that an [Exact] keeps a log of, 1 to 16,777,216. Beyond n the
// log forgets keys that have spent little. What it says of them is then wrong, so choose the
// share by how many keys there are in a Period.
func WithMaxKeys(n int) ExactOption { return func(o *exactOptions) { o.maxKeys = n } }

// NewExact returns an Exact for a limiter of l, on this percentage of all keys, above 0 and up
// to 100. Which keys they are depends on a hash that is another one in each process. The Burst
// of l does not matter, since a log has none.
//
// Its errors are [ratelimit.ErrInvalidLimit] (l cannot be kept by a log, or has a Rate of 0 or
// none) and [ratelimit.ErrInvalidOption] (the percentage, or an option).
func NewExact(l ratelimit.Limit, percent float64, opts ...ExactOption) (*Exact, error) {
	if !(percent > 0 && percent <= 100) { // NaN is neither
		return nil, fmt.Errorf("%w: %v percent of the keys, want more than 0 and up to 100", ratelimit.ErrInvalidOption, percent)
	}
	if l.Rate < 1 {
		return nil, fmt.Errorf("%w: an Exact of %v", ratelimit.ErrInvalidLimit, l)
	}
	o := exactOptions{maxKeys: defaultExactKeys}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an ExactOption is nil", ratelimit.ErrInvalidOption)
		}
		opt(&o)
	}
	mem, err := memstore.New(memstore.WithMaxKeys(o.maxKeys))
	if err != nil {
		return nil, err
	}
	l.Burst = 0
	log, err := ratelimit.NewSlidingLog(mem, l)
	if err != nil {
		return nil, err
	}
	return &Exact{log: log, seed: maphash.MakeSeed(), share: percent / 100 * (1 << 53)}, nil
}

// Decided compares a decision on a key of the share. It is for [Around].
func (e *Exact) Decided(_ context.Context, key string, n int, r ratelimit.Result, err error, _ time.Duration) {
	if err != nil || float64(maphash.String(e.seed, key)>>11) >= e.share || !byLimit(&r) {
		return
	}
	ctx := context.Background() // the caller's may be over, and the decision stands
	if !r.Allowed {
		e.denied.Add(1)
		if exact, err := e.log.Peek(ctx, key); err == nil && n <= exact.Remaining {
			e.needless.Add(1)
		}
		return
	}
	e.admitted.Add(1)
	n = admitted(&r, n)
	exact, err := e.log.AllowN(ctx, key, n)
	if err == nil && !exact.Allowed {
		e.beyond.Add(1)
		_, _ = ratelimit.Charge(ctx, e.log, key, n) // memory does not fail
	}
}

// byLimit says whether a limit has decided.
func byLimit(r *ratelimit.Result) bool {
	switch r.Source() {
	case ratelimit.SourceStore, ratelimit.SourceLocal, ratelimit.SourceDenyCache, ratelimit.SourceLease:
		return r.Counted()
	}
	return false
}

// Exactness is what [Exact] has found, in calls.
type Exactness struct {
	Decisions int64 `json:"decisions"` // Admitted and Denied
	Admitted  int64 `json:"admitted"`
	Beyond    int64 `json:"beyond"` // of Admitted: the log would have denied them
	Denied    int64 `json:"denied"`
	Needless  int64 `json:"needless"` // of Denied: the log had room for them
}

// Snapshot returns what has been found since e was made.
func (e *Exact) Snapshot() Exactness {
	// A part is read before the whole, which is counted first.
	s := Exactness{Beyond: e.beyond.Load(), Needless: e.needless.Load()}
	s.Admitted, s.Denied = e.admitted.Load(), e.denied.Load()
	s.Decisions = s.Admitted + s.Denied
	return s
}

var _ ratelimit.Observer = (*Exact)(nil)
