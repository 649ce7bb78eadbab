// Quickstart sends the same requests through all five algorithms, each with a limit of 5 a
// second. It prints which of them are allowed. It needs no server and takes no time, since
// its clock is simulated.
//
// Look at 1.0 s, where one window ends and the next begins, at the rest of each line, and
// at the counts in the last two columns.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// row is an event at a time since the start, and what each algorithm says about it.
type row struct {
	at      time.Duration
	results []ratelimit.Result
}

func run(ctx context.Context, w io.Writer) error {
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	limit := ratelimit.PerSecond(5)

	rows, err := simulate(ctx, algorithms, limit, traffic())
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d requests at a limit of %v, + allowed, . denied\n\n", len(rows), limit)
	printTable(w, algorithms, rows)
	fmt.Fprintln(w, explanation)
	return nil
}

// traffic returns the times of 10 events across the edge of two windows, 20 ms apart.
// Events 100 ms apart follow.
func traffic() []time.Duration {
	var times []time.Duration
	for at := 900 * time.Millisecond; at < 1100*time.Millisecond; at += 20 * time.Millisecond {
		times = append(times, at)
	}
	for at := 1100 * time.Millisecond; at <= 2000*time.Millisecond; at += 100 * time.Millisecond {
		times = append(times, at)
	}
	return times
}

// simulate asks a limiter of each algorithm about each event, at the event's time.
// One store serves all: limiters share nothing unless they are alike.
func simulate(ctx context.Context, algorithms []string, limit ratelimit.Limit, times []time.Duration) ([]row, error) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) // a full second: windows begin there
	now := start
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		return nil, err
	}
	limiters := make([]ratelimit.Limiter, len(algorithms))
	for i, name := range algorithms {
		if limiters[i], err = ratelimit.New(name, mem, limit); err != nil {
			return nil, err
		}
	}

	rows := make([]row, 0, len(times))
	for _, at := range times {
		now = start.Add(at)
		results := make([]ratelimit.Result, len(limiters))
		for i, limiter := range limiters {
			if results[i], err = limiter.Allow(ctx, "user:42"); err != nil {
				return nil, err
			}
		}
		rows = append(rows, row{at, results})
	}
	return rows, nil
}

// printTable prints a line for each algorithm, with what it says about each event, from
// left to right. Above them are the times of the events at which something changes.
func printTable(w io.Writer, algorithms []string, rows []row) {
	heads := map[time.Duration]string{
		900 * time.Millisecond: "0.9 s", time.Second: "1.0 s", 1100 * time.Millisecond: "1.1 s", 2 * time.Second: "2.0 s",
	}
	times := ""
	for i, r := range rows {
		times += strings.Repeat(" ", max(0, 2*i-len(times))) + heads[r.at]
	}
	fmt.Fprintf(w, "%-16s%-46sin 200ms  in 1s\n", "", times)
	for i, name := range algorithms {
		marks := ""
		for _, r := range rows {
			marks += mark(r.results[i]) + " "
		}
		most := departures(rows, i)
		fmt.Fprintf(w, "%-16s%-46s%-10d%d\n", name, marks, busiest(most, 200*time.Millisecond), busiest(most, time.Second))
	}
}

// mark shows a result as an admission or a denial.
func mark(r ratelimit.Result) string {
	if r.Allowed {
		return "+"
	}
	return "."
}

// departures returns the times at which algorithm i lets events go.
func departures(rows []row, i int) []time.Duration {
	var times []time.Duration
	for _, r := range rows {
		if r.results[i].Allowed {
			times = append(times, r.at+r.results[i].Delay)
		}
	}
	return times
}

// busiest returns the most events in any span of this length. The times ascend.
func busiest(times []time.Duration, span time.Duration) int {
	most, first := 0, 0
	for last, at := range times {
		for at-times[first] >= span {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

const explanation = `
The last two columns are the most requests that went through within any 200 ms, and
within any second. Requests of leaky_bucket go through after their Delay.

fixed_window    starts from zero at 1.0 s: a double burst, then nothing until 2.0 s
sliding_window  lets the burst before 1.0 s fade: one request every 200 ms from 1.2 s
sliding_log     forgets a request after exactly 1 s, the first at 1.9 s: 5 in any second
token_bucket    starts with 5 tokens and gains one every 200 ms: a burst, then the rate
leaky_bucket    admits the same requests, but lets one through every 200 ms`
