package ratelimit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	day = 24 * time.Hour

	minPeriod = time.Millisecond
	maxPeriod = 10 * 365 * day // 10 years of 365 days

	maxLimitText = 128 // bytes; the longest canonical text has 47
	maxQuoted    = 48  // bytes of a refused text that an error repeats

	unlimited = "unlimited"
)

// Limit is how many events are admitted in how much time: Rate events per
// Period. Limits are comparable with ==. The zero Limit is not valid, since it
// has no Period.
//
// A Limit prints as the text that [ParseLimit] reads, such as "100/s" or
// "5/15m", and is written and read as that text by encoding/json, flag.TextVar
// and everything else that knows encoding.TextMarshaler. Ranges are checked
// where a limit is used, read or marshaled, with an error that wraps
// [ErrInvalidLimit].
type Limit struct {
	// Rate is the number of events per Period, 0 to 2^31-1; 0 denies everything. (That of
	// Unlimited is -1.)
	Rate int
	// Period is 1 ms to 10 years, a year being 365 days, and a whole number of
	// microseconds.
	Period time.Duration
	// Burst is the capacity of the token bucket and of the leaky bucket, in
	// events, 0 to 2^31-1; 0 means Rate. The window algorithms refuse a Burst
	// other than 0.
	Burst int
}

// PerSecond is a limit of n events per second, n from 0 to 2^31-1.
func PerSecond(n int) Limit { return Limit{Rate: n, Period: time.Second} }

// PerMinute is a limit of n events per minute, n from 0 to 2^31-1.
func PerMinute(n int) Limit { return Limit{Rate: n, Period: time.Minute} }

// PerHour is a limit of n events per hour, n from 0 to 2^31-1.
func PerHour(n int) Limit { return Limit{Rate: n, Period: time.Hour} }

// PerDay is a limit of n events per 24 hours, n from 0 to 2^31-1.
func PerDay(n int) Limit { return Limit{Rate: n, Period: day} }

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
//
// The grammar is
//
//	rate "/" [count] unit [ "burst" burst ]
//	rate "/" duration     [ "burst" burst ]
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
// One space may stand between two parts, as in "5 / 15 minutes", and must stand
// before and after the word burst. There is no other white space, and none at
// the ends. The text "unlimited" is [Unlimited]. A rate of 0 is a limit that denies
// everything. A burst of 0 is
// refused, since [Limit] takes it for the rate and a reader for no burst at all:
// leave it out.
//
// Nothing is rounded and nothing ignored. Any other text, one of more than 128
// bytes, and a limit outside the ranges of [Limit] give the zero Limit and an
// error that wraps [ErrInvalidLimit], quotes the beginning of the text and says
// what is wrong with it.
func ParseLimit(s string) (Limit, error) {
	l, err := parseLimit(s)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: %s: %w", ErrInvalidLimit, quote(s), err)
	}
	return l, nil
}

// String is the limit in its canonical form: "10/s", "5/15m", "5/1h30m", "5/2d",
// "10/s burst 20". A period of whole days is in days, any other as
// [time.Duration] prints it, without zeros at the end. [ParseLimit] reads the
// text of a valid limit back as the same limit. The text of any other shows the
// values in the same form, such as "-1/0s", and ParseLimit refuses it.
func (l Limit) String() string {
	if l == Unlimited() {
		return unlimited
	}
	text := strconv.Itoa(l.Rate) + "/" + formatPeriod(l.Period)
	if l.Burst != 0 {
		text += " burst " + strconv.Itoa(l.Burst)
	}
	return text
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

// Share is the part of l that each of n instances takes when they limit on their
// own, such as while they do not reach a store that they share: all together
// admit in the long run what l does. n is 1 and more. If n divides the Rate, a
// share has Rate/n; else it has the same Rate in a Period n times as long, so
// that nothing is rounded. A Burst is divided and rounded up, to at least 1.
//
// At one instant n shares admit Burst in sum, and up to n-1 events more where
// rounding up adds them. Without a Burst they admit Rate in sum if n divides it,
// and otherwise n·Rate, a whole Rate each: a limit for buckets is better given
// its Burst before it is shared.
//
// The errors wrap [ErrInvalidLimit]: l is not valid, n is below 1, or the share's
// Period is over 10 years.
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
	share := Limit{Rate: l.Rate / n, Period: l.Period, Burst: l.Burst / n}
	if l.Rate%n != 0 {
		if time.Duration(n) > maxPeriod/l.Period { // before the product, which could overflow
			return Limit{}, fmt.Errorf("%w: 1/%d of %v has a period over 10 years", ErrInvalidLimit, n, l)
		}
		share.Rate, share.Period = l.Rate, l.Period*time.Duration(n)
	}
	if l.Burst%n != 0 {
		share.Burst++
	}
	return share, nil
}

// Validate returns nil if l is [Unlimited] or within the ranges of [Limit], and an error
// that wraps [ErrInvalidLimit] if not. What an algorithm asks beyond that is checked by its
// constructor, and by [Limit.ValidateFor].
func (l Limit) Validate() error {
	if l == Unlimited() {
		return nil
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidLimit, err)
	}
	return nil
}

