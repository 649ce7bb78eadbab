package ratelimit

import (
	"errors"
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

// Limit is how many events are admitted in how much time: Rate events per Period. Limits
// are comparable with ==. The zero Limit is not valid, since it has no Period.
//
// A Limit prints as the text that [ParseLimit] reads, such as "100/s" or "5/15m". So do
// encoding/json, flag.TextVar and everything else that knows encoding.TextMarshaler. What copies
// the exported fields instead, such as encoding/gob, loses a calendar ([Limit.In]). Ranges
// are checked where a limit is used, read or marshaled. The error wraps [ErrInvalidLimit].
type Limit struct {
	// Rate is the number of events per Period, 0 to 2^31-1; 0 denies everything. (That of
	// Unlimited is -1.)
	Rate int
	// Period is 1 ms to 10 years, a year being 365 days, and a whole number of
	// microseconds. That of a calendar is 24 hours for a day, 7 days for a week and 31 days
	// for a month, and must stay so.
	Period time.Duration
	// Burst is the capacity of the token bucket and of the leaky bucket, in
	// events, 0 to 2^31-1; 0 means Rate. The window algorithms refuse a Burst
	// other than 0.
	Burst int

	calendar *store.Calendar // nil if windows are a Period long; equal ones are one, for ==
}

// PerSecond is a limit of n events per second, n from 0 to 2^31-1.
func PerSecond(n int) Limit { return Limit{Rate: n, Period: time.Second} }

// PerMinute is a limit of n events per minute, n from 0 to 2^31-1.
func PerMinute(n int) Limit { return Limit{Rate: n, Period: time.Minute} }

// PerHour is a limit of n events per hour, n from 0 to 2^31-1.
func PerHour(n int) Limit { return Limit{Rate: n, Period: time.Hour} }

// PerDay is a limit of n events per 24 hours, n from 0 to 2^31-1.
func PerDay(n int) Limit { return Limit{Rate: n, Period: day} }

// PerWeek is a limit of n events per calendar week from Monday, n from 0 to 2^31-1, in UTC: see
// [Limit.In] and [Limit.From]. Of the algorithms only [FixedWindow] has calendars.
func PerWeek(n int) Limit { return perUnit(n, store.Week) }

// PerMonth is a limit of n events per calendar month from the 1st, n from 0 to 2^31-1, in UTC:
// see [Limit.In] and [Limit.From]. Of the algorithms only [FixedWindow] has calendars.
func PerMonth(n int) Limit { return perUnit(n, store.Month) }

func perUnit(n int, unit store.Unit) Limit {
	return Limit{Rate: n}.by(store.NewCalendar(unit, 1, "UTC"))
}

// In returns l with windows that begin at midnight in loc. l is [PerMonth], [PerWeek] or, for
// calendar days, [PerDay]: PerDay(100) counts days in UTC, and PerDay(100).In(loc) those of loc,
// which may have 23 or 25 hours. Unlimited stays as it is.
//
// loc stands for its name in the IANA time zone database, such as "Europe/Berlin", as
// [time.LoadLocation] takes it. The zone's data is that of the system. Import time/tzdata where
// the system may have none. A nil loc, a zone without such a name, one that is unknown,
// time.Local and "localtime", which differ between machines, and limits of other Periods give a
// Limit that is not valid.
func (l Limit) In(loc *time.Location) Limit {
	unit, from := l.unit()
	switch {
	case l == Unlimited():
		return l
	case loc == nil: // its name would be UTC
		return l.by(store.NewCalendar(unit, from, ""))
	case loc == time.Local:
		return l.by(store.NewCalendar(unit, from, "Local"))
	}
	return l.by(store.NewCalendar(unit, from, loc.String()))
}

// From returns l with windows that begin on another day: for [PerMonth] from 1 to 31, and for
// [PerWeek] a [time.Weekday]. A month without that day has its window begin on its last day. So
// PerMonth(n).From(31) counts from the last day of each month. Unlimited stays as it is. Another
// day, and other limits, give a Limit that is not valid.
func (l Limit) From(day int) Limit {
	unit, _ := l.unit()
	switch {
	case l == Unlimited():
		return l
	case unit == store.Day && day == 0:
		day = -1 // it has no such day, nor this one
	}
	return l.by(store.NewCalendar(unit, day, l.zone()))
}

// by returns l by the calendar c, unless l has one that is not valid.
func (l Limit) by(c *store.Calendar) Limit {
	if l.calendar != nil && l.calendar.Err() != nil {
		return l
	}
	if l.calendar = c; c.Err() == nil {
		l.Period = time.Duration(c.Unit().Period()) * time.Microsecond
	}
	return l
}

// unit is that of l's windows, 0 if they are of no calendar, and the day on which they begin.
func (l Limit) unit() (store.Unit, int) {
	switch {
	case l.calendar != nil:
		return l.calendar.Unit(), l.calendar.From()
	case l.Period == day:
		return store.Day, 0
	}
	return 0, 0
}

// zone is the name of the time zone of l's windows.
func (l Limit) zone() string {
	if l.calendar == nil {
		return "UTC"
	}
	return l.calendar.Zone()
}

// Unlimited is a limit that admits everything, without asking the store. Its text is
// "unlimited". It is the one Limit with a Rate below 0.
func Unlimited() Limit { return Limit{Rate: -1} }

// Every is a limit of one event per d, d from 1 ms to 10 years and a whole
// number of microseconds.
func Every(d time.Duration) Limit { return Limit{Rate: 1, Period: d} }

// ParseLimit reads a limit from a text like those of configuration files:
//
//	100/s                  100 events per second
//	5/15m                  5 per 15 minutes
//	1000/day               1000 per 24 hours
//	10/second burst 20     10 per second, buckets hold 20
//	5/1h30m                5 per one and a half hours
//	10000/month            10000 per calendar month
//	10000/month from 31 in America/Sao_Paulo
//	500/week from sunday   500 per calendar week
//	100/day in Asia/Kolkata
//
// The grammar is
//
//	rate "/" [count] unit [ "burst" burst ]
//	rate "/" duration     [ "burst" burst ]
//	rate "/" calendar     [ "from" day ] [ "in" zone ]
//
// where rate, count and burst are plain decimal digits, unit is one of
//
//	ms  millisecond  milliseconds
//	s   second  seconds  sec  secs
//	m   minute  minutes  min  mins
//	h   hour  hours  hr  hrs
//	d   day  days
//
// and duration is a text of [time.ParseDuration] without a sign. All is lower
// case, as in package time.
//
// A calendar is week or month ([PerWeek], [PerMonth]) or, with a zone, day ([PerDay] and
// [Limit.In]). Its day is sunday to saturday or 1 to 31 ([Limit.From]), and its zone one of the
// time zone database, such as Europe/Berlin. Plurals and a count of 1 are read too.
//
// One space may stand between two parts, as in "5 / 15 minutes". One must stand before and
// after the words burst, from and in. There is no other white space, and none at the ends. The text
// "unlimited" is [Unlimited]. A rate of 0 is a limit that denies everything. A burst of 0 is
// refused: [Limit] takes it for the rate, and a reader for no burst at all.
//
// Nothing is rounded and nothing ignored. Any other text gives the zero Limit and an error.
// So does one of more than 128 bytes, or a limit outside the ranges of [Limit]. The error
// wraps [ErrInvalidLimit], quotes the beginning of the text and says what is wrong.
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

// String is the limit in its canonical form: "10/s", "5/15m", "5/1h30m", "5/2d",
// "10/s burst 20". A period of whole days is in days, any other as
// [time.Duration] prints it, without zeros at the end. A calendar is told without "from 1",
// "from monday" and "in UTC", but for "100/day in UTC". [ParseLimit] reads the
// text of a valid limit back as the same limit. The text of any other shows the
// values in the same form, such as "-1/0s", and ParseLimit refuses it.
func (l Limit) String() string {
	if l == Unlimited() {
		return unlimited
	}
	return limittext.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst, Calendar: l.calendar}.String()
}

