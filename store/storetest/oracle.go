package storetest

import (
	"fmt"
	"math"
	"math/big"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// model is what an algorithm promises about one key. It answers two questions,
// in exact arithmetic: would n events be admitted at an instant, and is the key
// then as never seen? Everything that a Result says follows from these two, by
// its definition; see [judge]. Times are Unix µs.
type model interface {
	// seen is the time that a reading of the clock counts as: no earlier than the
	// time of the state.
	seen(reading int64) int64
	// fits says whether n events would be admitted at t, n from 0.
	fits(l limit, t, n int64) bool
	// inTime says whether n events would be admitted at t if their turn had to come within
	// d µs.
	inTime(l limit, t, n, d int64) bool
	// fresh says whether the key is as never seen at t.
	fresh(l limit, t int64) bool
	// charge admits n events at t, which fit, or have their turn in time.
	charge(l limit, t, n int64)
	// refund gives back what is still charged at t of n events of c.
	refund(l limit, t int64, c charge, n int64)
	// ended says whether the state is as never seen from t on, under any limit: from
	// ResetAfter on, as it was when the state was written.
	ended(t int64) bool
	// delays says whether an admitted event waits until the key would be fresh.
	delays() bool
}

// limit is a limit in integers, the period in µs, with its burst filled in.
type limit struct{ rate, period, burst int64 }

func integers(l ratelimit.Limit) limit {
	i := limit{int64(l.Rate), l.Period.Microseconds(), int64(l.Burst)}
	if i.burst == 0 {
		i.burst = i.rate
	}
	return i
}

// charge is an admission of the past: n events under limit, at the instant at. due
// is at + ResetAfter.
type charge struct {
	at, due, n int64
	limit      limit
}

// question is what was asked for: n events, and if within is set, that their turn comes
// within d µs.
type question struct {
	n      int64
	within bool
	d      int64
	peek   bool
}

// admitted says whether what was asked for would be admitted at t.
func (q question) admitted(m model, l limit, t int64) bool {
	if q.within {
		return m.inTime(l, t, q.n, q.d)
	}
	return m.fits(l, t, q.n)
}

// judge says what is wrong with r, the answer to q at a reading of the clock, and charges
// the events to m if r is an admission and not a Peek.
func judge(m model, l limit, reading int64, q question, r ratelimit.Result) error {
	now := m.seen(reading)
	allowed := q.admitted(m, l, now)
	if r.Allowed != allowed {
		return fmt.Errorf("Allowed is %v, want %v", r.Allowed, allowed)
	}
	if r.Limit != int(l.burst) {
		return fmt.Errorf("Limit is %d, want %d", r.Limit, l.burst)
	}
	if err := judgeRetry(m, l, now, q, r); err != nil {
		return err
	}
	turn := func(t int64) bool { return m.fits(l, t, q.n) }
	if m.delays() {
		turn = func(t int64) bool { return m.fresh(l, t) }
	}
	switch {
	case allowed:
		if err := earliest("Delay", r.Delay, 0, func(d int64) bool { return turn(now + d) }); err != nil {
			return err
		}
	case r.Delay != 0:
		return fmt.Errorf("Delay is %v, want 0", r.Delay)
	}
	if allowed && !q.peek {
		m.charge(l, now, q.n)
	}
	if err := judgeRemaining(m, l, now, int64(r.Remaining)); err != nil {
		return err
	}
	return earliest("ResetAfter", r.ResetAfter, 0, func(d int64) bool { return m.fresh(l, now+d) })
}

func judgeRetry(m model, l limit, now int64, q question, r ratelimit.Result) error {
	switch {
	case r.Allowed && r.RetryAfter != 0:
		return fmt.Errorf("RetryAfter is %v, want 0", r.RetryAfter)
	case r.Allowed:
		return nil
	case q.n > l.burst && r.RetryAfter != ratelimit.Never:
		return fmt.Errorf("RetryAfter is %v, want Never", r.RetryAfter)
	case q.n > l.burst:
		return nil
	}
	return earliest("RetryAfter", r.RetryAfter, 1, func(d int64) bool { return q.admitted(m, l, now+d) })
}

func judgeRemaining(m model, l limit, now, k int64) error {
	fits := func(k int64) bool { return k == 0 || k <= l.burst && m.fits(l, now, k) }
	if k >= 0 && fits(k) && !fits(k+1) {
		return nil
	}
	return fmt.Errorf("Remaining is %d, want %d", k, room(m, l, now, l.burst))
}

// room is how many of n events fit at now.
func room(m model, l limit, now, n int64) int64 {
	k := int64(0)
	for step := int64(1) << 31; step > 0; step /= 2 {
		if k+step <= min(n, l.burst) && m.fits(l, now, k+step) {
			k += step
		}
	}
	return k
}

// earliest says what is wrong with d, which shall be the first whole µs from low
// on at which ok holds. ok goes on to hold.
func earliest(name string, d time.Duration, low int64, ok func(us int64) bool) error {
	us := d.Microseconds()
	if d%time.Microsecond == 0 && us >= low && ok(us) && (us == low || !ok(us-1)) {
		return nil
	}
	const forever = int64(1) << 53
	low, high := low-1, forever
	for high-low > 1 {
		if mid := (low + high) / 2; ok(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if high == forever {
		return fmt.Errorf("%s is %v, want none: it never holds", name, d)
	}
	return fmt.Errorf("%s is %d µs, want %d µs", name, us, high)
}

// windowStart is the start of the window of period in which t lies, t after 1970.
func windowStart(t, period int64) int64 { return t - t%period }

// windowEnd is its end.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }

// fixedWindow: a count in the window of the last admission.
type fixedWindow struct {
	last, period int64 // of the last admission
	count        int64
}

func (m *fixedWindow) seen(reading int64) int64 {
	if m.count == 0 {
		return reading
	}
	return max(reading, m.last)
}

// at is the count in force at t. Counted in another period, it is in force until
// the window of the last admission ends in either.
func (m *fixedWindow) at(l limit, t int64) int64 {
	if m.count == 0 || t >= windowEnd(m.last, m.period) || t >= windowEnd(m.last, l.period) {
		return 0
	}
	return min(m.count, l.burst)
}

func (m *fixedWindow) fits(l limit, t, n int64) bool { return m.at(l, t)+n <= l.burst }

func (m *fixedWindow) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *fixedWindow) fresh(l limit, t int64) bool { return m.at(l, t) == 0 }

func (m *fixedWindow) charge(l limit, t, n int64) { *m = fixedWindow{t, l.period, m.at(l, t) + n} }

func (m *fixedWindow) refund(_ limit, _ int64, c charge, n int64) {
	if m.count > 0 && c.limit.period == m.period && windowStart(c.at, m.period) == windowStart(m.last, m.period) {
		m.count = max(0, m.count-n)
	}
}

func (m *fixedWindow) ended(t int64) bool {
	return m.count == 0 || t >= windowEnd(m.last, m.period)
}

func (m *fixedWindow) delays() bool { return false }

// slidingWindow: counts in the window of the last admission and the one before.
type slidingWindow struct {
	last, period int64 // of the last admission
	prev, cur    int64
}

func (m *slidingWindow) seen(reading int64) int64 {
	if m.prev+m.cur == 0 {
		return reading
	}
	return max(reading, m.last)
}

// at is the two counts as the windows of l lie at t. Counted in another period,
// what weighs at t is in the current window, rounded up, and in force until the
// window of the last admission ends in l's period.
func (m *slidingWindow) at(l limit, t int64) (prev, cur int64) {
	if m.prev+m.cur == 0 {
		return 0, 0
	}
	switch windowStart(t, m.period) {
	case windowStart(m.last, m.period):
		prev, cur = m.prev, m.cur
	case windowEnd(m.last, m.period):
		prev, cur = m.cur, 0
	}
	if m.period != l.period {
		weight := product(prev, windowEnd(t, m.period)-t)
		weight.Add(weight, big.NewInt(m.period-1)).Div(weight, big.NewInt(m.period))
		prev, cur = 0, cur+weight.Int64()
		if t >= windowEnd(m.last, l.period) {
			cur = 0
		}
	}
	return min(prev, l.burst), min(cur, l.burst)
}

func (m *slidingWindow) fits(l limit, t, n int64) bool {
	prev, cur := m.at(l, t)
	sum := product(prev, windowEnd(t, l.period)-t)
	sum.Add(sum, product(cur+n, l.period))
	return sum.Cmp(product(l.burst, l.period)) <= 0
}

func (m *slidingWindow) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *slidingWindow) fresh(l limit, t int64) bool {
	prev, cur := m.at(l, t)
	return prev+cur == 0
}

func (m *slidingWindow) charge(l limit, t, n int64) {
	prev, cur := m.at(l, t)
	*m = slidingWindow{t, l.period, prev, cur + n}
}

func (m *slidingWindow) refund(_ limit, _ int64, c charge, n int64) {
	if m.prev+m.cur == 0 || c.limit.period != m.period {
		return
	}
	switch windowStart(m.last, m.period) - windowStart(c.at, m.period) {
	case 0:
		m.cur = max(0, m.cur-n)
	case m.period:
		m.prev = max(0, m.prev-n)
	}
}

func (m *slidingWindow) ended(t int64) bool {
	switch {
	case m.cur > 0:
		return t >= windowEnd(m.last, m.period)+m.period
	case m.prev > 0:
		return t >= windowEnd(m.last, m.period)
	}
	return true
}

func (m *slidingWindow) delays() bool { return false }

// slidingLog: every admission, oldest first.
type slidingLog struct {
	entries []entry
	period  int64 // of the last admission
}

type entry struct{ at, n int64 }

func (m *slidingLog) seen(reading int64) int64 { return max(reading, m.newest()) }

func (m *slidingLog) newest() int64 {
	if len(m.entries) == 0 {
		return 0
	}
	return m.entries[len(m.entries)-1].at
}

// at is how many events lie in the period that ends at t.
func (m *slidingLog) at(l limit, t int64) int64 {
	sum := int64(0)
	for _, e := range m.entries {
		if t < e.at+l.period {
			sum += e.n
		}
	}
	return sum
}

func (m *slidingLog) fits(l limit, t, n int64) bool { return m.at(l, t)+n <= l.burst }

func (m *slidingLog) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *slidingLog) fresh(l limit, t int64) bool { return m.at(l, t) == 0 }

