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
	n := len(lines.byID)
	for _, of := range lines.bySlots {
		n = max(n, of.lines.Len())
	}
	if lines.some.Load() != (len(lines.bySlots) > 0) || len(lines.byID) > 0 && len(lines.bySlots) == 0 {
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
