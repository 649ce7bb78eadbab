package redisstore

import "time"

// distance is what the way to a server and back takes: the shortest round trip of late that
// began while no other was under way. Others may have to wait at the server.
type distance struct {
	least, before time.Duration // of this span and of the one before; 0: none
	since         time.Time     // when this span began
	looked        time.Time     // when a trip last began alone
}

// lately is the length of a span, and at least so many times the distance.
const (
	lately      = time.Second
	latelyTimes = 32
)

// due reports whether it is time for a trip that begins alone.
func (d *distance) due(now time.Time) bool { return now.Sub(d.looked) > d.span() }

func (d *distance) span() time.Duration { return max(lately, latelyTimes*d.is()) }

// add notes a round trip that began at begun, if that was alone, or as short as if it was.
func (d *distance) add(begun, now time.Time) {
	switch {
	case begun.Equal(d.looked), d.is() == 0:
	case now.Sub(begun) < d.is()*5/4:
		d.looked = now
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
	if d.least == 0 || d.before > 0 && d.before < d.least {
		return d.before
	}
	return d.least
}

// window is how many calls are under way at once: as many as the server answers without a
// long queue of its own. They share a few trips.
type window struct {
	calls  int
	shrunk time.Time // when it was last made smaller
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

// learn learns from a trip of n calls that began at begun, of at most most at once. It took
// so long, and may take so long.
func (w *window) learn(n, most int, begun, now time.Time, may time.Duration) {
	switch took := now.Sub(begun); {
	case took > may:
		if begun.After(w.shrunk) { // it has seen the last change
			w.shrunk = now
			w.calls = w.calls * 3 / 4
		}
	case n < w.batch(most):
	case w.shrunk.IsZero():
		w.calls *= 2
	default:
		w.calls += max(1, w.calls/4)
	}
	w.calls = min(max(w.calls, leastBatch*max(1, most-nearTrips+1)), mostBatch*most)
}
