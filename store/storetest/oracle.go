package storetest

import (
	"fmt"
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
	// fresh says whether the key is as never seen at t.
	fresh(l limit, t int64) bool
	// charge charges n events at t, whether they fit or not, and returns n, or how many
	// of them the state can hold.
	charge(l limit, t, n int64) (charged int64)
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

// most is the most events that a state holds.
const most = 1<<31 - 1

// holds is how many of n events are charged where held are charged already.
func holds(held, n int64) int64 { return min(n, max(0, most-held)) }

// judge says what is wrong with r, the answer to n events at a reading of the
// clock, and charges them to m if r is an admission and not a Peek.
func judge(m model, l limit, reading, n int64, r ratelimit.Result, peek bool) error {
	now := m.seen(reading)
	allowed := m.fits(l, now, n)
	if r.Allowed != allowed {
		return fmt.Errorf("Allowed is %v, want %v", r.Allowed, allowed)
	}
	if r.Limit != int(l.burst) {
		return fmt.Errorf("Limit is %d, want %d", r.Limit, l.burst)
	}
	if err := judgeRetry(m, l, now, n, r); err != nil {
		return err
	}
	switch {
	case allowed && m.delays():
		if err := earliest("Delay", r.Delay, 0, func(d int64) bool { return m.fresh(l, now+d) }); err != nil {
			return err
		}
	case r.Delay != 0:
		return fmt.Errorf("Delay is %v, want 0", r.Delay)
	}
	if allowed && !peek {
		m.charge(l, now, n)
	}
	if err := judgeRemaining(m, l, now, int64(r.Remaining)); err != nil {
		return err
	}
	return earliest("ResetAfter", r.ResetAfter, 0, func(d int64) bool { return m.fresh(l, now+d) })
}

// judgeCharge says what is wrong with r, the answer to a Charge of n events, and charges
// them to m. It returns how many were charged.
func judgeCharge(m model, l limit, reading, n int64, r ratelimit.Result) (charged int64, err error) {
	now := m.seen(reading)
	if !r.Allowed || r.Limit != int(l.burst) || r.RetryAfter != 0 {
		return 0, fmt.Errorf("a Charge is allowed at once, of a Limit of %d", l.burst)
	}
	queued := func(d int64) bool { return m.fresh(l, now+d) }
	if !m.delays() {
		queued = func(int64) bool { return true }
	}
	delay := earliest("Delay", r.Delay, 0, queued)
	charged = m.charge(l, now, min(n, most))
	switch {
	case charged > 0 && delay != nil:
		return charged, delay
	case charged == 0 && r.Delay != 0:
		return charged, fmt.Errorf("Delay is %v, of nothing", r.Delay)
	}
	if err := judgeRemaining(m, l, now, int64(r.Remaining)); err != nil {
		return charged, err
	}
	return charged, earliest("ResetAfter", r.ResetAfter, 0, func(d int64) bool { return m.fresh(l, now+d) })
}

func judgeRetry(m model, l limit, now, n int64, r ratelimit.Result) error {
	switch {
	case r.Allowed && r.RetryAfter != 0:
		return fmt.Errorf("RetryAfter is %v, want 0", r.RetryAfter)
	case r.Allowed:
		return nil
	case n > l.burst && r.RetryAfter != ratelimit.Never:
		return fmt.Errorf("RetryAfter is %v, want Never", r.RetryAfter)
	case n > l.burst:
		return nil
	}
	return earliest("RetryAfter", r.RetryAfter, 1, func(d int64) bool { return m.fits(l, now+d, n) })
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

// held is the true count at t. Counted in another period, it is in force until the
// window of the last admission ends in either.
func (m *fixedWindow) held(l limit, t int64) int64 {
	if m.count == 0 || t >= windowEnd(m.last, m.period) || t >= windowEnd(m.last, l.period) {
		return 0
	}
	return m.count
}

// at is the count as decisions read it.
func (m *fixedWindow) at(l limit, t int64) int64 { return min(m.held(l, t), l.burst) }

func (m *fixedWindow) fits(l limit, t, n int64) bool { return m.at(l, t)+n <= l.burst }

func (m *fixedWindow) fresh(l limit, t int64) bool { return m.at(l, t) == 0 }

func (m *fixedWindow) charge(l limit, t, n int64) int64 {
	held := m.held(l, t)
	*m = fixedWindow{t, l.period, min(held+n, most)}
	return holds(held, n)
}

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

// held is the two true counts as the windows of l lie at t. Counted in another period,
// what weighs at t is in the current window, rounded up, and in force until the
// window of the last admission ends in l's period.
func (m *slidingWindow) held(l limit, t int64) (prev, cur int64) {
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
		weight := product(min(prev, l.burst), windowEnd(t, m.period)-t)
		weight.Add(weight, big.NewInt(m.period-1)).Div(weight, big.NewInt(m.period))
		prev, cur = 0, cur+weight.Int64()
		if t >= windowEnd(m.last, l.period) {
			cur = 0
		}
	}
	return prev, cur
}

// at is the two counts as decisions read them.
func (m *slidingWindow) at(l limit, t int64) (prev, cur int64) {
	prev, cur = m.held(l, t)
	return min(prev, l.burst), min(cur, l.burst)
}

func (m *slidingWindow) fits(l limit, t, n int64) bool {
	prev, cur := m.at(l, t)
	sum := product(prev, windowEnd(t, l.period)-t)
	sum.Add(sum, product(cur+n, l.period))
	return sum.Cmp(product(l.burst, l.period)) <= 0
}

func (m *slidingWindow) fresh(l limit, t int64) bool {
	prev, cur := m.at(l, t)
	return prev+cur == 0
}

func (m *slidingWindow) charge(l limit, t, n int64) int64 {
	prev, cur := m.held(l, t)
	*m = slidingWindow{t, l.period, prev, min(cur+n, most)}
	return holds(cur, n)
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

func (m *slidingLog) fresh(l limit, t int64) bool { return m.at(l, t) == 0 }

func (m *slidingLog) charge(l limit, t, n int64) int64 {
	var living []entry
	for _, e := range m.entries {
		if t < e.at+l.period {
			living = append(living, e)
		}
	}
	m.entries = append(living, entry{t, n})
	m.period = l.period
	return n
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
	time         int64
	rate, period int64 // of the limit of the last admission

	owing bool // charged past the capacity, to which the level is not cut then
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
// up to whole events. It is at most the burst at first, or the most that a state holds if
// it is owing, and falls from there.
func (m *bucket) at(l limit, t int64) *big.Int {
	if m.level == nil {
		return new(big.Int)
	}
	level := new(big.Int).Set(m.level)
	if m.period != l.period {
		level.Add(level, big.NewInt(m.period-1)).Div(level, big.NewInt(m.period))
		level.Mul(level, big.NewInt(l.period))
	}
	cut(level, l.period, m.capacity(l), m.owing)
	level.Sub(level, product(t-m.time, l.rate))
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}

// capacity is how many events a level is cut to under l.
func (m *bucket) capacity(l limit) int64 {
	if m.owing {
		return mostDrained(l)
	}
	return l.burst
}

// mostDrained is what drains in 100 years, and at most what a state holds.
func mostDrained(l limit) int64 {
	whole := product(l.rate, 100*365*24*3600*1e6)
	if whole.Div(whole, big.NewInt(l.period)); whole.Cmp(big.NewInt(most)) < 0 {
		return whole.Int64()
	}
	return most
}

// cut cuts a level in 1/period events to so many whole ones. Of a level that is owing
// the part of an event stays.
func cut(level *big.Int, period, events int64, owing bool) {
	whole, part := new(big.Int).DivMod(level, big.NewInt(period), new(big.Int))
	if full := big.NewInt(events); whole.Cmp(full) >= 0 {
		if !owing {
			part.SetInt64(0)
		} else if whole.Cmp(full) == 0 {
			return
		}
		level.Add(full.Mul(full, big.NewInt(period)), part)
	}
}

func (m *bucket) fits(l limit, t, n int64) bool {
	level := m.at(l, t)
	level.Add(level, product(n, l.period))
	return level.Cmp(product(l.burst, l.period)) <= 0
}

func (m *bucket) fresh(l limit, t int64) bool { return m.at(l, t).Sign() == 0 }

func (m *bucket) charge(l limit, t, n int64) int64 {
	fits, level, full := m.fits(l, t, n), m.at(l, t), product(l.burst, l.period)
	held := new(big.Int).Div(level, big.NewInt(l.period)).Int64()
	charged := min(n, max(0, mostDrained(l)-held))
	if fits {
		charged = n
	}
	level.Add(level, product(charged, l.period))
	m.level, m.time, m.rate, m.period = level, t, l.rate, l.period
	m.owing = !fits && level.Cmp(full) >= 0
	return charged
}

// refund gives back what is left of the level that c left behind, and at most n;
// of a queue, only its tail. The level stays counted as it was; in another period
// whole events are given back.
func (m *bucket) refund(l limit, t int64, c charge, n int64) {
	if m.level == nil || t >= c.due || c.at > m.time {
		return
	}
	behind := bucket{level: product(c.due-c.at, c.limit.rate), time: c.at, rate: c.limit.rate, period: c.limit.period}
	cut(behind.level, behind.period, most, true)
	if m.queue && !m.isTail(l, behind) {
		return
	}
	behind.owing = m.stillOwing(l, c, behind)
	back := product(n, l.period)
	if left := behind.at(l, t); left.Cmp(back) < 0 {
		back = left
	}
	if m.at(l, t).Cmp(back) <= 0 {
		m.level, m.owing = nil, false
		return
	}
	cut(m.level, m.period, m.capacity(l), m.owing)
	if m.period != l.period {
		back.Div(back, big.NewInt(l.period)).Mul(back, big.NewInt(m.period))
	}
	m.level.Sub(m.level, back)
	m.owing = m.owing && m.level.Cmp(big.NewInt(m.period)) >= 0
}

// stillOwing says whether c left a level above the capacity that no limit cuts: one that
// today's would still find above its own, though others have been admitted since, has
// been left under another.
func (m *bucket) stillOwing(l limit, c charge, behind bucket) bool {
	if product(c.due-c.at-1, c.limit.rate).Cmp(product(c.limit.burst, c.limit.period)) < 0 {
		return false
	}
	behind.owing = true
	return m.owing || m.time+1 >= c.due || behind.at(l, m.time+1).Cmp(product(l.burst, l.period)) < 0
}

// isTail says whether nothing is queued behind the level that a charge left.
func (m *bucket) isTail(l limit, behind bucket) bool {
	behind.owing = m.owing
	return m.time == behind.time && m.at(l, m.time).Cmp(behind.at(l, m.time)) <= 0
}

func (m *bucket) ended(t int64) bool { return m.level == nil || t >= m.end() }

func (m *bucket) delays() bool { return m.queue }

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
