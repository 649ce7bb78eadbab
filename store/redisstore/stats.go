package redisstore

import "time"

// Stats is what a [Store] knows of its calls, to all servers. The counts only grow.
type Stats struct {
	UnderWay   int64         // calls that have not returned
	Overloaded int64         // calls that ended with [store.ErrOverloaded], and were not sent
	TooShort   int64         // calls that had less time than a round trip, and were not sent
	RoundTrip  time.Duration // the shortest of late, to the farthest server; 0: not known
}

// Stats returns what is known up to now.
func (s *Store) Stats() Stats {
	if s.link == nil {
		return Stats{}
	}
	st := Stats{Overloaded: s.link.overloaded.Load(), TooShort: s.link.tooShort.Load()}
	s.link.each(func(v *server) {
		of := v.Stats()
		st.UnderWay += of.UnderWay
		st.Overloaded += of.Overloaded
		st.TooShort += of.TooShort
		st.RoundTrip = max(st.RoundTrip, of.RoundTrip)
	})
	return st
}