func (m *slidingLog) charge(l limit, t, n int64) {
	var living []entry
	for _, e := range m.entries {
		if t < e.at+l.period {
			living = append(living, e)
		}
	}
	m.entries = append(living, entry{t, n})
	m.period = l.period
}

func (m *slidingLog) refund(l limit, t int64, c charge, n int64) {
	var left []entry
	for i := len(m.entries) - 1; i >= 0; i-- {
		e := m.entries[i]
		if e.at == c.at && t < e.at+l.period {
			back := min(e.n, n)
			e.n, n = e.n-back, n-back
		}
		if e.n > 0 {
			left = append([]entry{e}, left...)
		}
	}
	m.entries = left
}

func (m *slidingLog) ended(t int64) bool { return t >= m.newest()+m.period }

func (m *slidingLog) delays() bool { return false }

// bucket: a level that rises with each event and falls by rate each period; what
// the token bucket is short of, and what the leaky bucket's queue holds.
type bucket struct {
	queue bool // leaky

	level        *big.Int // in 1/period events, as of time; nil is 0
	ahead        bool     // it was charged past the burst
	time         int64
	rate, period int64 // of the limit of the last admission
}

// century is the longest that a level past the burst takes to drain, in µs.
const century = 100 * 365 * 24 * 3600 * 1000000

