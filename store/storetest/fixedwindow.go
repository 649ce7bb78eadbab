package storetest

import "github.com/ratelimit-go/ratelimit"

var fixedWindow = algorithm{
	name:     "fixed_window",
	newModel: func() model { return new(windowModel) },
	limits:   append(calendars(), tried...),
	refused:  []ratelimit.Limit{withBurst},
	bound: func(l limit, x int64) int64 { // 2·rate in a period
		if x > l.shortest() {
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

// calendars are limits whose windows begin at midnight, in zones with all that clocks do. Zones
// that are not known here are left out.
func calendars() (all []ratelimit.Limit) {
	for _, text := range []string{
		"10/month", "100/month from 31 in America/Sao_Paulo", "3/month from 15 in Asia/Kolkata", "7/week", "20/week from sunday in Europe/Berlin",
		"10/day in UTC", "100/day in Asia/Kolkata", "1000003/day in America/St_Johns", "2147483647/day in Africa/Cairo",
	} {
		l, err := ratelimit.ParseLimit(text)
		if err == nil {
			all = append(all, l)
		}
	}
	return all
}

// windowModel is a count in the window of the last admission.
type windowModel struct {
	last  int64 // the last admission
	limit limit // of it
	count int64
}

// end is the end of the window of the last admission.
func (m *windowModel) end() int64 { return m.limit.windowEnd(m.last) }

func (m *windowModel) seen(reading int64) int64 {
	if m.count == 0 {
		return reading
	}
	return max(reading, m.last)
}

// held is the true count at t. A count of another period is in force until the window of
// the last admission ends in either.
func (m *windowModel) held(l limit, t int64) int64 {
	if m.count == 0 || t >= m.end() || t >= l.windowEnd(m.last) {
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
	*m = windowModel{t, l, min(held+n, most)}
	return holds(held, n)
}

func (m *windowModel) refund(l limit, _ int64, c charge, n int64) {
	if m.count == 0 || c.limit.period != m.limit.period || c.limit.windowEnd(c.at) != m.end() {
		return
	}
	calendars := l.civil != (civil{}) && m.limit.civil != (civil{}) && l.period == m.limit.period
	if calendars && l.windowEnd(m.last) == m.end() && l.windowEnd(c.at) != m.end() {
		return // it was of another calendar, and today's window has begun since
	}
	m.count = max(0, m.count-n)
}

func (m *windowModel) ended(t int64) bool {
	return m.count == 0 || t >= m.end()
}

func (m *windowModel) delays() bool { return false }
