// Package waves ends waits in groups, so that they need no timer of their own.
package waves

import (
	"sync/atomic"
	"time"
)

// Waves end waits in groups: the waits of a wave end together. A timer for each wait would cost four
// allocations, and nearly all calls end long before.
type Waves struct {
	Base  time.Time
	apart time.Duration          // time between two waves
	ahead []atomic.Pointer[Wave] // by number
}

const (
	// wavesAhead is roughly how many waves there are at the same time. With a long timeout there
	// are more, so that no wait ends more than MostApart late.
	wavesAhead = 64
	// MostApart is how late a wait can end.
	MostApart = 8 * time.Millisecond

	mostAhead = 4096 // slots; if there are more waves, some calls do not share a timer
)

// Wave is the end of a group of waits.
type Wave struct {
	number int64
	Over   chan struct{} // closed at the end
}

// New returns waves for calls with this timeout.
func New(timeout time.Duration) *Waves {
	apart := min(max(timeout/wavesAhead, 1), MostApart)
	slots := min(2*max(timeout/apart, wavesAhead), mostAhead)
	return &Waves{Base: time.Now(), apart: apart, ahead: make([]atomic.Pointer[Wave], slots)}
}

// After returns the first wave that is not before t. There is none before the beginning, so a time
// before it, such as a deadline that has long passed, ends with the first wave.
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

// End returns when a wave ends.
func (w *Waves) End(of *Wave) time.Time { return w.Base.Add(time.Duration(of.number) * w.apart) }
