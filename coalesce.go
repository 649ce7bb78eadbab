package ratelimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// WithCoalescing asks the store once for many callers: while a call of Allow on a
// key is under way, others on the same key wait, and are then decided together by
// one call that admits as many of them as fit, in the order in which they came. Each
// gets the Result that it would have got alone, one after the other at that instant.
//
// Use it for hot keys on Redis, where the round trip is what a decision costs: one key
// can then be asked for more often than Redis answers. A call that meets no other on
// its key costs what it did. One that does waits for those under way and for its own,
// each of which is two where some are admitted and others are not, so for up to four
// times the store's timeout. A goroutine asks for those who wait, and ends with the last
// of them. A caller whose ctx ends while it waits leaves, and what was admitted for it
// goes to the next or back.
//
// AllowN of more than one event, AllowUpTo, AllowWithin of the buckets, Peek, Refund and
// Reset are not coalesced.
func WithCoalescing() Option {
	return func(lim *limiter) error {
		lim.lines = &lines{busy: map[hotKey]*line{}}
		return nil
	}
}

// lines are the keys on which a call is under way.
type lines struct {
	mu   sync.Mutex // protects all below, and what is in the lines
	busy map[hotKey]*line
}

type hotKey struct {
	key   string
	limit store.Limit
}

// line is who waits for the call under way on a key to end, in the order of arrival.
type line struct{ waiting []*caller }

// caller is one who waits. He, or who answers him, claims him first.
type caller struct {
	claimed atomic.Bool
	ready   chan struct{} // closed when the answer is there
	answer
}

type answer struct {
	res      Result
	err      error
	panicked any // with what the store has panicked
}

// allowInLine is Allow on a key for which only one call at a time is under way. The
// first to come asks for himself.
func (lim *limiter) allowInLine(ctx context.Context, key string, l store.Limit, res *Result) error {
	k := hotKey{key, l}
	lim.lines.mu.Lock()
	if ln, busy := lim.lines.busy[k]; busy {
		c := &caller{ready: make(chan struct{})}
		ln.waiting = append(ln.waiting, c)
		lim.lines.mu.Unlock()
		return c.wait(ctx, res)
	}
	lim.lines.busy[k] = new(line)
	lim.lines.mu.Unlock()
	defer func() { // also if the store panics
		if waiting := lim.nextInLine(k); waiting != nil {
			go lim.serve(k, waiting)
		}
	}()
	r, err := lim.store.Take(ctx, lim.space, key, l, 1)
	if err != nil {
		return err
	}
	charged := int64(0)
	if r.OK {
		charged = 1
	}
	lim.fill(res, l, r, 1, charged)
	return nil
}

// wait returns c's answer, or leaves when ctx ends.
func (c *caller) wait(ctx context.Context, res *Result) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		if c.claimed.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-c.ready // the answer is being written
	}
	if c.panicked != nil {
		panic(c.panicked)
	}
	*res = c.res
	return c.err
}

// tell gives c his answer, unless he has left.
func (c *caller) tell(a answer) bool {
	if !c.claimed.CompareAndSwap(false, true) {
		return false
	}
	c.answer = a
	close(c.ready)
	return true
}

// nextInLine returns who is to be asked for next. If it is nobody, the key is no longer
// busy.
func (lim *limiter) nextInLine(k hotKey) []*caller {
	lim.lines.mu.Lock()
	defer lim.lines.mu.Unlock()
	ln := lim.lines.busy[k]
	next := ln.waiting
	ln.waiting = nil
	if next == nil {
		delete(lim.lines.busy, k)
	}
	return next
}

// serve asks for those who wait, until nobody does.
func (lim *limiter) serve(k hotKey, waiting []*caller) {
	for waiting != nil {
		lim.serveOnce(k, present(waiting))
		waiting = lim.nextInLine(k)
	}
}

// present are those who have not left.
func present(waiting []*caller) []*caller {
	here := waiting[:0]
	for _, c := range waiting {
		if !c.claimed.Load() {
			here = append(here, c)
		}
	}
	return here
}

// serveOnce asks once for all who wait, and where only some of them are admitted once
// more, for the RetryAfter of the others. To ask for the others again would keep them in
// line for as long as room comes with each round trip.
func (lim *limiter) serveOnce(k hotKey, waiting []*caller) {
	if len(waiting) == 0 {
		return
	}
	defer func() { // whoever calls from where a panic is expected is to have it there
		if p := recover(); p != nil {
			for _, c := range waiting {
				c.tell(answer{panicked: p})
			}
		}
	}()
	ctx := context.Background() // none of the callers' own: the store has a timeout
	r, err := lim.store.TakeUpTo(ctx, lim.space, k.key, k.limit, int64(len(waiting)))
	if err != nil || !r.OK {
		lim.refuse(k, waiting, r, err)
		return
	}
	granted := min(int64(len(waiting)), lim.algorithm.rule.Available(k.limit, r))
	given := int64(0)
	for i, c := range waiting {
		if given == granted {
			r, err = lim.store.Peek(ctx, lim.space, k.key, k.limit, 1)
			lim.refuse(k, waiting[i:], r, err)
			return
		}
		var a answer
		lim.fill(&a.res, k.limit, lim.algorithm.after(r, given), 1, 1)
		if c.tell(a) {
			given++
		}
	}
	if given < granted { // somebody has left
		var all Result
		lim.fill(&all, k.limit, r, granted, granted)
		// An error leaves them charged, as any call does whose caller has left.
		_ = lim.store.Refund(ctx, lim.space, k.key, k.limit, all.charge(granted-given))
	}
}

// refuse tells all who wait the denial r, or err. There may be room in r that has come
// after the instant at which they were denied: then they may come back at once.
func (lim *limiter) refuse(k hotKey, waiting []*caller, r store.Reply, err error) {
	var denial Result
	if err == nil {
		lim.fill(&denial, k.limit, r, 1, 0)
	}
	if denial.Allowed {
		soon := time.Microsecond
		denial = Result{Limit: denial.Limit, RetryAfter: soon, ResetAfter: max(denial.ResetAfter, soon)}
	}
	for _, c := range waiting {
		c.tell(answer{res: denial, err: err})
	}
}
