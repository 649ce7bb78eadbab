package memstore

import "slices"

// spareCountings is how many countings a table keeps beyond one per slot.
const spareCountings = 32

// counting describes how a state was counted: by which rule, and under a limit of which Rate and
// Period. A slot has the number of one of its table's countings, because there are few limits and
// many slots.
type counting struct {
	period     int64
	rate, rule uint32 // the rule's number
}

// under reports whether c is a counting under a limit with this Rate and Period, whatever its
// Burst.
func (c *counting) under(rate, period int64) bool {
	return int64(c.rate) == rate && c.period == period
}

// counting returns the counting of slot i.
func (t *table) counting(i int) *counting {
	if n := t.slots[i].number(); n > 0 {
		return &t.more.countings[n-1]
	}
	return &t.common
}

// numberOf returns the number of c in t. If c is new there, the numbers of other countings may
// change.
func (t *table) numberOf(c counting) int {
	switch {
	case c == t.common:
		return 0
	case t.n == 0:
		t.common = c
		return 0
	case t.more == nil:
		t.more = new(more)
	}
	if i := slices.Index(t.more.countings, c); i >= 0 {
		return i + 1
	}
	if len(t.more.countings) >= int(t.n)+spareCountings {
		t.dropCountings()
		return t.numberOf(c)
	}
	t.more.countings = append(t.more.countings, c)
	return len(t.more.countings)
}

// dropCountings drops the countings that no slot has, and makes the most frequent one the common
// one.
func (t *table) dropCountings() {
	if t.more == nil || len(t.more.countings) == 0 {
		return
	}
	var uses, numbers [maxSlots + spareCountings + 1]int16 // indexed by the old number
	for i, s := range t.slots {
		if t.tags[i] != 0 {
			uses[s.number()]++
		}
	}
	old := append([]counting{t.common}, t.more.countings...)
	most := slices.Index(uses[:], slices.Max(uses[:]))
	t.common, t.more.countings = old[most], nil
	for i, c := range old {
		if i != most && uses[i] > 0 {
			t.more.countings = append(t.more.countings, c)
			numbers[i] = int16(len(t.more.countings))
		}
	}
	for i := range t.slots {
		if s := &t.slots[i]; t.tags[i] != 0 {
			s.setNumber(int(numbers[s.number()]))
		}
	}
}
