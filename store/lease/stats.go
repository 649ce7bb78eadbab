package lease

import "sync/atomic"

// counts are what [Stats] are made of. A call of the store is counted in one of asked, unleased
// and lost, so that none of them falls.
type counts struct {
	local, asked, unleased, lost, granted, lapsed, givenBack, overdrawn atomic.Int64
}

// Stats are totals since New, but for Keys and Held.
type Stats struct {
	Keys, Held int   // keys with a lease or a denial, and events that are held now
	Local      int64 // decisions without the store
	Asked      int64 // calls of the store for events
	Granted    int64 // events that it has charged for leases
	Lapsed     int64 // of these, not used in time
	GivenBack  int64 // of these, given back: the others are charged until they leave the limit
	Unleased   int64 // of Asked, for keys that cannot be leased: few events, a long key, or WithMaxKeys
	Lost       int64 // of Asked, without an answer, whose events may be charged
	Overdrawn  int64 // events admitted before the store knew
}

// Stats returns what has happened up to now.
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
