package main

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store/lease"
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

// A limit that is reported as never denying does not deny, in a run of each algorithm at its worst.
func TestALimitThatNeverDeniesDoesNot(t *testing.T) {
	said := 0
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
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
		{"fixed_window", "60/m", "unlimited", false},
		{"sliding_log", "60/m", "unlimited", false},
		{"token_bucket", "60/m", "unlimited", false},
		{"fixed_window", "1000/month", "1/h", false}, // a calendar's length is not known
	} {
		limit, err := ratelimit.ParseLimit(c.limit)
		require.NoError(t, err)
		other, err := ratelimit.ParseLimit(c.other)
		require.NoError(t, err)
		require.Equal(t, c.want, neverDenies(c.algorithm, limit, other), "%+v", c)
	}
}

func TestABanIsExplainedInTheUnitsOfItsTime(t *testing.T) {
	for limit, want := range map[string]string{
		"5/m":       "after 3 denials in 1m, a key is banned for 15m\n",
		"unlimited": "its ban never begins, because nothing is denied\n",
	} {
		for _, denials := range []string{"3/m", "3 / minute", "3/60s"} {
			text := "limiters:\n  a: {algorithm: fixed_window, limit: " + limit + ", ban: {denials: " + denials + ", for: 15m}}\n"
			require.Contains(t, command(t, strings.NewReader(text), "check", "-explain", "-").stdout, "\n  "+want)
		}
	}
	text := "limiters:\n  a: {algorithm: fixed_window, limit: unlimited, tiers: {free: 0/m}, ban: {denials: 3/m, for: 15m}}\n"
	require.Contains(t, command(t, strings.NewReader(text), "check", "-explain", "-").stdout, "a key is banned for 15m\n")
}

func TestAReserveThatNobodyCanUseIsSaid(t *testing.T) {
	for more, want := range map[string]string{
		"": "leaves 5 events of a key to no limiter of this file: without another one of this name, nobody can use them\n",
		", b: {shares: a, reserved: 5}, c: {algorithm: fixed_window, limit: 9/m}":    "leaves 5 events of a key to no limiter of this file: ",
		", b: {shares: a, reserved: 4}, c: {shares: a}, d: {shares: a, reserved: 8}": "leaves 5 events of a key to b, c\n",
	} {
		text := "limiters: {a: {algorithm: fixed_window, limit: 9/m, reserved: 5}" + more + "}"
		require.Contains(t, command(t, strings.NewReader(text), "check", "-explain", "-").stdout, "\n  "+want)
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

// The shortest TTL that is reported is the shortest that package lease accepts.
func TestTheLeastLifeIsThatOfLeases(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"} {
		for _, text := range []string{"1000000/s", "1000/s", "7/s", "100/m", "3/10s"} {
			limit, err := ratelimit.ParseLimit(text)
			require.NoError(t, err)
			takes := func(life time.Duration) bool {
				leases, err := lease.New(elsewhere{mem}, life)
				if err != nil {
					return false
				}
				_, err = ratelimit.New(algorithm, leases, limit)
				return err == nil
			}
			least := leastLife(algorithm, limit)
			require.True(t, takes(least), "%s %s %v", algorithm, text, least)
			require.False(t, takes(least-time.Microsecond), "%s %s %v", algorithm, text, least)
		}
	}
}

// That holds for limiters that share the counts of a leased one, too.
func TestALeasedBucketNeverAdmitsMoreThanIsSaid(t *testing.T) {
	const text = "limiters: {a: {algorithm: token_bucket, limit: 1000/s, store: {lease: 50ms}}, b: {shares: a}, c: {shares: a, reserved: 7}}"
	said := command(t, strings.NewReader(text), "check", "-explain", "-").stdout
	parsed, err := config.Parse([]byte(text))
	require.NoError(t, err)
	mem, err := memstore.New()
	require.NoError(t, err)
	limiters, err := parsed.Build(elsewhere{mem})
	require.NoError(t, err)
	defer func() { require.NoError(t, limiters.Close(t.Context())) }()
	for _, name := range limiters.Names() {
		_, of, _ := strings.Cut(said, "\n"+name+": ")
		_, of, _ = strings.Cut(of, "with leases, a call for more than ")
		of, _, _ = strings.Cut(of, " is never admitted\n")
		most, err := strconv.Atoi(of)
		require.NoError(t, err, "%s: %s", name, said)
		limiter, err := limiters.Limiter(name)
		require.NoError(t, err)
		r, err := limiter.AllowN(t.Context(), name+": more", most+1)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Never, r.RetryAfter, name)
		r, err = limiter.AllowN(t.Context(), name+": as many", most)
		require.NoError(t, err)
		require.True(t, r.Allowed, name)
	}
}

// The reported number of series is that of the limiters in the file, even after they have denied
// and banned.
func TestLimitersHaveAsManySeriesAsIsSaid(t *testing.T) {
	text, err := os.ReadFile("testdata/whole.yaml")
	require.NoError(t, err)
	parsed, err := config.Parse(text)
	require.NoError(t, err)
	mem, err := memstore.New()
	require.NoError(t, err)
	noTier := func(context.Context, string) (string, error) { return "", nil }
	limiters, err := parsed.Build(elsewhere{mem}, config.WithTierFunc(noTier))
	require.NoError(t, err)
	defer func() { require.NoError(t, limiters.Close(t.Context())) }()
	said := command(t, nil, "check", "-explain", "testdata/whole.yaml").stdout
	for _, name := range limiters.Names() {
		limiter, err := limiters.Limiter(name)
		require.NoError(t, err)
		counters := observe.NewCounters(name)
		watched, err := observe.Around(limiter, counters)
		require.NoError(t, err)
		for range 200 {
			_, err := watched.AllowN(t.Context(), "key", 1)
			require.NoError(t, err)
			_, _ = watched.AllowN(t.Context(), "key", 1<<30)
		}
		_, of, _ := strings.Cut(said, "\n"+name+": ")
		_, of, _ = strings.Cut(of, "counters have up to ")
		of, _, _ = strings.Cut(of, " series")
		require.Equal(t, of, strconv.Itoa(seriesOf(counters.Snapshot())), name)
	}
}

// A name in a file cannot move the cursor of the terminal, or pretend to be another line.
func TestNamesOfAFileArePrintedAsOneLine(t *testing.T) {
	const text = `limiters: {"a\e[31m\nb": {algorithm: token_bucket, limit: 10/s, tiers: {"c\nd": 5/s}}}`
	said := command(t, strings.NewReader(text), "check", "-explain", "-").stdout
	require.Contains(t, said, `limiters "a\x1b[31m\nb"`)
	require.Contains(t, said, "\n"+`"a\x1b[31m\nb": token_bucket`)
	require.Contains(t, said, `tier "c\nd": 5/s`)
}