// ValidateFor returns nil if a limiter of that algorithm, one of [Algorithms], can keep l,
// and otherwise the error of its constructor: windows and logs have no Burst, and a bucket
// refills in at most 100 years. An unknown algorithm is [ErrInvalidOption].
func (l Limit) ValidateFor(algorithm string) error {
	for i := range makers {
		if a := makers[i].algorithm; a.rule.Name == algorithm {
			_, err := a.integers(l)
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
	return nil
}

// parseLimit is ParseLimit with the bare reason for an error.
func parseLimit(s string) (Limit, error) {
	if s == unlimited {
		return Unlimited(), nil
	}
	if len(s) > maxLimitText {
		return Limit{}, fmt.Errorf("%d bytes are more than %d", len(s), maxLimitText)
	}
	events, rest, found := strings.Cut(s, "/")
	if !found {
		return Limit{}, errors.New(`no "/" between rate and period`)
	}
	period, burst, hasBurst := strings.Cut(rest, " burst")

	var l Limit
	var err error
	if l.Rate, err = parseEvents("rate", strings.TrimSuffix(events, " ")); err != nil {
		return Limit{}, err
	}
	if l.Period, err = parsePeriod(strings.TrimPrefix(period, " ")); err != nil {
		return Limit{}, err
	}
	if hasBurst {
		if l.Burst, err = parseBurst(burst); err != nil {
			return Limit{}, err
		}
	}
	return l, l.check()
}

// parseEvents reads a number of events; what is its name in errors.
func parseEvents(what, digits string) (int, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s %s is over %d", what, quote(digits), maxEvents)
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s is not made of digits", what, quote(digits))
	}
	return int(n), nil
}

// parseBurst reads what follows the word burst.
func parseBurst(s string) (int, error) {
	digits, found := strings.CutPrefix(s, " ")
	if !found {
		return 0, errors.New("burst wants a space and a number after it")
	}
	n, err := parseEvents("burst", digits)
	if err == nil && n == 0 {
		return 0, errors.New("burst is 0: leave it out for a burst of the rate")
	}
	return n, err
}

// parsePeriod reads a unit, a count and a unit, or a duration.
func parsePeriod(s string) (time.Duration, error) {
	if unit := unitNamed(s); unit != 0 {
		return unit, nil
	}
	digits, name := cutDigits(s)
	unit := unitNamed(strings.TrimPrefix(name, " "))
	switch {
	case digits != "" && unit != 0:
		count, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || count > int64(maxPeriod/unit) { // before the product, which could overflow
			return 0, fmt.Errorf("period %s is over 10 years", quote(s))
		}
		return time.Duration(count) * unit, nil
	case digits != "" || strings.HasPrefix(s, "."):
		return parseDuration(s)
	}
	return 0, fmt.Errorf("unit %s is not ms, s, m, h, d or a word for one of them", quote(s))
}

// parseDuration is time.ParseDuration without its rounding.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("period %s is not a count and a unit, nor a duration of at most 10 years", quote(s))
	}
	if finerThanNanosecond(s) {
		return 0, fmt.Errorf("period %s is not a whole number of microseconds", quote(s))
	}
	return d, nil
}

// finerThanNanosecond reports whether a number in s has decimals below 1 ns,
// which time.ParseDuration has read and dropped.
func finerThanNanosecond(s string) bool {
	for _, tail := range strings.Split(s, ".")[1:] {
		decimals, rest := cutDigits(tail)
		if next := strings.IndexAny(rest, "0123456789"); next >= 0 {
			rest = rest[:next]
		}
		unit, _ := time.ParseDuration("1" + rest)
		for range strings.TrimRight(decimals, "0") {
			if unit%10 != 0 {
				return true
			}
			unit /= 10
		}
	}
	return false
}

// unitNamed is the length of a unit, and 0 for a name of none.
func unitNamed(name string) time.Duration {
	switch name {
	case "ms", "millisecond", "milliseconds":
		return time.Millisecond
	case "s", "second", "seconds", "sec", "secs":
		return time.Second
	case "m", "minute", "minutes", "min", "mins":
		return time.Minute
	case "h", "hour", "hours", "hr", "hrs":
		return time.Hour
	case "d", "day", "days":
		return day
	}
	return 0
}

// formatPeriod is a period as String shows it: in days if it is whole days,
// otherwise as package time has it, less the zero minutes and seconds at the
// end; and a single unit goes without its 1.
func formatPeriod(d time.Duration) string {
	text := d.String()
	if d != 0 && d%day == 0 {
		text = strconv.FormatInt(int64(d/day), 10) + "d"
	}
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	if unit, found := strings.CutPrefix(text, "1"); found && unitNamed(unit) != 0 {
		return unit
	}
	return text
}

// cutDigits cuts s after the decimal digits that it begins with.
func cutDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

// quote is s as a Go string, cut short if it is long.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "..."
	}
	return strconv.Quote(s)
}
