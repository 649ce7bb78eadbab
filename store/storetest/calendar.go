package storetest

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// civil defines on which dates windows begin, and in which zone. The zero civil has no calendar:
// windows have the length of a period.
type civil struct {
	unit string // day, week or month
	from int    // a time.Weekday or a day of the month
	zone string
}

// civilOf parses the text of l, such as "10/month from 31 in America/Sao_Paulo".
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

// clockAt returns what clocks in the zone show at t, in seconds, as if it were UTC.
func clockAt(zone *time.Location, t int64) int64 {
	at := time.Unix(t, 0).In(zone)
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	return time.Date(year, month, day, hour, minute, second, 0, time.UTC).Unix()
}

// midnight returns the first instant, in Unix seconds, at which clocks in the zone show d or a
// later date. It advances in steps of 6 hours or of a second in which no clock is changed.
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

// locations are the zones that have been loaded, by name.
var locations sync.Map

// location returns the zone, which exists, because a limit has it.
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

// window returns the window that contains t, all in Unix µs.
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

// windowEnd returns the end of the window of l that contains t.
func (l limit) windowEnd(t int64) int64 {
	if l.civil == (civil{}) {
		return windowEnd(t, l.period)
	}
	_, end := l.window(t)
	return end
}

// shortest returns the length of the shortest window of l, in µs. Clocks are set forward by at most
// an hour, except in a zone that moves across the date line.
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
