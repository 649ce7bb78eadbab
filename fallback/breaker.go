package fallback

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/faults"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/sony/gobreaker/v2"
)

const (
	defaultFailures = 5
	defaultPause    = time.Second
	leastRetryAfter = time.Second
	longestPause    = 100 * 365 * 24 * time.Hour // so that it can be added to a time, and rounded up
)

var (
	errOpen = fmt.Errorf("%w: the circuit breaker is open", store.ErrUnavailable)
	// errUnasked means that the call was decided without the store.
	errUnasked = errors.New("fallback: the store was not asked")
)

// WithBreaker opens the circuit breaker after this many consecutive failures, 1 to 2^31-1. When it
// has been open for probeAfter, above 0, it sends a probe, and another one each probeAfter until a
// probe succeeds. The defaults are 5 failures and 1 s. If servers have breakers of their own, both
// apply to each of them.
func WithBreaker(failures int, probeAfter time.Duration) Option {
	return func(f *Limiter) error {
		if failures < 1 || failures > math.MaxInt32 || probeAfter <= 0 {
			return fmt.Errorf("%w: WithBreaker(%d, %v): want 1 to 2^31-1 failures, and a time above 0", ratelimit.ErrInvalidOption, failures, probeAfter)
		}
		f.breakers.failures, f.breakers.pause = uint32(failures), min(probeAfter, longestPause)
		return nil
	}
}

// breakers are the circuit breakers of a limiter. There is one, or if the store knows which server
// has a key, one for each server, because a server that fails must not make the keys of the others local.
type breakers struct {
	failures uint32
	pause    time.Duration // from opening to the probe
	base     time.Time     // the origin of all times
	changes  changes
	whole    atomic.Pointer[breaker] // of calls whose server is not known
	servers  sync.Map                // *breaker by server
}

// breaker decides which calls go to the store, or to one of its servers.
type breaker struct {
	gate     *gobreaker.CircuitBreaker[ratelimit.Result]
	all      *breakers
	server   string       // "" if it is not known
	served   atomic.Int64 // calls that succeeded
	servedAt atomic.Int64 // when the last of each servedOf calls succeeded, ns since base
	used     atomic.Int64 // when it was last used, to within usedWithin, if servers have breakers; ns since base
	probeAt  atomic.Int64 // ns since base; 0 unless the breaker is open
	halfOpen atomic.Bool
	failing  atomic.Bool // whether the last call to the store failed

	state     State // protected by the lock of changes
	forgotten bool  // protected by the lock of changes
}

const (
	usedWithin = time.Second
	// servedWithin is shorter than timeouts of stores are. After a server has begun to hang, the
	// calls that were in progress count.
	servedWithin = 25 * time.Millisecond
	servedOf     = 8
	leastIdle    = 10 * time.Second
)

// begin makes the first breaker, which is closed.
func (bs *breakers) begin() {
	bs.base = time.Now()
	bs.changes.since = bs.base
	bs.whole.Store(bs.make(""))
}

func (bs *breakers) make(server string) *breaker {
	b := &breaker{all: bs, server: server}
	b.used.Store(int64(bs.now()))
	b.gate = gobreaker.NewCircuitBreaker[ratelimit.Result](gobreaker.Settings{
		MaxRequests:  1,
		Timeout:      max(bs.pause-1, 1), // gobreaker waits until more than its Timeout has passed
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= bs.failures },
		IsExcluded:   func(err error) bool { return !b.heard(err) && !b.counts(err) },
		IsSuccessful: b.heard,
		OnStateChange: func(_ string, _, to gobreaker.State) { // called under the breaker's lock
			now := time.Now()
			probeAt := time.Duration(0)
			if to == gobreaker.StateOpen {
				probeAt = now.Sub(bs.base) + bs.pause
			}
			b.halfOpen.Store(to == gobreaker.StateHalfOpen) // before probeAt, so that one of the two always shows that the breaker is not closed
			b.probeAt.Store(int64(probeAt))
			bs.changes.add(b, stateOf[to], now)
		},
	})
	return b
}

