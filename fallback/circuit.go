package fallback

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/faults"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/sony/gobreaker/v2"
)

// circuit is what a call passes: the breakers of all servers that have a state of its key.
type circuit struct {
	first  *breaker
	more   []*breaker
	partly bool // whether a call may be answered without all of them
}

// circuit returns the circuit of a call for n events of key, of a limiter of which this is known.
func (bs *breakers) circuit(ctx context.Context, known facts, key string, n int) circuit {
	if known.servers == nil {
		return circuit{first: bs.whole.Load()}
	}
	c := bs.circuitOf(ctx, known.servers, key, n)
	c.partly = known.mixed || len(c.more) > 0
	return c
}

// circuitOf is a function of its own because c is allocated, and most stores are a single server.
func (bs *breakers) circuitOf(ctx context.Context, servers see.Servers, key string, n int) (c circuit) {
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

// tellsNoServer reports whether the store of a limit in l does not tell its servers.
func tellsNoServer(l ratelimit.Limiter) bool {
	if inside := see.Inside(l); len(inside) > 0 {
		return slices.ContainsFunc(inside, tellsNoServer)
	}
	return see.ServersIn(l) == nil
}

// untilProbe returns how long the circuit stays open, or 0 if it is not open.
func (c circuit) untilProbe() time.Duration {
	until := c.first.untilProbe()
	for _, b := range c.more {
		until = max(until, b.untilProbe())
	}
	return until
}

// any reports whether is returns true for a breaker.
func (c circuit) any(is func(*breaker) bool) bool {
	return is(c.first) || slices.ContainsFunc(c.more, is)
}

// execute runs do if all breakers let it pass.
func (c circuit) execute(do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	if len(c.more) == 0 {
		return c.first.execute(do)
	}
	return c.first.execute(func() (ratelimit.Result, error) { return circuit{first: c.more[0], more: c.more[1:]}.execute(do) })
}

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
	if !faults.OfStore(err) || c.any(func(b *breaker) bool { return b.blamed(err) }) {
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

// call runs do, which calls the limiter for key, if c, its circuit, is closed or do may be the probe.
func (f *Limiter) call(ctx context.Context, c circuit, key string, do func() (ratelimit.Result, error)) (r ratelimit.Result, err error) {
	if c.untilProbe() > 0 { // the breakers would return the same error, but take a lock
		return ratelimit.Result{}, errOpen
	}
	defer f.breakers.changes.report() // even if the limiter panics
	if c.first.server != "" {
		do = c.blaming(do)
	}
	if doubts := f.owed.doubts(key); doubts || c.any((*breaker).unsure) {
		r, err = c.carefully(func() (ratelimit.Result, error) { return f.peekFirst(ctx, c, key, doubts, do) })
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

// peekFirst runs do. While the store may be hanging, it first sends a Peek, because a hanging store
// later executes everything it was sent, and nobody would learn the result. A part of the store may be
// hanging while the breaker learns from the keys of other parts that it works, if the store does not tell them apart.
func (f *Limiter) peekFirst(ctx context.Context, c circuit, key string, doubts bool, do func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	peeked, partial := false, partly{}
	halfOpen := func(b *breaker) bool { return b.halfOpen.Load() }
	failing := func(b *breaker) bool { return b.failing.Load() }
	if doubts || c.any(halfOpen) || c.any(failing) && f.owed.owes(key, f.breakers.now()) {
		err := c.blame(f.peekStore(ctx, c, key))
		peeked = err == nil || errors.As(err, &partial)
		if faults.OfStore(err) || errors.Is(err, store.ErrOverloaded) || !peeked && ctx.Err() != nil { // with any other error, the store has answered the Peek
			return ratelimit.Result{}, err
		}
	}
	r, err := do()
	if peeked && (errors.Is(err, errUnasked) || errors.As(err, new(partly))) { // it may have asked fewer servers than the Peek
		err = partial.orNil()
	}
	return r, err
}

// peekStore asks the store with a Peek, which even a lease or a deny cache passes on. They can answer
// other calls on a key from memory for so long that a probe would never end.
func (f *Limiter) peekStore(ctx context.Context, c circuit, key string) error {
	r, err := f.limiter.Peek(ctx, key)
	if err = unasked(r, err); err == nil && c.partly {
		return f.partlyHeard(ctx, key, 1, r, true)
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

// partlyHeard returns nil if all servers of a call had a part in r, and otherwise partly. If r is of a Peek, peeks is true:
// limits that were not asked then get a Peek of their own.
func (f *Limiter) partlyHeard(ctx context.Context, key string, n int, r ratelimit.Result, peeks bool) error {
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
	} else if err := heardIn(ctx, key, n, r, peeks, add); err != nil {
		return err
	}
	return partly{slices.DeleteFunc(unheard, func(server string) bool { return slices.Contains(heard, server) })}.orNil()
}

// heardIn calls add with the servers of the limits that decided r.
func heardIn(ctx context.Context, key string, n int, r ratelimit.Result, peeks bool, add func(server string, answered bool)) (err error) {
	for _, p := range r.Parts() {
		if peeks && p.Result == (ratelimit.Result{}) {
			if p.Result, err = p.Limiter.Peek(ctx, key); err != nil {
				return err
			}
		}
		if p.Parts() != nil {
			if err = heardIn(ctx, key, n, p.Result, peeks, add); err != nil {
				return err
			}
		} else if servers := see.ServersIn(p.Limiter); servers != nil {
			servers(ctx, key, n, func(server string) { add(server, decided(p.Result)) })
		}
	}
	return nil
}

// complete reports whether the store has decided all parts of r.
func complete(r ratelimit.Result) bool {
	return !slices.ContainsFunc(r.Parts(), func(p ratelimit.Part) bool { return !decided(p.Result) || !complete(p.Result) })
}

// decided reports whether the store has decided r, the Result of one of several limits. It is zero if the limit was not
// asked, or has failed.
func decided(r ratelimit.Result) bool { return r != (ratelimit.Result{}) && answeredByStore(r) }

// unasked returns err, or errUnasked if the store had no part in r, so that the breaker learns
// nothing from it. Of several limits, the store may have answered one that did not decide.
func unasked(r ratelimit.Result, err error) error {
	if err != nil || answeredByStore(r) {
		return err
	}
	for _, p := range r.Parts() {
		if decided(p.Result) {
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