// most is the most events that a level past the burst may hold.
func (l limit) most() int64 {
	most := product(century, l.rate)
	if most.Div(most, big.NewInt(l.period)); most.Cmp(big.NewInt(math.MaxInt32)) < 0 {
		return most.Int64()
	}
	return math.MaxInt32
}

// cut is a level in 1/period events as l reads it: the burst at most, or of one that was
// charged past the burst at most so many whole events.
func cut(level *big.Int, ahead bool, l limit, period int64) *big.Int {
	most := product(l.burst, period)
	if ahead {
		most = product(l.most(), period)
		most.Add(most, new(big.Int).Mod(level, big.NewInt(period)))
	}
	if level.Cmp(most) > 0 {
		return most
	}
	return level
}

// end is when the level is 0 under the limit of the last admission.
func (m *bucket) end() int64 {
	drained := new(big.Int).Add(m.level, big.NewInt(m.rate-1))
	return m.time + drained.Div(drained, big.NewInt(m.rate)).Int64()
}

func (m *bucket) seen(reading int64) int64 {
	if m.level == nil {
		return reading
	}
	return max(reading, m.time)
}

// at is the level at t in 1/l.period events. A level of another period is rounded
// up to whole events. It is at most the burst at first, if it was not charged past that,
// and falls from there.
func (m *bucket) at(l limit, t int64) *big.Int {
	if m.level == nil {
		return new(big.Int)
	}
	level := new(big.Int).Set(m.level)
	if m.period != l.period {
		level.Add(level, big.NewInt(m.period-1)).Div(level, big.NewInt(m.period))
		level.Mul(level, big.NewInt(l.period))
	}
	level = cut(level, m.ahead, l, l.period)
	level.Sub(level, product(t-m.time, l.rate))
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}

