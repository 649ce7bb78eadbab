package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// sample has requests of 3 clients in one minute, some of them out of order, and two
// unreadable lines.
const sample = `192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET / HTTP/1.1" 200 10
192.0.2.1 - - [17/May/2015:10:05:01 +0000] "GET /a HTTP/1.1" 200 10 "http://example.com/" "Mozilla/5.0 (X11)"
2001:db8::1 - frank [17/May/2015:12:05:02 +0200] "GET /\"quoted\" HTTP/1.1" 404 -
192.0.2.1 - - [17/May/2015:10:05:04 +0000] "GET /b HTTP/1.1" 200 10
192.0.2.1 - - [17/May/2015:10:05:03 +0000] "POST /c HTTP/1.1" 500 10
[Sun May 17 10:05:04 2015] [error] [client 192.0.2.1] File does not exist
host.example - - [17/May/2015:10:05:05 +0000] "\x16\x03\x01" 400 226

2001:db8::1 - - [17/May/2015:10:05:05 +0000] "-" 408 -
2001:db8::1 - - [17/May/2015:10:05:05 +0000] "GET /a] \"[ HTTP/1.1" 200 10
`

const sampleReport = `token_bucket, 2/m
        8 requests of 3 clients, 2015-05-17 10:05:00 to 2015-05-17 10:05:05 UTC
        3 denied (37.50 %), of 2 clients
        2 lines that could not be read

   denied  requests  client
        2         4  192.0.2.1
        1         3  2001:db8::1
`

const sampleComplaints = `replay: line 6: it does not begin with a client's address: "[Sun May 17 10:05:04 2015] [error] [client 192.0.2.1] File does not exist"
replay: line 8: it does not begin with a client's address: ""
`

// result is what a run of the program printed and returned.
type result struct {
	code           int
	stdout, stderr string
}

