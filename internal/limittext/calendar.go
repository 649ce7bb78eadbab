package limittext

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// parseCalendar parses the period of a calendar, such as "month from 31 in America/Sao_Paulo". It
// returns nil if s is the period of a plain limit.
func parseCalendar(s string) (*store.Calendar, error) {
	rest, zone, zoned := strings.Cut(s, " in ")
	name, day, anchored := strings.Cut(rest, " from ")
	unit := calendarUnit(name)
	if unit == store.Day && !zoned && !anchored {
		return nil, nil // 24 hours
	}
	switch {
	case unit == 0 && !zoned && !anchored:
		return nil, nil
	case unit == 0:
		return nil, fmt.Errorf("period %s cannot count by calendar: want day, week or month", Quote(name))
	case !zoned:
		zone = "UTC"
	}
	from, err := parseFrom(unit, day, anchored)
	if err != nil {
		return nil, err
	}
	c := store.NewCalendar(unit, from, zone)
	return c, c.Err()
}

// calendarUnit returns the unit with the given name, which may have a count of 1. It returns 0 if
// there is none.
func calendarUnit(name string) store.Unit {
	if one, found := strings.CutPrefix(name, "1"); found {
		name = strings.TrimPrefix(one, " ")
	}
	switch name {
	case "d", "day", "days":
		return store.Day
	case "week", "weeks":
		return store.Week
	case "month", "months":
		return store.Month
	}
	return 0
}

// parseFrom parses the day on which windows begin.
func parseFrom(unit store.Unit, s string, found bool) (int, error) {
	switch {
	case unit == store.Day && found:
		return 0, errors.New("from needs a week or a month, not a day")
	case unit == store.Day:
		return 0, nil
	case !found:
		return 1, nil // Monday, or the 1st
	case unit == store.Week:
		for day := time.Sunday; day <= time.Saturday; day++ {
			if s == strings.ToLower(day.String()) {
				return int(day), nil
			}
		}
		return 0, fmt.Errorf("%s is not a day of the week: want a name such as sunday", Quote(s))
	}
	day, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%s is not a day of the month: want 1 to 31", Quote(s))
	}
	return int(day), nil
}
