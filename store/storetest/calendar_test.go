package storetest

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// someZones have changed by hours, half hours and days, at midnight and just after it.
var someZones = []string{
	"UTC", "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Africa/Cairo", "Europe/Berlin", "Asia/Kolkata",
	"Pacific/Kwajalein", "Asia/Gaza", "Australia/Lord_Howe", "Antarctica/Troll", "America/Santiago", "Asia/Tehran",
	"Africa/Casablanca", "Pacific/Kiritimati", "America/Havana", "Africa/Monrovia", "Asia/Pyongyang",
}

// zones are all of the database, or some.
func zones(t *testing.T) []string {
	t.Helper()
	if !effort.Long() {
		return someZones[:effort.Of(5, len(someZones))]
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	var all []string
	for _, f := range files.File {
		if !strings.HasSuffix(f.Name, "/") && f.Name != "Factory" { // which is the machine's own
			all = append(all, f.Name)
		}
	}
	return all
}

// Calendars have the windows that the dates of package time say, of 1970 to 2100, for each day
// that they can begin on.
func TestCalendarsAgreeWithPackageTime(t *testing.T) {
	first, last := date(0), date(time.Date(2100, 12, 31, 0, 0, 0, 0, time.UTC).Unix()/(24*3600))
	for _, name := range zones(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(name)
			if err != nil {
				t.Fatal(err)
			}
			midnights := make([]int64, 0, last-first+1)
			for d := first; d <= last; d++ {
				midnights = append(midnights, midnight(zone, d))
			}
			check := func(unit store.Unit, from int) {
				c := civil{unit.String(), from, name}
				var edges []int64
				for i, at := range midnights {
					if c.begins(first + date(i)) {
						edges = append(edges, at)
					}
				}
				checkWindows(t, store.NewCalendar(unit, from, name), slices.Compact(edges))
			}
			check(store.Day, 0)
			for from := range 7 {
				check(store.Week, from)
			}
			for from := range effort.Of(3, 8, 31) {
				check(store.Month, 31-from)
			}
			check(store.Month, 1)
		})
	}
}

// checkWindows expects the windows of c to have these edges.
func checkWindows(t *testing.T, c *store.Calendar, edges []int64) {
	t.Helper()
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range edges[:len(edges)-1] {
		from, to := edges[i]*1e6, edges[i+1]*1e6
		for _, at := range []int64{from, from + (to-from)/2, to - 1} {
			if start, end := c.Window(at); start != from || end != to {
				t.Fatalf("%v at %v: %v to %v, want %v to %v", c, utc(at), utc(start), utc(end), utc(from), utc(to))
			}
		}
		if i < 2 || i+4 > len(edges) {
			continue
		}
		for _, at := range []int64{from, to - 1} {
			if got := c.Edges(at); !slices.Equal(got[:], edges[i-2:i+4]) {
				t.Fatalf("%v at %v: %v, want %v", c, utc(at), got, edges[i-2:i+4])
			}
		}
	}
}

func utc(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }

// The model that traces are judged by has the same windows.
func TestTheModelOfCalendars(t *testing.T) {
	apia := civil{"day", 0, "Pacific/Apia"}
	for _, c := range []struct{ at, start, end string }{
		{"2011-12-29T12:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"}, // the 29th; there was no 30th
		{"2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"}, // the 31st
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if start, end := apia.window(at.UnixMicro()); utc(start) != c.start || utc(end) != c.end {
			t.Errorf("at %s: %s to %s, want %s to %s", c.at, utc(start), utc(end), c.start, c.end)
		}
	}
}
