package main

import (
	"bytes"
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

const sampleComplaint = `ratelimit: %s:6: it does not begin with a client's address: "[Sun May 17 10:05:04 2015] [error] [client 192.0.2.1] File does not exist"
`

// replayed runs replay with a token bucket.
func replayed(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	return command(t, stdin, append([]string{"replay", "-algorithm", "token_bucket", "-limit", "2/m"}, args...)...)
}

func TestLogsAreReadFromFilesAndPipesPlainAndZipped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log.gz")
	require.NoError(t, os.WriteFile(file, zip(t, sample), 0o600))
	half := len(sample) / 2

	for name, test := range map[string]struct {
		stdin []byte
		file  string
	}{
		"standard input":         {[]byte(sample), ""},
		"standard input named -": {[]byte(sample), "-"},
		"gzip on standard input": {zip(t, sample), ""},
		"gzip of two members":    {append(zip(t, sample[:half]), zip(t, sample[half:])...), ""},
		"a file":                 {nil, file},
		"CRLF":                   {[]byte(strings.ReplaceAll(sample, "\n", "\r\n")), ""},
		"no newline at the end":  {[]byte(strings.TrimSuffix(sample, "\n")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			place, args := "standard input", []string(nil)
			if test.file != "" {
				args = append(args, test.file)
			}
			if test.stdin == nil {
				place = test.file
			}
			want := result{0, sampleReport, fmt.Sprintf(sampleComplaint, place)}
			require.Equal(t, want, replayed(t, bytes.NewReader(test.stdin), args...))
			if test.stdin != nil {
				require.Equal(t, want, replayed(t, iotest.OneByteReader(bytes.NewReader(test.stdin)), args...))
			}
		})
	}
}

func TestAnEmptyLogIsALogWithoutRequests(t *testing.T) {
	const empty = "token_bucket, 2/m\n        0 requests of 0 clients\n        0 denied (0.00 %), of 0 clients\n"
	require.Equal(t, result{0, empty, ""}, replayed(t, strings.NewReader("")))
	require.Equal(t, result{0, empty, ""}, replayed(t, bytes.NewReader(zip(t, ""))))
}

func TestATextThatIsNoLogIsAnError(t *testing.T) {
	got := replayed(t, strings.NewReader(strings.Repeat("\x00 \x1b[31mred\n", 9)))
	require.Equal(t, 1, got.code)
	require.Equal(t, `ratelimit: standard input:1: it does not begin with a client's address: "\x00 \x1b[31mred"
ratelimit: no line could be read: is -format or -line right?
`, got.stderr)
	require.Contains(t, got.stdout, "9 lines that could not be read")
}

func TestAMarkOfUTF8CostsNoLine(t *testing.T) {
	for _, log := range []string{"\ufeff" + sample, string(zip(t, "\ufeff"+sample))} {
		got := replayed(t, strings.NewReader(log))
		require.Equal(t, result{0, sampleReport, fmt.Sprintf(sampleComplaint, "standard input")}, got)
	}
	got := replayed(t, strings.NewReader(sample+"\ufeff"+sample))
	require.Contains(t, got.stdout, "5 lines that could not be read", "in the middle it is no mark")
}

// The error describes the lines that came closest: lines in the right form without a known time
// come before lines in another form.
func TestTheErrorIsThatOfTheLinesThatCameFarthest(t *testing.T) {
	const form = `^(?P<time>\w+ \w+) (?P<key>\w+)$`
	log := strings.Repeat("started\n", 20) + strings.Repeat("yesterday noon ann\n", 7)
	got := replayed(t, strings.NewReader(log), "-line", form)
	require.Equal(t, 1, got.code)
	require.Equal(t, `ratelimit: standard input:1: it does not match -line: "started"
ratelimit: standard input:21: no known form of time: "yesterday noon": "yesterday noon ann"
ratelimit: no line could be read: 7 have the right form, but their time is in an unknown form: set -layout
`, got.stderr)
	require.Contains(t, got.stdout, "27 lines that could not be read")

	got = replayed(t, strings.NewReader(log), "-line", form, "-layout", time.DateOnly)
	require.Contains(t, got.stderr, `21: the time is not as in -layout: "yesterday noon"`)
	require.Contains(t, got.stderr, "7 have the right form, but their time does not match -layout\n")

	got = replayed(t, strings.NewReader(strings.Repeat(`{"ip":"192.0.2.1","time":"noon"}`+"\n", 2)), "-format", "json")
	require.Contains(t, got.stderr, "2 have the right form, but their time is in an unknown form")

	got = replayed(t, strings.NewReader(log+"2015-05-17 10 ann\n"), "-line", `^(?P<time>\S+ \w+) (?P<key>\w+)$`, "-layout", "2006-01-02 15")
	require.Zero(t, got.code, "one could be read")
	require.Equal(t, 2, strings.Count(got.stderr, "\n"), "the first of each kind")
}