func (m *bucket) fits(l limit, t, n int64) bool {
	level := m.at(l, t)
	level.Add(level, product(n, l.period))
	return level.Cmp(product(l.burst, l.period)) <= 0
}

// inTime: of a queue, what is before n events must drain in time, and of tokens, what is
// missing for them must come.
func (m *bucket) inTime(l limit, t, n, d int64) bool {
	level, turn := m.at(l, t), product(d, l.rate)
	if m.queue {
		return m.fits(l, t, n) && level.Cmp(turn) <= 0
	}
	level.Add(level, product(n, l.period))
	turn.Add(turn, product(l.burst, l.period))
	return n <= l.burst && level.Cmp(turn) <= 0 && level.Cmp(product(l.most(), l.period)) <= 0
}

func (m *bucket) fresh(l limit, t int64) bool { return m.at(l, t).Sign() == 0 }

func (m *bucket) charge(l limit, t, n int64) {
	level := m.at(l, t)
	m.level, m.time, m.rate, m.period = level.Add(level, product(n, l.period)), t, l.rate, l.period
	m.ahead = m.level.Cmp(product(l.burst, l.period)) > 0
}

// refund gives back what is left of the level that c left behind, and at most n;
// of a queue, only its tail. The level stays counted as it was; in another period
// whole events are given back.
func (m *bucket) refund(l limit, t int64, c charge, n int64) {
	behind := bucket{level: product(c.due-c.at, c.limit.rate), ahead: m.ahead, time: c.at, rate: c.limit.rate, period: c.limit.period}
	if m.level == nil || t >= c.due || c.at > m.time || m.queue && !m.isTail(l, behind) {
		return
	}
	back := product(n, l.period)
	if left := behind.at(l, t); left.Cmp(back) < 0 {
		back = left
	}
	if m.at(l, t).Cmp(back) <= 0 {
		m.level = nil
		return
	}
	m.level = cut(m.level, m.ahead, l, m.period)
	if m.period != l.period {
		back.Div(back, big.NewInt(l.period)).Mul(back, big.NewInt(m.period))
	}
	m.level.Sub(m.level, back)
	m.ahead = m.ahead && m.level.Cmp(big.NewInt(m.period)) >= 0
}

// isTail says whether nothing is queued behind the level that a charge left.
func (m *bucket) isTail(l limit, behind bucket) bool {
	return m.time == behind.time && m.at(l, m.time).Cmp(behind.at(l, m.time)) <= 0
}

func (m *bucket) ended(t int64) bool { return m.level == nil || t >= m.end() }

func (m *bucket) delays() bool { return m.queue }

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
