package main

import (
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

func TestReportsOfReplay(t *testing.T) {
	log, err := os.ReadFile("testdata/access.log")
	require.NoError(t, err)
	for name, args := range map[string]string{
		"replay.txt":         "-limit 5/m",
		"replay-two.txt":     "-limit 1/s -limit 5/m -top 2",
		"replay-config.txt":  "-config testdata/whole.yaml -top 1",
		"replay-config.json": "-config testdata/good.yaml -top 1 -out json",
		"replay-two.json":    "-limit 1/s -limit 5/m -top 2 -out json",
		"replay-two.csv":     "-limit 1/s -limit 5/m -top -1 -out csv",
		"replay-leaky.txt":   "-limit 5/m -algorithm leaky_bucket -top 0",
		"replay-path.txt":    "-limit 2/m -key path",
		"replay-nobody.txt":  "-limit 2/m -key user",
	} {
		got := command(t, strings.NewReader(string(log)), append([]string{"replay"}, strings.Fields(args)...)...)
		require.Zero(t, got.code)
		require.Empty(t, got.stderr)
		golden(t, name, got.stdout)
	}
}

func TestSlotsAloneAreNotReplayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte("limiters:\n  workers:\n    in_flight: 8\n"), 0o600))
	got := command(t, strings.NewReader(sample), "replay", "-config", file)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, file+": no limiter has a limit")
}

func TestEveryAlgorithmReplays(t *testing.T) {
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		got := command(t, strings.NewReader(sample), "replay", "-limit", "2/m", "-algorithm", algorithm)
		require.Zero(t, got.code)
		require.Contains(t, got.stdout, "3 denied (37.50 %), of 2 clients", algorithm)
	}
}

func TestTopIsTheLongestListThatIsPrinted(t *testing.T) {
	for top, rows := range map[string]int{"0": 0, "1": 1, "2": 2, "3": 2, "-1": 2} {
		got := command(t, strings.NewReader(sample), "replay", "-limit", "2/m", "-top", top)
		_, list, _ := strings.Cut(got.stdout, "client\n")
		require.Equal(t, rows, strings.Count(list, "\n"), "top %s", top)
	}
}

// The model of two sliding logs has all events of the last Period that both admitted. A limit
// denies if its own Period is full.
func TestReplayOfTwoLimitsDeniesWhatAModelDenies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var log strings.Builder
	admitted, at := map[string][]time.Time{}, start
	within := func(client string, period time.Duration) (n int) {
		for _, then := range admitted[client] {
			if at.Sub(then) < period {
				n++
			}
		}
		return n
	}
	var denied, bySecond, byMinute int
	for range 3000 {
		at = at.Add(time.Duration(random.IntN(3)) * time.Second)
		client := fmt.Sprintf("192.0.2.%d", random.IntN(9))
		log.WriteString(line(client, at))
		full10, full60 := within(client, 10*time.Second) >= 3, within(client, time.Minute) >= 7
		switch {
		case full10 && full60:
			bySecond, byMinute, denied = bySecond+1, byMinute+1, denied+1
		case full10:
			bySecond, denied = bySecond+1, denied+1
		case full60:
			byMinute, denied = byMinute+1, denied+1
		default:
			admitted[client] = append(admitted[client], at)
		}
	}
	got := command(t, strings.NewReader(log.String()), "replay", "-algorithm", "sliding_log", "-limit", "3/10s", "-limit", "7/m")
	require.Contains(t, got.stdout, fmt.Sprintf("%9d denied", denied))
	require.Contains(t, got.stdout, fmt.Sprintf("%9d by 3/10s\n%9d by 7/m\n", bySecond, byMinute))
	require.Greater(t, bySecond+byMinute, denied, "some are denied by both")
}

// After a Rate of 0, the other limits are not asked.
func TestALimitThatWasNotAskedHasDeniedNothing(t *testing.T) {
	got := command(t, strings.NewReader(sample), "replay", "-limit", "0/s", "-limit", "100/s", "-out", "csv")
	require.Contains(t, got.stdout, ",3,3,3,0\n")
	got = command(t, strings.NewReader(sample), "replay", "-limit", "0/s", "-limit", "100/s")
	require.Contains(t, got.stdout, "        8 by 0/s\n        0 by 100/s\n")
}

