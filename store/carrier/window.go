package carrier

import "time"

// distance is what the way to a server and back takes: the shortest recent round trip that
// began while no other was under way. Others may have to wait at the server.
type distance struct {
	least, before time.Duration // of this span, which has one, and of the one before; 0: none
	since         time.Time     // when this span began
	probed        time.Time     // when a trip last began alone
}

// lately is the length of a span, and at least so many times the distance.
const (
	lately      = time.Second
	latelyTimes = 32
)

// due reports whether it is time for a trip that begins alone.
func (d *distance) due(now time.Time) bool { return now.Sub(d.probed) > d.span() }

func (d *distance) span() time.Duration { return max(lately, latelyTimes*d.is()) }

// add notes a round trip that began at begun, if that was alone, or as short as if it was.
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

// is is the distance, or 0 if it is not known.
func (d *distance) is() time.Duration {
	if d.before > 0 {
		return min(d.before, d.least)
	}
	return d.least
}

// pauses is for how long this process has stood still, since its share of the processors was used up or
// others had them. Replies wait then, which says nothing of the server. A timer that is late tells it.
type pauses struct {
	due   time.Time // when the timer is due; zero if there is none
	total time.Duration
}

// tick is the time of the timer. A shorter time does not count as a pause, so no trip counts as held up by it.
const tick = slack

// begin reports whether a timer is to be set, which is due a tick after now.
func (p *pauses) begin(now time.Time) bool {
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

// window is how many calls are under way at once: as many as the server answers without a
// long queue of its own. They share a few trips.
type window struct {
	calls  int
	shrunk time.Time // when it was last made smaller
	soon   int       // up to which it grows fast: nothing was lost there
}

const (
	firstWindow = 128
	leastBatch  = 8   // calls in a full trip, if the window has so many
	mostBatch   = 128 // the same at most
)

// trips is how many trips share the window, of at most most.
func (w *window) trips(most int) int { return max(1, min(w.calls/leastBatch, most)) }

// batch is how many calls are in a full trip.
func (w *window) batch(most int) int { return min(w.calls/w.trips(most), mostBatch) }

// newWindow is one that may grow fast.
func newWindow() window { return window{calls: firstWindow, soon: mostBatch * mostTrips} }

// least is the size from which a window begins anew, and below which no long trip makes it.
func least(most int) int { return leastBatch * max(1, most-nearTrips+1) }

// learn learns from a trip of n calls that began at begun, of at most most at once. It took
// so long, and may take so long.
func (w *window) learn(n, most int, begun, now time.Time, may time.Duration) {
	least, seen := least(most), begun.After(w.shrunk) // it has seen the last change
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
	case n < w.batch(most):
	case w.calls < w.soon:
		w.calls *= 2
	default:
		w.calls += w.calls / 4
	}
	w.calls = min(w.calls, mostBatch*most)
}

// lose learns from a trip that began at begun, of at most most at once, and whose callers have all left
// before its end. Far more is under way than the server answers in time, and what is sent now waits
// behind that. Therefore, the window begins anew. It is soon back if the server only stood still.
func (w *window) lose(most int, begun, now time.Time) {
	if !begun.After(w.shrunk) {
		return
	}
	w.shrunk = now
	if least := least(most); w.calls > least {
		w.calls, w.soon = least, w.calls
	} else {
		w.calls = leastBatch
	}
}
