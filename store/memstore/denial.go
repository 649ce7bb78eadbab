package memstore

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/store"
)

// freshFor is how long calls read a denial without the lock, in µs. The next call takes the lock,
// so that a key that is always denied still contributes to sweeping.
const freshFor = 100

// ticksUnseen is how many ticks the calls without the lock count as, per freshFor.
const ticksUnseen = 15

// denial is the state of one slot, the slot of the key that the table has denied twice in a row.
// Calls that this state denies need no lock, and write nothing. It is written under the lock of its
// table.
type denial struct {
	lo      atomic.Uint64
	hiWhole atomic.Uint64
	at      atomic.Int64
	part    atomic.Int64
	period  atomic.Int64
	rate    atomic.Int64
	from    atomic.Int64 // Unix µs; calls with an earlier reading of the clock take the lock
}

// denies decides on n events of h without the lock, if they are denied. version was odd before the
// call; if it has not changed, the key had this state when it was read.
func (t *table) denies(version uint64, h hash, rule *store.Rule, l store.Limit, now, n int64) (store.Reply, bool) {
	d := &t.denial
	hiWhole := d.hiWhole.Load()
	s := store.State{At: d.at.Load(), Period: d.period.Load(), Whole: int64(uint32(hiWhole)), Part: d.part.Load()}
	if d.lo.Load() != h.lo || hiWhole>>32 != h.hi>>32 || d.rate.Load() != l.Rate || s.Period != l.Period {
		return store.Reply{}, false
	}
	if age := now - d.from.Load(); age < 0 || age >= freshFor || t.version.Load() != version {
		return store.Reply{}, false
	}
	_, r := rule.Step(s, l, now, n)
	return r, !r.OK()
}

// deny records that the state in slot i, which was counted under a limit with l's Rate and Period,
// has denied events at now. The second time, it publishes that state.
func (t *table) deny(i int, l store.Limit, now int64) {
	s, d := &t.slots[i], &t.denial
	switch {
	case int(t.denied) != i+1:
		t.undeny()
		t.denied = int16(i + 1)
		return
	case t.version.Load()%2 == 0:
		d.lo.Store(s.lo)
		d.hiWhole.Store(uint64(s.hi)<<32 | uint64(s.whole))
		d.at.Store(s.at)
		d.part.Store(s.part())
		d.period.Store(l.Period)
		d.rate.Store(l.Rate)
		d.from.Store(now)
		t.version.Add(1)
	case now-d.from.Load() >= freshFor:
		d.from.Store(now)
		t.ticks += ticksUnseen
	}
}

// changes is called before the state in slot i changes, and before the slot is emptied or moved.
func (t *table) changes(i int) {
	if int(t.denied) == i+1 {
		t.undeny()
	}
}

// undeny withdraws the denial.
func (t *table) undeny() {
	t.denied = 0
	if t.version.Load()%2 != 0 {
		t.version.Add(1)
	}
}
