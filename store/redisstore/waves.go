package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// waves end the patience of calls whose context has no end of its own, so that they share
// timers: those of one wave end together. A timer for each call costs four allocations, and
// nearly all calls are over long before.
type waves struct {
	base  time.Time
	apart time.Duration // from one wave to the next
	last  atomic.Pointer[wave]
}

// wave is an end.
type wave struct {
	at   time.Duration // since base
	over chan struct{} // closed then
}

// newWaves returns waves for calls of this timeout: some 50 are under way at once.
func newWaves(timeout time.Duration) *waves {
	return &waves{base: time.Now(), apart: max(timeout/64, 1)}
}

// after is the first wave that is not before t.
func (w *waves) after(t time.Time) *wave {
	at := t.Sub(w.base).Truncate(w.apart) + w.apart
	last := w.last.Load()
	if last != nil && last.at == at {
		return last
	}
	next := &wave{at: at, over: make(chan struct{})}
	time.AfterFunc(time.Until(w.base.Add(at)), func() { close(next.over) })
	w.last.Store(next) // one that another call has stored at the same time ends as well
	return next
}

// waiting is a call's context that is patient until a wave. The call's own has no Done.
type waiting struct {
	context.Context
	end  time.Time
	wave *wave
}

func (c *waiting) Deadline() (time.Time, bool) { return c.end, true }

func (c *waiting) Done() <-chan struct{} { return c.wave.over }

func (c *waiting) Err() error {
	select {
	case <-c.wave.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
