package redisstore

import "time"

// Stats is what a [Store] knows of its calls. The counts only grow. They are of a
// *redis.Client: with other clients all is 0.
type Stats struct {
	UnderWay   int64         // calls that have not returned
	Overloaded int64         // calls that ended with [store.ErrOverloaded], and were not sent
	TooShort   int64         // calls that had less time than a round trip, and were not sent
	RoundTrip  time.Duration // the shortest of late; 0: not known
}

// Stats returns what is known up to now.
func (s *Store) Stats() Stats {
	if s.link == nil || s.link.pipeline == nil {
		return Stats{}
	}
	p := s.link.pipeline
	return Stats{p.expected.inside.Load() + p.expected.ahead.Load(), p.refusals.full.Load(), p.refusals.far.Load(), time.Duration(p.expected.way.Load())}
}
