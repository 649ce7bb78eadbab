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
// [ratelimit.Observer]. It counts the admissions that exceed Rate within the last Period, and the
// denials that were needless. Both are caused by an estimate, such as that of
// [ratelimit.SlidingWindow], or by the edge of a window.
//
// The log is a [ratelimit.SlidingLog] in memory. It holds the events that the limiter has admitted
// in this process, so use Exact where only this process decides on a key, or for a trial. Exact is
// for limiters that have the same single limit for all keys. For a limiter with
// [ratelimit.CountCalls], use [ratelimit.WithObserver], which reports one event per call. Decisions
// that no limit has made are left out: those of lists and of Unlimited, and those made while a
// store fails.
//
// Decisions on one key at the same instant may reach the log in another order. A [ratelimit.Charge]
// counts as an admission. Observers are not notified of refunds, so refunded events stay in the log
// for its Period, and more admissions seem to exceed the limit.
//
// A decision costs a hash of the key. A decision on a key of the share also costs one or two
// decisions of the log. Each such key takes 260 bytes, and 7 bytes per event of its last Period.
// There are at most 10,000 of these keys ([WithMaxKeys]).
//
// An Exact is safe for concurrent use. Use [NewExact] to create one.
type Exact struct {
	log   ratelimit.Limiter
	seed  maphash.Seed
	share float64 // in units of 2^-53

	admitted, beyond, denied, needless atomic.Int64
}

// ExactOption configures an [Exact].
type ExactOption func(*exactOptions)

type exactOptions struct{ maxKeys int }

// WithMaxKeys limits the number of keys that an [Exact] logs to n, 1 to 16,777,216. Beyond n, the
// log forgets keys that have spent little, and is then wrong about them. Choose the share by the
// number of keys per Period.
func WithMaxKeys(n int) ExactOption { return func(o *exactOptions) { o.maxKeys = n } }

// NewExact returns an Exact for a limiter with limit l, on the given percentage of all keys, above
// 0 and up to 100. A hash chooses the keys; it differs from process to process. The Burst of l is
// ignored, because a log has none.
//
// NewExact returns [ratelimit.ErrInvalidLimit] if a log cannot have the limit l or its Rate is
// below 1, and [ratelimit.ErrInvalidOption] if the percentage or an option is invalid.
func NewExact(l ratelimit.Limit, percent float64, opts ...ExactOption) (*Exact, error) {
	if !(percent > 0 && percent <= 100) { // NaN is neither
		return nil, fmt.Errorf("%w: %v percent of the keys, want more than 0 and up to 100", ratelimit.ErrInvalidOption, percent)
	}
	if l.Rate < 1 {
		return nil, fmt.Errorf("%w: an Exact of %v, want a rate of 1 or more", ratelimit.ErrInvalidLimit, l)
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

// Decided compares a decision on a key of the share. It implements [ratelimit.Observer].
func (e *Exact) Decided(_ context.Context, key string, n int, r ratelimit.Result, err error, _ time.Duration) {
	if err != nil || float64(maphash.String(e.seed, key)>>11) >= e.share || !byLimit(&r) {
		return
	}
	ctx := context.Background() // the caller's may have ended, but the decision still counts
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

// byLimit reports whether a limit made the decision.
func byLimit(r *ratelimit.Result) bool {
	switch r.Source() {
	case ratelimit.SourceStore, ratelimit.SourceLocal, ratelimit.SourceDenyCache, ratelimit.SourceLease:
		return r.Counted()
	}
	return false
}

// Exactness holds the numbers of calls that [Exact] has counted.
type Exactness struct {
	Decisions int64 `json:"decisions"` // Admitted + Denied
	Admitted  int64 `json:"admitted"`
	Beyond    int64 `json:"beyond"` // admissions that the log would have denied
	Denied    int64 `json:"denied"`
	Needless  int64 `json:"needless"` // denials for which the log had room
}

// Snapshot returns the numbers since e was created.
func (e *Exact) Snapshot() Exactness {
	// Decided counts the total before its part, so the total is read after the part.
	s := Exactness{Beyond: e.beyond.Load(), Needless: e.needless.Load()}
	s.Admitted, s.Denied = e.admitted.Load(), e.denied.Load()
	s.Decisions = s.Admitted + s.Denied
	return s
}

var _ ratelimit.Observer = (*Exact)(nil)
