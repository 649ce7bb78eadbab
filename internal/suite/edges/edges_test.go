// Package edges compares the windows of calendars with those of another implementation. See
// edges.py.
package edges_test

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// TestMain unpacks the time zone database that the edges were made with.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "zones")
	if err == nil {
		err = unpack(dir)
	}
	if err != nil {
		log.Fatal(err)
	}
	_ = os.Setenv("ZONEINFO", dir) // before any zone is loaded
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func unpack(dir string) error {
	file, err := os.Open(filepath.Join("testdata", "zones.tar.gz"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	zones := tar.NewReader(plain)
	for {
		zone, err := zones.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(zone.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if zone.Typeflag == tar.TypeLink {
			err = os.Link(filepath.Join(dir, filepath.FromSlash(zone.Linkname)), path)
		} else if data, e := io.ReadAll(zones); e != nil {
			err = e
		} else {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			return err
		}
	}
}

// firstDay is the first of those that are written down, from 1970. The windows of 1970 to 2100 are
// compared.
var (
	firstDay = day(1969, time.October, 1)
	from, to = day(1970, time.January, 1), day(2101, time.January, 1)
)

func day(year int, month time.Month, d int) int64 {
	return time.Date(year, month, d, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

const secondsPerDay = 24 * 3600

// edges is what was written down.
type edges struct {
	database string
	starts   []starts
	zones    []zone
}

// starts are the days on which windows begin.
type starts struct {
	unit store.Unit
	from int
	days []int64
}

// zone has the first instant of each day, from firstDay on, in runs.
type zone struct {
	names []string
	runs  []string
}

func read(t *testing.T) (e edges) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "edges.txt.gz"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	require.NoError(t, err)
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, 1<<20)
	var all []int64
	for d := firstDay; d < to+60; d++ {
		all = append(all, d)
	}
	e.starts = []starts{{store.Day, 0, all}}
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		names, text, _ := strings.Cut(rest, ": ")
		numbers := strings.Fields(text)
		switch kind {
		case "tz":
			e.database = rest
		case "week":
			e.starts = append(e.starts, starts{store.Week, int(number(t, names)), days(t, numbers)})
		case "month":
			e.starts = append(e.starts, starts{store.Month, int(number(t, names)), days(t, numbers)})
		case "zone":
			e.zones = append(e.zones, zone{strings.Fields(names), numbers})
		}
	}
	require.NoError(t, lines.Err())
	require.Len(t, e.starts, 1+7+31)
	return e
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// days reads a sum of steps.
func days(t *testing.T, steps []string) (days []int64) {
	t.Helper()
	d := int64(0)
	for _, step := range steps {
		d += number(t, step)
		days = append(days, d)
	}
	return days
}

// instants are in Unix seconds. A run is of days, each so many seconds after midnight in UTC.
func (z zone) instants(t *testing.T) (seconds []int64) {
	t.Helper()
	d := firstDay
	for _, run := range z.runs {
		times, after, _ := strings.Cut(run, "*")
		late := number(t, after)
		for range number(t, times) {
			seconds = append(seconds, d*secondsPerDay+late)
			d++
		}
	}
	return seconds
}

// chosen reports whether this run compares z, the zone of that index: all by night, and else those
// that are changeful, and in CI one of 8.
func (z zone) chosen(i int) bool {
	return effort.Long() || effort.Full() && i%8 == 0 ||
		slices.ContainsFunc(changeful, func(name string) bool { return slices.Contains(z.names, name) })
}

// changeful are zones with all that clocks do: a day that there was not, midnights that come twice or
// not at all, changes by 20 and 30 minutes, and years in which the rules changed.
var changeful = []string{
	"Pacific/Apia", "Pacific/Kwajalein", "Pacific/Kiritimati", "America/Sao_Paulo", "America/St_Johns", "America/Toronto", "Asia/Beirut",
	"Asia/Gaza", "Africa/Cairo", "Africa/Casablanca", "Africa/Monrovia", "Antarctica/Troll", "Australia/Lord_Howe", "Asia/Kolkata",
	"America/Scoresbysund", "Europe/Berlin", "Europe/Dublin", "America/Havana", "UTC",
}

// By night every zone: days, weeks from each of 7 weekdays and months from each of 31 days, from 1970
// to 2100. Other runs compare some zones, windows beside a change of their clocks, and a few others. A
// plain one does so for one start of several.
func TestWindowsAreThoseOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	e := read(t)
	every, starts := effort.Of(256, 128, 1), effort.Of(7, 1)
	zones, windows := 0, 0
	for i, z := range e.zones {
		for _, name := range z.names {
			if c := store.NewCalendar(store.Day, 0, name); c.Err() != nil {
				t.Error(c.Err())
			}
		}
		if !z.chosen(i) {
			continue
		}
		zones++
		days := z.instants(t)
		for j, s := range e.starts {
			if j%starts != 0 && j+1 < len(e.starts) {
				continue
			}
			n, err := compare(z.names[0], days, s, every)
			if err != nil {
				t.Fatalf("%v, by the time zones of %s: %v", z.names, e.database, err)
			}
			windows += n
		}
	}
	t.Logf("%d windows in %d of %d zones that differ", windows, zones, len(e.zones))
}

// compare compares windows of a zone whose days begin at these instants, and returns how many.
func compare(zone string, days []int64, s starts, every int) (windows int, err error) {
	c := store.NewCalendar(s.unit, s.from, zone)
	if c.Err() != nil {
		return 0, c.Err()
	}
	var begin, date []int64 // of windows that are not empty
	for _, d := range s.days {
		if i := d - firstDay; i >= 0 && i < int64(len(days)) && (len(begin) == 0 || days[i] > begin[len(begin)-1]) {
			begin, date = append(begin, days[i]), append(date, d)
		}
	}
	for i := 2; i+4 <= len(begin); i++ {
		plain := begin[i]-date[i]*secondsPerDay == begin[i+1]-date[i+1]*secondsPerDay
		if date[i] < from || date[i] >= to || plain && i%every != 0 {
			continue
		}
		windows++
		start, end := begin[i]*1e6, begin[i+1]*1e6
		for _, at := range []int64{start + 30*60e6, start, end - 1} { // 30 minutes on, clocks may show the day before again
			if a, b := c.Window(at); a != start || b != end {
				return windows, fmt.Errorf("%v: the window of %s at %s is %s to %s, want %s to %s", c,
					time.Unix(date[i]*secondsPerDay, 0).UTC().Format(time.DateOnly), utc(at), utc(a), utc(b), utc(start), utc(end))
			}
			if got := c.Edges(at); !slices.Equal(got[:], begin[i-2:i+4]) {
				return windows, fmt.Errorf("%v: the edges around %s are %v, want %v", c, utc(at), got, begin[i-2:i+4])
			}
		}
	}
	return windows, nil
}

func utc(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }
