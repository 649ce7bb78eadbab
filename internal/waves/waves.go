// Package waves ends waits together that need no timer of their own.
package waves

import (
	"sync/atomic"
	"time"
)

// Waves end waits: those of one wave end together. A timer for each costs four allocations, and nearly all
// calls are over long before.
type Waves struct {
	Base  time.Time
	apart time.Duration          // from one wave to the next
	ahead []atomic.Pointer[Wave] // by number
}

const (
	// wavesAhead is about how many waves there are at once. With a long timeout there are
	// more, so that no wait ends later than MostApart after its time.
	wavesAhead = 64
	// MostApart is how much later than its time a wait ends at most.
	MostApart = 8 * time.Millisecond

	mostAhead = 4096 // slots; if there are more waves, some calls share no timer
)

// Wave is an end.
type Wave struct {
	number int64
	Over   chan struct{} // closed then
}

// New returns waves for calls of this timeout.
func New(timeout time.Duration) *Waves {
	apart := min(max(timeout/wavesAhead, 1), MostApart)
	slots := min(2*max(timeout/apart, wavesAhead), mostAhead)
	return &Waves{Base: time.Now(), apart: apart, ahead: make([]atomic.Pointer[Wave], slots)}
}

// After is the first wave that is not before t. There is none before the beginning: a time before it, such as
// that of a deadline which has long passed, is over with the first one.
func (w *Waves) After(t time.Time) *Wave {
	number := int64(max(t.Sub(w.Base), 0)/w.apart) + 1
	slot := &w.ahead[number%int64(len(w.ahead))]
	for {
		last := slot.Load()
		if last != nil && last.number == number {
			return last
		}
		next := &Wave{number: number, Over: make(chan struct{})}
		if slot.CompareAndSwap(last, next) {
			time.AfterFunc(time.Until(w.End(next)), func() { close(next.Over) })
			return next
		}
	}
}

// End is when a wave ends.
func (w *Waves) End(of *Wave) time.Time { return w.Base.Add(time.Duration(of.number) * w.apart) }
