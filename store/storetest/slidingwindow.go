package storetest

import (
	"math/big"

	"github.com/ratelimit-go/ratelimit"
)

var slidingWindow = algorithm{
	name:     "sliding_window",
	newModel: func() model { return new(slidingModel) },
	limits:   tried,
	refused:  []ratelimit.Limit{withBurst},
	bound:    func(l limit, x int64) int64 { return l.rate + refilled(l, x) }, // rate·(1 + x/period)
	stories: []story{
		{"a refund is of the window of its charge, also of the previous one", tenPerMinute, func(k *tiers) {
			charged := k.at(0).take(10)
			k.at(minute).has(0)
			k.refund(charged, 4) // of the previous window: 6 of it are left
			k.has(4)
			k.at(90 * second).has(7) // they count half
			k.at(95 * second).take(3)
			k.at(2 * minute).take(2)
			k.refund(charged, 6) // the window of these 6 no longer counts, and that of the 3 counts fully
			k.has(5)
		}},
		refundOfWhatHasExpired,
		// In the next window, 8 count as 7 after 7.5 s, and 10 count as 9 after 6 s.
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(67*second+second/2, 66*second)},
	},
}

// slidingModel is a sliding window: counts in the window of the last admission and the previous
// one.
type slidingModel struct {
	last, period int64 // of the last admission
	prev, cur    int64
}

func (m *slidingModel) seen(reading int64) int64 {
	if m.prev+m.cur == 0 {
		return reading
	}
	return max(reading, m.last)
}

func (m *slidingModel) anchored(reading int64) model {
	return &slidingModel{min(m.last, reading), m.period, m.prev, m.cur}
}

// held returns the two true counts in the windows of l at t. If they were counted in another
// period, what counts at t is in the current window, rounded up. It is in force until the window of
// the last admission ends in l's period.
func (m *slidingModel) held(l limit, t int64) (prev, cur int64) {
	if m.prev+m.cur == 0 {
		return 0, 0
	}
	switch windowStart(t, m.period) {
	case windowStart(m.last, m.period):
		prev, cur = m.prev, m.cur
	case windowEnd(m.last, m.period):
		prev, cur = m.cur, 0
	}
	if m.period == l.period {
		return prev, cur
	}
	if t >= windowEnd(m.last, l.period) {
		return 0, 0
	}
	return 0, cur + up(weight(min(prev, l.burst), t, m.period))
}

// weight returns how much prev events of the previous window of period count at t: they are taken
// as evenly spread, and those before t minus a period have left.
func weight(prev, t, period int64) *big.Rat { return share(prev, windowEnd(t, period)-t, period) }

func (m *slidingModel) fits(l limit, t, n int64) bool {
	prev, cur := m.held(l, t)
	return sum(weight(min(prev, l.burst), t, l.period), whole(min(cur, l.burst)+n)).Cmp(whole(l.burst)) <= 0
}

func (m *slidingModel) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *slidingModel) fresh(l limit, t int64) bool {
	prev, cur := m.held(l, t)
	return prev+cur == 0
}

func (m *slidingModel) charge(l limit, t, n int64) int64 {
	prev, cur := m.held(l, t)
	*m = slidingModel{t, l.period, prev, min(cur+n, most)}
	return m.cur - cur
}

// refund refunds to the window of the charge, which is now the current one or the previous one.
func (m *slidingModel) refund(_ limit, _ int64, c charge, n int64) {
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

func (m *slidingModel) ended(t int64) bool {
	switch {
	case m.cur > 0:
		return t >= windowEnd(m.last, m.period)+m.period
	case m.prev > 0:
		return t >= windowEnd(m.last, m.period)
	}
	return true
}

func (m *slidingModel) delays() bool { return false }
