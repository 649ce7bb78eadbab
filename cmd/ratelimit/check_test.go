package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestCheckPrintsWhatIsWrongAndWhere(t *testing.T) {
	good := command(t, nil, "check", "testdata/good.yaml")
	require.Equal(t, result{0, "testdata/good.yaml: limiters api, login\n", ""}, good)

	bad := command(t, nil, "check", "testdata/bad.yaml", "testdata/good.yaml")
	require.Equal(t, 1, bad.code)
	require.Empty(t, bad.stderr)
	golden(t, "check.txt", bad.stdout)
}

func TestCheckExplainsWhatLimitersDo(t *testing.T) {
	got := command(t, nil, "check", "-explain", "testdata/whole.yaml")
	require.Zero(t, got.code, got.stdout)
	require.Empty(t, got.stderr)
	golden(t, "explain.txt", got.stdout)
	require.Equal(t, 1, command(t, nil, "check", "-explain", "testdata/bad.yaml").code)
}

// What is said never to deny does not, in a run of each algorithm at its worst.
func TestALimitThatNeverDeniesDoesNot(t *testing.T) {
	said := 0
	for _, algorithm := range ratelimit.Algorithms() {
		for _, texts := range [][2]string{
			{"60/m", "1/s"}, {"59/m", "1/s"}, {"61/m", "1/s"}, {"120/m", "1/s"}, {"5/s", "20/m"}, {"7/m", "2/25s"}, {"6/m", "2/25s"},
			{"8/m", "2/25s"}, {"9/m", "0/s"}, {"20/m", "10/h"}, {"60/h", "10/20m"},
		} {
			var parts []ratelimit.Limiter
			var limits []ratelimit.Limit
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
			require.NoError(t, err)
			for _, text := range texts {
				l, err := ratelimit.ParseLimit(text)
				require.NoError(t, err)
				part, err := ratelimit.New(algorithm, mem, l)
				require.NoError(t, err)
				limits, parts = append(limits, l), append(parts, part)
			}
			if !neverDenies(algorithm, limits[0], limits[1]) {
				continue
			}
			said++
			both, err := ratelimit.NewAll(parts...)
			require.NoError(t, err)
			random := rand.New(rand.NewPCG(1, 2))
			for range 2000 { // more than other admits, mostly
				now = now.Add(time.Duration(random.IntN(int(limits[1].Period) / 2)))
				r, err := both.Allow(t.Context(), "key")
				require.NoError(t, err)
				require.True(t, r.Parts()[0].Allowed || !r.Parts()[1].Allowed, "%s %v", algorithm, texts)
			}
		}
	}
	require.Greater(t, said, 15)
}

func TestALimitNeverDeniesIfAnotherOneHasDeniedBefore(t *testing.T) {
	for _, c := range []struct {
		algorithm, limit, other string
		want                    bool
	}{
		{"fixed_window", "60/m", "1/s", true},
		{"fixed_window", "59/m", "1/s", false},
		{"fixed_window", "6/m", "2/25s", false}, // windows of 25 s do not fill a minute: 8
		{"fixed_window", "8/m", "2/25s", true},
		{"sliding_log", "6/m", "2/25s", true},
		{"sliding_log", "5/m", "2/25s", false},
		{"sliding_window", "600/m", "1/s", false}, // an estimate
		{"sliding_window", "9/m", "0/s", true},
		{"token_bucket", "60/m burst 5", "1/s burst 5", true},
		{"token_bucket", "60/m burst 4", "1/s burst 5", false},
		{"token_bucket", "59/m burst 5", "1/s burst 5", false},
		{"fixed_window", "unlimited", "1/s", false},
		{"fixed_window", "1000/month", "1/h", false}, // a calendar's length is not known
	} {
		limit, err := ratelimit.ParseLimit(c.limit)
		require.NoError(t, err)
		other, err := ratelimit.ParseLimit(c.other)
		require.NoError(t, err)
		require.Equal(t, c.want, neverDenies(c.algorithm, limit, other), "%+v", c)
	}
}

func TestCheckReadsStandardInput(t *testing.T) {
	got := command(t, strings.NewReader(`{"limiters": {"api": {"algorithm": "sliding_window", "limit": "1/m"}}}`), "check", "-")
	require.Equal(t, result{0, "-: limiters api\n", ""}, got)
	got = command(t, strings.NewReader(""), "check", "-")
	require.Equal(t, 1, got.code)
	got = command(t, strings.NewReader(strings.Repeat("#", 1<<20+1)), "check", "-")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, "-:1:1: the text has")
}

func TestCheckOfAFileThatIsNotThereFails(t *testing.T) {
	got := command(t, nil, "check", "testdata/none.yaml")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "none.yaml: no such file")
	require.Empty(t, got.stdout)
}
