package inflight

import (
	"cmp"
	_ "embed"
	"encoding/binary"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

//go:embed inflight.lua
var inflightLua string

// rule counts slots. Each slot has a number, in the order in which they were taken, and an end. A
// key keeps its slots in a log; its State is always that of a new key.
//
// The Rate of a limit is the number of slots, and the Period is how long a slot is held unless it
// is renewed. The number of a slot is the time at which it was taken, or the next free number. To
// renew a slot, Before is its number.
var rule = ratelimit.NewRule(store.Rule{
	Name:      Algorithm,
	AnyPeriod: true,
	Held:      true,
	Unit:      "concurrent-requests",
	Step: func(_ store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		return store.State{}, new(slotLog).Step(l, now, n)
	},
	Available: func(l store.Limit, r store.Reply) int64 { return max(0, l.Rate-r.Y) },
	Report:    report,
	After: func(r store.Reply, n int64) store.Reply {
		r.Y += n
		return r
	},
	Refund:   func(s store.State, _ store.Limit, _ int64, _ store.Receipt) store.State { return s },
	TTL:      func(s store.State, _ store.Limit) int64 { return s.Period },
	Used:     func(s store.State, _, _ int64) int64 { return s.Whole },
	NewLog:   func(store.State) store.Log { return newSlotLog() },
	ParseLog: parse,
	SetBack:  func(log store.Log, l store.Limit, now int64) bool { return log.(*slotLog).setBack(l, now) },
}, inflightLua)

func report(l store.Limit, r store.Reply, _, charged int64) store.Report {
	v := store.Report{Remaining: max(0, l.Rate-r.Y-charged), Retry: r.X, Reset: r.Z}
	if charged > 0 {
		v.Reset = max(r.Z, l.Period)
	}
	return v
}

// slotLog is the slots of a key.
type slotLog struct {
	last  int64    // the last number used; 0 if none was
	all   []entry  // in the order of their numbers; some may have ended
	first [1]entry // of all, in the same allocation
}

func newSlotLog() *slotLog {
	s := new(slotLog)
	s.all = s.first[:0]
	return s
}

type entry struct{ number, end int64 }

// Step replies with the number of the first slot, how many are held, and ResetAfter. For a denial,
// it replies with RetryAfter in place of the number.
func (s *slotLog) Step(l store.Limit, now, n int64) store.Reply {
	r := store.Reply{X: s.next(now)}
	longest := now
	for _, one := range s.all {
		if one.end > now {
			r.Y++
			longest = max(longest, one.end)
		}
	}
	r.Z = longest - now
	if i, held := s.find(l.Before()); held && s.all[i].end > now {
		r.X, r.Outcome = l.Before(), store.Admitted
		r.Y-- // the renewed slot is one of the held slots
		return r
	}
	r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate)
	switch {
	case r.OK():
	case n > l.Rate:
		r.X = now
	default:
		r.X = s.after(now, r.Y+n-l.Rate) - now
	}
	return r
}

// next returns the number of the next slot to be taken.
func (s *slotLog) next(now int64) int64 { return max(now, s.last+1) }

// find returns the index of a slot.
func (s *slotLog) find(number int64) (int, bool) {
	if number <= 0 || number > s.last {
		return 0, false
	}
	return slices.BinarySearchFunc(s.all, number, func(one entry, number int64) int { return cmp.Compare(one.number, number) })
}

// after returns when the first n of the held slots will have ended.
func (s *slotLog) after(now, n int64) int64 {
	if n == 1 {
		first := int64(math.MaxInt64)
		for _, one := range s.all {
			if one.end > now {
				first = min(first, one.end)
			}
		}
		return first
	}
	ends := make([]int64, 0, len(s.all))
	for _, one := range s.all {
		if one.end > now {
			ends = append(ends, one.end)
		}
	}
	slices.Sort(ends)
	return ends[n-1]
}

// Add takes n slots, or renews one.
func (s *slotLog) Add(l store.Limit, now, n int64) (end int64) {
	if i, held := s.find(l.Before()); held && s.all[i].end > now {
		s.all[i].end = now + l.Period
		return s.End()
	}
	first := s.next(now)
	s.all = slices.DeleteFunc(s.all, func(one entry) bool { return one.end <= now })
	for i := range n {
		s.all = append(s.all, entry{first + i, now + l.Period})
	}
	s.last = first + n - 1
	return s.End()
}

// step is the largest step of a server's clock that is ignored, in µs, as in inflight.lua.
const step = 1_000_000

// setBack limits the ends to a life from now if a server's clock was set back: the last slot was taken later than now. It
// reports whether it has changed any.
func (s *slotLog) setBack(l store.Limit, now int64) (changed bool) {
	for i := range s.all {
		if one := &s.all[i]; s.last > now+step && one.end > now+l.Period {
			one.end, changed = now+l.Period, true
		}
	}
	return changed
}

// Refund releases the slots of c that are still held.
func (s *slotLog) Refund(_ store.Limit, now int64, c store.Receipt) {
	s.all = slices.DeleteFunc(s.all, func(one entry) bool {
		return one.end <= now || one.number >= c.At && one.number < c.At+c.N
	})
	if len(s.all) == 0 { // like a new key, which it is on Redis
		s.last = 0
	}
}

// End returns when the last slot ends.
func (s *slotLog) End() int64 {
	end := int64(math.MinInt64)
	for _, one := range s.all {
		end = max(end, one.end)
	}
	return end
}

// Used returns how many slots are held.
func (s *slotLog) Used(now int64) (n int64) {
	for _, one := range s.all {
		if one.end > now {
			n++
		}
	}
	return n
}

// AppendBinary appends the last number, and the number and end of each slot.
func (s *slotLog) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, uint64(s.last))
	for _, one := range s.all {
		b = binary.BigEndian.AppendUint64(b, uint64(one.number))
		b = binary.BigEndian.AppendUint64(b, uint64(one.end))
	}
	return b, nil
}

func parse(b []byte) (store.Log, error) {
	if len(b)%16 != 8 {
		return nil, store.ErrCorrupt
	}
	s := &slotLog{last: int64(binary.BigEndian.Uint64(b))}
	for b = b[8:]; len(b) > 0; b = b[16:] {
		one := entry{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}
		if before := len(s.all); one.number > s.last || before > 0 && s.all[before-1].number >= one.number || one.end < -farthest || one.end > farthest {
			return nil, store.ErrCorrupt
		}
		s.all = append(s.all, one)
	}
	return s, nil
}

const farthest = 1 << 60 // the largest time, in Unix µs
