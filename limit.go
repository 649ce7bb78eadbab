package ratelimit

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limittext"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	day = 24 * time.Hour

	minPeriod = time.Millisecond
	maxPeriod = limittext.MaxPeriod

	unlimited = "unlimited"
)

// Limit is Rate events per Period. Limits can be compared with ==. The ranges of the fields are checked
// when a limit is used, parsed or marshaled ([ErrInvalidLimit]). The zero Limit is invalid.
//
// A Limit is printed, and marshaled to JSON, as the text that [ParseLimit] reads. encoding/gob loses a
// calendar.
type Limit struct {
	Rate int // events per Period, 0 to 2^31-1; 0 denies everything, and [Unlimited] has its own
	// Period is 1 ms to 10 years of 365 days, in whole microseconds. A calendar sets the Period, which
	// you must not change.
	Period time.Duration
	Burst  int // capacity of a bucket in events, 0 to 2^31-1; 0 means Rate

	calendar *store.Calendar // nil if windows are a Period long; equal calendars share a pointer, so that == works
}

// PerSecond returns a limit of n events per second.
func PerSecond(n int) Limit { return Limit{Rate: n, Period: time.Second} }

// PerMinute returns a limit of n events per minute.
func PerMinute(n int) Limit { return Limit{Rate: n, Period: time.Minute} }

// PerHour returns a limit of n events per hour.
func PerHour(n int) Limit { return Limit{Rate: n, Period: time.Hour} }

// PerDay returns a limit of n events per 24 hours.
func PerDay(n int) Limit { return Limit{Rate: n, Period: day} }

// PerWeek returns a limit of n events per calendar week, for a [FixedWindow]. The week starts on Monday,
// in UTC.
func PerWeek(n int) Limit { return perUnit(n, store.Week) }

// PerMonth returns a limit of n events per calendar month, for a [FixedWindow]. The month starts on the
// 1st, in UTC.
func PerMonth(n int) Limit { return perUnit(n, store.Month) }

func perUnit(n int, unit store.Unit) Limit {
	return Limit{Rate: n}.by(store.NewCalendar(unit, 1, "UTC"))
}

// In returns l with windows that start at midnight in loc. l must be a [PerDay], [PerWeek] or
// [PerMonth], and loc a time zone of the IANA database other than [time.Local]. Otherwise the returned
// Limit is invalid. Import time/tzdata if the system may have no time zone database.
func (l Limit) In(loc *time.Location) Limit {
	unit, from := l.unit()
	switch {
	case l == Unlimited():
		return l
	case loc == nil: // loc.String would return UTC
		return l.by(store.NewCalendar(unit, from, ""))
	case loc == time.Local:
		return l.by(store.NewCalendar(unit, from, "Local"))
	}
	return l.by(store.NewCalendar(unit, from, loc.String()))
}

// From returns l with windows that start on another day. For [PerMonth] the day is 1 to 31, or the last
// day of a shorter month. For [PerWeek] it is a [time.Weekday]. Otherwise the returned Limit is invalid.
func (l Limit) From(day int) Limit {
	unit, _ := l.unit()
	switch {
	case l == Unlimited():
		return l
	case unit == store.Day && day == 0:
		day = -1 // invalid, as any day is here; 0 would be valid
	}
	return l.by(store.NewCalendar(unit, day, l.zone()))
}

// by returns l counted by the calendar c. If l already has an invalid calendar, by returns l.
func (l Limit) by(c *store.Calendar) Limit {
	if l.calendar != nil && l.calendar.Err() != nil {
		return l
	}
	if l.calendar = c; c.Err() == nil {
		l.Period = time.Duration(c.Unit().Period()) * time.Microsecond
	}
	return l
}

// unit returns the unit of l's windows and the day on which they begin. The unit is 0 if l does not
// count by calendar.
func (l Limit) unit() (store.Unit, int) {
	switch {
	case l.calendar != nil:
		return l.calendar.Unit(), l.calendar.From()
	case l.Period == day:
		return store.Day, 0
	}
	return 0, 0
}

// zone returns the name of the time zone of l's windows.
func (l Limit) zone() string {
	if l.calendar == nil {
		return "UTC"
	}
	return l.calendar.Zone()
}

// Unlimited returns a limit that admits everything without asking the store, so nothing is counted. Its
// Rate is -1.
func Unlimited() Limit { return Limit{Rate: -1} }

// Every returns a limit of one event per d.
func Every(d time.Duration) Limit { return Limit{Rate: 1, Period: d} }

