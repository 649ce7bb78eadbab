package carrier

// What the carrier learns from trips.

import (
	"cmp"
	"time"
)

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

// watchPauses sets the timer of pauses, if there is none.
func (cr *Carrier[C]) watchPauses(now time.Time) {
	if cr.pauses.startTimer(now) {
		time.AfterFunc(tick, cr.tick)
	}
}

// tick checks whether this process has stood still, and sets its timer again while trips are in progress.
func (cr *Carrier[C]) tick() {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	now := time.Now()
	cr.pauses.until(now)
	if cr.pauses.due = (time.Time{}); cr.trips > 0 {
		cr.watchPauses(now)
	}
}

// learn updates the estimates and the window by a trip.
func (cr *Carrier[C]) learn(t *Trip[C], now time.Time, took, delay time.Duration) {
	cr.delay += (delay - cr.delay) / 8
	cr.distance.add(t.begun, now)
	if t.calls == 0 {
		return
	}
	cr.usualTrip = cmp.Or(cr.usualTrip, took)
	switch {
	case t.left: // it waited for a server that stood still, or for calls that are not sent any more
	case took < cr.quickTrip || cr.quickTrip == 0:
		cr.quickTrip = (took + cr.quickTrip) / 2
	default:
		cr.quickTrip += (took - cr.quickTrip) / 16
	}
	cr.lasted(took)
	distance := cr.distance.is()
	may := distance + max(min(cr.timeout/8, cr.config.Slack), distance/4) + 2*cr.delay
	may = max(may, min(may+cr.pauses.until(now)-t.paused, cr.timeout/2))
	cr.window.learn(t.calls, cr.tripsByDistance(), t.begun, now, may)
}

// lasted records how long a trip took. The length stays below the timeout, however long one took.
func (cr *Carrier[C]) lasted(took time.Duration) {
	cr.usualTrip = min(cr.usualTrip+(took-cr.usualTrip)/4, cr.timeout-cr.timeout/4)
}

// measure learns from a call that goes alone, if all calls do. One of the calls in progress at the same time is enough. Such
// calls count as full trips.
func (cr *Carrier[C]) measure(began time.Time, err error, own bool) {
	if cr.config.Send != nil {
		return
	}
	cr.mu.Lock()
	defer cr.mu.Unlock()
	if !began.After(cr.began) {
		return
	}
	now, trips, before := time.Now(), cr.window.trips(cr.tripsByDistance()), cr.paused
	cr.began, cr.paused = now, cr.pauses.until(now)
	switch {
	case cr.answered(err):
		cr.learn(&Trip[C]{calls: (cr.trips + trips - 1) / trips, begun: began, paused: before}, now, now.Sub(began), 0)
	case own && timedOut(err) && cr.paused-before < cr.timeout/2:
		cr.lasted(now.Sub(began))
		cr.window.lose(cr.tripsByDistance(), began, now)
	}
}
