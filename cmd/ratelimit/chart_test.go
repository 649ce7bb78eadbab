package main

import (
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestPicturesOfReplay(t *testing.T) {
	for name, args := range map[string]string{
		"replay.svg":     "-limit 5/m",
		"replay-two.svg": "-limit 1/s -limit 5/m",
		"replay-no.svg":  "-limit 5/m -key user", // no line has a user
	} {
		file := filepath.Join(t.TempDir(), name)
		got := command(t, nil, append(append([]string{"replay", "-svg", file}, strings.Fields(args)...), "testdata/access.log")...)
		require.Zero(t, got.code, got.stderr)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		golden(t, name, string(text))

		var svg struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
		}
		require.NoError(t, xml.Unmarshal(text, &svg))
		require.Contains(t, svg.Title, "token_bucket, ")
		require.Regexp(t, `: \d+ of \d+ requests denied`, svg.Desc)
	}
}

// A chart is the same as one made at the end, when all times and the width of the bars are known.
func TestAChartCountsEachRequestOnceInABoundedNumberOfBars(t *testing.T) {
	for _, most := range []time.Duration{0, time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour, 400 * 24 * time.Hour} {
		rng := rand.New(rand.NewPCG(1, uint64(most)))
		c := newChart(1)
		var times []int64
		at := time.Date(1969, 12, 31, 23, 59, 30, 0, time.UTC).UnixMicro()
		for i := range 2000 {
			times = append(times, at)
			c.count(at, ratelimit.Result{Allowed: i%3 > 0})
			at += rng.Int64N(1 + most.Microseconds())
		}
		want := []row{make(row, len(c.rows[0])), make(row, len(c.rows[0]))}
		for i, at := range times {
			bar := (at - c.first) / c.wide
			want[0][bar]++
			if i%3 == 0 {
				want[1][bar]++
			}
		}
		require.Equal(t, want, c.rows, most)
		require.Zero(t, c.first%c.wide, "bars begin at round times")
		require.LessOrEqual(t, cap(c.rows[0]), 2*maxBars)
		if seconds := (at - times[0]) / 1e6; seconds > maxBars {
			require.GreaterOrEqual(t, len(c.rows[0]), maxBars/5, most)
		}
	}
}

func TestWiderBarsAreMultiplesOfNarrowerOnes(t *testing.T) {
	for wide := time.Second.Microseconds(); wide < 1<<60; wide = wider(wide) {
		require.Zero(t, wider(wide)%wide)
		require.LessOrEqual(t, wider(wide)/wide, int64(5))
	}
}

// A log may span 10,000 years.
func TestAPictureOfTheLongestLog(t *testing.T) {
	log := `{"time":"0000-01-01T00:00:00Z","ip":"a"}` + "\n" + `{"time":"9999-12-31T00:00:00Z","ip":"a"}`
	file := filepath.Join(t.TempDir(), "a.svg")
	got := command(t, strings.NewReader(log), "replay", "-format", "json", "-limit", "1/s", "-svg", file)
	require.Zero(t, got.code, got.stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Less(t, len(text), 5000)
	require.NotContains(t, string(text), "NaN")
}

func TestNumbersBesideAPanel(t *testing.T) {
	for most, want := range map[int]int{0: 1, 1: 1, 5: 1, 6: 2, 11: 2, 12: 5, 29: 5, 30: 10, 136: 50, 1_000_000: 200_000} {
		require.Equal(t, want, countStep(most), "%d", most)
	}
}

func TestAPictureWithoutALog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.svg")
	got := command(t, nil, "replay", "-limit", "1/m", "-svg", file, "missing.log")
	require.Equal(t, 1, got.code)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "0 of 0 requests denied")
}

func TestNoPictureWithoutAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no", "a.svg")
	got := command(t, strings.NewReader(sample), "replay", "-limit", "1/m", "-svg", file)
	require.Equal(t, 1, got.code)
	require.Empty(t, got.stdout, "it fails before it reads")
	require.Contains(t, got.stderr, fmt.Sprintf("open %s: no such file", file))
}
