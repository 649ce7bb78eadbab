package simulation

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// The counts are within+beyond-denied, most: of FixedWindow, SlidingWindow, SlidingLog,
// TokenBucket and LeakyBucket.
var counts = map[string]string{
	"edge":   "20+20-0,20 20+2-18,11 20+0-20,10 20+6-14,13 26+0-14,10",
	"bursts": "10+10-20,20 10+4-26,13 16+0-24,10 10+10-20,19 20+0-20,10",
	"steady": "40+0-40,10 37+0-43,10 40+0-40,10 31+18-31,19 49+0-31,10",
	"random": "23+17-32,13 36+1-35,11 40+0-32,10 19+30-23,19 49+0-23,10",
	"none":   "0+0-0,0 0+0-0,0 0+0-0,0 0+0-0,0 0+0-0,0",
}

func countsOf(out *Output) string {
	var all []string
	for _, o := range out.Outcomes {
		all = append(all, fmt.Sprintf("%d+%d-%d,%d", o.Within, o.Beyond, o.Denied, o.Most))
	}
	return strings.Join(all, " ")
}

func TestCountsOfEachTraffic(t *testing.T) {
	require.Len(t, counts, len(Traffics))
	for _, traffic := range Traffics {
		for _, limit := range []string{"10/s", "10/15m", "10/7d"} { // all of a traffic scales with the Period
			out, err := Run(Input{Limit: limit, Cost: 1, Traffic: traffic.Name})
			require.NoError(t, err)
			require.Equal(t, counts[traffic.Name], countsOf(out), "%s, %s", traffic.Name, limit)
		}
	}
}

func TestBarsHaveEachRequestOnce(t *testing.T) {
	for _, traffic := range Traffics {
		out, err := Run(Input{Limit: "60/m", Cost: 2, Traffic: traffic.Name, Steps: "10,w,5"})
		require.NoError(t, err)
		for _, o := range out.Outcomes {
			var sum Bar
			for _, b := range o.Bars {
				sum = Bar{sum.Within + b.Within, sum.Beyond + b.Beyond, sum.Denied + b.Denied, 0}
			}
			require.Equal(t, Bar{o.Within, o.Beyond, o.Denied, 0}, sum, "%s %s", traffic.Name, o.Algorithm)
			require.Equal(t, out.Requests, o.Within+o.Beyond+o.Denied, "%s %s", traffic.Name, o.Algorithm)
		}
	}
}

// At twice the limit, one request in five is important, and so are those sent by hand.
func TestImportantRequestsHaveWhatIsReserved(t *testing.T) {
	in := Input{Limit: "100/s", Cost: 1, Traffic: "steady"}
	without, err := Run(in)
	require.NoError(t, err)
	require.Zero(t, without.Reserved)
	in.Reserve, in.Steps = 30, "10"
	with, err := Run(in)
	require.NoError(t, err)
	require.Equal(t, 30, with.Reserved)
	for i, o := range with.Outcomes {
		before := without.Outcomes[i]
		require.Zero(t, before.Important+before.ImportantRefused, o.Algorithm)
		require.Equal(t, 800/5+10, o.Important+o.ImportantRefused, o.Algorithm)
		require.Equal(t, 810, o.Within+o.Beyond+o.Denied, o.Algorithm)
		require.Zero(t, o.ImportantRefused, o.Algorithm)
		require.GreaterOrEqual(t, o.Within+o.Beyond, before.Within+before.Beyond-30*periods, "%s: others have all but what is reserved", o.Algorithm)
		bars := 0
		for _, b := range o.Bars {
			require.LessOrEqual(t, b.Important, b.Within, o.Algorithm)
			bars += b.Important
		}
		require.LessOrEqual(t, bars, o.Important, o.Algorithm)
	}
	for reserve, want := range map[int]int{0: 0, 10: 1, 50: 7, 90: 13} {
		out, err := Run(Input{Limit: "10/s burst 15", Cost: 1, Traffic: "edge", Reserve: reserve})
		require.NoError(t, err)
		require.Equal(t, want, out.Reserved)
	}
	for _, limit := range []string{"unlimited", "0/s", "1/s"} {
		out, err := Run(Input{Limit: limit, Cost: 1, Traffic: "edge", Reserve: 90})
		require.NoError(t, err)
		require.Zero(t, out.Reserved, limit)
	}
}

