package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReportOfSuggest(t *testing.T) {
	for name, args := range map[string]string{
		"suggest.txt":      "",
		"suggest-half.txt": "-quantile 0.5 -periods 1h,10s,1d,10s",
		"suggest-path.txt": "-key path",
	} {
		got := command(t, nil, append(append([]string{"suggest"}, strings.Fields(args)...), "testdata/access.log")...)
		require.Zero(t, got.code)
		require.Empty(t, got.stderr)
		golden(t, name, got.stdout)
	}
}

// randomLog returns a log with the requests of 200 clients. Some are ten times as busy as others,
// and all requests come in bursts.
func randomLog(random *rand.Rand, n int) (log string, times map[string][]time.Time) {
	var b strings.Builder
	times = make(map[string][]time.Time)
	at := start
	for len(times) == 0 || n > 0 {
		at = at.Add(time.Duration(random.ExpFloat64() * float64(20*time.Second))).Truncate(time.Second)
		client := fmt.Sprintf("192.0.2.%d", int(random.ExpFloat64()*20)%200)
		for range 1 + random.IntN(5) {
			b.WriteString(line(client, at))
			times[client] = append(times[client], at)
			n--
		}
	}
	return b.String(), times
}

// mostWithin returns the maximum number of times within any period, computed the slow way.
func mostWithin(times []time.Time, period time.Duration) (most int) {
	for i := range times {
		n := 0
		for _, other := range times[i:] {
			if other.Sub(times[i]) < period {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func TestSuggestFindsWhatAModelFindsAndReplayAgrees(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, quantile := range []float64{0.5, 0.9, 0.99, 1} {
		log, times := randomLog(random, 4000)
		got := command(t, strings.NewReader(log), "suggest", "-periods", "5s,7m,3h", "-quantile", fmt.Sprint(quantile))
		require.Zero(t, got.code)
		for _, period := range []time.Duration{5 * time.Second, 7 * time.Minute, 3 * time.Hour} {
			var most []int
			for _, of := range times {
				most = append(most, mostWithin(of, period))
			}
			slices.Sort(most)
			least := slices.IndexFunc(most, func(n int) bool { // the first that is enough
				return float64(count(most, n)) >= quantile*float64(len(most))
			})
			above := len(most) - count(most, most[least])
			text := strings.TrimSuffix(strings.TrimSuffix(period.String(), "0s"), "0m")
			limit := fmt.Sprintf("%d/%s", most[least], text)
			require.Regexp(t, fmt.Sprintf(`(?m)^ +%s .* %d  %s +%d clients? `, text, most[len(most)-1], limit, above), got.stdout)

			replay := command(t, strings.NewReader(log), "replay", "-algorithm", "sliding_log", "-limit", limit)
			require.Regexp(t, fmt.Sprintf(` denied \(.*\), of %d clients?\n`, above), replay.stdout, limit)
			if quantile == 1 {
				require.Contains(t, replay.stdout, "\n        0 denied")
			}
		}
	}
}

// count returns how many of the sorted values are at most n.
func count(sorted []int, n int) int {
	at, _ := slices.BinarySearch(sorted, n+1)
	return at
}

func newSuggest(log io.Reader) *suggest {
	s := &suggest{
		quantile: 1, periods: periods{time.Second, time.Minute}, keys: make(map[string]int32),
		maxKeys: maxCounted, maxEvents: maxWindow,
	}
	s.program = &program{stdin: log, stderr: os.Stderr}
	s.format = "combined"
	return s
}

func (s *suggest) report(t *testing.T) string {
	t.Helper()
	require.NoError(t, s.prepare())
	require.NoError(t, s.each(nil, s.count))
	var out strings.Builder
	s.print(&out)
	return out.String()
}

func TestAPeriodWithTooManyEventsIsGivenUp(t *testing.T) {
	whole := newSuggest(strings.NewReader(longLog(3000))).report(t)
	s := newSuggest(strings.NewReader(longLog(3000)))
	s.maxEvents = 300 // of 5 a second
	got := s.report(t)
	require.Contains(t, got, "period 1m was given up, because it had 300 requests\n")
	require.NotContains(t, got, "/m ")
	_, second, _ := strings.Cut(whole, "\n      1s ")
	second, _, _ = strings.Cut(second, "\n")
	require.Contains(t, got, "\n      1s "+second+"\n")

	s = newSuggest(strings.NewReader(longLog(3000)))
	s.maxEvents = 301 // 300 are in the last minute, and the current one
	require.Equal(t, whole, s.report(t))

	s = newSuggest(strings.NewReader(longLog(3000)))
	s.maxEvents = 2
	require.Contains(t, s.report(t), "period 1s was given up, because it had 2 requests\n")
	require.LessOrEqual(t, cap(s.events), 16)
}

func TestKeysBeyondTheBoundAreLeftOut(t *testing.T) {
	s := newSuggest(strings.NewReader(longLog(100)))
	s.maxKeys = 20
	got := s.report(t)
	require.Contains(t, got, "100 requests of more than 20 clients")
	require.Contains(t, got, "\n       60 requests beyond the first 20 clients, left out\n")
}

func TestAShareThatIsAllOfThemIsSaid(t *testing.T) {
	for _, c := range []struct {
		clients int
		args    string
		said    string
	}{
		{1, "", "Too few for 99 %: 1 client."},
		{2, "", "-quantile 0.5.\n"},
		{18, "", "-quantile 0.94.\n"},
		{99, "", "-quantile 0.98.\n"},
		{100, "", ""},
		{100, "-quantile 0.995", "Too few for 99.5 %: 100 clients."},
		{18, "-quantile 0.94", ""},
		{18, "-quantile 1", ""}, // as was asked
	} {
		var log strings.Builder
		for i := range c.clients {
			log.WriteString(line(fmt.Sprintf("192.0.2.%d", i), start))
		}
		got := command(t, strings.NewReader(log.String()), append([]string{"suggest"}, strings.Fields(c.args)...)...)
		require.Zero(t, got.code)
		require.Contains(t, got.stdout, c.said)
		require.Equal(t, c.said != "", strings.Contains(got.stdout, "Too few"), "%+v", c)
	}
}

// endless is a log of n lines that is never in memory, with 1,000 clients and 10 requests per
// second. It makes a call at each tenth of the lines.
type endless struct {
	n, i int
	rest string
	at   func()
}

func (e *endless) Read(b []byte) (int, error) {
	if e.rest == "" {
		if e.i == e.n {
			return 0, io.EOF
		}
		e.rest = line(fmt.Sprintf("192.0.%d.%d", e.i/100%10, e.i%100), start.Add(time.Duration(e.i/10)*time.Second))
		if e.i++; e.i%(e.n/10) == 0 {
			e.at()
		}
	}
	n := copy(b, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func TestALongLogIsReadInBoundedMemory(t *testing.T) {
	lines := 2_000_000
	if testing.Short() {
		lines = 200_000
	}
	for _, args := range []string{"suggest", "replay -limit 10/m", "replay -limit 1000/h -algorithm sliding_log"} {
		var heap []uint64 // in use
		log := &endless{n: lines, at: func() {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			heap = append(heap, m.HeapAlloc)
		}}
		require.Zero(t, command(t, log, strings.Fields(args)...).code)
		require.Len(t, heap, 10)
		t.Log(args, heap)
		require.Less(t, slices.Max(heap[5:]), heap[2]+heap[2]/4+1<<20, "%s: %v", args, heap)
	}
}

// 0.07*100 is a little above 7 as a float64.
func TestARankIsNotThatOfARoundingError(t *testing.T) {
	for _, c := range []struct {
		n    int
		q    float64
		want int
	}{{100, 0.07, 7}, {100, 0.071, 8}, {100, 0.29, 29}, {1000, 0.999, 999}, {3, 0.01, 1}, {1 << 20, 1, 1 << 20}} {
		require.Equal(t, c.want, rank(c.n, c.q), "%v of %d", c.q, c.n)
	}
	got := command(t, nil, "suggest", "-quantile", "0.07", "testdata/access.log")
	require.Contains(t, got.stdout, "the limit for 7 % of them")
}
