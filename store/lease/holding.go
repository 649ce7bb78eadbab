package lease

import "time"

// clockPart is the inverse of the largest relative drift between two clocks: NTP lets each of them
// gain or lose 500 µs per second.
const clockPart = 1000

// holding is what one process holds of one key, and how much it asks for. It is the complete
// protocol: it reads no clock, takes no lock and asks no store, so that the simulator in the tests
// runs the same code as [Store]. All times are of one monotonic clock. A G is what is needed to
// release the events.
type holding[G any] struct {
	lease[G]               // the grant that is being spent
	spare    lease[G]      // the grant that was fetched ahead
	next     int           // events to ask for
	quick    int           // consecutive grants that were spent quickly
	owed     int           // events lent: admitted by overdraft, and not yet known to the store
	unsure   bool          // whether the last call got no reply, so that the store may still be hanging
	denied   time.Duration // until this time, nothing is admitted
	full     time.Duration // nothing is admitted by overdraft before
}

// lease is what is left of the events that one call of the store has granted.
type lease[G any] struct {
	left  int           // events that may be admitted without asking
	most  int           // the maximum of left: what was granted minus what was owed
	until time.Duration // when they lapse
	size  int           // of the grant, used to size the next one; 0 if it does not reflect demand
	from  time.Duration // when it was received
	room  int           // what the store had left after it
	grant G
}

// terms are shared by all holdings of a store.
type terms struct {
	life      time.Duration // lifetime of a grant, from when it was requested
	most      int           // events of a grant
	overdraft int           // events that may be owed
	halve     bool          // ask for at most half of what is left, because a fixed window refills all at once
}

// spend admits n events of what is held, and returns the grant they belong to. It returns nil if
// there are not enough, or if they have lapsed, which is checked at each spend instead of by a
// timer.
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

func (h *holding[G]) held(now time.Duration) (n int) {
	for _, s := range []*lease[G]{&h.lease, &h.spare} {
		if now < s.until {
			n += s.left
		}
	}
	return n
}

// low reports whether it is time to ask although events are left.
func (h *holding[G]) low() bool { return h.size > 1 && h.left <= h.size/4 && h.spare.left == 0 }

// lend admits an event that the store does not know yet, if it may.
func (h *holding[G]) lend(now time.Duration, t *terms) bool {
	if h.owed >= t.overdraft || now < h.denied || now < h.full {
		return false
	}
	h.owed++
	return true
}

// mustPay reports whether it is time to ask in order to pay what is owed. Less than that can wait
// for a sweep.
func (h *holding[G]) mustPay(t *terms) bool { return 2*h.owed >= t.overdraft }

// lapse ends a grant that has lapsed, and returns how many of its events were not spent. There may
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

// drop ends the grant that is being spent. The next grant will be as large as what was spent of it.
func (h *holding[G]) drop() (g G, unspent int) {
	g, unspent = h.grant, h.left
	if h.size > 0 {
		h.next = max(1, h.size-unspent)
	}
	h.lease, h.spare = h.spare, lease[G]{}
	return g, unspent
}

// ask returns how many events to ask for, given how many callers wait. After two grants that were
// spent in less than half of their time, the next is twice as large. Lapsed grants must have been
// removed.
func (h *holding[G]) ask(now time.Duration, waiting int, t *terms) int {
	if h.spare.left > 0 { // there is no room for another grant
		return h.due()
	}
	switch usable := h.until - h.from; {
	case h.size == 0:
	case usable <= 0: // the store needs longer to answer than a lease lives
		h.next = 1
	case now-h.from >= usable/2:
		h.next, h.quick = h.size, 0
	default: // a single quick grant of few events can be a coincidence
		if h.quick++; h.quick > 1 {
			h.next = 2 * min(h.size, t.most)
		}
	}
	n := min(h.next, t.most)
	if t.halve && h.size > 0 {
		n = min(n, h.room/2)
	}
	return h.due() + max(1, n, waiting)
}

// due returns how many of the events that are owed to charge in the next call. A store that hangs runs later
// everything it was sent, so after a call without a reply it is sent only one of them.
func (h *holding[G]) due() int {
	if h.unsure {
		return min(h.owed, 1)
	}
	return h.owed
}

// answer is what the store granted when want events were requested, of which owed were owed at that
// time. The store has room for room more. It counts the events in its window for the time window,
// and they leave the window together.
type answer struct {
	granted, want, owed, room int
	sent, now, window         time.Duration
}

// receive takes what was granted, of which it pays what was owed.
func (h *holding[G]) receive(g answer, t *terms) *lease[G] {
	paid := min(g.granted, g.owed, h.owed) // not what was lent since, because callers have been waiting for the rest
	h.owed -= paid
	h.denied, h.full = 0, 0
	left := g.granted - paid
	s := lease[G]{left: left, most: left, until: g.sent + min(t.life, g.window), size: g.granted, from: g.now, room: g.room}
	if g.granted < g.want { // nothing more was left, so this does not reflect demand
		s.size = 0
	}
	switch {
	case h.spare.left > 0: // only what was owed was requested
		none := s // so that only this one is allocated
		return &none
	case h.left > 0:
		h.spare = s
		return &h.spare
	}
	h.lease = s
	return &h.lease
}

// failed records an error. The requested events may have been charged without anybody to spend them, so the
// next grant is small.
func (h *holding[G]) failed() { h.next, h.quick, h.size, h.unsure = 1, 0, 0, true }

// refused records a denial that was requested at sent.
func (h *holding[G]) refused(retry, pause, sent, now time.Duration, t *terms) {
	if h.left == 0 {
		h.size = 0
	}
	h.denied = max(sent+min(shortened(retry), t.life), now+pause)
	if t.overdraft > 0 { // otherwise a key that is denied for a day would be kept for a day
		h.full = max(h.full, now+lengthened(retry))
	}
}

// shortened returns the time that has certainly passed on the store's clock when d has passed here.
func shortened(d time.Duration) time.Duration { return d - d/clockPart - time.Microsecond }

// lengthened returns how long it takes here until d has certainly passed on the store's clock.
func lengthened(d time.Duration) time.Duration { return d + d/(clockPart-1) }
