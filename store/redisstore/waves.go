package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// waves end waits that need no timer of their own: those of one wave end together. A timer
// for each costs four allocations, and nearly all calls are over long before.
type waves struct {
	base  time.Time
	apart time.Duration          // from one wave to the next
	ahead []atomic.Pointer[wave] // by number
}

const (
	// wavesAhead is about how many waves there are at once. With a long timeout there are
	// more, so that no wait ends later than mostApart after its time.
	wavesAhead = 64
	mostApart  = 8 * time.Millisecond

	mostAhead = 4096 // slots; if there are more waves, some calls share no timer
)

// wave is an end.
type wave struct {
	number int64
	over   chan struct{} // closed then
}

// newWaves returns waves for calls of this timeout.
func newWaves(timeout time.Duration) *waves {
	apart := min(max(timeout/wavesAhead, 1), mostApart)
	slots := min(2*max(timeout/apart, wavesAhead), mostAhead)
	return &waves{base: time.Now(), apart: apart, ahead: make([]atomic.Pointer[wave], slots)}
}

// after is the first wave that is not before t.
func (w *waves) after(t time.Time) *wave {
	number := int64(t.Sub(w.base)/w.apart) + 1
	slot := &w.ahead[number%int64(len(w.ahead))]
	for {
		last := slot.Load()
		if last != nil && last.number == number {
			return last
		}
		next := &wave{number: number, over: make(chan struct{})}
		if slot.CompareAndSwap(last, next) {
			time.AfterFunc(time.Until(w.end(next)), func() { close(next.over) })
			return next
		}
	}
}

// end is when a wave ends.
func (w *waves) end(of *wave) time.Time { return w.base.Add(time.Duration(of.number) * w.apart) }

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
