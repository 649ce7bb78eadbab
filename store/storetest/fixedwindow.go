package storetest

import "github.com/ratelimit-go/ratelimit"

var fixedWindow = algorithm{
	name:     "fixed_window",
	newModel: func() model { return new(windowModel) },
	limits:   tried,
	refused:  []ratelimit.Limit{withBurst},
	bound: func(l limit, x int64) int64 { // 2·rate in a period
		if x > l.period {
			return 0
		}
		return 2 * l.rate
	},
	stories: []story{
		{"a refund is of the window of its charge", tenPerMinute, func(k *tiers) {
			first, second := k.at(0).take(4), k.at(10*second).take(3)
			k.at(minute-microsecond).refund(first, 4)
			k.has(7)
			k.at(minute).take(2)
			k.refund(second, 3) // its window is over
			k.has(8)
		}},
		refundOfWhatHasExpired,
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(minute, minute)},
	},
}

// windowModel is a count in the window of the last admission.
type windowModel struct {
	last, period int64 // of the last admission
	count        int64
}

func (m *windowModel) seen(reading int64) int64 {
	if m.count == 0 {
		return reading
	}
	return max(reading, m.last)
}

// held is the true count at t. A count of another period is in force until the window of
// the last admission ends in either.
func (m *windowModel) held(l limit, t int64) int64 {
	if m.count == 0 || t >= windowEnd(m.last, m.period) || t >= windowEnd(m.last, l.period) {
		return 0
	}
	return m.count
}

// at is the count as decisions read it.
func (m *windowModel) at(l limit, t int64) int64 { return min(m.held(l, t), l.burst) }

func (m *windowModel) fits(l limit, t, n int64) bool { return m.at(l, t)+n <= l.burst }

func (m *windowModel) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *windowModel) fresh(l limit, t int64) bool { return m.at(l, t) == 0 }

func (m *windowModel) charge(l limit, t, n int64) int64 {
	held := m.held(l, t)
	*m = windowModel{t, l.period, min(held+n, most)}
	return holds(held, n)
}

func (m *windowModel) refund(_ limit, _ int64, c charge, n int64) {
	if m.count > 0 && c.limit.period == m.period && windowStart(c.at, m.period) == windowStart(m.last, m.period) {
		m.count = max(0, m.count-n)
	}
}

func (m *windowModel) ended(t int64) bool {
	return m.count == 0 || t >= windowEnd(m.last, m.period)
}

func (m *windowModel) delays() bool { return false }
