package redisstore

import (
	"context"
	"fmt"
	"time"
)

// tripsMeasured is how many round trips are made to measure one. The fastest counts,
// since the first may make the connection.
const tripsMeasured = 4

// checkTrip compares the round trip to n with the store's timeout.
func (s *Store) checkTrip(ctx context.Context, n node) []string {
	var trip time.Duration
	for i := range tripsMeasured {
		begun := time.Now()
		if _, err := n.ask(ctx, "time"); err != nil {
			return nil // checkClock reports it
		}
		if took := time.Since(begun); i == 0 || took < trip {
			trip = took
		}
	}
	return append(tripFindings(trip, s.timeout), s.deadlineFindings()...)
}

// deadlineFindings returns the findings about the deadlines that callers give.
func (s *Store) deadlineFindings() []string {
	st := s.Stats()
	if st.TooShort == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d calls had less time than a round trip takes (%v), and were not sent. "+
		"Your deadlines are shorter than the way: give the contexts of calls at least %v.",
		st.TooShort, st.RoundTrip.Round(time.Microsecond), max(3*st.RoundTrip, time.Millisecond).Round(time.Millisecond))}
}

// tripFindings returns the findings about a round trip and a timeout.
func tripFindings(trip, timeout time.Duration) []string {
	about := trip.Round(trip / 10)
	switch {
	case trip > timeout*9/10:
		return []string{fmt.Sprintf("a round trip takes %v, and a call has %v: none is answered in time. "+
			"Set WithTimeout to at least %v.", about, timeout, (3 * trip).Round(time.Millisecond))}
	case trip > timeout/2:
		return []string{fmt.Sprintf("a round trip takes %v, and a call has %v: the first call of a script, which takes two, fails "+
			"after each restart and failover. Call Ready at the start, or set WithTimeout to at least %v.",
			about, timeout, (3 * trip).Round(time.Millisecond))}
	}
	return nil
}
