package store

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Unit is the length of the windows of a [Calendar].
type Unit uint8

// The units of calendars.
const (
	Day Unit = 1 + iota
	Week
	Month
)

// String returns "day", "week" or "month".
func (u Unit) String() string {
	if u < Day || u > Month {
		return "unit(" + strconv.Itoa(int(u)) + ")"
	}
	return [...]string{"day", "week", "month"}[u-Day]
}

// Period returns the longest civil time of the unit, in µs: 24 hours, 7 days or 31 days. It is the
// Period of limits that count in it. A window can be shorter or longer, because months differ and
// clocks are changed.
func (u Unit) Period() int64 {
	const day = 24 * 3600 * 1e6
	switch u {
	case Day:
		return day
	case Week:
		return 7 * day
	case Month:
		return 31 * day
	}
	return 0
}

// Calendar defines when the windows of a limit begin, in a time zone: each day, each week on one
// day of the week, or each month on one day of the month. In a month without that day, they begin
// on its last day.
//
// A window begins at the first instant of its date: at midnight, or later if the clocks skip
// midnight. If they skip the whole date, the previous window continues.
//
// Use [NewCalendar] to create one. Valid Calendars can be compared with ==. A Calendar is safe for
// concurrent use.
type Calendar struct {
	unit   Unit
	from   int
	name   string // of the zone
	zone   *time.Location
	number int64 // from 1; 0 if it is not valid
	err    error

	last atomic.Pointer[[6]int64] // the most recently used edges
}

// perZone is the number of calendars of a zone: 1 of days, 7 of weeks and 31 of months.
const perZone = 1 + 7 + 31

// slot returns the index of a valid calendar among those of its zone.
func slot(unit Unit, from int) int {
	switch unit {
	case Day:
		return 0
	case Week:
		return 1 + from
	}
	return 7 + from
}

// timeZone is a zone, loaded once for all of its calendars.
type timeZone struct {
	name      string
	location  *time.Location
	first     int64 // the number of its first calendar
	calendars [perZone]atomic.Pointer[Calendar]
}

// registry has the zones that are in use. There are about 600 names of zones.
type registry struct {
	byName map[string]*timeZone
	list   []*timeZone
}

var (
	registering sync.Mutex               // held to change registered
	registered  atomic.Pointer[registry] // never changed in place
)

// NewCalendar returns the calendar of a unit in a time zone. Windows begin on the day from, which
// is 0 for days, a [time.Weekday] for weeks, and 1 to 31 for months. As in [time.LoadLocation],
// zone is a name of the IANA time zone database, such as "UTC" or "Europe/Berlin". "Local",
// "localtime" and "posixrules" are not allowed, because they differ between machines. Neither are
// "Factory" and names that begin with "posix/" or "right/".
//
// Equal arguments return the same Calendar. If an argument is invalid, so is the Calendar: see
// [Calendar.Err].
func NewCalendar(unit Unit, from int, zone string) *Calendar {
	var z *timeZone
	err := checkDay(unit, from)
	if err == nil {
		z, err = zoneOf(zone)
	}
	if err != nil {
		return &Calendar{unit: unit, from: from, name: zone, err: err}
	}
	n := slot(unit, from)
	if c := z.calendars[n].Load(); c != nil {
		return c
	}
	z.calendars[n].CompareAndSwap(nil, &Calendar{unit: unit, from: from, name: z.name, zone: z.location, number: z.first + int64(n)})
	return z.calendars[n].Load()
}

func checkDay(unit Unit, from int) error {
	switch {
	case unit == Day && from != 0:
		return errors.New("a calendar day begins at midnight: use From only with PerWeek or PerMonth")
	case unit == Week && (from < 0 || from > 6):
		return fmt.Errorf("day %d of the week is out of range: want 0 (Sunday) to 6", from)
	case unit == Month && (from < 1 || from > 31):
		return fmt.Errorf("day %d of the month is out of range: want 1 to 31", from)
	case unit < Day || unit > Month:
		return errors.New("only limits per day, week or month can count by calendar")
	}
	return nil
}

