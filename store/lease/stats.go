package lease

import "sync/atomic"

// counts are the counters for [Stats]. Each call to the store is counted in one of asked, unleased
// and lost, so that none of them decreases.
type counts struct {
	local, asked, unleased, lost, granted, lapsed, givenBack, overdrawn atomic.Int64
}

// Stats are totals since New, except for Keys and Held.
type Stats struct {
	Keys, Held int   // keys with a lease or a denial, and events that are currently held
	Local      int64 // decisions without the store
	Asked      int64 // calls to the store for events
	Granted    int64 // events that the store has charged for leases, and for calls that waited for it
	Lapsed     int64 // of Granted, not used in time
	GivenBack  int64 // of Lapsed, refunded, for a bucket minus what has flowed in since; the others stay charged until they leave the limit
	Unleased   int64 // of Asked, for keys that cannot be leased: few events, a long key, or WithMaxKeys
	Lost       int64 // of Asked, without an answer; their events may be charged
	Overdrawn  int64 // events admitted before the store had charged them
}

// Stats returns the current counts.
func (d *Store) Stats() Stats {
	c := &d.stats
	s := Stats{
		Local: c.local.Load(), Unleased: c.unleased.Load(), Lost: c.lost.Load(), Granted: c.granted.Load(),
		Lapsed: c.lapsed.Load(), GivenBack: c.givenBack.Load(), Overdrawn: c.overdrawn.Load(),
	}
	s.Asked = c.asked.Load() + s.Unleased + s.Lost
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		now := d.now()
		for _, e := range sh.keys {
			s.Keys++
			s.Held += e.held(now)
		}
		sh.mu.Unlock()
	}
	return s
}