// The library's own SlidingLog is told of all that an algorithm lets go, at that time.
func TestBeyondIsTheVerdictOfASlidingLog(t *testing.T) {
	for _, traffic := range Traffics {
		for _, in := range []Input{
			{Limit: "10/s", Cost: 1, Steps: "10,w,w,10,w,1"},
			{Limit: "10/s", Cost: 3, Steps: "10,w,w,10,w,1"},
			{Limit: "100/h", Cost: 1},
			{Limit: "20/m burst 40", Cost: 1},
			{Limit: "0/s", Cost: 1},
		} {
			in.Traffic = traffic.Name
			p, err := newPlan(in)
			require.NoError(t, err)
			for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
				if p.limit.ValidateFor(algorithm) != nil {
					continue
				}
				o, err := p.run(algorithm)
				require.NoError(t, err)
				require.Equal(t, beyondOfLibrary(t, p, algorithm), o.Beyond, "%+v %s", in, algorithm)
			}
		}
	}
}

func beyondOfLibrary(t *testing.T, p *plan, algorithm string) (beyond int) {
	var now, goes time.Duration
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return p.start.Add(now) }))
	require.NoError(t, err)
	limiter, err := ratelimit.New(algorithm, mem, p.limit)
	require.NoError(t, err)
	exactMem, err := memstore.New(memstore.WithClock(func() time.Time { return p.start.Add(goes) }))
	require.NoError(t, err)
	exact, err := ratelimit.NewSlidingLog(exactMem, ratelimit.Limit{Rate: p.limit.Rate, Period: p.limit.Period})
	require.NoError(t, err)
	for _, q := range p.requests {
		now = q.at
		r, err := limiter.AllowN(t.Context(), q.client, p.cost)
		require.NoError(t, err)
		if !r.Allowed {
			continue
		}
		goes = q.at + r.Delay
		verdict, err := exact.AllowN(t.Context(), q.client, p.cost)
		require.NoError(t, err)
		if !verdict.Allowed {
			beyond++
			_, err = exact.Charge(t.Context(), q.client, p.cost)
			require.NoError(t, err)
		}
	}
	return beyond
}

func TestStepsByHand(t *testing.T) {
	out, err := Run(Input{Limit: "5/s", Cost: 1, Traffic: "none", Steps: "10"})
	require.NoError(t, err)
	require.Equal(t, 10, out.Last)
	require.Len(t, out.Outcomes[0].Bars, 50)
	for _, o := range out.Outcomes {
		require.Equal(t, 5, o.Granted, o.Algorithm)
		require.Equal(t, 5, o.Denied, o.Algorithm)
	}
	require.Equal(t, "denied, retry after 200ms", out.Outcomes[3].Answer)

	out, err = Run(Input{Limit: "5/s", Cost: 1, Traffic: "none", Steps: "10,w,w,1"})
	require.NoError(t, err)
	require.Equal(t, 1, out.Last)
	require.Equal(t, 0, out.Outcomes[0].Granted)
	require.Equal(t, 1, out.Outcomes[3].Granted)
	require.Equal(t, "allowed, 0 of 5 left, reset in 1s", out.Outcomes[3].Answer)

	out, err = Run(Input{Limit: "5/s", Cost: 1, Traffic: "none", Steps: "10,w"})
	require.NoError(t, err)
	require.Zero(t, out.Last)
	require.Empty(t, out.Outcomes[0].Answer)
}

// Bars are of a round length, and an edge of a window is an edge of a bar.
func TestBarsAreRound(t *testing.T) {
	for limit, want := range map[string]string{
		"10/ms": "100µs", "7/3ms": "200µs", "10/s": "100ms", "10/2s": "200ms", "10/10s": "1s", "10/45s": "4.5s", "10/m": "5s", "10/15m": "1m0s",
		"10/h": "5m0s", "10/day": "2h0m0s", "10/7d": "12h0m0s", "10/30d": "72h0m0s", "10/month in UTC": "72h0m0s", "unlimited": "100ms",
	} {
		out, err := Run(Input{Limit: limit, Cost: 1, Traffic: "edge"})
		require.NoError(t, err)
		require.Equal(t, want, out.Bin.String(), limit)
	}
}