// MarshalText is String for a valid limit, and an error that wraps
// [ErrInvalidLimit] for any other. The zero Limit is not valid: a field that may
// be unset wants the JSON option omitzero.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText is [ParseLimit]. On an error it leaves l as it was.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// Share is the part of l for each of n instances, 1 and more, that limit on their own. They
// may do so while their shared store cannot be reached. In the long run all together admit
// no more than l does.
//
// With a Burst the rate is divided exactly: a share has Rate/n, or the same Rate in a Period n
// times as long. The Burst is divided and rounded up, to at least 1, so that n shares may
// admit up to n-1 events more at one instant. Without a Burst a share has Rate/n, rounded
// down. If the Rate is below n, it is one event in n/Rate Periods, rounded up, so that n
// shares may admit n events at one instant.
//
// The errors wrap [ErrInvalidLimit]: l is not valid, n is below 1, the share's Period is
// over 10 years, or l has a calendar and a Rate below n. There are no calendars of several
// months.
func (l Limit) Share(n int) (Limit, error) {
	if n < 1 {
		return Limit{}, fmt.Errorf("%w: 1/%d of %v", ErrInvalidLimit, n, l)
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
		return Limit{}, fmt.Errorf("%w: 1/%d of %v is less than an event", ErrInvalidLimit, n, l)
	case l.Burst > 0 && l.Rate%n != 0:
		share.Rate, times = l.Rate, n
	case l.Rate > 0 && share.Rate == 0:
		share.Rate, times = 1, 1+(n-1)/l.Rate
	}
	if time.Duration(times) > maxPeriod/l.Period { // before the product, which could overflow
		return Limit{}, fmt.Errorf("%w: 1/%d of %v has a period over 10 years", ErrInvalidLimit, n, l)
	}
	share.Period *= time.Duration(times)
	if l.Burst%n != 0 {
		share.Burst++
	}
	return share, nil
}