func TestLinesOfJSONAreNamed(t *testing.T) {
	const object = `{"ip":"192.0.2.1","ts":1735689600}` + "\n"
	got := replayed(t, strings.NewReader(object+object))
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "ratelimit: standard input:1: it is JSON: use -format json: ")
	require.Contains(t, got.stderr, "ratelimit: no line could be read: 2 are JSON: use -format json\n")

	got = replayed(t, strings.NewReader(sample+object))
	require.Zero(t, got.code, "one could be read")
	require.NotContains(t, replayed(t, strings.NewReader("{ip}\n")).stderr, "JSON")
}

// A time without a year is in the last year in which it was not later than the file.
func TestYearsAreTakenFromTheFile(t *testing.T) {
	log := "Dec 31 23:59:58 a: ann\nDec 31 23:59:59 a: ann\nJan  1 00:00:00 a: ann\nJan  1 00:00:01 a: ann\n"
	file := filepath.Join(t.TempDir(), "syslog")
	for written, want := range map[string]string{
		"2026-01-02 03:04:05": "4 requests of 1 key, 2025-12-31 23:59:58 to 2026-01-01 00:00:01 UTC",
		"2025-12-31 23:30:00": "4 requests of 1 key, 2025-12-31 23:59:58 to 2026-01-01 00:00:01 UTC", // its zone is ahead
		"2026-11-01 00:00:00": "4 requests of 1 key, 2025-12-31 23:59:58 to 2026-01-01 00:00:01 UTC",
	} {
		for _, text := range []string{log, string(zip(t, log))} {
			at, err := time.Parse(time.DateTime, written)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			require.NoError(t, os.Chtimes(file, at, at))
			got := replayed(t, nil, "-line", `^(?P<time>\S+ +\S+ \S+) .*: (?P<key>\w+)`, file)
			require.Zero(t, got.code, got.stderr)
			require.Contains(t, got.stdout, want, written)
			require.NotContains(t, got.stdout, "late")
		}
	}
	day := time.Now().UTC().AddDate(0, 0, -3)
	got := replayed(t, strings.NewReader(day.Format("Jan _2")+" 10:00:00 a: ann"), "-line", `^(?P<time>\S+ +\S+ \S+) .*: (?P<key>\w+)`)
	require.Contains(t, got.stdout, "1 request of 1 key, "+day.Format(time.DateOnly)+" 10:00:00", "standard input is written now")
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
	_, err := fmt.Sscanf(got.stderr, "ratelimit: standard input: the gzip file is truncated after line %d\n", &lines)
	require.NoError(t, err, got.stderr)
	_, err = fmt.Sscanf(got.stdout, "token_bucket, 2/m\n %d requests of 1 client", &requests)
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

func TestOtherErrorsOfAFile(t *testing.T) {
	damaged := zip(t, sample)
	damaged[len(damaged)-5] ^= 1 // of the checksum

	for name, test := range map[string]struct {
		stdin io.Reader
		files []string
		says  string
	}{
		"a file that is not there": {nil, []string{filepath.Join(t.TempDir(), "none.log")}, "none.log: no such file"},
		"a directory":              {nil, []string{t.TempDir()}, "is a directory"},
		"a damaged gzip":           {bytes.NewReader(damaged), nil, "after line 10: gzip: invalid checksum"},
		"a reader that fails":      {io.MultiReader(strings.NewReader(sample), iotest.ErrReader(errors.New("unplugged"))), nil, "after line 10: unplugged"},
	} {
		t.Run(name, func(t *testing.T) {
			got := replayed(t, test.stdin, test.files...)
			require.Equal(t, 1, got.code)
			require.Contains(t, got.stderr, test.says)
			require.Equal(t, strings.HasPrefix(test.says, "after line"), strings.Contains(got.stdout, "8 requests of"))
		})
	}
}

// line returns the line of a client's request.
func line(client string, at time.Time) string {
	return fmt.Sprintf("%s - - [%s] \"GET / HTTP/1.1\" 200 10\n", client, at.UTC().Format("02/Jan/2006:15:04:05 -0700"))
}

var start = time.Date(2015, 5, 17, 10, 5, 0, 0, time.UTC)

func TestLinesUpToReachOutOfOrderAreDecidedInOrder(t *testing.T) {
	// One request per second, with each run of lines reversed. Put in order, none is denied.
	logOf := func(run int) string {
		var log strings.Builder
		for first := 0; first < 4*reach; first += run {
			for i := run - 1; i >= 0; i-- {
				log.WriteString(line("192.0.2.1", start.Add(time.Duration(first+i)*time.Second)))
			}
		}
		return log.String()
	}
	got := command(t, strings.NewReader(logOf(reach+1)), "replay", "-limit", "1/s", "-algorithm", "token_bucket")
	require.Contains(t, got.stdout, "\n        0 denied")
	require.NotContains(t, got.stdout, "late")
	got = command(t, strings.NewReader(logOf(4*reach)), "replay", "-limit", "1/s", "-algorithm", "token_bucket")
	require.NotContains(t, got.stdout, "\n        0 denied", "this far out of order, late requests are denied")
	require.Contains(t, got.stdout, "lines more than 16384 lines late")
}

func TestSeveralFilesAreOneLogInAnyOrder(t *testing.T) {
	lines := strings.SplitAfter(longLog(3*reach), "\n")
	dir := t.TempDir()
	write := func(name string, parts ...string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(parts, "")), 0o600))
		return file
	}
	var even, odd []string
	for i, line := range lines {
		if i%2 == 0 {
			even = append(even, line)
		} else {
			odd = append(odd, line)
		}
	}
	third := len(lines) / 3
	want := command(t, strings.NewReader(strings.Join(lines, "")), "replay", "-limit", "3/m")
	require.NotContains(t, want.stdout, "\n        0 denied")
	for name, files := range map[string][]string{
		"rotated":      {write("log", lines[2*third:]...), write("log.1", lines[third:2*third]...), write("log.2", lines[:third]...)},
		"of 2 servers": {write("b", odd...), write("a", even...), write("none")},
	} {
		require.Equal(t, want, command(t, nil, append([]string{"replay", "-limit", "3/m"}, files...)...), name)
	}
}

