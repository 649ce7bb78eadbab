package storetest

import (
	"math/big"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file is what the five algorithms promise about one key, in exact fractions. It knows
// nothing of how the library computes. judge.go derives each field of a Result from it.
//
// Times are Unix µs. n and all counts are events.

// model is one key. It answers two questions. Would n events be admitted at an instant? Is the
// key fresh then?
type model interface {
	// seen is the time that a reading of the clock counts as, if that may come late: no
	// earlier than the time of the last admission.
	seen(reading int64) int64
	// anchored is the key after the store's clock has been set back to reading. What is dated
	// later is moved to reading. The spend stays, and ages from there on.
	anchored(reading int64) model
	// fits reports whether n events would be admitted at t, n from 0.
	fits(l limit, t, n int64) bool
	// inTime reports whether n events would be admitted at t if their turn had to come
	// within d µs.
	inTime(l limit, t, n, d int64) bool
	// fresh reports whether the key is like a new one at t.
	fresh(l limit, t int64) bool
	// charge charges n events at t, whether they fit or not. It returns n, or fewer if
	// the state cannot hold as many.
	charge(l limit, t, n int64) (charged int64)
	// refund gives back what is still charged at t of n events of c.
	refund(l limit, t int64, c charge, n int64)
	// ended reports whether the key is fresh from t on under any limit: from ResetAfter
	// on, as it was at the last admission.
	ended(t int64) bool
	// delays reports whether an admitted event waits until the key would be fresh.
	delays() bool
}

// limit is a limit in integers, the period in µs, with its burst filled in.
type limit struct {
	rate, period, burst int64
	civil               // of a calendar
}

func integers(l ratelimit.Limit) limit {
	i := limit{int64(l.Rate), l.Period.Microseconds(), int64(l.Burst), civilOf(l)}
	if i.burst == 0 {
		i.burst = i.rate
	}
	return i
}

// charge is a past admission: n events under limit, at the instant at. due is at +
// ResetAfter.
type charge struct {
	at, due, n int64
	limit      limit
}

// most is the most events that a state holds.
const most = 1<<31 - 1

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// share is n·a/b.
func share(n, a, b int64) *big.Rat {
	product := new(big.Int).Mul(big.NewInt(n), big.NewInt(a))
	return new(big.Rat).SetFrac(product, big.NewInt(b))
}

func sum(a, b *big.Rat) *big.Rat        { return new(big.Rat).Add(a, b) }
func difference(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }

func smaller(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// down is r rounded down to whole events, r from 0. Above what fits in an int64 it is the largest.
func down(r *big.Rat) int64 {
	if q := new(big.Int).Quo(r.Num(), r.Denom()); q.IsInt64() {
		return q.Int64()
	}
	return 1<<63 - 1
}

// up is r rounded up.
func up(r *big.Rat) int64 {
	if r.IsInt() {
		return down(r)
	}
	return down(r) + 1
}

// fixedModel is a fixed window: a count, in the window of the last admission.
type fixedModel struct {
	last  int64 // the last admission
	limit limit // of it
	end   int64 // of its window
	count int64
}

func (m *fixedModel) seen(reading int64) int64 {
	if m.count == 0 {
		return reading
	}
	return max(reading, m.last)
}

// anchored has the same count in the window of reading. By a calendar it keeps the end that it
// had, but no later than a store can keep it.
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

// held is the true count at t. A count of another limit is in force until the window of
// the last admission ends in either.
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

// refund is of the window of the charge. Two calendars can have windows that end together. What
// was charged before today's began is gone.
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

// slidingModel is a sliding window: counts in the window of the last admission and the one
// before.
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

// held is the two true counts in the windows of l at t. Counted in another period, what
// weighs at t is in the current window, rounded up. It is in force until the window of
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

// weight is what prev events of the last window of period weigh at t: they came evenly, and
// those before t less a period have left.
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

// refund is of the window of the charge, now the current one or the one before.
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

// logModel is a sliding log: every admission, oldest first.
type logModel struct {
	entries []entry
	period  int64 // of the last admission
}

type entry struct{ at, n int64 }

func (m *logModel) seen(reading int64) int64 { return max(reading, m.newest()) }

// anchored is as old as it was, by its newest event.
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

// held is how many events lie in the period that ends at t.
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

// charge forgets for good what does not count.
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

// refund is of the events of the same instant, the last of them first.
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

// bucketModel is a level that rises with each event and falls by rate each period. It is
// what the token bucket lacks, and what the leaky bucket's queue holds.
type bucketModel struct {
	queue bool // leaky

	level *big.Rat // events, as of time; nil if there are none
	time  int64
	limit limit // of the last admission

	owing bool // charged past the capacity, so that the level is not cut to it
}

func (m *bucketModel) seen(reading int64) int64 {
	if m.level == nil {
		return reading
	}
	return max(reading, m.time)
}

func (m *bucketModel) anchored(reading int64) model {
	moved := *m
	moved.time = min(m.time, reading)
	return &moved
}

// flow is how many events drain in us µs.
func (l limit) flow(us int64) *big.Rat { return share(us, l.rate, l.period) }

// at is the level at t under l. Of another period it is rounded up to whole events. It starts at
// no more than the capacity, and falls from there.
func (m *bucketModel) at(l limit, t int64) *big.Rat {
	if m.level == nil {
		return new(big.Rat)
	}
	level := m.level
	if m.limit.period != l.period {
		level = whole(up(level))
	}
	level = difference(cut(level, m.capacity(l), m.owing), l.flow(t-m.time))
	if level.Sign() < 0 {
		return new(big.Rat)
	}
	return level
}

// capacity is how many events a level is cut to under l.
func (m *bucketModel) capacity(l limit) int64 {
	if m.owing {
		return mostDrained(l)
	}
	return l.burst
}

// century is the longest that a level past the burst takes to drain, in µs.
const century = 100 * 365 * 24 * 3600 * 1e6

// mostDrained is how many events drain in 100 years, at most what a state holds.
func mostDrained(l limit) int64 { return min(down(l.flow(century)), most) }

// cut cuts a level to that many whole events. A level that is owing keeps its part of an event.
func cut(level *big.Rat, events int64, owing bool) *big.Rat {
	n := down(level)
	switch part := difference(level, whole(n)); {
	case n < events:
		return level
	case owing:
		return sum(whole(events), part)
	}
	return whole(events)
}

func (m *bucketModel) fits(l limit, t, n int64) bool {
	return sum(m.at(l, t), whole(n)).Cmp(whole(l.burst)) <= 0
}

// inTime: a queue must drain in time what is before n events. A token bucket must get in
// time the tokens that are missing.
func (m *bucketModel) inTime(l limit, t, n, d int64) bool {
	level := m.at(l, t)
	if m.queue {
		return m.fits(l, t, n) && level.Cmp(l.flow(d)) <= 0
	}
	level = sum(level, whole(n))
	return n <= l.burst && level.Cmp(sum(whole(l.burst), l.flow(d))) <= 0 && level.Cmp(whole(mostDrained(l))) <= 0
}

func (m *bucketModel) fresh(l limit, t int64) bool { return m.at(l, t).Sign() == 0 }

func (m *bucketModel) charge(l limit, t, n int64) int64 {
	n = min(n, mostDrained(l))
	fits, level := m.fits(l, t, n), m.at(l, t)
	if !fits {
		n = min(n, max(0, mostDrained(l)-down(level)))
	}
	m.level, m.time, m.limit = sum(level, whole(n)), t, l
	m.owing = !fits && m.level.Cmp(whole(l.burst)) >= 0
	return n
}

// refund gives back what is left of the level that c left behind, at most n. Of a queue
// it gives back only the tail. The level stays counted as it was. In another period, it
// gives back whole events.
func (m *bucketModel) refund(l limit, t int64, c charge, n int64) {
	if m.level == nil || t >= c.due || c.at > m.time || m.queue && !m.isTail(l, c) {
		return
	}
	back := smaller(whole(n), m.leftOf(l, t, c))
	if m.at(l, t).Cmp(back) <= 0 {
		m.level, m.owing = nil, false
		return
	}
	if m.limit.period != l.period {
		back = whole(down(back))
	}
	m.level = difference(cut(m.level, m.capacity(l), m.owing), back)
	m.owing = m.owing && m.level.Cmp(whole(1)) >= 0
}

// behind is the level that a charge left, as its ResetAfter tells. That is rounded up to a µs, and
// no level is above what a state holds.
func (c charge) behind(owing bool) *bucketModel {
	level := c.limit.flow(c.due - c.at)
	if down(level) > most {
		level = difference(whole(most+1), share(1, 1, c.limit.period))
	}
	return &bucketModel{level: level, time: c.at, limit: c.limit, owing: owing}
}

// overdrawn reports whether c left a level above the capacity.
func (c charge) overdrawn() bool {
	return c.limit.flow(c.due-c.at-1).Cmp(whole(c.limit.burst)) >= 0
}

// leftOf is what is left at t of the level that c left behind. No limit cuts one above
// the capacity. If others have been admitted since, there was room for an event.
func (m *bucketModel) leftOf(l limit, t int64, c charge) *big.Rat {
	behind := c.behind(c.overdrawn())
	if behind.owing && !m.owing {
		behind = &bucketModel{level: smaller(behind.at(l, m.time), whole(l.burst-1)), time: m.time, limit: l}
	}
	return behind.at(l, t)
}

// isTail reports whether nothing is queued behind the level that c left.
func (m *bucketModel) isTail(l limit, c charge) bool {
	return m.at(l, m.time).Cmp(c.behind(m.owing || c.overdrawn()).at(l, m.time)) <= 0
}

func (m *bucketModel) ended(t int64) bool {
	return m.level == nil || m.level.Cmp(m.limit.flow(t-m.time)) <= 0
}

func (m *bucketModel) delays() bool { return m.queue }

// windowStart is the start of the window of period that contains t, t after 1970.
func windowStart(t, period int64) int64 { return t - t%period }

// windowEnd is its end.
func windowEnd(t, period int64) int64 { return windowStart(t, period) + period }

// civil says on which dates windows begin, and in which zone. The zero one is none: windows
// are a period long.
type civil struct {
	unit string // day, week or month
	from int    // a time.Weekday or a day of the month
	zone string
}

// civilOf reads it from the text of l, such as "10/month from 31 in America/Sao_Paulo".
func civilOf(l ratelimit.Limit) civil {
	_, text, _ := strings.Cut(l.String(), "/")
	words := strings.Fields(text)
	c := civil{unit: words[0], from: 1, zone: "UTC"}
	if c.unit == "day" {
		c.from = 0
	}
	for i := 1; i+1 < len(words); i += 2 {
		switch words[i] {
		case "in":
			c.zone = words[i+1]
		case "from":
			c.from = weekday(words[i+1])
		}
	}
	if c.unit != "day" && c.unit != "week" && c.unit != "month" {
		return civil{}
	}
	return c
}

func weekday(text string) int {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if text == strings.ToLower(d.String()) {
			return int(d)
		}
	}
	n, _ := strconv.Atoi(text)
	return n
}

// date is a day, counted from 1970.
type date int64

// begins reports whether a window begins on d.
func (c civil) begins(d date) bool {
	t := time.Unix(int64(d)*24*3600, 0).UTC()
	switch c.unit {
	case "week":
		return int(t.Weekday()) == c.from
	case "month":
		return t.Day() == c.from || t.Day() < c.from && t.AddDate(0, 0, 1).Day() == 1
	}
	return true
}

// clockAt is what clocks of the zone show at t, in seconds, as if it were UTC.
func clockAt(zone *time.Location, t int64) int64 {
	at := time.Unix(t, 0).In(zone)
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	return time.Date(year, month, day, hour, minute, second, 0, time.UTC).Unix()
}

// midnight is the first instant, in Unix seconds, at which clocks of the zone show d or a later
// date. It goes in steps in which no clock is changed, of 6 hours or of a second.
func midnight(zone *time.Location, d date) int64 {
	want := int64(d) * 24 * 3600
	for t := want - 30*3600; ; {
		now, step := clockAt(zone, t), int64(1)
		for _, s := range []int64{6 * 3600, 3600, 60} {
			if clockAt(zone, t+s)-now == s {
				step = s
				break
			}
		}
		switch {
		case now >= want:
			return t
		case step > 1 && now+step >= want:
			return t + want - now
		}
		t += step
	}
}

// locations are those that have been loaded, by name.
var locations sync.Map

// location is the zone. It is known, since a limit has it.
func (c civil) location() *time.Location {
	if zone, found := locations.Load(c.zone); found {
		return zone.(*time.Location)
	}
	zone, err := time.LoadLocation(c.zone)
	if err != nil {
		panic(err)
	}
	locations.Store(c.zone, zone)
	return zone
}

// window is the window that contains t, all in Unix µs.
func (c civil) window(t int64) (start, end int64) {
	zone := c.location()
	seconds := time.UnixMicro(t).Unix()
	d := date(clockAt(zone, seconds)/(24*3600)) + 2 // clocks are set back by a day at most
	for !c.begins(d) || midnight(zone, d) > seconds {
		d--
	}
	start = midnight(zone, d)
	for !c.begins(d) || midnight(zone, d) <= seconds {
		d++
	}
	return start * 1e6, midnight(zone, d) * 1e6
}

// windowEnd is the end of the window of l that contains t.
func (l limit) windowEnd(t int64) int64 {
	if l.civil == (civil{}) {
		return windowEnd(t, l.period)
	}
	_, end := l.window(t)
	return end
}

// shortest is how long the shortest window of l is, in µs: clocks are set forward by an hour at
// most, but for a zone that moves across the date line.
func (l limit) shortest() int64 {
	const day = 24 * 3600e6
	switch l.unit {
	case "day", "week":
		return l.period - 3600e6
	case "month":
		return 28*day - 3600e6
	}
	return l.period
}