// zoneOf returns the zone with that name, and loads it at its first use. Copying the registry costs
// quadratic time in the number of names, which is small. The cost of a lookup does not grow.
func zoneOf(name string) (*timeZone, error) {
	if z := registered.Load().find(name); z != nil {
		return z, nil
	}
	if err := checkZone(name); err != nil {
		return nil, err
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("zone %q is unknown on this machine: %w", name, err)
	}
	registering.Lock()
	defer registering.Unlock()
	old := registered.Load()
	if z := old.find(name); z != nil {
		return z, nil
	}
	next := &registry{byName: map[string]*timeZone{}}
	if old != nil {
		next.byName, next.list = maps.Clone(old.byName), old.list
	}
	z := &timeZone{name: strings.Clone(name), location: location, first: 1 + perZone*int64(len(next.list))} // name may be part of a long text
	next.byName[z.name], next.list = z, append(next.list, z)
	registered.Store(next)
	return z, nil
}

func (r *registry) find(name string) *timeZone {
	if r == nil {
		return nil
	}
	return r.byName[name]
}

// checkZone rejects the names of files that are stored along with the database, but can mean another
// zone on each machine of a service, or none. Some file systems do not distinguish upper from lower
// case.
func checkZone(name string) error {
	if name == "" {
		return errors.New(`the time zone is nil or has no name: use one such as "UTC" or "Europe/Berlin"`)
	}
	if !zoneName(name) {
		return fmt.Errorf("zone %.48q is not a name of the time zone database", name)
	}
	first, _, _ := strings.Cut(name, "/")
	switch strings.ToLower(first) {
	case "local", "localtime", "posixrules":
		return fmt.Errorf("zone %q differs between machines: use a name such as Europe/Berlin", name)
	case "factory", "posix", "right": // Factory is for machines that are not set up; the others have variants of all zones
		return fmt.Errorf("zone %q is not a zone of the time zone database", name)
	}
	return nil
}

// zoneName reports whether each part of name could be a part of a name in the database, so that
// each file has only one name, apart from upper and lower case.
func zoneName(name string) bool {
	const signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-"
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.Trim(part, signs) != "" {
			return false
		}
	}
	return len(name) <= 64
}

// Err returns why c is not valid, or nil if it is.
func (c *Calendar) Err() error { return c.err }

// Unit returns the unit.
func (c *Calendar) Unit() Unit { return c.unit }

// From returns the day on which windows begin, as in [NewCalendar].
func (c *Calendar) From() int { return c.from }

// Zone returns the name of the time zone.
func (c *Calendar) Zone() string { return c.name }

// String returns the calendar in short, such as "month from 31 in America/Sao_Paulo". It contains
// "in UTC" only for days, and "from" only for weeks that do not begin on Monday and months that do
// not begin on the 1st.
func (c *Calendar) String() string {
	text := c.unit.String()
	switch {
	case c.unit == Week && c.from != int(time.Monday):
		text += " from " + strings.ToLower(time.Weekday(c.from).String())
	case c.unit != Week && c.from != c.unit.first():
		text += " from " + strconv.Itoa(c.from)
	}
	if c.unit == Day || c.name != "UTC" {
		text += " in " + c.name
	}
	return text
}

// first returns the from of calendars whose text has no "from".
func (u Unit) first() int {
	if u == Day {
		return 0
	}
	return 1 // Monday, or the 1st
}

// In returns l, a limit of a window algorithm, with the windows of c, which must be valid.
func (c *Calendar) In(l Limit) Limit {
	l.Period, l.extra = c.unit.Period(), -c.number
	return l
}

// Calendar returns the calendar of l, or nil if its windows have the length of its Period.
func (l Limit) Calendar() *Calendar {
	if l.extra >= 0 {
		return nil
	}
	return numbered(-1 - l.extra)
}