func replayed(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	code := run(t.Context(), args, stdin, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log.gz")
	require.NoError(t, os.WriteFile(file, zip(t, sample), 0o600))
	half := len(sample) / 2

	for name, test := range map[string]struct {
		stdin []byte
		args  []string
	}{
		"standard input":            {[]byte(sample), nil},
		"standard input named -":    {[]byte(sample), []string{"-"}},
		"gzip on standard input":    {zip(t, sample), nil},
		"gzip of two members":       {append(zip(t, sample[:half]), zip(t, sample[half:])...), nil},
		"a file":                    {nil, []string{file}},
		"CRLF":                      {[]byte(strings.ReplaceAll(sample, "\n", "\r\n")), nil},
		"no newline at the end":     {[]byte(strings.TrimSuffix(sample, "\n")), nil},
		"the algorithm by its name": {[]byte(sample), []string{"-algorithm", "token_bucket"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Flags come before the file.
			args := append([]string{"-limit", "2/m"}, test.args...)
			require.Equal(t, result{0, sampleReport, sampleComplaints}, replayed(t, bytes.NewReader(test.stdin), args...))
		})
	}
}

func TestReadsAsSmallAsTheyComeChangeNothing(t *testing.T) {
	for _, log := range [][]byte{[]byte(sample), zip(t, sample)} {
		stdin := iotest.OneByteReader(bytes.NewReader(log))
		require.Equal(t, result{0, sampleReport, sampleComplaints}, replayed(t, stdin, "-limit", "2/m"))
	}
}

func TestTheLeakyBucketSaysHowLongRequestsWereDelayed(t *testing.T) {
	got := replayed(t, strings.NewReader(sample), "-limit", "2/m", "-algorithm", "leaky_bucket", "-top", "0")
	require.Equal(t, `leaky_bucket, 2/m
        8 requests of 3 clients, 2015-05-17 10:05:00 to 2015-05-17 10:05:05 UTC
        3 denied (37.50 %), of 2 clients
        2 delayed, for up to 29s
        2 lines that could not be read
`, got.stdout)
}

func TestTopIsTheLongestListThatIsPrinted(t *testing.T) {
	for top, rows := range map[string]int{"0": 0, "1": 1, "2": 2, "3": 2} {
		got := replayed(t, strings.NewReader(sample), "-limit", "2/m", "-top", top)
		_, list, _ := strings.Cut(got.stdout, "client\n")
		require.Equal(t, rows, strings.Count(list, "\n"), "top %s", top)
	}
}

func TestEveryAlgorithmReplays(t *testing.T) {
	for _, algorithm := range ratelimit.Algorithms() {
		got := replayed(t, strings.NewReader(sample), "-limit", "2/m", "-algorithm", algorithm)
		require.Zero(t, got.code)
		require.Contains(t, got.stdout, "3 denied (37.50 %), of 2 clients", algorithm)
	}
}

func TestAnEmptyLogIsALogWithoutRequests(t *testing.T) {
	const empty = "token_bucket, 60/m\n        0 requests of 0 clients\n        0 denied (0.00 %), of 0 clients\n"
	require.Equal(t, result{0, empty, ""}, replayed(t, strings.NewReader("")))
	require.Equal(t, result{0, empty, ""}, replayed(t, bytes.NewReader(zip(t, ""))))
}

func TestATextThatIsNoLogIsAnError(t *testing.T) {
	got := replayed(t, strings.NewReader(strings.Repeat("\x00 \x1b[31mred\n", 9)))
	require.Equal(t, 1, got.code)
	require.Equal(t, strings.Join([]string{
		`replay: line 1: it does not begin with a client's address: "\x00 \x1b[31mred"`,
		`replay: line 2: it does not begin with a client's address: "\x00 \x1b[31mred"`,
		`replay: line 3: it does not begin with a client's address: "\x00 \x1b[31mred"`,
		"replay: further lines that cannot be read are only counted",
		"replay: no line could be read: is it an access log?\n",
	}, "\n"), got.stderr)
	require.Contains(t, got.stdout, "9 lines that could not be read")
}

func TestATruncatedGzipIsAnErrorAfterTheResultSoFar(t *testing.T) {
	// Half of a file still yields several lines if they do not compress.
	var log strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		fmt.Fprintf(&log, "192.0.2.1 - - [17/May/2015:10:05:00 +0000] \"GET /%x%x HTTP/1.1\" 200 10\n", random.Uint64(), random.Uint64())
	}
	zipped := zip(t, log.String())

	got := replayed(t, bytes.NewReader(zipped[:len(zipped)/2]))
	require.Equal(t, 1, got.code)
	var lines, requests int
	_, err := fmt.Sscanf(got.stderr, "replay: the gzip file is truncated: it breaks off after line %d\n", &lines)
	require.NoError(t, err, got.stderr)
	_, err = fmt.Sscanf(got.stdout, "token_bucket, 60/m\n %d requests of 1 clients", &requests)
	require.NoError(t, err, got.stdout)
	require.Equal(t, lines, requests)
	require.Greater(t, lines, 100)

	whole := zip(t, sample)
	for n := 2; n < len(whole); n++ {
		got := replayed(t, bytes.NewReader(whole[:n]))
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "truncated", "%d of %d bytes", n, len(whole))
	}
}

func TestOtherErrorsOfTheFile(t *testing.T) {
	damaged := zip(t, sample)
	damaged[len(damaged)-5] ^= 1 // of the checksum

	for name, test := range map[string]struct {
		stdin io.Reader
		args  []string
		says  string
	}{
		"a file that is not there": {nil, []string{filepath.Join(t.TempDir(), "none.log")}, "none.log: no such file"},
		"a directory":              {nil, []string{t.TempDir()}, "is a directory"},
		"a damaged gzip":           {bytes.NewReader(damaged), nil, "after line 10: gzip: invalid checksum"},
		"a reader that fails":      {io.MultiReader(strings.NewReader(sample), iotest.ErrReader(errors.New("unplugged"))), nil, "after line 10: unplugged"},
	} {
		t.Run(name, func(t *testing.T) {
			got := replayed(t, test.stdin, test.args...)
			require.Equal(t, 1, got.code)
			require.Contains(t, got.stderr, test.says)
			require.Equal(t, strings.HasPrefix(test.says, "after line"), strings.Contains(got.stdout, "8 requests of"))
		})
	}
}

func TestArgumentsThatMakeNoSense(t *testing.T) {
	for name, args := range map[string][]string{
		"a limit that is none":      {"-limit", "10"},
		"a limit out of range":      {"-limit", "10/100y"},
		"an algorithm that is none": {"-algorithm", "bucket"},
		"a burst for a window":      {"-algorithm", "fixed_window", "-limit", "10/m burst 20"},
		"an unknown flag":           {"-rate", "10"},
		"a negative top":            {"-top", "-1"},
		"a negative progress":       {"-progress", "-1"},
		"two files":                 {"a.log", "b.log"},
		"a bucket that never fills": {"-limit", "1/3650d burst 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			got := replayed(t, strings.NewReader(sample), args...)
			require.Equal(t, 2, got.code)
			require.Empty(t, got.stdout)
			require.Equal(t, 1, strings.Count(got.stderr, "usage: replay [flags]"), got.stderr)
			require.False(t, strings.HasPrefix(got.stderr, "usage"), "the reason comes first")
		})
	}
	help := replayed(t, nil, "-h")
	require.Zero(t, help.code)
	require.Contains(t, help.stderr, "usage: replay [flags]")
}

