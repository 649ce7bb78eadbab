package regions

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/five"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	mostPause = 100 * time.Millisecond // of a key for which nothing was found
	rest      = time.Second            // of a region that failed
)

// now is the time since base.
func (l *Limiter) now() time.Duration { return time.Since(l.base) }

// fetch is one for a key that lacks room.
type fetch struct {
	key      string
	by       store.Limit // of the own share
	own      five.Look   // as it was, less what has been fetched since
	lacks    int         // events; 0 or less if there is room
	deadline time.Time
	whole    bool // whether the next region has all of the wait
}

// goesOn reports whether another region is to be asked.
func (f *fetch) goesOn(ctx context.Context) bool {
	return f.lacks > 0 && f.lacks <= f.own.Credit && ctx.Err() == nil && time.Now().Before(f.deadline)
}

// fetch moves room for want events of key to the own share, as far as there is any. It reports
// whether the share is worth asking again.
func (l *Limiter) fetch(ctx context.Context, key string, want int, by store.Limit, retry time.Duration) (again bool) {
	id := l.seeds.Hash(key)
	if !l.pauses.begin(id, l.now()) {
		return false
	}
	defer func() {
		if again {
			retry = 0
		}
		l.pauses.end(id, l.now(), min(retry, mostPause))
	}()
	l.fetches.Add(1)
	f := &fetch{key: key, by: by, deadline: time.Now().Add(l.wait), whole: true}
	if d, ok := ctx.Deadline(); ok && d.Before(f.deadline) {
		f.deadline, f.whole = d, false
	}
	var err error
	if f.own, err = l.own.Look(ctx, key, by); err != nil {
		l.failed.Add(1)
		return false
	}
	f.lacks = want - f.own.Left
	again = f.lacks <= 0
	first := int(l.turn.Add(1) % uint32(len(l.others)))
	for i := 0; i < len(l.others) && f.goesOn(ctx); i++ {
		if o := l.others[(first+i)%len(l.others)]; !o.rests(l.now()) {
			again = l.move(ctx, f, o) || again
		}
	}
	return again
}

// move moves events from o to the own share, and reports whether there were any.
func (l *Limiter) move(ctx context.Context, f *fetch, o *region) bool {
	whole := f.whole
	f.whole = false
	until := o.until.Load()
	debit, err := o.debit(ctx, f)
	switch {
	case err == nil:
	case !ofTheRegion(err):
		o.until.CompareAndSwap(until, min(until, int64(l.now()))) // if this was to find out, the next one is
	case whole && ctx.Err() == nil: // or else it may have had too little time
		o.until.Store(int64(l.now() + rest))
	}
	if err != nil {
		l.failed.Add(1)
		return false
	}
	o.until.Store(0)
	n := debit.Charged()
	if n == 0 {
		return false
	}
	// The caller may have left, but the events must not be lost.
	if err := l.own.Credit(context.WithoutCancel(ctx), f.key, debit, n, f.by); err != nil {
		l.failed.Add(1)
		return false
	}
	l.moved.Add(int64(n))
	f.lacks, f.own.Credit = f.lacks-n, f.own.Credit-n
	return true
}

// ofTheRegion reports whether err concerns a region as a whole. What a limit function says of one
// key does not, nor does a corrupt state, a clock, or a lack of room in this process.
func ofTheRegion(err error) bool {
	if errors.Is(err, errTooSlow) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	return errors.Is(err, ratelimit.ErrStore) && !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrClock) &&
		!errors.Is(err, store.ErrOverloaded)
}

// region is another one.
type region struct {
	*five.Limiter[ratelimit.Result]              // its share
	until                           atomic.Int64 // when it may be asked again; 0 if it did not fail
}

// rests reports whether o failed a short time ago. The first who finds that over asks it, while
// it rests for others.
func (o *region) rests(now time.Duration) bool {
	until := o.until.Load()
	return until > 0 && (int64(now) < until || !o.until.CompareAndSwap(until, int64(now+rest)))
}

var (
	errTooSlow = errors.New("regions: a debit would come too late")
	errNoLimit = errors.New("regions: the limit function failed")
)

// debit charges o with what it can give to f. The Result has charged 0 if that is nothing.
func (o *region) debit(ctx context.Context, f *fetch) (r ratelimit.Result, err error) {
	by, err := o.LimitOf(ctx, f.key)
	if err != nil && !errors.Is(err, ratelimit.ErrStore) { // maybe a deadline that is not the region's
		return r, errNoLimit
	}
	if err != nil || by.Rate <= 0 || !sameWindows(by, f.by) {
		return r, err
	}
	asked := time.Now()
	look, cancel := context.WithDeadline(ctx, f.deadline)
	defer cancel()
	there, err := o.Look(look, f.key, by)
	if err != nil {
		return r, err
	}
	n := min(max(f.lacks, there.Left-there.Left/2), there.Left, f.own.Credit)
	if n == 0 || there.Window != f.own.Window { // a credit in another window gives nothing back
		return r, nil
	}
	// A debit whose reply is not waited for would be lost. So there must be time for it, and
	// it is not canceled.
	if time.Until(f.deadline) < time.Since(asked) {
		return r, errTooSlow
	}
	take, cancel := context.WithDeadline(context.WithoutCancel(ctx), f.deadline)
	defer cancel()
	return o.By(take, five.TakeUpTo, f.key, n, by)
}

// pauses remembers for which keys nothing is to be fetched, and until when.
type pauses struct {
	mu    sync.Mutex
	until map[keyhash.Hash]time.Duration
}

const (
	maxPauses               = 1 << 16
	underWay  time.Duration = math.MaxInt64
)

// begin begins a fetch for a key, which must be ended, unless it has to pause.
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

// drop makes room by one pause, or reports that all are fetches.
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
