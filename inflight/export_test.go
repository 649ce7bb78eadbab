package inflight

import (
	"time"
	"unsafe"
)

const (
	MostAsking = mostAsking
	MostOffers = mostOffers
)

// Lines is how many lines there are.
func Lines() int {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	n := max(len(lines.byID), len(lines.bySlots))
	if lines.some.Load() != (n > 0) {
		return -1
	}
	return n
}

// LostAfterSleep reports whether the slot has ended after a sleep of the machine for d, in which only the wall clock
// goes on.
func (s *Slot) LostAfterSleep(d time.Duration) bool {
	now := time.Now().Add(d)
	(*struct {
		wall      uint64
		monotonic time.Duration
	})(unsafe.Pointer(&now)).monotonic -= d
	return s.held.passed(now)
}