// The traffic begins with a window, also of a calendar, and the edges are those of the FixedWindow: a burst
// at an edge is beyond the limit, and months differ in length.
func TestEdgesAreThoseOfTheWindows(t *testing.T) {
	const days = 24 * time.Hour
	for limit, want := range map[string][]time.Duration{
		"10/7d":                {0, 7 * days, 14 * days, 21 * days, 28 * days, 35 * days},
		"10/week":              {0, 7 * days, 14 * days, 21 * days, 28 * days, 35 * days},
		"10/day in Asia/Tokyo": {0, days, 2 * days, 3 * days, 4 * days, 5 * days},
		"10/month":             {0, 31 * days, 59 * days, 90 * days, 120 * days, 151 * days},
		"10/month from 31":     {0, 28 * days, 59 * days, 89 * days, 120 * days, 150 * days},
		"10/s burst 20":        {0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second},
		"0/s":                  {0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second},
	} {
		out, err := Run(Input{Limit: limit, Cost: 1, Traffic: "edge"})
		require.NoError(t, err)
		require.Equal(t, want, out.Edges, limit)
		if o := out.Outcomes[0]; o.Error == "" && limit != "0/s" {
			require.GreaterOrEqual(t, o.Beyond, 6, limit)
		}
	}
	out, err := Run(Input{Limit: "10/week", Cost: 1, Traffic: "edge"})
	require.NoError(t, err)
	require.Equal(t, 20, out.Outcomes[0].Within)
	require.Equal(t, 20, out.Outcomes[0].Beyond)
}

// Requests of each hour are in bars of whole hours: other bars would have peaks that nobody sent.
func TestBarsOfALogAreRound(t *testing.T) {
	const hours = 82
	begin := time.Date(2026, 3, 1, 0, 59, 59, 0, time.UTC) // the bars do not begin with it
	logOf := func(every time.Duration, n int) string {
		var log strings.Builder
		for i := range n {
			at := begin.Add(time.Duration(i) * every)
			fmt.Fprintf(&log, "192.0.2.%d - - [%s] \"GET / HTTP/1.1\" 200 5\n", i%200, at.Format("02/Jan/2006:15:04:05 -0700"))
		}
		return log.String()
	}
	out, err := Run(Input{Limit: "100/s", Cost: 1, Traffic: Pasted, Log: logOf(time.Hour, hours)})
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, out.Bin)
	for _, o := range out.Outcomes {
		for i, bar := range o.Bars[:hours/2] {
			require.Equal(t, 2, bar.Within, "%s, bar %d", o.Algorithm, i)
		}
	}
	for every, want := range map[time.Duration]string{
		time.Second: "2s", time.Minute: "2m0s", 4 * time.Minute: "10m0s", time.Hour: "2h0m0s", 24 * time.Hour: "48h0m0s", 100 * 24 * time.Hour: "4008h0m0s",
	} {
		out, err := Run(Input{Limit: "100/s", Cost: 1, Traffic: Pasted, Log: logOf(every, 101)})
		require.NoError(t, err)
		require.Equal(t, want, out.Bin.String(), "every %v", every)
	}
}