// numbered returns the calendar with the number n+1.
func numbered(n int64) *Calendar {
	return registered.Load().list[n/perZone].calendars[n%perZone].Load()
}

// Window returns the window of l that contains t, both in Unix µs: see [Calendar.Window].
func (l Limit) Window(t int64) (start, end int64) {
	if c := l.Calendar(); c != nil {
		return c.Window(t)
	}
	start = floorDiv(t, l.Period) * l.Period
	return start, start + l.Period
}

// Window returns the start and the end of the window that contains t. The end is the start of the
// next window. All three are in Unix µs. Window allocates only when t is far from the previous one.
func (c *Calendar) Window(t int64) (start, end int64) {
	seconds := floorDiv(t, 1e6)
	edges := c.last.Load()
	if edges == nil || seconds < edges[0] || seconds >= edges[5] {
		edges = c.edgesAround(seconds)
	}
	i := 1
	for edges[i] <= seconds {
		i++
	}
	return edges[i-1] * 1e6, edges[i] * 1e6
}

// Edges returns the edges of windows around t, which is in Unix µs. The edges are in Unix seconds:
// three up to t, of which the last is the start of its window, and three after t. It is for stores
// that decide by a clock other than the caller's.
func (c *Calendar) Edges(t int64) [6]int64 {
	seconds := floorDiv(t, 1e6)
	edges := c.last.Load()
	if edges == nil || seconds < edges[2] || seconds >= edges[3] {
		edges = c.edgesAround(seconds)
	}
	return *edges
}

// edgesAround computes the edges around t, in Unix seconds, and remembers them.
func (c *Calendar) edgesAround(t int64) *[6]int64 {
	edges := &[6]int64{3: math.MinInt64, 4: math.MinInt64, 5: math.MinInt64}
	// The first edge is that of two windows before. The loop begins two windows before that, because the index may be one
	// too high, and a date that is skipped has the edge of the next one.
	for n := c.index(t) - 4; edges[3] <= t; n++ {
		if edge := c.edge(n); edge > edges[5] {
			copy(edges[:], edges[1:])
			edges[5] = edge
		}
	}
	c.last.Store(edges)
	return edges
}

const secondsPerDay = 24 * 3600

// index returns the number of the window of t, or of one next to it.
func (c *Calendar) index(t int64) int64 {
	switch c.unit {
	case Day:
		return floorDiv(t, secondsPerDay)
	case Week:
		return floorDiv(t, 7*secondsPerDay)
	}
	year, month, _ := time.Unix(t, 0).UTC().Date()
	return int64(year)*12 + int64(month)
}

// date returns the midnight at which the date of window n begins, in the seconds that a clock in
// the zone shows. Days and weeks are counted from 1970, and months from the year 0.
func (c *Calendar) date(n int64) int64 {
	switch c.unit {
	case Day:
		return n * secondsPerDay
	case Week:
		return (n*7 + int64(c.from-int(time.Thursday))) * secondsPerDay
	}
	last := time.Date(0, time.Month(n+1), 0, 0, 0, 0, 0, time.UTC)
	return last.Unix() - int64(max(0, last.Day()-c.from))*secondsPerDay
}

// edge returns the first instant at which the zone's date is that of window n or later, in Unix
// seconds. It begins 25 hours before, because no clock differs from UTC by more than a day, and
// then looks at one period with a constant offset after the other.
func (c *Calendar) edge(n int64) int64 {
	date := c.date(n)
	for t := date - 25*3600; ; {
		at := time.Unix(t, 0).In(c.zone)
		_, offset := at.Zone()
		_, bound := at.ZoneBounds()
		end := bound.Unix()
		if end <= t { // a bug of Go 1.26 on 31 December of leap years
			end = t + 3600
		}
		t = max(t, date-int64(offset))
		if bound.IsZero() || t < end {
			return t
		}
		t = end
	}
}

// floorDiv returns a / b, rounded down. b is above 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
