package carrier

import "time"

// distance estimates the round-trip time to a server: the shortest recent round trip that began while
// no other was in progress. Any other may have waited at the server.
type distance struct {
	least, before time.Duration // the shortest of this span, which has one, and of the span before; 0 if none
	since         time.Time     // when this span began
	probed        time.Time     // when the distance was last measured, or when the trip that measures it began
}

// A span lasts for lately, or for latelyTimes the distance if that is longer.
const (
	lately      = time.Second
	latelyTimes = 32
)

// due reports whether it is time for a trip that begins alone.
func (d *distance) due(now time.Time) bool { return now.Sub(d.probed) > d.span() }

func (d *distance) span() time.Duration { return max(lately, latelyTimes*d.is()) }

// add records a round trip that began at begun, if it began alone, or was as short as if it had.
func (d *distance) add(begun, now time.Time) {
	switch {
	case begun.Equal(d.probed), d.is() == 0:
	case now.Sub(begun) < d.is()*5/4:
		d.probed = now
	default:
		return
	}
	if span := now.Sub(d.since); span > d.span() {
		if d.before = d.least; span > 2*d.span() {
			d.before = 0
		}
		d.least, d.since = 0, now
	}
	if took := max(now.Sub(begun), 1); d.least == 0 || took < d.least {
		d.least = took
	}
}

// is returns the distance, or 0 if it is not known.
func (d *distance) is() time.Duration {
	if d.before > 0 {
		return min(d.before, d.least)
	}
	return d.least
}

// pauses measures, by a timer that is late, how long this process has stood still because its share of the
// processors was used up, or others had them. Replies wait then, which says nothing about the server.
type pauses struct {
	due   time.Time // when the timer is due; zero if there is none
	total time.Duration
}

// tick is the time of the timer. A shorter pause is not seen, but it is too short for a trip to count as held up.
const tick = slack

// startTimer reports whether a timer is to be set, and records that it is due a tick after now.
func (p *pauses) startTimer(now time.Time) bool {
	if !p.due.IsZero() {
		return false
	}
	p.due = now.Add(tick)
	return true
}

// until returns the total until now. The timer may be due and not have run yet.
func (p *pauses) until(now time.Time) time.Duration {
	if !p.due.IsZero() && now.After(p.due) {
		p.total += now.Sub(p.due)
		p.due = now
	}
	return p.total
}

// window is how many calls may be in progress at the same time: as many as the server answers without a
// long queue of its own. They share a few trips.
type window struct {
	calls  int
	shrunk time.Time // when the window was last made smaller
	soon   int       // the size up to which it grows fast, because nothing was lost there
}

const (
	firstWindow   = 128
	leastTripSize = 8   // the least calls in a full trip, if the window has that many
	mostTripSize  = 128 // the most calls in a full trip
)

// trips returns how many trips share the window, of at most most.
func (w *window) trips(most int) int { return max(1, min(w.calls/leastTripSize, most)) }

// tripSize returns how many calls are in a full trip.
func (w *window) tripSize(most int) int { return min(w.calls/w.trips(most), mostTripSize) }

// newWindow returns a window that may grow fast.
func newWindow() window { return window{calls: firstWindow, soon: mostTripSize * mostConns} }

// least returns the size from which a window begins anew, and below which a long trip does not shrink it.
func least(most int) int { return leastTripSize * max(1, most-nearTrips+1) }

// learn updates the window by a trip of n calls from begun to now, of at most most trips at the same
// time. may is how long the trip may have taken.
func (w *window) learn(n, most int, begun, now time.Time, may time.Duration) {
	least, seen := least(most), begun.After(w.shrunk) // the trip began after the last change
	switch took := now.Sub(begun); {
	case w.calls < least: // see lose
		if seen {
			w.calls = min(2*w.calls, least)
		}
	case took > may:
		if seen {
			w.calls = max(w.calls*3/4, least)
			w.shrunk, w.soon = now, w.calls
		}
	case n < w.tripSize(most):
	case w.calls < w.soon:
		w.calls *= 2
	default:
		w.calls += w.calls / 4
	}
	w.calls = min(w.calls, mostTripSize*most)
}

// lose updates the window by a trip that began at begun, of at most most trips at the same time, and whose
// callers have all left before its end. Far more calls are in progress than the server answers in time, and
// what is sent now waits behind them. Therefore, the window begins anew. If the server only stood still, the
// window is soon as large as before.
func (w *window) lose(most int, begun, now time.Time) {
	if !begun.After(w.shrunk) {
		return
	}
	w.shrunk = now
	if least := least(most); w.calls > least {
		w.calls, w.soon = least, w.calls
	} else {
		w.calls = leastTripSize
	}
}