// longLog returns a log with n requests of 50 clients, about 5 of them per second. The clients take
// turns, so the order within a second does not matter.
func longLog(n int) string {
	var log strings.Builder
	for i := range n {
		log.WriteString(line(fmt.Sprintf("192.0.2.%d", i%50), start.Add(time.Duration(i/5)*time.Second)))
	}
	return log.String()
}

func TestALongLineIsReadAsFarAsItMatters(t *testing.T) {
	const begin = `192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET /`
	for _, n := range []int{maxLine - 1, maxLine, maxLine + 1, 2*maxLine - 1, 2 * maxLine, 2*maxLine + 1, 5 << 20} {
		long := begin + strings.Repeat("a", n-len(begin)-1) + "\n"
		for _, log := range []string{sample + long + sample, sample + strings.TrimSuffix(long, "\n")} {
			got := replayed(t, strings.NewReader(log))
			require.Zero(t, got.code)
			require.Contains(t, got.stdout, fmt.Sprintf("%9d requests of 3 clients", 8*strings.Count(log, "host.example")+1))
		}
	}
	// A line with a wrong beginning is unreadable, and printed in part.
	got := replayed(t, strings.NewReader(strings.Repeat("a", 5<<20)+"\n"+sample))
	require.Contains(t, got.stdout, "3 lines that could not be read")
	require.Less(t, len(got.stderr), 300)
}

func TestProgressIsShownOnATerminalOnly(t *testing.T) {
	log := strings.Repeat(line("192.0.2.1", start), 2*tick)
	for _, terminal := range []bool{false, true} {
		var stderr strings.Builder
		p := &program{stdin: strings.NewReader(log), stdout: io.Discard, stderr: &stderr, progress: terminal}
		require.Zero(t, p.run(t.Context(), []string{"suggest"}))
		want := ""
		if terminal {
			want = "\r524288 lines, up to 2015-05-17 10:05:00\r1048576 lines, up to 2015-05-17 10:05:00\r\x1b[K"
		}
		require.Equal(t, want, stderr.String())
	}
}
