package fallback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

// maxDebts is the maximum number of keys whose debts are remembered. They take about 6 MB.
const maxDebts = 1 << 16

// debts holds the events that the local limiter has admitted, by key, until the store is charged
// with them.
type debts struct {
	seeds keyhash.Seeds
	keys  atomic.Int64 // len(byKey), so that calls take no lock if nothing is owed

	mu     sync.Mutex // protects what follows; never held during a call of a limiter
	byKey  map[keyhash.Hash]debt
	until  time.Duration // the latest of all keys, on the clock of the Limiter
	paying int           // keys whose debts calls are charging the store with
}

// charge is a number of events, and of the calls that admitted them.
type charge struct{ events, calls int }

// debt is what a key owes.
type debt struct {
	charge
	until  time.Duration // when the local limiter will have forgotten them
	paying bool          // whether a call is charging the store with them
	doubt  bool          // whether the last call got no reply, so that the store may still be hanging
}

// add remembers c of key, admitted now in place of the store, which has failed with err. The local
// limiter counts it until life has passed. How much of it still counts is determined when the store is
// charged. It cannot be tracked here, because concurrent calls arrive in a different order than they
// were decided in.
func (d *debts) add(key string, c charge, err error, now, life time.Duration) {
	id := d.seeds.Hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byKey == nil {
		d.byKey = make(map[keyhash.Hash]debt)
	}
	owed, found := d.byKey[id]
	if !found && len(d.byKey) >= maxDebts {
		d.dropLeast(now)
	}
	if now >= owed.until && !owed.paying { // what is being charged is subtracted afterwards
		owed.charge = charge{}
	}
	owed.events += min(c.events, math.MaxInt32-owed.events)
	owed.calls += min(c.calls, math.MaxInt32-owed.calls)
	owed.doubt = owed.doubt || !unsent(err)
	owed.until = max(owed.until, now+min(life, math.MaxInt64-now))
	d.until = max(d.until, owed.until)
	d.byKey[id] = owed
	d.keys.Store(int64(len(d.byKey)))
}

// dropLeast samples a few keys and drops the one that owes least. The caller holds d.mu.
func (d *debts) dropLeast(now time.Duration) {
	const sampled = 8 // as many as memstore looks at
	var victim keyhash.Hash
	least, seen := math.MaxInt, 0
	for id, owed := range d.byKey { // in no particular order
		if now >= owed.until {
			owed.events = 0
		}
		if owed.events < least {
			victim, least = id, owed.events
		}
		if seen++; seen == sampled {
			break
		}
	}
	delete(d.byKey, victim)
}

// owes reports whether key owes anything, as far as is known without the local limiter.
func (d *debts) owes(key string, now time.Duration) bool {
	return now < d.of(key).until
}

// doubts reports whether key owes, and the store may still be hanging, as far as is known from calls of key.
func (d *debts) doubts(key string) bool {
	return d.of(key).doubt
}

// of returns the debt of key, or the zero debt.
func (d *debts) of(key string) debt {
	if d.keys.Load() == 0 {
		return debt{}
	}
	id := d.seeds.Hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byKey[id]
}

// take returns what key owes, for the caller to charge to the store, or nothing if another call is
// doing so.
func (d *debts) take(key string, now time.Duration) debt {
	id := d.seeds.Hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if now >= d.until && d.paying == 0 { // all have decayed
		d.byKey = nil
		d.keys.Store(0)
		return debt{}
	}
	owed, found := d.byKey[id]
	if !found || owed.paying {
		return debt{}
	}
	if now >= owed.until { // what the local limiter counts now is something else
		delete(d.byKey, id)
		d.keys.Store(int64(len(d.byKey)))
		return debt{}
	}
	owed.paying = true
	d.byKey[id] = owed
	d.paying++
	return owed
}

// paid ends what take began: key no longer owes c, and may be in doubt.
func (d *debts) paid(key string, c charge, doubt bool) {
	d.change(key, func(owed *debt) {
		owed.paying, owed.doubt = false, doubt
		owed.events, owed.calls = owed.events-c.events, owed.calls-c.calls
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paying--
}

// forgive reduces what key owes by n events. Which calls still count is determined when the store
// is charged.
func (d *debts) forgive(key string, n int) {
	if d.keys.Load() == 0 {
		return
	}
	d.change(key, func(owed *debt) {
		if owed.events -= n; owed.events <= 0 {
			owed.calls = 0
		}
	})
}

// forget ends what key owes, because the local limiter was reset.
func (d *debts) forget(key string) {
	d.change(key, func(owed *debt) {
		if !owed.paying { // what is being charged is subtracted afterwards
			owed.charge = charge{}
		}
	})
}

// change changes what key owes, if anything, and forgets the key when nothing is left.
func (d *debts) change(key string, by func(*debt)) {
	id := d.seeds.Hash(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	owed, found := d.byKey[id]
	if !found {
		return
	}
	by(&owed)
	owed.events, owed.calls = max(0, owed.events), max(0, owed.calls) // what was refunded while the store was charged with it stays charged
	if d.byKey[id] = owed; owed.events <= 0 && owed.calls <= 0 && !owed.paying {
		delete(d.byKey, id)
	}
	d.keys.Store(int64(len(d.byKey)))
}