func TestCost(t *testing.T) {
	for x, want := range map[float64]int{1: 1, 0: 0, -1: -1, 2147483647: 2147483647} {
		n, err := Cost(x)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	for _, x := range []float64{1.5, 0.5, -0.5, math.NaN(), math.Inf(1), 1e300} {
		_, err := Cost(x)
		require.ErrorIs(t, err, ratelimit.ErrInvalidN)
		require.ErrorContains(t, err, fmt.Sprintf("invalid number of events: %v, want a whole number", x))
	}
}

func TestPastedLog(t *testing.T) {
	out, err := Run(Input{Limit: "2/m", Cost: 1, Traffic: Pasted, Log: `
192.0.2.1 - - [17/May/2015:10:05:20 +0000] "GET /c HTTP/1.1" 200 5 "-" "agent"
192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET /a HTTP/1.1" 200 5
not a line
192.0.2.1 - - [17/May/2015:12:05:10 +0200] "GET /b [x] HTTP/1.1" 200 5
2001:db8::1 - a [b] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5
nor this
`})
	require.NoError(t, err)
	require.Equal(t, 4, out.Requests)
	require.Equal(t, 2, out.Clients)
	require.Equal(t, `2 not readable, first "not a line"`, out.Unreadable)
	for _, o := range out.Outcomes {
		require.Equal(t, 1, o.Denied, o.Algorithm)
		require.Equal(t, 1, o.DeniedClients, o.Algorithm)
		require.Equal(t, 2, o.Most, o.Algorithm)
	}
}

func TestErrors(t *testing.T) {
	edge := Input{Limit: "10/s", Cost: 1, Traffic: "edge"}
	for _, test := range []struct {
		change func(in *Input)
		want   string
	}{
		{func(in *Input) { in.Limit = "abc/s" }, `ratelimit: invalid limit: "abc/s": rate "abc" is not a whole number: want digits only`},
		{func(in *Input) { in.Cost = 0 }, "ratelimit: invalid number of events: 0"},
		{func(in *Input) { in.Reserve = 91 }, "a reserve of 91 %, want 0 to 90"},
		{func(in *Input) { in.Reserve = -1 }, "a reserve of -1 %, want 0 to 90"},
		{func(in *Input) { in.Traffic = "jam" }, `no traffic is named "jam"`},
		{func(in *Input) { in.Limit = "2147483647/s" }, "requests are too many for this page, which draws up to 50000: raise the cost or lower the rate"},
		{func(in *Input) { in.Steps = "1000" + strings.Repeat(",1000", 60) }, "draws up to 50000: clear what you sent"},
		{func(in *Input) {
			in.Traffic = Pasted
			in.Log = strings.Repeat("a - - [17/May/2015:10:05:20 +0000] \"GET /\n", maxRequests+1)
		}, "50001 requests are too many for this page, which draws up to 50000: paste fewer lines"},
		{func(in *Input) { in.Traffic = Pasted }, "paste lines of an access log: there are none yet"},
		{func(in *Input) { in.Traffic, in.Log = Pasted, "x" }, `paste lines of an access log: 1 not readable, first "x"`},
		{func(in *Input) {
			in.Traffic = Pasted
			in.Log = "a - - [01/Jan/0001:00:00:00 +0000] \"GET /\n" + "a - - [17/May/2015:10:05:20 +0000] \"GET /"
		}, "the log is from 0001 to 2015, which is over 100 years"},
		{func(in *Input) { in.Steps = "10,x" }, `"x" is no step: a number up to 1000, or w to wait`},
		{func(in *Input) { in.Steps = "1" + strings.Repeat(",w", maxSteps) }, "101 steps by hand are too many, at most 100: clear them"},
	} {
		in := edge
		test.change(&in)
		_, err := Run(in)
		require.ErrorContains(t, err, test.want)
	}
}

func TestExtremeLimits(t *testing.T) {
	for _, limit := range []string{"0/s", "1/3650d", "1000/ms", "unlimited", "1/s burst 2147483647", "7/3ms"} {
		for _, traffic := range Traffics {
			out, err := Run(Input{Limit: limit, Cost: 1, Traffic: traffic.Name, Steps: "1" + strings.Repeat(",w", maxSteps-1)})
			require.NoError(t, err)
			require.Equal(t, limit == "0/s" || limit == "unlimited", out.Average == 0, limit)
			for _, o := range out.Outcomes {
				if limit == "unlimited" {
					require.Equal(t, out.Requests, o.Within, o.Algorithm)
				}
			}
		}
	}
}

func TestAnAlgorithmThatCannotKeepALimitSaysSo(t *testing.T) {
	out, err := Run(Input{Limit: "60/m burst 10", Cost: 1, Traffic: "edge"})
	require.NoError(t, err)
	require.Equal(t, "ratelimit: invalid limit: 60/m burst 10: a fixed_window cannot have a burst", out.Outcomes[0].Error)
	require.Empty(t, out.Outcomes[3].Error)
	require.Positive(t, out.Outcomes[3].Within)
}
