package carrier

import "time"

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
