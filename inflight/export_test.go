package inflight

import (
	"time"
	"unsafe"
)

const (
	MostAsking = mostAsking
	MostOffers = mostOffers
)

// Queues is how many queues there are.
func Queues() int {
	queues.mu.Lock()
	defer queues.mu.Unlock()
	n := len(queues.byID)
	for _, s := range queues.bySlots {
		n = max(n, s.queues.Len())
	}
	if queues.anyShares.Load() != (len(queues.bySlots) > 0) || len(queues.byID) > 0 && len(queues.bySlots) == 0 {
		return -1
	}
	return n
}

// Shares is how many shares there are.
func Shares() int {
	queues.mu.Lock()
	defer queues.mu.Unlock()
	return len(queues.bySlots)
}

// ForgetShares forgets the shares that tests have left, whose timers have ended with their bubbles.
func ForgetShares() {
	queues.mu.Lock()
	defer queues.mu.Unlock()
	clear(queues.bySlots)
	queues.anyShares.Store(false)
}

// LostAfterSleep reports whether the slot has ended after a sleep of the machine for d, in which only the wall clock
// goes on.
func (s *Slot) LostAfterSleep(d time.Duration) bool {
	now := time.Now().Add(d)
	(*struct {
		wall      uint64
		monotonic time.Duration
	})(unsafe.Pointer(&now)).monotonic -= d
	return s.hold.passed(now)
}

// Rivals is of how many slots another process has lately taken one that was left to it.
func Rivals() (n int) {
	queues.mu.Lock()
	defer queues.mu.Unlock()
	for _, s := range queues.bySlots {
		if time.Since(s.rival) < rivalry {
			n++
		}
	}
	return n
}

// Tick does what the slot's timer does that fires while Release stops it.
func (s *Slot) Tick() { s.hold.tick() }
