package regions

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/credit"
	"github.com/ratelimit-go/ratelimit/internal/faults"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	mostPause = 100_000     // µs, for a key for which nothing was found
	rest      = time.Second // for a region that failed
)

// now returns the time since base.
func (s *Store) now() time.Duration { return time.Since(s.base) }

// fetch is a fetch for a key that lacks room.
type fetch struct {
	ns      *store.Namespace
	key     string
	limit   store.Limit // the limit of all regions together
	share   store.Limit // the share of the local region
	own     keyState    // the key before the fetch, minus what has been fetched
	missing int64       // events for which there is no room; 0 or less if there is
	*patience
}

// patience is the remaining wait of one call, for all of its keys.
type patience struct {
	deadline time.Time
	whole    bool // whether the next region gets the whole wait
}

func (s *Store) patience(ctx context.Context) *patience {
	p := &patience{time.Now().Add(s.wait), true}
	if d, ok := ctx.Deadline(); ok && d.Before(p.deadline) {
		p.deadline, p.whole = d, false
	}
	return p
}

// continues reports whether to ask another region.
func (f *fetch) continues(ctx context.Context) bool {
	return f.missing > 0 && f.missing <= f.own.credit && ctx.Err() == nil && time.Now().Before(f.deadline)
}

// fetch moves room for want events of key to the local share if r denies them, as far as there is
// room. It reports whether the share is worth asking again.
func (s *Store) fetch(ctx context.Context, p *patience, ns *store.Namespace, key string, l, share store.Limit, want int64, r store.Reply) (again bool) {
	if r.OK() || want > share.Burst {
		return false
	}
	id := s.seeds.In(ns, key)
	if !s.pauses.begin(id, s.now()) {
		return false
	}
	retry := time.Duration(min(r.Report(ns.Rule, share, want, 0).Retry, mostPause)) * time.Microsecond
	defer func() {
		if again {
			retry = 0
		}
		s.pauses.end(id, s.now(), retry)
	}()
	s.fetches.Add(1)
	l, share = l.TurnBefore(0), share.TurnBefore(0)
	f := &fetch{ns: ns, key: key, limit: l, share: share, patience: p}
	var err error
	if f.own, err = s.own.peek(ctx, ns, key, share); err != nil {
		s.failed.Add(1)
		return false
	}
	f.missing = want - f.own.left
	again = f.missing <= 0
	first := int(s.nextRegion.Add(1) % uint32(len(s.others)))
	for i := 0; i < len(s.others) && f.continues(ctx); i++ {
		if o := s.others[(first+i)%len(s.others)]; !o.rests(s.now()) {
			again = s.move(ctx, f, o) || again
		}
	}
	return again
}

// move moves events from o to the local share, and reports whether there were any.
func (s *Store) move(ctx context.Context, f *fetch, o *region) bool {
	whole := f.whole
	f.whole = false
	until := o.until.Load()
	debit, err := o.debit(ctx, f)
	switch {
	case err == nil:
	case !ofTheRegion(err):
		o.until.CompareAndSwap(until, min(until, int64(s.now()))) // if this call was a probe, the next call is one
	case whole && ctx.Err() == nil: // otherwise it may have had too little time
		o.until.Store(int64(s.now() + rest))
	}
	if err != nil {
		s.failed.Add(1)
		return false
	}
	o.until.Store(0)
	if debit.N == 0 {
		return false
	}
	// The caller may have left, but the events must not be lost.
	debit = credit.Receipt(f.ns.Rule, f.share, debit)
	if err := s.inner.Refund(context.WithoutCancel(ctx), f.ns, f.key, f.share, debit); err != nil {
		s.failed.Add(1)
		return false
	}
	s.moved.Add(debit.N)
	f.missing, f.own.credit = f.missing-debit.N, f.own.credit-debit.N
	return true
}

// ofTheRegion reports whether err concerns a region as a whole.
func ofTheRegion(err error) bool {
	return errors.Is(err, errTooSlow) || errors.Is(err, context.DeadlineExceeded) || faults.OfStore(err)
}

// keyState is what a region currently counts for a key.
type keyState struct {
	left   int64 // events that would be admitted now
	credit int64 // events that can be refunded
	window int64 // when the current window began, Unix µs; 0 without windows
}

// peek returns the state of a key under the share by.
func (r *region) peek(ctx context.Context, ns *store.Namespace, key string, by store.Limit) (keyState, error) {
	reply, err := store.Peek(ctx, r.bottom, ns, key, by, 1)
	if err != nil {
		return keyState{}, err
	}
	st := keyState{left: reply.Available(ns.Rule, by), credit: credit.Most(ns.Rule, by, reply)}
	if !ns.Rule.Burst && reply.Y >= 0 { // X is the time
		st.window, _ = by.Window(reply.X)
	}
	return st, nil
}

// rests reports whether r failed recently. The first caller that finds the rest over asks r, which
// then rests for all others.
func (r *region) rests(now time.Duration) bool {
	until := r.until.Load()
	return until > 0 && (int64(now) < until || !r.until.CompareAndSwap(until, int64(now+rest)))
}

var errTooSlow = errors.New("regions: there is not enough time left to fetch events")

// debit charges r with the events that it can give to f. The receipt is for 0 events if that is
// nothing.
func (r *region) debit(ctx context.Context, f *fetch) (debit store.Receipt, err error) {
	by, err := r.share(f.ns.Rule, f.limit)
	if err != nil { // the share is invalid, which is not a failure of the store
		return debit, nil //nolint:nilerr // see above
	}
	asked := time.Now()
	short, cancel := context.WithDeadline(ctx, f.deadline)
	defer cancel()
	there, err := r.peek(short, f.ns, f.key, by)
	if err != nil {
		return debit, err
	}
	n := min(max(f.missing, there.left-there.left/2), there.left, f.own.credit)
	if n == 0 || there.window != f.own.window { // a credit in another window refunds nothing
		return debit, nil
	}
	// If nobody waits for the reply of a debit, the debit is lost. Therefore there must be enough
	// time for it, and it is not canceled.
	if time.Until(f.deadline) < time.Since(asked) {
		return debit, errTooSlow
	}
	take, cancel := context.WithDeadline(context.WithoutCancel(ctx), f.deadline)
	defer cancel()
	reply, err := store.TakeUpTo(take, r.Store, f.ns, f.key, by, n)
	if err != nil || !reply.OK() {
		return debit, err
	}
	n = min(n, reply.Available(f.ns.Rule, by))
	return reply.Receipt(f.ns.Rule, by, n, n), nil
}

// pauses remembers for which keys not to fetch, and until when.
type pauses struct {
	mu    sync.Mutex
	until map[keyhash.Hash]time.Duration
}

const (
	maxPauses               = 1 << 16
	underWay  time.Duration = math.MaxInt64
)

// begin begins a fetch for a key, which must be ended, unless the key pauses.
func (p *pauses) begin(id keyhash.Hash, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = make(map[keyhash.Hash]time.Duration)
	}
	until, found := p.until[id]
	if found && now < until || !found && len(p.until) >= maxPauses && !p.drop() {
		return false
	}
	p.until[id] = underWay
	return true
}

// drop makes room by removing one pause. It returns false if all are fetches in progress.
func (p *pauses) drop() bool {
	for id, until := range p.until { // in no particular order
		if until != underWay {
			delete(p.until, id)
			return true
		}
	}
	return false
}

// end ends a fetch, and begins a pause.
func (p *pauses) end(id keyhash.Hash, now, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until[id] = now + pause; pause == 0 {
		delete(p.until, id)
	}
}
