package storetest

import "github.com/ratelimit-go/ratelimit"

var fixedWindow = algorithm{
	name:     "fixed_window",
	newModel: func() model { return new(fixedModel) },
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
			k.refund(second, 3) // its window has ended
			k.has(8)
		}},
		refundOfWhatHasExpired,
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(minute, minute)},
	},
}

// calendars are limits whose windows begin at midnight, in zones where clocks do everything that
// they can do. Zones that are not known here are left out.
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

// fixedModel is a fixed window: a count in the window of the last admission.
type fixedModel struct {
	last  int64 // the last admission
	limit limit // of the last admission
	end   int64 // of the window of the last admission
	count int64
}

func (m *fixedModel) seen(reading int64) int64 {
	if m.count == 0 {
		return reading
	}
	return max(reading, m.last)
}

// anchored returns the same count in the window of reading. A count by a calendar keeps its end, but
// no later than a store can keep it.
func (m *fixedModel) anchored(reading int64) model {
	moved := *m
	if moved.last <= reading {
		return &moved
	}
	moved.last = reading
	if m.limit.civil == (civil{}) {
		moved.end = m.limit.windowEnd(reading)
	} else {
		moved.end = min(m.end, (reading+m.limit.period+2*24*3600e6)/1e6*1e6)
	}
	return &moved
}

// held returns the true count at t. A count of another limit is in force until the window of the
// last admission ends, by either limit.
func (m *fixedModel) held(l limit, t int64) int64 {
	if m.ended(t) || t >= l.windowEnd(m.last) {
		return 0
	}
	return m.count
}

func (m *fixedModel) fits(l limit, t, n int64) bool { return min(m.held(l, t), l.burst)+n <= l.burst }

func (m *fixedModel) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *fixedModel) fresh(l limit, t int64) bool { return m.held(l, t) == 0 }

func (m *fixedModel) charge(l limit, t, n int64) int64 {
	held := m.held(l, t)
	*m = fixedModel{t, l, l.windowEnd(t), min(held+n, most)}
	return m.count - held
}

// refund refunds to the window of the charge. Two calendars can have windows that end at the same
// time. Events charged before today's window began are gone.
func (m *fixedModel) refund(l limit, _ int64, c charge, n int64) {
	if m.count == 0 || c.limit.period != m.limit.period || c.due != m.end {
		return
	}
	calendars := l.civil != (civil{}) && m.limit.civil != (civil{}) && l.period == m.limit.period
	if calendars && l.windowEnd(m.last) == m.end && l.windowEnd(c.at) != m.end {
		return
	}
	m.count = max(0, m.count-n)
}

func (m *fixedModel) ended(t int64) bool { return m.count == 0 || t >= m.end }

func (m *fixedModel) delays() bool { return false }
