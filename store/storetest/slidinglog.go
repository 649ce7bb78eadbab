package storetest

import "github.com/ratelimit-go/ratelimit"

var slidingLog = algorithm{
	name:     "sliding_log",
	newModel: func() model { return new(logModel) },
	limits:   tried,
	refused:  []ratelimit.Limit{withBurst},
	bound: func(l limit, x int64) int64 { // rate in a period
		if x > l.period {
			return 0
		}
		return l.rate
	},
	stories: []story{
		{"a refund is of its own entry", tenPerMinute, func(k *tiers) {
			first, other := k.at(0).take(3), k.at(10*second).take(4)
			k.at(20*second).refund(other, 4)
			k.has(7)
			k.refund(other, 4) // its entry is gone, and the one that is left belongs to another charge
			k.has(7)
			k.at(minute - microsecond).has(7)
			k.at(minute).take(10)
			k.refund(first, 3) // has left the log
			k.has(0)
		}},
		refundOfWhatHasExpired,
		{"turns do not matter", tenPerMinute, turnsDoNotMatter(minute, minute)},
	},
}

// logModel is a sliding log: every admission, oldest first.
type logModel struct {
	entries []entry
	period  int64 // of the last admission
}

type entry struct{ at, n int64 }

func (m *logModel) seen(reading int64) int64 { return max(reading, m.newest()) }

// anchored keeps the ages, relative to the newest event.
func (m *logModel) anchored(reading int64) model {
	moved := logModel{period: m.period}
	by := min(0, reading-m.newest())
	for _, e := range m.entries {
		moved.entries = append(moved.entries, entry{e.at + by, e.n})
	}
	return &moved
}

func (m *logModel) newest() int64 {
	if len(m.entries) == 0 {
		return 0
	}
	return m.entries[len(m.entries)-1].at
}

// held returns how many events are in the period that ends at t.
func (m *logModel) held(l limit, t int64) int64 {
	sum := int64(0)
	for _, e := range m.entries {
		if t < e.at+l.period {
			sum += e.n
		}
	}
	return sum
}

func (m *logModel) fits(l limit, t, n int64) bool { return m.held(l, t)+n <= l.burst }

func (m *logModel) inTime(l limit, t, n, _ int64) bool { return m.fits(l, t, n) }

func (m *logModel) fresh(l limit, t int64) bool { return m.held(l, t) == 0 }

// charge removes events that no longer count.
func (m *logModel) charge(l limit, t, n int64) int64 {
	var living []entry
	for _, e := range m.entries {
		if t < e.at+l.period {
			living = append(living, e)
		}
	}
	m.entries, m.period = append(living, entry{t, n}), l.period
	return n
}

// refund refunds events of the same instant, the last of them first.
func (m *logModel) refund(l limit, t int64, c charge, n int64) {
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

func (m *logModel) ended(t int64) bool { return len(m.entries) == 0 || t >= m.newest()+m.period }

func (m *logModel) delays() bool { return false }
