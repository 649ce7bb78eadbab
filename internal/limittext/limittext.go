// Package limittext parses and formats limits as text, in the grammar of ratelimit.ParseLimit.
package limittext

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	day = 24 * time.Hour

	// MaxPeriod is 10 years of 365 days.
	MaxPeriod = 10 * 365 * day

	maxText   = 128 // bytes; the longest canonical text has 60
	maxQuoted = 48  // bytes of an invalid text that an error repeats
)

// Limit is a limit as it is written in a text.
type Limit struct {
	Rate     int
	Period   time.Duration
	Burst    int
	Calendar *store.Calendar // nil if windows have the length of Period
}

// Parse parses a limit other than "unlimited". It refuses any text that it cannot represent
// exactly, and leaves checking the ranges to the caller. Its error is only the reason.
func Parse(s string) (l Limit, err error) {
	if len(s) > maxText {
		return l, fmt.Errorf("the text has %d bytes, more than %d", len(s), maxText)
	}
	events, rest, found := strings.Cut(s, "/")
	if !found {
		return l, errors.New(`no "/" between rate and period`)
	}
	periodText, burstText, hasBurst := strings.Cut(rest, " burst")
	if l.Rate, err = parseEvents("rate", strings.TrimSuffix(events, " ")); err != nil {
		return l, err
	}
	if l.Period, l.Calendar, err = parsePeriod(strings.TrimPrefix(periodText, " ")); err != nil {
		return l, err
	}
	if hasBurst {
		l.Burst, err = parseBurst(burstText)
	}
	return l, err
}

// String returns l in its canonical form.
func (l Limit) String() string {
	text := strconv.Itoa(l.Rate) + "/"
	switch {
	case l.Calendar == nil:
		text += formatPeriod(l.Period)
	case l.Calendar.Unit() == 0 || l.Period.Microseconds() != l.Calendar.Unit().Period(): // l is not valid
		text += formatPeriod(l.Period) + " from " + strconv.Itoa(l.Calendar.From()) + " in " + l.Calendar.Zone()
	default:
		text += l.Calendar.String()
	}
	if l.Burst != 0 {
		text += " burst " + strconv.Itoa(l.Burst)
	}
	return text
}

// Period returns the part of a canonical text that describes the period, such as "15m", or "month
// from 15". It returns the whole text if the text has no such part.
func Period(text string) string {
	if _, period, found := strings.Cut(text, "/"); found {
		text, _, _ = strings.Cut(period, " burst")
	}
	return text
}

// parseEvents parses a number of events. what is the name of the number in errors.
func parseEvents(what, digits string) (int, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s %s is too large: want at most %d", what, Quote(digits), math.MaxInt32)
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s is not a whole number: want digits only", what, Quote(digits))
	}
	return int(n), nil
}

// parseBurst parses the text after the word burst.
func parseBurst(s string) (int, error) {
	digits, found := strings.CutPrefix(s, " ")
	if !found {
		return 0, errors.New("burst needs a space and a number after it")
	}
	n, err := parseEvents("burst", digits)
	if err == nil && n == 0 {
		return 0, errors.New("burst is 0: leave it out if the burst should equal the rate")
	}
	return n, err
}

// parsePeriod parses a unit, a count and a unit, a duration, or a calendar.
func parsePeriod(s string) (time.Duration, *store.Calendar, error) {
	c, err := parseCalendar(s)
	if c != nil && err == nil {
		return time.Duration(c.Unit().Period()) * time.Microsecond, c, nil
	}
	var d time.Duration
	if err == nil {
		d, err = parsePlain(s)
	}
	return d, nil, err
}

// parsePlain parses a unit, a count and a unit, or a duration.
func parsePlain(s string) (time.Duration, error) {
	if unit := unitNamed(s); unit != 0 {
		return unit, nil
	}
	digits, name := cutDigits(s)
	unit := unitNamed(strings.TrimPrefix(name, " "))
	switch {
	case digits != "" && unit != 0:
		count, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || count > int64(MaxPeriod/unit) { // before the product, which could overflow
			return 0, fmt.Errorf("period %s is longer than 10 years", Quote(s))
		}
		return time.Duration(count) * unit, nil
	case digits != "" || strings.HasPrefix(s, "."):
		return parseDuration(s)
	}
	return 0, fmt.Errorf("unit %s is unknown: want ms, s, m, h, d, week or month", Quote(s))
}

// parseDuration is time.ParseDuration without its rounding.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("period %s is invalid: want a count and a unit, such as 15m, or a duration of at most 10 years", Quote(s))
	}
	if finerThanNanosecond(s) {
		return 0, fmt.Errorf("period %s is not a whole number of microseconds", Quote(s))
	}
	return d, nil
}

// finerThanNanosecond reports whether a number in s has decimals below 1 ns, which
// time.ParseDuration drops.
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

// unitNamed returns the length of a unit, or 0 if there is no such unit.
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

// formatPeriod returns a period as String formats it: in days if it is a whole number of days, and
// otherwise as package time formats it, without zero minutes and seconds at the end. A single unit
// is written without the 1.
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

// cutDigits splits s after the decimal digits at its beginning.
func cutDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

// Quote returns s as a Go string, shortened if it is long.
func Quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "..."
	}
	return strconv.Quote(s)
}