// Validate returns nil if l is [Unlimited] or within the ranges of [Limit]. Otherwise the error
// wraps [ErrInvalidLimit]. An algorithm may ask for more: see [Limit.ValidateFor].
func (l Limit) Validate() error {
	if l == Unlimited() {
		return nil
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidLimit, err)
	}
	return nil
}

// ValidateFor returns nil if a limiter of that algorithm, one of [Algorithms], can keep l.
// Otherwise it returns the error of the algorithm's constructor: windows and logs have no
// Burst, and a bucket refills in at most 100 years. An unknown algorithm is
// [ErrInvalidOption].
func (l Limit) ValidateFor(algorithm string) error {
	for i := range makers {
		if rule := makers[i].rule; rule.Name == algorithm {
			_, err := integers(rule, l)
			return err
		}
	}
	return errNoAlgorithm(algorithm)
}

// check is Validate of a limit that is not Unlimited, without the prefix.
func (l Limit) check() error {
	switch {
	case l.Rate < 0 || l.Rate > maxEvents:
		return fmt.Errorf("rate %d is not from 0 to %d", l.Rate, maxEvents)
	case l.Period < minPeriod || l.Period > maxPeriod:
		return fmt.Errorf("period %v is not from 1ms to 10 years", l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("period %v is not a whole number of microseconds", l.Period)
	case l.Burst < 0 || l.Burst > maxEvents:
		return fmt.Errorf("burst %d is not from 0 to %d", l.Burst, maxEvents)
	}
	return l.checkCalendar()
}

// checkCalendar is the part of check that few limits need.
func (l Limit) checkCalendar() error {
	switch c := l.calendar; {
	case c == nil:
	case c.Err() != nil:
		return c.Err()
	case l.Period.Microseconds() != c.Unit().Period():
		return fmt.Errorf("period %v is not that of a calendar %v", l.Period, c.Unit())
	case l.Burst != 0:
		return errors.New("a calendar has no burst")
	}
	return nil
}