// ParseLimit parses a limit such as:
//
//	100/s    5/15m    5/1h30m    1000/day    10/second burst 20    unlimited
//	10000/month from 31 in America/Sao_Paulo
//	500/week from sunday    100/day in Asia/Kolkata
//
// The units are ms, s, m, h and d, or their names, and durations as in [time.ParseDuration]. The calendar
// units are week, month and, with a time zone, day. See [the grammar]. For any other text, ParseLimit
// returns [ErrInvalidLimit].
//
// [the grammar]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/config.md#limits-as-text
func ParseLimit(s string) (Limit, error) {
	if s == unlimited {
		return Unlimited(), nil
	}
	text, err := limittext.Parse(s)
	l := Limit{text.Rate, text.Period, text.Burst, text.Calendar}
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %s: %w", ErrInvalidLimit, limittext.Quote(s), err)
	}
	return l, nil
}

// String returns the limit as text, which [ParseLimit] parses.
func (l Limit) String() string {
	if l == Unlimited() {
		return unlimited
	}
	return limittext.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst, Calendar: l.calendar}.String()
}

// MarshalText returns the text of String, or [ErrInvalidLimit]. Use omitzero for a field that may be unset.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText sets l to the limit that [ParseLimit] returns.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// Share returns the part of l for each of n instances that count on their own. In the long run, all
// instances together admit no more than l does.
//
// If l has a Burst, Share divides the rate exactly and rounds the Burst up, so at one instant n
// shares may admit n-1 events more. Without a Burst, Share rounds the Rate down. If l has fewer than n
// events per Period, a share is one event in n/Rate Periods, so n shares may admit n events at one
// instant. Share returns [ErrInvalidLimit] if there is no such limit, or if
// n is below 1.
func (l Limit) Share(n int) (Limit, error) {
	if n < 1 {
		return Limit{}, fmt.Errorf("%w: %d instances share %v, want 1 or more", ErrInvalidLimit, n, l)
	}
	if l == Unlimited() {
		return l, nil
	}
	if err := l.Validate(); err != nil {
		return Limit{}, err
	}
	share, times := l, 1
	share.Rate, share.Burst = l.Rate/n, l.Burst/n
	switch {
	case l.calendar != nil && l.Rate > 0 && share.Rate == 0:
		return Limit{}, fmt.Errorf("%w: a share of 1/%d of %v is less than one event", ErrInvalidLimit, n, l)
	case l.Burst > 0 && l.Rate%n != 0:
		share.Rate, times = l.Rate, n
	case l.Rate > 0 && share.Rate == 0:
		share.Rate, times = 1, 1+(n-1)/l.Rate
	}
	if time.Duration(times) > maxPeriod/l.Period { // before the product, which could overflow
		return Limit{}, fmt.Errorf("%w: a share of 1/%d of %v needs a period of more than 10 years", ErrInvalidLimit, n, l)
	}
	share.Period *= time.Duration(times)
	if l.Burst%n != 0 {
		share.Burst++
	}
	return share, nil
}

// Validate returns an [ErrInvalidLimit] unless l is [Unlimited] or within the ranges of [Limit].
func (l Limit) Validate() error {
	if l == Unlimited() {
		return nil
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidLimit, err)
	}
	return nil
}

// ValidateFor returns the error that the algorithm's constructor would return for l. It returns
// [ErrInvalidOption] if the algorithm is unknown.
func (l Limit) ValidateFor(algorithm string) error {
	k, err := kindOf(algorithm)
	if err == nil {
		_, err = integers(k.rule, l)
	}
	return err
}

// Algorithms returns the names, for [New], of the algorithms that can enforce l.
func (l Limit) Algorithms() []string {
	var names []string
	for _, k := range kinds {
		if _, err := integers(k.rule, l); err == nil {
			names = append(names, k.rule.Name)
		}
	}
	return names
}

// check validates a limit that is not Unlimited. Its error has no prefix.
func (l Limit) check() error {
	switch {
	case l.Rate < 0 || l.Rate > maxEvents:
		return fmt.Errorf("rate %d is out of range: want 0 to %d", l.Rate, maxEvents)
	case l.Period < minPeriod || l.Period > maxPeriod:
		return fmt.Errorf("period %v is out of range: want 1ms to 10 years", l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("period %v is not a whole number of microseconds", l.Period)
	case l.Burst < 0 || l.Burst > maxEvents:
		return fmt.Errorf("burst %d is out of range: want 0 to %d", l.Burst, maxEvents)
	}
	return l.checkCalendar()
}

// checkCalendar does the part of check that few limits need.
func (l Limit) checkCalendar() error {
	switch c := l.calendar; {
	case c == nil:
	case c.Err() != nil:
		return c.Err()
	case l.Period.Microseconds() != c.Unit().Period():
		return fmt.Errorf("period %v does not match the calendar %v: do not set Period", l.Period, c.Unit())
	case l.Burst != 0:
		return fmt.Errorf("a calendar limit cannot have a burst: remove the burst of %d", l.Burst)
	}
	return nil
}
