package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
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

// breakers are the circuit breakers of a limiter. There is one, or if the store tells which server
// has a key, one for each server, because one that fails must not make the keys of the others local.
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
	of       *breakers
	server   string       // "" if it is not known
	served   atomic.Int64 // when a call last succeeded, ns since base; never the same twice in a row
	used     atomic.Int64 // when it was last used, to within usedWithin, if the store tells servers; ns since base
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
	leastIdle    = 10 * time.Second
)

// begin makes the first breaker, which is closed.
func (bs *breakers) begin() {
	bs.base = time.Now()
	bs.changes.since = bs.base
	bs.whole.Store(bs.make(""))
}

func (bs *breakers) make(server string) *breaker {
	b := &breaker{of: bs, server: server}
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
// other servers. An open one would otherwise stay open, as no call probes it. Of a store that never
// tells a server, the breaker stays.
func (bs *breakers) tidy() {
	idle := func(b *breaker) bool {
		return bs.now()-time.Duration(b.used.Load()) > max(leastIdle, 10*bs.pause)
	}
	tells := false
	bs.servers.Range(func(server, b any) bool {
		tells = true
		if b := b.(*breaker); idle(b) && bs.servers.CompareAndDelete(server, b) {
			bs.changes.forget(b, time.Now())
		}
		return true
	})
	if b := bs.whole.Load(); tells && idle(b) && bs.whole.CompareAndSwap(b, bs.make("")) {
		bs.changes.forget(b, time.Now())
	}
}

// refresh brings the state up to date. Breakers become half open with time, and are forgotten if
// the store tells servers.
func (bs *breakers) refresh(tells bool) {
	if tells {
		bs.tidy()
	}
	bs.whole.Load().gate.State()
	bs.servers.Range(func(_, b any) bool {
		b.(*breaker).gate.State()
		return true
	})
}

// circuit is what a call passes: the breakers of all servers that have a state of its key.
type circuit struct {
	first *breaker
	more  []*breaker
}

// circuit returns the circuit of a call for n events of key.
func (f *Limiter) circuit(ctx context.Context, key string, n int) circuit {
	if servers := f.sees().servers; servers != nil {
		return f.breakers.circuit(ctx, servers, key, n)
	}
	return circuit{first: f.breakers.whole.Load()}
}

func (bs *breakers) circuit(ctx context.Context, servers see.Servers, key string, n int) (c circuit) {
	servers(ctx, key, n, func(server string) {
		switch b := bs.server(server); {
		case c.first == nil:
			c.first = b
		case b != c.first && !slices.Contains(c.more, b):
			c.more = append(c.more, b)
		}
	})
	if c.first == nil {
		c.first = bs.whole.Load()
	}
	return c
}

// untilProbe returns how long the circuit stays open, or 0 if it is not open.
func (c circuit) untilProbe() time.Duration {
	until := c.first.untilProbe()
	for _, b := range c.more {
		until = max(until, b.untilProbe())
	}
	return until
}

// unsure reports whether a breaker is not closed, or the last call to its server failed.
func (c circuit) unsure() bool {
	return c.first.unsure() || slices.ContainsFunc(c.more, (*breaker).unsure)
}

// halfOpen reports whether a call may be the probe of a breaker.
func (c circuit) halfOpen() bool {
	return c.first.halfOpen.Load() || slices.ContainsFunc(c.more, func(b *breaker) bool { return b.halfOpen.Load() })
}

// failing reports whether the last call to a server failed.
func (c circuit) failing() bool {
	return c.first.failing.Load() || slices.ContainsFunc(c.more, func(b *breaker) bool { return b.failing.Load() })
}

// execute runs do if all breakers let it pass.
func (c circuit) execute(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	if len(c.more) == 0 {
		return c.first.execute(do)
	}
	return c.first.execute(func() (ratelimit.Result, error) { return circuit{c.more[0], c.more[1:]}.execute(do) })
}

// execute runs do if b lets it pass. If do fails but other calls have succeeded since it began, the
// last of them within servedWithin, the failure does not count, because a connection that breaks fails
// all of its calls at once while the others serve.
func (b *breaker) execute(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	served := b.served.Load()
	r, err := b.gate.Execute(func() (ratelimit.Result, error) {
		r, err := do()
		switch last := b.served.Load(); {
		case b.heard(err):
			b.served.Store(max(int64(b.of.now()), last+1))
		case last != served && b.of.now()-time.Duration(last) < servedWithin:
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

// blaming returns do, whose errors are those of servers of c: see blame.
func (c circuit) blaming(do func() (ratelimit.Result, error)) func() (ratelimit.Result, error) {
	return func() (ratelimit.Result, error) {
		r, err := do()
		return r, c.blame(err)
	}
}

// blame returns err. If it is of a server that c does not have, all servers of c are to blame. The key may have moved meanwhile,
// or a limiter of another package may ask for another key. Otherwise no breaker would ever open.
func (c circuit) blame(err error) error {
	if err == nil {
		return nil
	}
	is := func(b *breaker) bool { return b.blamed(err) }
	if !ofTheStore(err) || is(c.first) || slices.ContainsFunc(c.more, is) {
		return err
	}
	return see.At("", err)
}

// retryAfter returns the time until the store may be asked again, in whole µs.
func (c circuit) retryAfter() time.Duration {
	until := c.untilProbe()
	if rest := until % time.Microsecond; rest > 0 {
		until += time.Microsecond - rest
	}
	return max(until, leastRetryAfter)
}

// untilProbe returns how long the breaker stays open, or 0 if it is not open.
func (b *breaker) untilProbe() time.Duration {
	at := b.probeAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at)-b.of.now())
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
	if !ofTheStore(err) {
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

// call runs do, which calls the limiter for key, if c, its circuit, is closed or do may be the probe.
func (f *Limiter) call(ctx context.Context, c circuit, key string, do func() (ratelimit.Result, error)) (r ratelimit.Result, err error) {
	if c.untilProbe() > 0 { // the breakers would return the same error, but take a lock
		return ratelimit.Result{}, errOpen
	}
	defer f.breakers.changes.tell() // even if the limiter panics
	if c.first.server != "" {
		do = c.blaming(do)
	}
	if doubts := f.owed.doubts(key); doubts || c.unsure() {
		r, err = c.carefully(func() (ratelimit.Result, error) { return f.lookAndDo(ctx, c, key, doubts, do) })
	} else { // the breakers are closed, and the last calls succeeded
		r, err = c.execute(do)
	}
	switch {
	case errors.Is(err, errUnasked):
		return r, nil
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return r, errOpen
	}
	c.first.learn(err)
	for _, b := range c.more {
		b.learn(err)
	}
	if err != nil && errors.As(err, new(partly)) {
		err = nil
	}
	return r, err
}

// carefully is like execute. gobreaker does not notice a runtime.Goexit and would
// wait forever for the end of that probe, so it gets a panic instead.
func (c circuit) carefully(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	gone := false
	defer func() {
		if gone {
			_ = recover() // the goroutine ends
		}
	}()
	return c.execute(func() (ratelimit.Result, error) {
		gone = true
		defer func() {
			p := recover()
			if gone = gone && p == nil; gone {
				p = "runtime.Goexit"
			}
			if p != nil {
				panic(p)
			}
		}()
		r, err := do()
		gone = false
		return r, err
	})
}

// lookAndDo runs do. While the store may be hanging, it first sends a Peek, because a hanging store
// later executes everything it was sent, and nobody would learn the result. A part of the store may be
// hanging while the breaker learns from the keys of other parts that it works, if the store does not tell them apart.
func (f *Limiter) lookAndDo(ctx context.Context, c circuit, key string, doubts bool, do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	looked, seen := false, partly{}
	if doubts || c.halfOpen() || c.failing() && f.owed.owes(key, f.breakers.now()) {
		err := c.blame(f.look(ctx, c, key))
		looked = err == nil || errors.As(err, &seen)
		if ofTheStore(err) || errors.Is(err, store.ErrOverloaded) || !looked && ctx.Err() != nil { // with any other error, the store has answered the Peek
			return ratelimit.Result{}, err
		}
	}
	r, err := do()
	if looked && (errors.Is(err, errUnasked) || errors.As(err, new(partly))) { // it may have asked fewer servers than the Peek
		err = seen.orNil()
	}
	return r, err
}

// look asks the store with a Peek, which even a lease or a deny cache passes on. They can answer
// other calls on a key from memory for so long that a probe would never end.
func (f *Limiter) look(ctx context.Context, c circuit, key string) error {
	r, err := f.limiter.Peek(ctx, key)
	if err = unasked(r, err); err == nil && len(c.more) > 0 {
		return f.heard(ctx, key, 1, r, true)
	}
	return err
}

// partly means that the store has answered, but not all servers of the call: a limit that denied, or the first of a First,
// may have decided without the others.
type partly struct{ unheard []string }

func (partly) Error() string { return "fallback: some servers were not asked" }

// orNil returns p, or nil if all servers have answered.
func (p partly) orNil() error {
	if len(p.unheard) == 0 {
		return nil
	}
	return p
}

// heard returns nil if all servers of a call have answered r, and otherwise partly. To look, it asks limits that were not asked.
func (f *Limiter) heard(ctx context.Context, key string, n int, r ratelimit.Result, look bool) error {
	if complete(r) {
		return nil
	}
	var heard, unheard []string
	add := func(server string, answered bool) {
		if answered {
			heard = append(heard, server)
		} else {
			unheard = append(unheard, server)
		}
	}
	if own, ok := f.limiter.(interface {
		Heard(ctx context.Context, r ratelimit.Result, add func(server string, answered bool))
	}); ok {
		own.Heard(ctx, r, add)
	} else if err := heardIn(ctx, key, n, r, look, add); err != nil {
		return err
	}
	return partly{slices.DeleteFunc(unheard, func(server string) bool { return slices.Contains(heard, server) })}.orNil()
}

// heardIn calls add with the servers of the limits that decided r.
func heardIn(ctx context.Context, key string, n int, r ratelimit.Result, look bool, add func(server string, answered bool)) (err error) {
	for _, p := range r.Parts() {
		if look && p.Result == (ratelimit.Result{}) {
			if p.Result, err = p.Limiter.Peek(ctx, key); err != nil {
				return err
			}
		}
		if p.Parts() != nil {
			if err = heardIn(ctx, key, n, p.Result, look, add); err != nil {
				return err
			}
		} else if servers := see.ServersIn(p.Limiter); servers != nil {
			servers(ctx, key, n, func(server string) { add(server, heardOf(p.Result)) })
		}
	}
	return nil
}

// complete reports whether the store has decided all parts of r.
func complete(r ratelimit.Result) bool {
	return !slices.ContainsFunc(r.Parts(), func(p ratelimit.Part) bool { return !heardOf(p.Result) || !complete(p.Result) })
}

// heardOf reports whether the store has decided r, the Result of one of several limits. It is zero if the limit was not
// asked, or has failed.
func heardOf(r ratelimit.Result) bool { return r != (ratelimit.Result{}) && answeredByStore(r) }

// unasked returns err, or errUnasked if the store had no part in r, so that the breaker learns
// nothing from it. Of several limits, the store may have answered one that did not decide.
func unasked(r ratelimit.Result, err error) error {
	if err != nil || answeredByStore(r) {
		return err
	}
	for _, p := range r.Parts() {
		if heardOf(p.Result) {
			return nil
		}
	}
	return errUnasked
}

func answeredByStore(r ratelimit.Result) bool {
	s := r.Source()
	return s == ratelimit.SourceStore || s == ratelimit.SourceBan
}

// unsent reports whether nothing was sent to the store by a call that failed with err.
func unsent(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOverloaded)
}

// ofTheStore reports whether err concerns the store as a whole. A corrupt state, clocks that
// differ, and a full queue of this process do not, and are neither failures nor successes.
func ofTheStore(err error) bool {
	return errors.Is(err, ratelimit.ErrStore) &&
		!errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrClock) && !errors.Is(err, store.ErrOverloaded)
}
