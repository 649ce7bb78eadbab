package memstore

import "github.com/ratelimit-go/ratelimit/store"

// slot is the state of one key, or zero if it is empty. It has no pointers, so the
// garbage collector does not scan it. If the key has a log, the slot only keeps the log's
// end: part µs after at. Two slots fill a cache line.
type slot struct {
	lo         uint64
	hi         uint32 // the upper half of hash.hi
	whole      uint32
	at         int64
	partNumber uint64 // State.Part in the low bits, and above it the number of the counting
}

const (
	partBits = 49
	partMask = 1<<partBits - 1
	maxRules = 1 << (64 - partBits)
)

func (s *slot) is(h hash) bool { return s.lo == h.lo && s.hi == uint32(h.hi>>32) }

// hash returns the part of the key's hash that s keeps, which is enough for any table.
func (s *slot) hash() hash { return hash{uint64(s.hi) << 32, s.lo} }

// put sets the state, but not how it was counted.
func (s *slot) put(st store.State) {
	s.at = st.At
	s.whole = uint32(st.Whole)
	s.setPart(st.Part)
}

func (s *slot) part() int64 { return int64(s.partNumber & partMask) }

func (s *slot) number() int { return int(s.partNumber >> partBits) }

func (s *slot) setPart(part int64) { s.partNumber = s.partNumber&^partMask | uint64(part)&partMask }

func (s *slot) setNumber(number int) {
	s.partNumber = s.partNumber&partMask | uint64(number)<<partBits
}

// state returns the state, which was counted under a limit of this Period.
func (s *slot) state(period int64) store.State {
	return store.State{At: s.at, Period: period, Whole: int64(s.whole), Part: s.part()}
}

// end returns the instant, in Unix µs, from which on the key is treated as new.
func (s *slot) end(rule *store.Rule, c *counting) int64 {
	return s.at + rule.TTL(s.state(c.period), store.Limit{Rate: int64(c.rate), Period: c.period})
}

// unlessEnded returns the state, or the zero State if it has ended. An ended state stays until a sweep, and
// might still count under another limit. No decision may depend on when the sweep comes.
func (s *slot) unlessEnded(rule *store.Rule, c *counting, now int64) store.State {
	if s.end(rule, c) <= now {
		return store.State{}
	}
	return s.state(c.period)
}