// now returns the time since base.
func (bs *breakers) now() time.Duration { return time.Since(bs.base) }

// server returns the breaker of a server, which is "" if it is not known.
func (bs *breakers) server(server string) *breaker {
	b := bs.whole.Load()
	if server != "" {
		known, found := bs.servers.Load(server)
		if !found {
			known, _ = bs.servers.LoadOrStore(server, bs.make(server))
			bs.tidy()
		}
		b = known.(*breaker)
	}
	if now := bs.now(); now-time.Duration(b.used.Load()) > usedWithin {
		b.used.Store(int64(now))
		if bs.changes.bad.Load() {
			bs.tidy()
		}
	}
	return b
}

// tidy forgets the breakers that have not been used for some time, because their keys have moved to
// other servers. An open one would otherwise stay open, as no call probes it. If no server is known,
// the only breaker stays.
func (bs *breakers) tidy() {
	idle := func(b *breaker) bool {
		return bs.now()-time.Duration(b.used.Load()) > max(leastIdle, 10*bs.pause)
	}
	known := false
	bs.servers.Range(func(server, b any) bool {
		known = true
		if b := b.(*breaker); idle(b) && bs.servers.CompareAndDelete(server, b) {
			bs.changes.forget(b, time.Now())
		}
		return true
	})
	if b := bs.whole.Load(); known && idle(b) && bs.whole.CompareAndSwap(b, bs.make("")) {
		bs.changes.forget(b, time.Now())
	}
}

// refresh brings the state up to date. Breakers become half open with time, and are forgotten.
func (bs *breakers) refresh() {
	bs.tidy()
	bs.whole.Load().gate.State()
	bs.servers.Range(func(_, b any) bool {
		b.(*breaker).gate.State()
		return true
	})
}

// execute runs do if b lets it pass. If do fails but other calls have succeeded since it began, and
// do so within servedWithin, the failure does not count, because a connection that breaks fails all of
// its calls at once while the others serve.
func (b *breaker) execute(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	served := b.served.Load()
	r, err := b.gate.Execute(func() (ratelimit.Result, error) {
		r, err := do()
		switch {
		case b.heard(err):
			if b.served.Add(1)%servedOf == 0 { // reading the clock each time would be slow
				b.servedAt.Store(int64(b.all.now()))
			}
		case b.served.Load() != served && b.all.now()-time.Duration(b.servedAt.Load()) < servedWithin:
			err = outdone{err}
		}
		return r, err
	})
	if o, ok := err.(outdone); ok { //nolint:errorlint // it is never wrapped
		err = o.error
	}
	return r, err
}

// outdone is the error of a call that failed while another call succeeded.
type outdone struct{ error }

// untilProbe returns how long the breaker stays open, or 0 if it is not open.
func (b *breaker) untilProbe() time.Duration {
	at := b.probeAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at)-b.all.now())
}

// unsure reports whether b is not closed, or the last call to its server failed.
func (b *breaker) unsure() bool {
	return b.probeAt.Load() != 0 || b.halfOpen.Load() || b.failing.Load()
}

// counts reports whether err is a failure that counts.
func (b *breaker) counts(err error) bool {
	_, not := err.(outdone) //nolint:errorlint // it is never wrapped
	return !not && b.blamed(err)
}

// blamed reports whether err is a failure of b's server, as far as is known.
func (b *breaker) blamed(err error) bool {
	if !faults.OfStore(err) {
		return false
	}
	server := see.ServerOf(err)
	return server == "" || b.server == "" || server == b.server
}

// heard reports whether b's server has answered a call that ended with err.
func (b *breaker) heard(err error) bool {
	if err == nil {
		return true
	}
	var p partly
	return errors.As(err, &p) && !slices.Contains(p.unheard, b.server)
}

// learn records whether the server failed with err.
func (b *breaker) learn(err error) {
	switch {
	case b.heard(err):
		if b.failing.Load() { // writing each time would be slow
			b.failing.Store(false)
		}
	case b.blamed(err):
		b.failing.Store(true)
	}
}
