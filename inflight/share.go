package inflight

import (
	"cmp"
	"container/list"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// A slot that is released in a process is taken there again within a round trip, because a Release
// wakes the next waiter. Other processes find free slots only by polling. To be fair to them, a
// process leaves them one slot whenever its waiters have held slots for a turn, added up over its
// slots. It does not ask for that slot until each other process has polled. If the slot is still
// free afterwards, nobody else wants it, and the next turn is longer. Turns are measured in pauses
// between two polls, so that slots are unused for only a small part of the time.
const (
	leastTurn = 12
	mostTurn  = 64
)

// rivalry is how long a process remembers that another one has taken a slot that it left.
const rivalry = 10 * time.Second

// longestWork limits what one holder adds to a turn and to the average of work.
const longestWork = 8 * mostPause

// share is this process's share of slots that others may want too. It exists while queues here wait
// for the slots, while some are left to others, and for the duration of a rivalry.
type share struct {
	queues   list.List     // *queue values that wait for the slots, in the order in which they are offered slots
	work     time.Duration // how long a slot is held, on average; 0 if not known
	turn     int
	held     time.Duration // how long slots were held since one was last left
	due      int           // how many more of the released slots are left to others
	yielded  int           // how many are left to others now: released, or about to be
	released int           // how many of them have been released
	over     time.Time     // when the slots that are left are asked for again, or were
	rival    time.Time     // when another process took one that was left; zero if none has
	timer    *time.Timer   // for over, or to forget the share; nil at first
}

// slotsOf returns the slots of core for key.
func slotsOf(core *ratelimit.Custom, key string) slotsID {
	if see.Of[ratelimit.Limiter](core).Key != nil {
		key = ""
	}
	return slotsID{core, key}
}

// shareOf returns the share of slots, and creates it if there is none.
func (a *allQueues) shareOf(slots slotsID) *share {
	s := a.bySlots[slots]
	if s == nil {
		s = &share{turn: leastTurn}
		a.bySlots[slots] = s
		a.anyShares.Store(true)
	}
	return s
}

// forget deletes a share that is no longer needed.
func (a *allQueues) forget(slots slotsID, s *share) {
	if s.queues.Len() > 0 || s.yielded > 0 || a.bySlots[slots] != s {
		return
	}
	if rest := rivalry - time.Since(s.rival); rest > 0 {
		a.ring(slots, s, rest)
		return
	}
	delete(a.bySlots, slots)
	a.anyShares.Store(len(a.bySlots) > 0)
}

// ring calls a.ended after d.
func (a *allQueues) ring(slots slotsID, s *share, d time.Duration) {
	if s.timer == nil {
		s.timer = time.AfterFunc(d, func() { a.ended(slots, s) })
		return
	}
	s.timer.Reset(d)
}

// longestPause returns the longest pause between two polls for slots that are held for the time
// work. It is a quarter of work, so that slots are not unused for long and a job needs few polls.
func longestPause(work time.Duration) time.Duration { return min(max(work/4, leastPoll), mostPause) }

// longestPauseOf returns the longest pause of q. It grows while the queue gets nothing, because its slots
// may be held for long. A Release reports slots in memory, so they need no polls.
func (a *allQueues) longestPauseOf(q *queue) time.Duration {
	d := mostPause
	for slots := range q.waitFor {
		if slots.core.Limit().Period < forever {
			d = min(d, longestPause(a.bySlots[slots].work))
		}
	}
	return min(max(d, time.Since(q.served)/mostTurn), mostPause)
}

// yielded returns how many of the slots that q waits for are left to other processes now, besides those of one limit.
func (a *allQueues) yielded(q *queue, besides slotsID) (n int) {
	for slots := range q.waitFor {
		if slots != besides {
			n = max(n, a.bySlots[slots].yielded)
		}
	}
	return n
}

// contended reports whether another process has recently taken a slot that q waits for.
func (a *allQueues) contended(q *queue) bool {
	for slots := range q.waitFor {
		if time.Since(a.bySlots[slots].rival) < rivalry {
			return true
		}
	}
	return false
}

// yield decides which of taken, slots that a waiter has held for that time and is about to release, are
// left to other processes. It is called before the Release, because the waiter may want the next slot
// immediately. A slot is not left if others were free beside it. If nobody waits here, it is left with a
// small probability, because waiters elsewhere are not known here.
func (a *allQueues) yield(key string, taken []heldSlot, held time.Duration) {
	scarce := slices.ContainsFunc(taken, func(p heldSlot) bool { return p.scarce() })
	probe := scarce && rand.N(mostTurn*longestPause(held)) < min(held, longestWork)
	if !probe && !a.anyShares.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	anyDue := false
	for i := range taken {
		p := &taken[i]
		if s := a.bySlots[slotsOf(p.core, key)]; s == nil && probe && p.scarce() || s != nil && s.count(held, p.scarce()) {
			anyDue = true
		}
	}
	if !anyDue {
		return
	}
	for i := range taken { // all that another process may lack
		p := &taken[i]
		if p.yields = p.scarce(); !p.yields {
			continue
		}
		slots := slotsOf(p.core, key)
		s := a.shareOf(slots)
		if s.yielded++; s.yielded == 1 {
			a.askAgain(slots, s, longestPause(held)+mostPause) // in case the Release takes that long
		}
	}
}

// count counts a slot that is released, and reports whether one is to be left to others.
func (s *share) count(held time.Duration, scarce bool) bool {
	held = min(held, longestWork)
	s.work = cmp.Or(s.work, held)
	s.work += (held - s.work) / 8
	pause := longestPause(s.work)
	turn := time.Duration(s.turn) * pause
	s.held += min(held, turn)
	if s.yielded == 0 && scarce && s.held >= turn && time.Since(s.over) >= pause { // in between, the waiters here poll too
		s.due = int(s.held / turn)
		s.held %= turn
	}
	if s.due == 0 {
		return false
	}
	s.due--
	return true
}

// askAgain lets queues ask, after d, for the slots that are left.
func (a *allQueues) askAgain(slots slotsID, s *share, d time.Duration) {
	s.over = time.Now().Add(d)
	a.ring(slots, s, d)
}

// hurry lets the queues ask earlier if w, the first of a queue, would otherwise leave before. Half
// of w's remaining time is for other processes.
func (a *allQueues) hurry(slots slotsID, s *share, w *waiter) {
	if s.yielded == 0 || w.until.IsZero() {
		return
	}
	if half := max(0, time.Until(w.until)/2); half < time.Until(s.over) {
		a.askAgain(slots, s, half)
	}
}

// wake notifies a queue that waits for a slot of core and key that one was released. If the slot is
// left to other processes, it does so later.
func (a *allQueues) wake(key string, core *ratelimit.Custom, yielded bool) {
	if !a.anyShares.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	slots := slotsOf(core, key)
	switch s := a.bySlots[slots]; {
	case s == nil:
	case !yielded || s.yielded == 0:
		a.offer(s.newOffer(slots))
	default:
		if s.released++; s.released > 1 {
			return
		}
		a.askAgain(slots, s, longestPause(s.work))
		if e := s.queues.Front(); e != nil {
			if first := e.Value.(*queue).idle.Front(); first != nil {
				a.hurry(slots, s, first.Value.(*waiter))
			}
		}
	}
}

// newOffer returns an offer of one slot to at most mostOffers queues.
func (s *share) newOffer(slots slotsID) offer {
	return offer{slots: slots, offersLeft: min(s.queues.Len(), mostOffers)}
}

// ended offers the slots that were left to others to queues here after the pause, or forgets the
// share. The next turn is longer, unless one of the slots turns out to be gone.
func (a *allQueues) ended(slots slotsID, s *share) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := s.yielded; n > 0 && !time.Now().Before(s.over) {
		o := s.newOffer(slots)
		if o.yielded = s.released >= n; o.yielded { // or else some may not be free yet
			s.turn = min(s.turn+s.turn/2, mostTurn)
		}
		s.yielded, s.due, s.released = 0, 0, 0
		for range n {
			a.offer(o)
		}
	}
	a.forget(slots, s)
}

// gone records that the store has denied the slot of o. If it was left to others, another process has taken it.
func (a *allQueues) gone(o offer) {
	if s := a.bySlots[o.slots]; s != nil && o.yielded {
		s.turn, s.rival = leastTurn, time.Now()
	}
}