// The user names in a log are chosen by clients, and a spreadsheet opens the report.
func TestNoKeyIsAFormula(t *testing.T) {
	var log strings.Builder
	keys := map[string]string{"=HYPERLINK(0)": "'=HYPERLINK(0)", "+1": "'+1", "-1": "'-1", "@x": "'@x", "a=b": "a=b"}
	for key := range keys {
		fmt.Fprintf(&log, `{"time": "2026-11-01T00:00:00Z", "user": %q}`+"\n", key)
	}
	got := command(t, strings.NewReader(log.String()), "replay", "-format", "json", "-key", "user", "-limit", "0/s", "-top", "-1", "-out", "csv")
	for key, shown := range keys {
		require.Contains(t, got.stdout, "\n"+shown+",1,1,1\n", key)
	}
}

func TestKeysBeyondTheBoundAreDecidedOnWithoutARow(t *testing.T) {
	r := &replay{keys: make(map[string]*tally), maxKeys: 2, algorithm: "sliding_window", out: "text", top: -1}
	r.program = &program{stdin: strings.NewReader(strings.Repeat(longLog(4), 2))}
	r.format = "combined"
	require.NoError(t, r.limits.Set("1/h"))
	require.NoError(t, r.prepare())
	require.NoError(t, r.each(nil, func(e event) error { return r.decide(t.Context(), e) }))
	var out strings.Builder
	require.NoError(t, r.print(&out))
	require.Equal(t, `sliding_window, 1/h
        8 requests of more than 2 clients, 2015-05-17 10:05:00 to 2015-05-17 10:05:00 UTC
        4 denied (50.00 %), of 2 clients
        4 requests beyond the first 2 clients, without a row

   denied  requests  client
        1         2  192.0.2.0
        1         2  192.0.2.1
`, out.String())
}

func TestAKeyDoesNotReachTheTerminal(t *testing.T) {
	log := strings.Repeat(`{"time":1,"name":"\u001b[31mred \"x\""}`+"\n", 2)
	got := command(t, strings.NewReader(log), "replay", "-format", "json", "-key", "name", "-limit", "1/h")
	require.Zero(t, got.code)
	require.Contains(t, got.stdout, `        1         2  "\x1b[31mred \"x\""`+"\n")
}

// Midnight in Kolkata is at 18:30 in UTC.
func TestTheNameOfALimiterDoesNotReachTheTerminal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte("limiters:\n  \"a\\e[2Jb\": {algorithm: token_bucket, limit: 1/s}\n"), 0o600))
	got := command(t, strings.NewReader(sample), "replay", "-config", file)
	require.Zero(t, got.code)
	require.NotContains(t, got.stdout, "\x1b")
	require.Contains(t, got.stdout, `"a\x1b[2Jb": token_bucket`)
}

// Standard input can be read only once.
func TestConfigAndLogFromStandardInput(t *testing.T) {
	for _, logs := range [][]string{nil, {"-"}, {"testdata/access.log", "-"}} {
		got := command(t, strings.NewReader("limiters: {a: {algorithm: token_bucket, limit: 1/s}}\n"), append([]string{"replay", "-config", "-"}, logs...)...)
		require.Equal(t, 2, got.code, "%v", logs)
		require.Contains(t, got.stderr, "-config - and a log in standard input")
	}
	got := command(t, strings.NewReader("limiters: {a: {algorithm: token_bucket, limit: 1/s}}\n"), "replay", "-config", "-", "testdata/access.log")
	require.Zero(t, got.code)
}

func TestReplayByACalendar(t *testing.T) {
	var log strings.Builder
	for _, at := range []string{"00:30:00", "18:29:59", "18:30:00", "23:59:59"} {
		fmt.Fprintf(&log, "192.0.2.1 - - [01/Mar/2026:%s +0000] \"GET / HTTP/1.1\" 200 1\n", at)
	}
	for limit, want := range map[string]string{"1/day in Asia/Kolkata": "2 denied (50.00 %)", "1/day": "3 denied (75.00 %)"} {
		got := command(t, strings.NewReader(log.String()), "replay", "-limit", limit, "-algorithm", "fixed_window")
		require.Zero(t, got.code, got.stderr)
		require.Contains(t, got.stdout, want)
	}
}
