package lease

import "time"

// clockPart is the part by which two clocks may differ: NTP lets each of them gain or lose
// 500 µs a second.
const clockPart = 1000

// holding is what one process holds of one key, and how much it asks for. It is the whole of
// the protocol: it reads no clock, takes no lock and asks no store, so that the simulator in
// the tests runs the same code as [Limiter]. All times are of one monotonic clock. A G is what
// the events are given back with.
type holding[G any] struct {
	lease[G]               // what is being spent
	spare    lease[G]      // what was fetched ahead
	next     int           // events to ask for
	quick    int           // grants in a row that were spent soon
	owed     int           // events admitted by overdraft that the store does not know yet
	denied   time.Duration // until then nothing is admitted
	full     time.Duration // until then nothing is admitted by overdraft
}

// lease is what one call of the store has granted.
type lease[G any] struct {
	left  int           // events that may be admitted without asking
	most  int           // that left may be: what was granted, and not owed
	until time.Duration // from then on they may not
	size  int           // of the grant, for the next one; 0 if that says nothing
	from  time.Duration // when it was received
	room  int           // what the store had left after it
	grant G
}

// terms are what all holdings of a limiter have in common.
type terms struct {
	life      time.Duration // of a grant, from the moment at which it was asked for
	most      int           // events of a grant
	overdraft int           // events that may be owed
	halve     bool          // ask for at most half of what there is: a fixed window refills all at once
}

// spend admits n events of what is held, and returns of which grant. It is nil if they are not
// there, or have lapsed: that is looked at here, at each spend, and not left to a timer.
func (h *holding[G]) spend(now time.Duration, n int) *lease[G] {
	if (h.left < n || now >= h.until) && h.spare.left >= n {
		h.lease, h.spare = h.spare, h.lease // the rest of the old one is spent later, or lapses
	}
	if h.left < n || now >= h.until {
		return nil
	}
	h.left -= n
	return &h.lease
}

// held is how many events may be admitted without asking.
func (h *holding[G]) held(now time.Duration) (n int) {
	for _, s := range []*lease[G]{&h.lease, &h.spare} {
		if now < s.until {
			n += s.left
		}
	}
	return n
}

// low reports that it is time to ask, although there is still something.
func (h *holding[G]) low() bool { return h.size > 1 && h.left <= h.size/4 && h.spare.left == 0 }

// borrow admits an event that the store does not know yet.
func (h *holding[G]) borrow(now time.Duration, t *terms) bool {
	if h.owed >= t.overdraft || now < h.denied || now < h.full {
		return false
	}
	h.owed++
	return true
}

// settle reports that it is time to ask, for what is owed. Less than that can wait for a sweep.
func (h *holding[G]) settle(t *terms) bool { return 2*h.owed >= t.overdraft }

// lapse ends a grant that is over, and returns how many of its events were not spent. There may
// be a second one.
func (h *holding[G]) lapse(now time.Duration) (g G, unspent int) {
	if h.spare.left > 0 && now >= h.spare.until {
		h.lease, h.spare = h.spare, h.lease
	}
	if h.left == 0 || now < h.until {
		return g, 0
	}
	return h.drop()
}

// drop ends the grant that is being spent. The next is as large as what was spent of it.
func (h *holding[G]) drop() (g G, unspent int) {
	g, unspent = h.grant, h.left
	if h.size > 0 {
		h.next = max(1, h.size-unspent)
	}
	h.lease, h.spare = h.spare, lease[G]{}
	return g, unspent
}

// ask returns how many events to ask for when so many callers wait. After two grants that were
// spent in less than half of their time the next is twice as large. What has lapsed must be gone.
func (h *holding[G]) ask(now time.Duration, waiting int, t *terms) int {
	if h.spare.left > 0 { // there is no place for more
		return h.owed
	}
	switch usable := h.until - h.from; {
	case h.size == 0:
	case usable <= 0: // the store answers more slowly than a lease lives
		h.next = 1
	case now-h.from >= usable/2:
		h.next, h.quick = h.size, 0
	default: // one of few events comes soon after another by chance
		if h.quick++; h.quick > 1 {
			h.next = 2 * min(h.size, t.most)
		}
	}
	n := min(h.next, t.most)
	if t.halve && h.size > 0 {
		n = min(n, h.room/2)
	}
	return h.owed + max(1, n, waiting)
}

// grants is what the store has granted when want events were asked for, of which owed were
// owed then. It has room for so many more. It counts them in its window for window longer, and
// they leave the window together with it.
type grants struct {
	granted, want, owed, room int
	sent, now, window         time.Duration
}

// receive takes what was granted, of which it pays what was owed.
func (h *holding[G]) receive(g grants, t *terms) *lease[G] {
	paid := min(g.granted, g.owed, h.owed) // not what was borrowed since: the others have been waiting
	h.owed -= paid
	h.denied, h.full = 0, 0
	left := g.granted - paid
	s := lease[G]{left: left, most: left, until: g.sent + min(t.life, g.window), size: g.granted, from: g.now, room: g.room}
	if g.granted < g.want { // that was all there is: it says nothing of the demand
		s.size = 0
	}
	switch {
	case h.spare.left > 0: // what was owed is all that was asked for
		none := s // so that only this one is allocated
		return &none
	case h.left > 0:
		h.spare = s
		return &h.spare
	}
	h.lease = s
	return &h.lease
}

// failed takes an error. What was asked for may be charged, and nobody will spend it: so the
// next grant is small.
func (h *holding[G]) failed() { h.next, h.quick, h.size = 1, 0, 0 }

// refused takes a denial that was asked for at sent.
func (h *holding[G]) refused(retry, pause, sent, now time.Duration, t *terms) {
	if h.left == 0 {
		h.size = 0
	}
	h.denied = max(sent+min(shortened(retry), t.life), now+pause)
	if t.overdraft > 0 { // or else a key that is denied for a day would be kept for it
		h.full = max(h.full, now+retry+retry/clockPart)
	}
}

// shortened is what is certain to have passed on the store's clock when d has passed here.
func shortened(d time.Duration) time.Duration { return d - d/clockPart - time.Microsecond }
