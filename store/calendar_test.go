package store_test

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// What clocks skip and repeat at midnight, worked out by hand.
func TestCalendarWindows(t *testing.T) {
	for _, c := range []struct {
		what       string
		unit       store.Unit
		from       int
		zone       string
		at         string
		start, end string
	}{
		{"a day in UTC", store.Day, 0, "UTC", "2026-03-01T23:59:59Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"a day of half an hour's offset", store.Day, 0, "Asia/Kolkata", "2026-03-01T18:30:00Z", "2026-03-01T18:30:00Z", "2026-03-02T18:30:00Z"},
		{"a day of 23 hours", store.Day, 0, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", store.Day, 0, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"a midnight that was skipped", store.Day, 0, "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"an hour before midnight that comes twice", store.Day, 0, "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		{"a minute after midnight, then the hour before it again", store.Day, 0, "America/St_Johns", "2006-10-29T03:00:00Z", "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"},
		{"a day that was skipped", store.Day, 0, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"a week from monday", store.Week, 1, "UTC", "2026-03-01T23:59:59Z", "2026-02-23T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"a week from sunday", store.Week, 0, "UTC", "2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-08T00:00:00Z"},
		{"a month from the 1st", store.Month, 1, "UTC", "2026-02-10T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"a month from the 31st, in February", store.Month, 31, "UTC", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"a month from the 31st, before the last of February", store.Month, 31, "UTC", "2024-02-28T23:59:59Z", "2024-01-31T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"a month before 1970", store.Month, 15, "UTC", "1969-12-31T23:59:59Z", "1969-12-15T00:00:00Z", "1970-01-15T00:00:00Z"},
		{"the last day of a leap year", store.Day, 0, "Europe/Berlin", "2040-12-31T12:00:00Z", "2040-12-30T23:00:00Z", "2040-12-31T23:00:00Z"},
	} {
		t.Run(c.what, func(t *testing.T) {
			calendar := store.NewCalendar(c.unit, c.from, c.zone)
			start, end := calendar.Window(instant(t, c.at))
			if start != instant(t, c.start) || end != instant(t, c.end) {
				t.Errorf("%v: %v to %v, want %s to %s", calendar, time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC(), c.start, c.end)
			}
		})
	}
}

func instant(t *testing.T, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

func TestCalendarText(t *testing.T) {
	for want, c := range map[string]*store.Calendar{
		"day in UTC":                        store.NewCalendar(store.Day, 0, "UTC"),
		"day in Asia/Kolkata":               store.NewCalendar(store.Day, 0, "Asia/Kolkata"),
		"week":                              store.NewCalendar(store.Week, 1, "UTC"),
		"week from sunday in Europe/Berlin": store.NewCalendar(store.Week, 0, "Europe/Berlin"),
		"month":                             store.NewCalendar(store.Month, 1, "UTC"),
		"month from 31 in Etc/UTC":          store.NewCalendar(store.Month, 31, "Etc/UTC"),
	} {
		if c.String() != want || c.Err() != nil {
			t.Errorf("%q, want %q: %v", c, want, c.Err())
		}
	}
}

func TestBadCalendars(t *testing.T) {
	for _, c := range []struct {
		unit store.Unit
		from int
		zone string
		want string
	}{
		{0, 0, "UTC", "only limits per day, week or month"},
		{store.Month + 1, 1, "UTC", "only limits per day, week or month"},
		{store.Day, 1, "UTC", "a calendar day begins at midnight: use From only with PerWeek or PerMonth"},
		{store.Week, -1, "UTC", "day -1 of the week"},
		{store.Week, 7, "UTC", "day 7 of the week"},
		{store.Month, 0, "UTC", "day 0 of the month"},
		{store.Month, 32, "UTC", "day 32 of the month"},
		{store.Day, 0, "", "the time zone is nil or has no name"},
		{store.Day, 0, "Local", "differs between machines"},
		{store.Day, 0, "Europe//Berlin", "is not a name"},
		{store.Day, 0, "./Europe/Berlin", "is not a name"},
		{store.Day, 0, "../Europe/Berlin", "is not a name"},
		{store.Day, 0, "/Europe/Berlin", "is not a name"},
		{store.Day, 0, "Europe/Berlin ", "is not a name"},
		{store.Day, 0, strings.Repeat("x", 65), "is not a name"},
		{store.Day, 0, strings.Repeat("x", 64), "is unknown on this machine"},
		{store.Day, 0, "Atlantis/Capital", "is unknown on this machine"},
		{store.Day, 0, "localtime", "differs between machines"},
		{store.Day, 0, "LocalTime", "differs between machines"}, // as good a name, where files have no case
		{store.Day, 0, "posixrules", "differs between machines"},
		{store.Day, 0, "Factory", "is not a zone of the time zone database"},
		{store.Week, 1, "posix/Europe/Berlin", "is not a zone of the time zone database"},
		{store.Month, 1, "right/UTC", "is not a zone of the time zone database"},
		{store.Month, 1, "Right/UTC", "is not a zone of the time zone database"},
	} {
		calendar := store.NewCalendar(c.unit, c.from, c.zone)
		if err := calendar.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v from %d in %q: %v, want %q", c.unit, c.from, c.zone, err, c.want)
		}
		if calendar.Unit() != c.unit || calendar.From() != c.from || calendar.Zone() != c.zone {
			t.Errorf("%v from %d in %q: %v from %d in %q", c.unit, c.from, c.zone, calendar.Unit(), calendar.From(), calendar.Zone())
		}
	}
}

// What this machine has beside the zones of the database, such as its own time, is no zone.
func TestZonesAreThoseOfTheDatabase(t *testing.T) {
	const root = "/usr/share/zoneinfo"
	source, err := os.ReadFile(root + "/tzdata.zi")
	if err != nil {
		t.Skip(err)
	}
	zones := map[string]bool{}
	for line := range strings.Lines(string(source)) {
		switch words := strings.Fields(line); words[0] {
		case "Z":
			zones[words[1]] = words[1] != "Factory"
		case "L":
			zones[words[2]] = true
		}
	}
	taken := 0
	if err := filepath.WalkDir(root, func(path string, f fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(root, path); err == nil && !f.IsDir() {
			valid := store.NewCalendar(store.Day, 0, name).Err() == nil
			if valid && !zones[name] {
				t.Errorf("%q passes for a zone", name)
			}
			if valid {
				taken++
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if taken < len(zones)/2 { // a system may have left out those of old
		t.Errorf("%d of %d zones are taken", taken, len(zones))
	}
}

// A stranger may be allowed to choose a zone and a day.
func TestTheThousandthCalendarCostsWhatTheFirstDoes(t *testing.T) {
	months := func(zone string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for from := range 31 {
			if err := store.NewCalendar(store.Month, 1+from, zone).Err(); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	first := months("Europe/Vienna")
	for _, place := range strings.Fields("Accra Algiers Bissau Cairo Casablanca Ceuta Harare Juba Lagos Maputo Maseru Nairobi Tunis Windhoek") {
		months("Africa/" + place)
	}
	for _, place := range strings.Fields("Almaty Amman Baku Beirut Dhaka Dubai Gaza Hong_Kong Jakarta Kabul Karachi Manila Riyadh Seoul Taipei Tbilisi Tehran Tokyo") {
		months("Asia/" + place)
	}
	if last := months("Europe/Zurich"); last > 2*first {
		t.Errorf("%d bytes for the first calendars, %d for the last", first, last)
	}
}

func TestTheCalendarsOfAZoneShareIt(t *testing.T) {
	from := 0
	if n := testing.AllocsPerRun(29, func() {
		from++
		store.NewCalendar(store.Month, from, "America/Lima")
	}); n > 2 { // the zone's, spread over all
		t.Errorf("%v allocations for a calendar", n)
	}
}

// Limits are compared with ==, and so are their calendars.
func TestEqualCalendarsAreOne(t *testing.T) {
	month := store.NewCalendar(store.Month, 7, "Asia/Kathmandu")
	if store.NewCalendar(store.Month, 7, strings.Clone("Asia/Kathmandu")) != month {
		t.Error("there are two")
	}
	if store.NewCalendar(store.Month, 8, "Asia/Kathmandu") == month {
		t.Error("other days have the same")
	}
	l := month.In(store.Limit{Rate: 5, Burst: 5})
	if l.Calendar() != month || l.Period != 31*24*3600e6 {
		t.Errorf("%+v: %v", l, l.Calendar())
	}
	if l := l.TurnBefore(8); l.Calendar() != month || l.Before() != 0 {
		t.Errorf("a window has a turn: %+v", l)
	}
	if l := (store.Limit{Rate: 5, Period: 1e6, Burst: 5}).TurnBefore(1); l.Calendar() != nil || l.Before() != 1 || l.TurnBefore(0).Before() != 0 {
		t.Errorf("%+v: %v", l, l.Calendar())
	}
}

func TestEachCalendarIsAnother(t *testing.T) {
	zones := []string{"Asia/Kathmandu", "Asia/Katmandu", "Asia/Pyongyang"}
	for range 2 { // the first zone has its calendars still when there are others
		for _, zone := range zones {
			for unit, from := range map[store.Unit][2]int{store.Day: {0, 0}, store.Week: {0, 6}, store.Month: {1, 31}} {
				for day := from[0]; day <= from[1]; day++ {
					c := store.NewCalendar(unit, day, zone)
					if l := c.In(store.Limit{Rate: 5, Burst: 5}); c.Err() != nil || c.Unit() != unit || c.From() != day || c.Zone() != zone || l.Calendar() != c {
						t.Errorf("%v from %d in %s: %v, and %v of a limit: %v", unit, day, zone, c, l.Calendar(), c.Err())
					}
				}
			}
		}
	}
}

// A calendar remembers the windows of the time that it was asked for last.
func TestWindowsAreTheSameAfterAnyOther(t *testing.T) {
	const day = 24 * 3600
	c := store.NewCalendar(store.Day, 0, "UTC")
	var times []int64
	for n := int64(20_000); n < 20_009; n++ {
		times = append(times, n*day*1e6, (n+1)*day*1e6-1)
	}
	for _, before := range times {
		for _, at := range times {
			c.Window(0)
			c.Window(before)
			today := at / (day * 1e6) * day
			if start, end := c.Window(at); start != today*1e6 || end != (today+day)*1e6 {
				t.Errorf("%d after %d: %d to %d", at, before, start, end)
			}
			c.Edges(before)
			if got, want := c.Edges(at), [6]int64{today - 2*day, today - day, today, today + day, today + 2*day, today + 3*day}; got != want {
				t.Errorf("%d after %d: %v, want %v", at, before, got, want)
			}
		}
	}
}

// A clock may be set to before 1970.
func TestWindowsWithoutACalendar(t *testing.T) {
	l := store.Limit{Rate: 5, Period: 10, Burst: 5}
	for at, want := range map[int64]int64{-11: -20, -10: -10, -1: -10, 0: 0, 9: 0, 10: 10} {
		if start, end := l.Window(at); start != want || end != want+10 {
			t.Errorf("%d: %d to %d, want %d to %d", at, start, end, want, want+10)
		}
	}
}

// A clock may be set to any year that a State has room for.
func TestCalendarsFarAway(t *testing.T) {
	for _, unit := range []store.Unit{store.Day, store.Week, store.Month} {
		c := store.NewCalendar(unit, int(min(unit, 2)-1), "Europe/Berlin")
		for _, at := range []int64{-1 << 60, time.Time{}.UnixMicro(), -1, 0, 1 << 60} {
			start, end := c.Window(at)
			if start > at || end <= at || end-start < unit.Period()*9/10-2*3600e6 || end-start > unit.Period()+2*3600e6 {
				t.Errorf("%v at %d: %d to %d", c, at, start, end)
			}
		}
	}
}

func TestWindowsOfOneTimeAllocateNothing(t *testing.T) {
	c := store.NewCalendar(store.Day, 0, "Europe/Berlin")
	now := time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC).UnixMicro()
	if n := testing.AllocsPerRun(100, func() {
		c.Edges(now)
		c.Window(now)
		c.Window(now + 24*3600e6)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnits(t *testing.T) {
	if s := store.Unit(math.MaxUint8).String(); s != "unit(255)" {
		t.Error(s)
	}
	if store.Unit(0).Period() != 0 {
		t.Error(store.Unit(0).Period())
	}
}