func TestProgress(t *testing.T) {
	log := strings.Repeat("192.0.2.1 - - [17/May/2015:10:05:00 +0000] \"GET / HTTP/1.1\" 200 10\n", 2*reach+1)
	got := replayed(t, strings.NewReader(log), "-progress", "15000")
	require.Equal(t, "replay: 15000 lines\nreplay: 30000 lines\n", got.stderr)
	require.Empty(t, replayed(t, strings.NewReader(log), "-progress", "0").stderr)
}

func TestCancellingEndsTheReplay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr strings.Builder
	require.Equal(t, 1, run(ctx, nil, strings.NewReader(sample), io.Discard, &stderr))
	require.Contains(t, stderr.String(), context.Canceled.Error())
}

func TestAnOutputThatFailsIsAnError(t *testing.T) {
	file, err := os.Open(os.DevNull) // for reading
	require.NoError(t, err)
	defer file.Close()
	require.Equal(t, 1, run(t.Context(), nil, strings.NewReader(sample), file, io.Discard))
}

func TestRequestsUpToReachLinesOutOfOrderAreDecidedInOrder(t *testing.T) {
	// One request a second, with each run of lines backwards: put in order, none is
	// denied.
	logOf := func(run int) string {
		start := time.Date(2015, 5, 17, 10, 5, 0, 0, time.UTC)
		var log strings.Builder
		for first := 0; first < 4*reach; first += run {
			for i := run - 1; i >= 0; i-- {
				at := start.Add(time.Duration(first+i) * time.Second)
				fmt.Fprintf(&log, "192.0.2.1 - - [%s] \"GET / HTTP/1.1\" 200 10\n", at.Format(layout))
			}
		}
		return log.String()
	}
	got := replayed(t, strings.NewReader(logOf(reach+1)), "-limit", "1/s")
	require.Contains(t, got.stdout, "\n        0 denied")
	got = replayed(t, strings.NewReader(logOf(4*reach)), "-limit", "1/s")
	require.NotContains(t, got.stdout, "\n        0 denied", "this far out of order, late requests are denied")
}

func TestALongLineIsReadAsFarAsItMatters(t *testing.T) {
	const begin = `192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET /`
	for _, n := range []int{maxLine - 1, maxLine, maxLine + 1, 2*maxLine - 1, 2 * maxLine, 2*maxLine + 1, 5 << 20} {
		long := begin + strings.Repeat("a", n-len(begin)-1) + "\n"
		for _, log := range []string{sample + long + sample, sample + strings.TrimSuffix(long, "\n")} {
			got := replayed(t, strings.NewReader(log), "-limit", "2/m")
			require.Zero(t, got.code)
			require.Contains(t, got.stdout, fmt.Sprintf("%9d requests of 3 clients", 8*strings.Count(log, "host.example")+1))
		}
	}
	// A line with a wrong beginning is unreadable, and shown in part.
	got := replayed(t, strings.NewReader(sample+strings.Repeat("a", 5<<20)+"\n"))
	require.Contains(t, got.stdout, "3 lines that could not be read")
	require.Less(t, len(got.stderr), 1000)
}

const layout = "02/Jan/2006:15:04:05 -0700"

func TestParseLine(t *testing.T) {
	at := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC)
	for line, client := range map[string]string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                         "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326 "-" "curl/8"`:            "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326 "-" "curl/8" extra 0.01`: "192.0.2.1",
		`2001:db8::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                       "2001:db8::1",
		`::ffff:192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                  "::ffff:192.0.2.1",
		`fe80::1%eth0 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                      "fe80::1%eth0",
		`a_b.example.com - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                   "a_b.example.com",
		`192.0.2.1 - frank [17/May/2015:12:05:03 +0200] "GET / HTTP/1.1" 200 2326`:                     "192.0.2.1",
		`192.0.2.1 - frank o [x] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:               "192.0.2.1",
		`192.0.2.1 - [01/Jan/2030:00:00:00 +0000] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`: "192.0.2.1",
		`192.0.2.1 - [01/Jan/2030:00:00:00 +0000] \" [17/May/2015:10:05:03 +0000] "GET /" 200 2`:       "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /?[01/Jan/2030:00:00:00 +0000] \"x\"" 200 2`:  "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /\"] \"x HTTP/1.1" 200 2326`:                  "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "" 400 0`:                                          "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /cut`:                                         "192.0.2.1",
		strings.Repeat("a", 255) + ` - - [17/May/2015:10:05:03 +0000] "-" 408 -`:                       strings.Repeat("a", 255),
	} {
		gotClient, gotAt, err := parseLine(line)
		require.NoError(t, err, line)
		require.Equal(t, client, gotClient, line)
		require.Equal(t, at, gotAt, line)
	}
	for _, line := range []string{
		"",
		" ",
		"192.0.2.1",
		"192.0.2.1 - -",
		` - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		` 192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		"\ufeff" + `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		"\x1b[31m" + `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		strings.Repeat("a", 256) + ` - - [17/May/2015:10:05:03 +0000] "-" 408 -`,
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000]`,
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] GET / HTTP/1.1 200 2326`,
		`192.0.2.1 - - 17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		`192.0.2.1 - - [] "GET / HTTP/1.1" 200 2326`,
		`192.0.2.1 - - [2015-05-17T10:05:03Z] "GET / HTTP/1.1" 200 2326`,
	} {
		client, at, err := parseLine(line)
		require.Error(t, err, line)
		require.Zero(t, client, line)
		require.Zero(t, at, line)
	}
}

func TestParseTimeReadsWhatServersWrite(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		zone := time.FixedZone("", 60*(random.IntN(2*14*60)-14*60))
		at := time.Unix(random.Int64N(4_102_444_800), 0).In(zone) // to 2100
		got, ok := parseTime(at.Format(layout))
		require.True(t, ok, at)
		require.Equal(t, at.UTC(), got)
	}
	for text, want := range map[string]time.Time{
		"29/Feb/2024:00:00:00 +0000": time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"31/Dec/2016:23:59:60 +0000": time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC), // a leap second
		"01/Jan/2015:00:00:00 +0530": time.Date(2014, 12, 31, 18, 30, 0, 0, time.UTC),
		"31/Dec/2014:19:00:00 -0500": time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got, ok := parseTime(text)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
}

func TestParseTimeRefusesTheRest(t *testing.T) {
	const good = "17/May/2015:10:05:03 +0000"
	for i := range good {
		_, ok := parseTime(good[:i] + "x" + good[i+1:])
		require.False(t, ok, "x at %d", i)
		_, ok = parseTime(good[:i])
		require.False(t, ok, good[:i])
	}
	for _, text := range []string{
		"00/May/2015:10:05:03 +0000", "32/May/2015:10:05:03 +0000", "31/Apr/2015:10:05:03 +0000",
		"29/Feb/2015:10:05:03 +0000", "17/may/2015:10:05:03 +0000", "17/ayJ/2015:10:05:03 +0000",
		"17/May/2015:24:05:03 +0000", "17/May/2015:10:60:03 +0000", "17/May/2015:10:05:61 +0000",
		"17/May/2015:10:05:03 +2400", "17/May/2015:10:05:03 +0060", "17/May/2015:10:05:03 00000",
		"17/May/2015:10:05:03 +0000 ",
	} {
		_, ok := parseTime(text)
		require.False(t, ok, text)
	}
}

func FuzzParseLine(f *testing.F) {
	for line := range strings.Lines(sample) {
		f.Add(line)
	}
	f.Add("192.0.2.1 - [01/Jan/2030:00:00:00 +0000] [17/May/2015:10:05:60 -2359] \"GET")
	f.Fuzz(func(t *testing.T, line string) {
		client, at, err := parseLine(line)
		if err != nil {
			require.Zero(t, client)
			require.Zero(t, at)
			return
		}
		require.True(t, strings.HasPrefix(line, client+" "))
		require.NotContains(t, client, " ")

		// What was read as the time is what package time reads, except for leap seconds.
		before, _, _ := strings.Cut(line, `] "`)
		text := before[len(before)-len(layout):]
		leap := strings.Contains(text, ":60 ")
		want, err := time.Parse(layout, strings.Replace(text, ":60 ", ":59 ", 1))
		require.NoError(t, err)
		if leap {
			want = want.Add(time.Second)
		}
		require.Equal(t, want.UTC(), at)
	})
}
